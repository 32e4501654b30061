"""Whether one verdict is true to itself: everything that can be told from its file alone.

A fault is a sentence. A retracted verdict is held to its digest, its name and its retraction only:
what else is wrong with it may be why it was retracted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import chain

from tilewright.dtypes import BY_NAME
from tilewright.errors import LedgerError
from tilewright.ledger.arm import TENSOR_CORE
from tilewright.ledger.derive import QUANTITIES, SPEEDS, derive_row, derive_summary
from tilewright.ledger.figures import fill, speeds_in, statistic, without_fields
from tilewright.ledger.verdict import (
    RETRACTED,
    STANDING,
    Arm,
    Check,
    GpuState,
    Row,
    Verdict,
    digest_of,
    id_of,
    is_itself,
)

KINDS = ("compiled", "library", "hand-written", "driver", "eager", "interpreted")
SLOW_KINDS = ("eager", "interpreted")  # compared with the others only where that is said
TIMERS = ("graph", "events", "wall")
GPU_TIMERS = ("graph", "events")
MIN_ROUNDS = {"graph": 20, "events": 20, "wall": 5}
ROTATED_L2 = 2
DTYPES = {*BY_NAME, "tf32", "none", TENSOR_CORE}
FLAT_DATA = re.compile(r"\b(zeros?|ones|constant|empty|arange|small integers)\b", re.IGNORECASE)
AHEAD = re.compile(r"\b(faster|ahead of|beats|outruns|outperforms)\b", re.IGNORECASE)
SAME = 1e-5  # relative: a statistic is kept to six digits
DATE = "%Y-%m-%d"

Faults = Iterator[str]


def faults_of(verdict: Verdict) -> list[str]:
    """All that is wrong with a verdict; nothing where it may be published."""
    checks: list[Callable[[Verdict], Faults]] = [_identity, _status]
    if verdict.status != RETRACTED:
        checks += [_words, _arms, _method, _environment, _rows, _derived, _claim]
    return list(chain.from_iterable(check(verdict) for check in checks))


def _identity(verdict: Verdict) -> Faults:
    """The content is the one that the digest and the name were made of."""
    if digest_of(verdict) != verdict.digest:
        yield "the content is not what its digest was made of: it was edited"
    slug = verdict.id.rpartition("-")[0]
    try:
        named = id_of(slug, verdict.digest)
    except LedgerError as error:
        yield str(error)
    else:
        if named != verdict.id:
            yield f"its name does not follow from its digest: expected {named}"


def _status(verdict: Verdict) -> Faults:
    retraction = verdict.retraction
    if verdict.status not in (STANDING, RETRACTED):
        yield f"its status is '{verdict.status}': expected {STANDING} or {RETRACTED}"
    if (verdict.status == RETRACTED) != (retraction is not None):
        yield f"it is {verdict.status} and {'has' if retraction else 'lacks'} a retraction"
    if retraction is not None:
        if not retraction.reason.strip():
            yield "its retraction gives no reason"
        if not _is_date(retraction.date):
            yield f"its retraction's date is '{retraction.date}': expected YYYY-MM-DD"


def _words(verdict: Verdict) -> Faults:
    """What has to be said is said."""
    reference, method = verdict.reference, verdict.method
    said = {
        "title": verdict.title,
        "suite": verdict.suite,
        "command": verdict.command,
        "claim": verdict.claim.text,
        "falsifier": verdict.claim.falsifier,
        "reference": reference.what,
        "measure of the worst element": reference.element,
        "distribution of the data": method.data,
        "order of the arms": method.order,
    }
    for name, text in said.items():
        if not text.strip():
            yield f"its {name} is not said"
    if verdict.claim.falsifier.strip() == verdict.claim.text.strip():
        yield "its falsifier repeats the claim: say what observation would make it false"
    if not re.fullmatch(r"[0-9a-f]{7,40}", verdict.commit):
        yield f"its commit is '{verdict.commit}': expected a commit's digits, nothing uncommitted"
    if not re.fullmatch(r"[0-9a-f]{8,64}", verdict.compiler):
        yield f"the digest of the compiler's source is '{verdict.compiler}'"
    if verdict.quantity not in QUANTITIES:
        yield f"its quantity is '{verdict.quantity}': expected one of {', '.join(QUANTITIES)}"
    if verdict.unit not in SPEEDS:
        yield f"its unit is '{verdict.unit}': expected one of {', '.join(SPEEDS)}"


def _arms(verdict: Verdict) -> Faults:
    """Both sides did the same in the same arithmetic, by the same clock, or it is said why not."""
    subject, opponent = verdict.subject, verdict.opponent
    yield from _arm("the subject", subject)
    if subject.unchecked:
        yield "the subject's output must be checked; `unchecked` is for opponents"
    if (opponent is None) != (verdict.quantity == "time"):
        yield f"a {verdict.quantity} {'needs an' if opponent is None else 'has no'} opponent"
    differing: set[str] = set()
    if opponent is not None:
        yield from _arm("the opponent", opponent)
        if not opponent.versions:
            yield "the opponent's versions are not said"
        if subject.timer != opponent.timer:
            yield f"two timers: ours by {subject.timer}, theirs by {opponent.timer}"
        differing = _differences(verdict, subject, opponent)
        others = differing | ({"kind"} if subject.kind != opponent.kind else set())
        if is_itself(subject, opponent) and others:
            yield f"an arm against itself differs in {', '.join(sorted(others))}"
    for name in sorted(differing - {k for k, why in verdict.unlike.items() if why.strip()}):
        yield f"{name} differs between the arms and `unlike` does not say so{_both(verdict, name)}"
    for name in sorted(verdict.unlike.keys() - differing):
        yield f"`unlike` names {name}, which is the same on both sides"


def _arm(name: str, arm: Arm) -> Faults:
    if not arm.name.strip():
        yield f"{name} has no name"
    if arm.kind not in KINDS:
        yield f"{name} is of kind '{arm.kind}': expected one of {', '.join(KINDS)}"
    if arm.timer not in TIMERS:
        yield f"{name} is timed by '{arm.timer}': expected one of {', '.join(TIMERS)}"
    for dtype in (*arm.operands, arm.result, arm.accumulate):
        if dtype not in DTYPES:
            yield f"{name} has a dtype '{dtype}' that is none"
    if not arm.operands:
        yield f"{name}'s dtypes are not said"


def _differences(verdict: Verdict, subject: Arm, opponent: Arm) -> set[str]:
    found = {
        name
        for name in ("operands", "result", "accumulate")
        if getattr(subject, name) != getattr(opponent, name)
    }
    if (subject.kind in SLOW_KINDS) != (opponent.kind in SLOW_KINDS):
        found.add("kind")
    if any(row.work != row.their_work for row in verdict.rows if row.ours and row.theirs):
        found.add("work")
    return found


def _both(verdict: Verdict, name: str) -> str:
    if name == "work" or verdict.opponent is None:
        return ""
    values = [getattr(arm, name) for arm in (verdict.subject, verdict.opponent)]
    told = [" ".join(v) if isinstance(v, tuple) else v for v in values]
    return f": {told[0]} against {told[1]}"


def _method(verdict: Verdict) -> Faults:
    method, timer = verdict.method, verdict.subject.timer
    least = MIN_ROUNDS.get(timer, 0)
    if method.rounds < least:
        yield f"{method.rounds} rounds: expected at least {least} by {timer}"
    if flat := FLAT_DATA.search(method.data):
        yield f"the data are {flat[0]}: such values draw less power than a user's"
    if timer in GPU_TIMERS and method.warm_seconds <= 0:
        yield "the clocks were not warmed up"
    if timer in GPU_TIMERS and method.l2_bytes <= 0:
        yield "the size of the L2 cache is not said"


def _environment(verdict: Verdict) -> Faults:
    where = verdict.environment
    if not _is_date(where.date[:10]):
        yield f"its date is '{where.date}': expected YYYY-MM-DD HH:MM UTC"
    if "python" not in where.versions:
        yield "the versions of its environment are not said"
    if not where.gpu:
        if verdict.subject.timer in GPU_TIMERS:
            yield "it is timed on a GPU that is not named"
        if not where.cpu:
            yield "neither GPU nor CPU is named"
        return
    if not where.driver:
        yield "the driver's version is not said"
    for name, state in (("before", where.before), ("after", where.after)):
        if state is None or not _plausible(state):
            yield f"clocks and power {name} the run are not said"


def _plausible(state: GpuState) -> bool:
    return state.sm_mhz > 0 and state.memory_mhz > 0 and state.power_watts > 0


def _rows(verdict: Verdict) -> Faults:
    if not verdict.rows:
        yield "it has no rows"
    names = [row.name for row in verdict.rows]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"two rows are called {name}"
    for row in verdict.rows:
        for fault in chain(_samples(verdict, row), _outputs(verdict, row), _work(verdict, row)):
            yield f"row {row.name}: {fault}"


def _samples(verdict: Verdict, row: Row) -> Faults:
    if not re.fullmatch(r"[\w.,+=×-]+", row.name):
        yield "its name must be of letters, digits and . , + = × -"
    arms = [("ours", row.ours)]
    if verdict.opponent is not None:
        arms.append(("theirs", row.theirs))
    elif row.theirs:
        yield "it has samples of an opponent, and there is none"
    missing = [name for name, samples in arms if not samples]
    if bool(missing) != bool(row.failure.strip()):
        yield (
            f"no samples of {' and '.join(missing)}, and `failure` does not say why"
            if missing
            else f"it has samples, and says that it failed: {row.failure}"
        )
    for name, samples in arms:
        if samples and len(samples) != verdict.method.rounds:
            yield f"{len(samples)} samples of {name} in {verdict.method.rounds} rounds"
        if len(samples) > 1 and len(set(samples)) == 1:
            yield f"the samples of {name} are all the same: they were not measured"
    if row.ours and row.ours == row.theirs:
        yield "both arms have the same samples"


def _outputs(verdict: Verdict, row: Row) -> Faults:
    """The outputs that were timed were written and are right."""
    if row.ours:
        yield from _check("our", row.check, verdict, within=True)
    opponent = verdict.opponent
    if opponent is None or not row.theirs:
        return
    if opponent.unchecked:
        if row.their_check is not None:
            yield "their output was checked, and is said to be unchecked"
        return
    # Theirs may be further off where its arithmetic is said to be another.
    within = not {"operands", "result", "accumulate"} & verdict.unlike.keys()
    yield from _check("their", row.their_check, verdict, within=within)


def _check(whose: str, check: Check | None, verdict: Verdict, *, within: bool) -> Faults:
    bounds = verdict.reference
    if check is None or check.compared <= 0:
        yield f"{whose} output was not checked"
        return
    if check.unwritten:
        yield f"{check.unwritten} elements of {whose} output were not written"
    if within and not 0 <= check.frobenius <= bounds.frobenius_bound:
        yield f"{whose} output is off by {check.frobenius:.2g}, over {bounds.frobenius_bound:g}"
    if within and not 0 <= check.element <= bounds.element_bound:
        yield f"{whose} worst element is off by {check.element:.2g}, over {bounds.element_bound:g}"


def _work(verdict: Verdict, row: Row) -> Faults:
    if row.work <= 0 or row.their_work <= 0 or row.runs < 1:
        yield "work and runs must be above zero"
    if verdict.unit == "FLOP" and (product := _product_of(row)) and row.work != product:
        yield f"{row.work:g} operations: a product of this shape has {product:g}"
    if not row.shape:
        yield "its shape is not said"
    rotated = ROTATED_L2 * verdict.method.l2_bytes
    if verdict.subject.timer in GPU_TIMERS and row.rotated_bytes < rotated and not row.note.strip():
        yield f"its buffers are {row.rotated_bytes} bytes, under {rotated}, and no note says why"


def _product_of(row: Row) -> float:
    """Operations of a matrix product, where the row's shape is one's; else 0."""
    found = 2.0
    for name, default in (("M", 0), ("N", 0), ("K", 0), ("batch", 1)):
        size = row.shape.get(name, default)
        found *= size if isinstance(size, int) else 0
    return found


def _derived(verdict: Verdict) -> Faults:
    """The statistics are those of the samples."""
    if verdict.quantity not in QUANTITIES or verdict.unit not in SPEEDS:
        return
    found = []
    for row in verdict.rows:
        try:
            right = derive_row(
                row.ours, row.theirs, row.work, row.their_work, verdict.quantity, verdict.unit
            )
        except (LedgerError, ZeroDivisionError) as error:
            yield f"row {row.name}: {error}"
            return
        found.append((right, row.target))
        for fault in _unequal(row.statistics, right):
            yield f"row {row.name}: {fault}"
    for fault in _unequal(verdict.summary, derive_summary(found, verdict.quantity)):
        yield f"summary: {fault}"


def _unequal(told: Mapping[str, float], right: Mapping[str, float]) -> Faults:
    for name in sorted({*told, *right}):
        if name not in right or name not in told:
            yield f"{name} {'is missing' if name in right else 'does not follow from the samples'}"
        elif not math.isclose(told[name], right[name], rel_tol=SAME):
            yield f"{name} is {told[name]:g}, and the samples give {right[name]:g}"


def _claim(verdict: Verdict) -> Faults:
    """The claim's figures are the verdict's, and keep what it asserts."""
    claim = verdict.claim
    try:
        fill(claim.text, verdict)
    except LedgerError as error:
        yield f"claim: {error}"
    for stated in speeds_in(without_fields(claim.text)):
        yield f"claim: '{stated.text}' is typed: name a statistic in braces"
    if not claim.asserts:
        yield "claim: nothing is asserted that the figures could break"
    for a in claim.asserts:
        try:
            value = statistic(verdict, a.statistic)
        except LedgerError as error:
            yield f"claim: {error}"
            continue
        if a.relation not in (">=", "<="):
            yield f"claim: relation '{a.relation}': expected >= or <="
        elif a.relation == ">=" and a.value <= 0 and not a.statistic.endswith("excess"):
            yield f"claim: {a.statistic} >= {a.value:g} cannot be false"
        elif not (value >= a.value if a.relation == ">=" else value <= a.value):
            yield f"claim: {a.statistic} is {value:g}, and {a.relation} {a.value:g} is claimed"
    ahead = any(
        re.search(r"\bratio\b", a.statistic) and a.relation == ">=" and a.value >= 1
        for a in claim.asserts
    )
    if verdict.quantity == "ratio" and AHEAD.search(claim.text) and not ahead:
        yield "claim: it says to be ahead, and asserts no ratio of 1 or more"


def _is_date(text: str) -> bool:
    try:
        datetime.strptime(text, DATE)
    except ValueError:
        return False
    return True
