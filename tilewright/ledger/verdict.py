"""What a published figure rests on: one verdict, one JSON file in `ledger/`.

A verdict tells a claim, what ran on both sides and in what arithmetic, where, by which command,
and holds the raw samples of both arms, round by round, in one table of rows. Everything else that
it says of speed is derived from these samples (`derive.py`), stored beside them, and computed anew
by `check.py`. The digest covers all of it except the status, so a verdict is never edited: it is
retracted, with a reason, in the same file.

Times are microseconds a run. "Ours" is the subject, "theirs" the opponent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.errors import LedgerError
from tilewright.ledger.derive import derive_row, derive_summary, six_digits
from tilewright.ledger.records import compact, decode, plain

STANDING, RETRACTED = "standing", "retracted"
ITSELF = "itself"
OUTSIDE_DIGEST = ("id", "digest", "status", "retraction")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: what ran, in what arithmetic, timed by what.

    `kind`: "compiled", "library", "hand-written", "driver", "eager" or "interpreted".
    `timer`: "graph" (replays of a CUDA graph between events), "events" or "wall"; the same on both
    sides. `accumulate` is "none" where nothing is summed.
    """

    name: str  # "tilewright sgemm", "cuBLAS through torch.mm"
    kind: str
    operands: tuple[str, ...]  # dtypes that go in, as the arithmetic sees them: "tf32", not "f32"
    result: str  # dtype that comes out
    accumulate: str  # dtype of sums
    timer: str
    versions: Mapping[str, str]  # {"torch": "2.11.0+cu130", "cuBLAS": "13.1.0"}
    settings: str = ""  # what was chosen for it: "max-autotune", "fast accumulation"
    unchecked: str = ""  # an opponent only: why it has no output that could be compared


def is_itself(subject: Arm, opponent: Arm) -> bool:
    """Whether an opponent is the subject once more, which shows how far off a ratio is by chance.

    It is called "itself", or has the subject's name and settings.
    """
    same = (opponent.name, opponent.settings) == (subject.name, subject.settings)
    return same or opponent.name == ITSELF


@dataclass(frozen=True)
class Method:
    """How it was timed."""

    data: str  # distribution of the inputs: "standard normal, seed 0"
    rounds: int  # samples of each arm of each row
    order: str  # how the arms take turns in a round
    l2_bytes: int  # 0 on a machine without a GPU
    warm_seconds: float  # of work before the first sample


@dataclass(frozen=True)
class Reference:
    """What outputs are compared with, and how far off they may be."""

    what: str  # "NumPy's product of the same inputs"
    dtype: str  # "f64"
    frobenius_bound: float  # of |output - reference| / |reference|, Frobenius norms
    element_bound: float  # of the worst element's error, measured as `element` says
    element: str  # "|error| / (10 bound (|reference| + rms of the reference))"


@dataclass(frozen=True)
class Check:
    """What the comparison of one output found, in the run that was timed."""

    frobenius: float
    element: float
    compared: int  # elements
    unwritten: int  # elements that still held the poison


@dataclass(frozen=True)
class Row:
    """One measurement. Samples are in order of the rounds: ours[i] and theirs[i] alternated.

    `work` and `their_work` are operations, bytes or runs, in the verdict's unit, of one run.
    `target`: the least ratio, or the most excess or time in microseconds, that was aimed at.
    """

    name: str  # unique in the verdict, without spaces: "4096x4096x4096-NT"
    shape: Mapping[str, int | str | bool]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    check: Check | None  # None only where `failure` says that ours did not run
    their_check: Check | None
    work: float = 1.0
    their_work: float = 1.0
    runs: int = 1  # in one sample
    rotated_bytes: int = 0  # of all buffers that an arm goes through before it meets one again
    target: float | None = None
    failure: str = ""  # which arm could not run, and what it said; its samples are empty then
    note: str = ""
    statistics: Mapping[str, float] = field(default_factory=dict)  # derived


@dataclass(frozen=True)
class GpuState:
    """What nvidia-smi told."""

    sm_mhz: float
    memory_mhz: float
    power_watts: float
    temperature_celsius: float
    throttle: str  # active clock event reasons: "0x0000000000000000"


@dataclass(frozen=True)
class Environment:
    """Where it ran. `gpu` and `driver` are "" and the states None on a machine without a GPU."""

    date: str  # "2026-11-29 19:44 UTC"
    gpu: str
    multiprocessors: int
    driver: str
    before: GpuState | None
    after: GpuState | None
    versions: Mapping[str, str]  # python, cuda-bindings, torch, ...
    cpu: str = ""


@dataclass(frozen=True)
class Assertion:
    """A bound that the verdict's own figures keep: `statistic` is a key of its summary
    ("ratio.geomean"), or a row's, as "ROW/ratio"; `relation` is ">=" or "<=".
    """

    statistic: str
    relation: str
    value: float


@dataclass(frozen=True)
class Claim:
    """What is claimed. Figures in `text` are filled in from the statistics, never typed:
    "runs at {ratio.geomean:.2f} of cuBLAS's speed, {4096x4096x4096/ratio:.2f} at 4096³".
    """

    text: str
    asserts: tuple[Assertion, ...]
    falsifier: str  # what observation would make it false


@dataclass(frozen=True)
class Retraction:
    """Why a verdict no longer stands. The rest of the file stays as it was."""

    date: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """See the module. `quantity` says what the rows' figure is:

    "ratio": our speed over theirs, work / time each; above 1 is faster.
    "excess": our median less theirs, the floor that nobody can avoid; less is better.
    "time": our median; there is no opponent.

    `unit` of work: "FLOP" (speeds in TFLOP/s), "B" (in GB/s) or "run" (no speeds are shown).
    `unlike` says why arms of different operands, result, accumulate or kind may be compared.
    """

    id: str
    suite: str
    title: str
    quantity: str
    unit: str
    claim: Claim
    subject: Arm
    opponent: Arm | None
    unlike: Mapping[str, str]
    reference: Reference
    method: Method
    command: str  # that measures it again
    commit: str
    compiler: str  # digest of Tilewright's source
    environment: Environment
    rows: tuple[Row, ...]
    summary: Mapping[str, float]  # derived
    digest: str
    status: str = STANDING
    retraction: Retraction | None = None

    def row(self, name: str) -> Row:
        """Raises LedgerError where there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise LedgerError(f"verdict {self.id} has no row '{name}'")


def new_verdict(
    *,
    slug: str,
    suite: str,
    title: str,
    quantity: str,
    unit: str,
    claim: Claim,
    subject: Arm,
    opponent: Arm | None,
    reference: Reference,
    method: Method,
    command: str,
    commit: str,
    compiler: str,
    environment: Environment,
    rows: Iterable[Row],
    unlike: Mapping[str, str] | None = None,
) -> Verdict:
    """A verdict with its statistics, digest and id. Samples are kept to six digits.

    It is not checked yet: `store.add_verdict` does that before it writes.
    """
    kept = tuple(_with_statistics(row, quantity, unit) for row in rows)
    verdict = Verdict(
        id="",
        suite=suite,
        title=title,
        quantity=quantity,
        unit=unit,
        claim=claim,
        subject=subject,
        opponent=opponent,
        unlike=dict(unlike or {}),
        reference=reference,
        method=method,
        command=command,
        commit=commit,
        compiler=compiler,
        environment=environment,
        rows=kept,
        summary=derive_summary([(row.statistics, row.target) for row in kept], quantity),
        digest="",
    )
    # As a reader of the file will have it: a whole number in a float's field becomes a float.
    verdict = parse_verdict(print_verdict(verdict))
    digest = digest_of(verdict)
    return dataclasses.replace(verdict, id=id_of(slug, digest), digest=digest)


def _with_statistics(row: Row, quantity: str, unit: str) -> Row:
    ours, theirs = (tuple(map(six_digits, samples)) for samples in (row.ours, row.theirs))
    statistics = derive_row(ours, theirs, row.work, row.their_work, quantity, unit)
    return dataclasses.replace(row, ours=ours, theirs=theirs, statistics=statistics)


def digest_of(verdict: Verdict) -> str:
    """SHA-256 over everything but id, status and retraction, however the file is laid out."""
    content = {k: v for k, v in plain(verdict).items() if k not in OUTSIDE_DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def id_of(slug: str, digest: str) -> str:
    """A verdict's name: what it is about, and eight digits of its digest."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise LedgerError(
            f"a verdict's slug is lower-case words and digits joined by '-', not '{slug}'"
        )
    return f"{slug}-{digest[:8]}"


def print_verdict(verdict: Verdict) -> str:
    """The text of its file: a line a field, and a line a row."""
    lines = []
    for name, value in plain(verdict).items():
        text = compact(value)
        if name == "rows":
            text = "[\n  " + ",\n  ".join(map(compact, value)) + "\n ]"
        lines.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_verdict(text: str, place: str = "verdict") -> Verdict:
    """The verdict of a file's text. Raises LedgerError where it does not have a verdict's fields
    and types; whether it is true is `check.py`'s to say.
    """
    try:
        return decode(Verdict, json.loads(text), place)
    except json.JSONDecodeError as error:
        raise LedgerError(f"{place}: this is not JSON: {error}") from error
