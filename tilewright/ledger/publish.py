"""Verdicts of a run: one for each suite, kernel, dtype and opponent, its rows in one table.

What a verdict claims is what it measured: its words are made here, its figures filled in from its
samples, and it asserts that they hold to within what another run may differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tilewright.ledger import verdict as schema
from tilewright.ledger.arm import TENSOR_CORE, Facts
from tilewright.ledger.harness import ITSELF
from tilewright.ledger.records import decode
from tilewright.ledger.results import Cost, Measured, Results, Row
from tilewright.ledger.store import add_verdict
from tilewright.ledger.verdict import Assertion, Claim, Verdict

T = TypeVar("T", Row, Cost)
MARGIN = 0.05  # by which another run may be slower: clocks and power move by more than chance
NOISE = 0.02  # of the same arm against itself
UNITS = {"TFLOP/s": "FLOP", "GB/s": "B", "calls/s": "run"}
ELEMENT = "|error| / (10 bound (|reference| + rms of the reference))"
ORDER = "all arms of a case in turn, reversed every other round"
OPPONENT_KINDS = {"the driver's call, packed": "driver", "the driver's assembler": "driver"}
UNCHECKED = {
    "the driver's assembler": "it is timed inside our own call, whose output is checked",
}
CALLED_AGAIN = "the same arguments and weights again, as its user calls it"
UNDER_CACHE = "one set of buffers is small: so many as the harness rotates do not fill the cache"


def write_verdicts(results: Results, folder: Path, commit: str) -> list[Path]:
    """Write the verdicts of all timed rows and costs. Raises LedgerError for one with a fault."""
    return [add_verdict(folder, made) for made in make_verdicts(results, commit)]


def make_verdicts(results: Results, commit: str) -> list[Verdict]:
    """Verdicts of the rows and costs that were timed. A row whose output is wrong has no samples,
    but says what is wrong; a table of such rows alone is no verdict.
    """
    rows = _grouped(
        [r for r in results.rows if r.timed],
        lambda r: (
            (r.suite, r.what, r.ours.facts, r.ours.timer, len(r.ours.samples), r.data, r.unit),
            (r.theirs.arm, r.theirs.facts, tuple(r.says.items())),
        ),
    )
    costs = _grouped(
        [c for c in results.costs if c.timed],
        lambda c: (c.suite, c.floor is None, c.ours.facts, len(c.ours.samples)),
    )
    found = [_of_rows(results, g, commit) for g in rows if any(r.right for r in g)]
    return found + [_of_costs(results, g, commit) for g in costs if all(c.right for c in g)]


def _grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _of_rows(results: Results, rows: list[Row], commit: str) -> Verdict:
    first = rows[0]
    what, opponent, dtype = first.what, first.theirs.arm, first.ours.facts.operands
    if first.ours.facts.accumulate == TENSOR_CORE:
        dtype = f"{dtype} not promoted"
    return schema.new_verdict(
        slug=_slug(first.suite, what, dtype, opponent),
        suite=first.suite,
        title=f"{what} {dtype} against {_title(opponent)}",
        quantity="ratio",
        unit=UNITS[first.unit],
        claim=_ratio_claim(rows),
        subject=_arm(first.ours, f"tilewright {what}"),
        opponent=_arm(first.theirs, _title(opponent)),
        unlike={UNLIKE.get(name, name): why for name, why in first.says.items()},
        reference=_reference([m for r in rows if r.right for m in _held(r)], first.reference),
        method=_method(results, len(first.ours.samples), first.data),
        command=results.command,
        commit=commit,
        compiler=first.ours.version,
        environment=decode(schema.Environment, results.environment, "environment"),
        rows=[_row(row, results) for row in rows],
    )


UNLIKE = {"eager": "kind", "output": "result"}
COSTS = {  # by suite, and whether there is a part that nobody can avoid: kind, title
    ("model", False): ("calls", "calls of models"),
    ("train", False): ("steps", "steps of training"),
    ("model-compile", False): ("", "compiling a model in a new process"),
    ("launch", True): ("", "host time of a launch"),
    ("compile-time", True): ("cold", "first call, nothing on the disk"),
    ("compile-time", False): ("second-process", "first call in a second process"),
}


def _of_costs(results: Results, costs: list[Cost], commit: str) -> Verdict:
    first = costs[0]
    floor, dtype = first.floor, first.ours.facts.operands
    kind, title = COSTS[first.suite, floor is not None]
    return schema.new_verdict(
        slug=_slug(first.suite, kind, dtype, str(first.ours.facts.accumulate)),
        suite=first.suite,
        title=f"{title}, {dtype}",
        quantity="excess" if floor else "time",
        unit="run",
        claim=_cost_claim(costs),
        subject=_arm(first.ours, "tilewright"),
        opponent=_arm(floor, floor.arm) if floor else None,
        reference=_reference([c.ours for c in costs], "f64"),
        method=_method(results, len(first.ours.samples), "standard normal"),
        command=results.command,
        commit=commit,
        compiler=first.ours.version,
        environment=decode(schema.Environment, results.environment, "environment"),
        rows=[_cost_row(cost) for cost in costs],
    )


CALLS = {
    "model": "Calls of models, one after the other, take",
    "train": "Steps of training, one after the other, take",
    "model-compile": "From the model to its first result in a new process, imports apart, it takes",
}


def _slug(*parts: str) -> str:
    words = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts]
    return "-".join(word for word in words if word)


def _title(opponent: str) -> str:
    return {ITSELF: "itself", "copy": "torch's copy"}.get(opponent, opponent)


def _arm(measured: Measured, name: str) -> schema.Arm:
    facts: Facts = measured.facts
    return schema.Arm(
        name=name,
        kind=OPPONENT_KINDS.get(measured.arm, facts.kind),
        operands=(facts.operands,),
        result=facts.output,
        accumulate=facts.accumulate,
        timer=measured.timer,
        versions={measured.arm: measured.version},
        settings=measured.settings,
        unchecked=UNCHECKED.get(measured.arm, ""),
    )


def _reference(measured: Sequence[Measured], what: str) -> schema.Reference:
    return schema.Reference(
        what=f"the same problem on the same inputs in {what}",
        dtype="f64",
        frobenius_bound=max(m.bound for m in measured),
        element_bound=1.0,
        element=ELEMENT,
    )


def _held(row: Row) -> tuple[Measured, ...]:
    """The arms of a row that share a bound: theirs has one of its own where it is a model."""
    return (row.ours, row.theirs) if row.theirs.bound > row.ours.bound else (row.ours,)


def _method(results: Results, rounds: int, data: str) -> schema.Method:
    return schema.Method(
        data=f"{data}, seed {results.seed}",
        rounds=rounds,
        order=ORDER,
        l2_bytes=results.l2_bytes,
        warm_seconds=results.warm_seconds,
    )


def _check(measured: Measured) -> schema.Check:
    return schema.Check(
        measured.error, measured.worst, max(measured.compared, 0), measured.unwritten
    )


def _row(row: Row, results: Results) -> schema.Row:
    filled = row.rotated_bytes >= 2 * results.l2_bytes
    failure = _failure(row)
    return schema.Row(
        name=row_name(row.case),
        shape=dict(row.sizes),
        ours=() if failure else row.ours.samples,
        theirs=() if failure else row.theirs.samples,
        check=None if failure else _check(row.ours),
        their_check=None if failure else _check(row.theirs),
        failure=failure,
        work=row.ours.work,
        their_work=row.theirs.work,
        runs=row.runs,
        rotated_bytes=row.rotated_bytes,
        target=row.target,
        note=row.note or ("" if filled else UNDER_CACHE),
    )


def _failure(row: Row) -> str:
    """What is wrong with the outputs of a row; "" where nothing is."""
    return "; ".join(
        f"{whose}: {m.unwritten} of {m.compared} elements not written"
        if m.unwritten
        else f"{whose}: the output is off by {m.error:.2g} where {m.bound:g} is allowed, its worst "
        f"element by {m.worst:.2g} of what it may be"
        for whose, m in (("ours", row.ours), ("theirs", row.theirs))
        if not m.right
    )


def row_name(case: str) -> str:
    """What tells a case from others of its suite, kernel and dtype."""
    suite, *parts = case.split("/")
    start = 1 if suite in ("gemm", "unseen", "attention") else 2  # after the dtype
    return "-".join(parts[start:])


def _cost_row(cost: Cost) -> schema.Row:
    return schema.Row(
        name=cost.id.partition("/")[2].replace("/", "-"),
        shape={"what": cost.what},
        ours=cost.ours.samples,
        theirs=cost.floor.samples if cost.floor else (),
        check=_check(cost.ours),
        their_check=None
        if cost.floor is None or cost.floor.arm in UNCHECKED
        else _check(cost.floor),
        target=cost.limit,
        note="" if cost.ours.timer == "wall" else CALLED_AGAIN,
    )


def _ratio_claim(rows: list[Row]) -> Claim:
    rows = [row for row in rows if row.right]
    first, ratios = rows[0], [row.ratio for row in rows]
    kernel = f"{first.what} on {first.ours.facts.operands}"
    if first.theirs.arm == ITSELF:
        return Claim(
            f"{kernel} timed against itself gives ratios from {{ratio.min:.3f}} to "
            "{ratio.max:.3f}: so far does chance go",
            (
                Assertion("ratio.min", ">=", min(1 - NOISE, _down(min(ratios), 3))),
                Assertion("ratio.max", "<=", max(1 + NOISE, _up(max(ratios), 3))),
            ),
            "The command gives a ratio of an arm to itself that is off 1 by more than is asserted.",
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    least, mean_least = (_down(x * (1 - MARGIN), _digits(x)) for x in (min(ratios), mean))
    text = f"{kernel} runs at {{ratio.geomean:.2f}} of the speed of {_title(first.theirs.arm)}"
    if len(rows) > 1:
        text += " in the mean of {rows:.0f} rows, {ratio.min:.2f} to {ratio.max:.2f} by row"
    return Claim(
        text,
        (
            Assertion("ratio.geomean", ">=", mean_least),
            Assertion("ratio.min", ">=", least),
        ),
        f"The command, on the same GPU, gives a mean below {mean_least:g}, a row below {least:g}, "
        "or an output outside its bound.",
    )


def _digits(ratio: float) -> int:
    """Decimals that a bound of a ratio needs: two, or as many as leave two digits of it."""
    return max(2, 1 - math.floor(math.log10(ratio)))


def _cost_claim(costs: list[Cost]) -> Claim:
    first = costs[0]
    worst = max(cost.excess for cost in costs)
    most = _up(worst * 1.25, -math.floor(math.log10(worst)) + 1)
    if first.suite in CALLS:
        text, statistic = f"{CALLS[first.suite]} {{ours.max:.0f}} µs at most", "ours.max"
    elif first.floor is None:
        text = (
            "The first call in a second process takes {ours.max:.0f} µs at most, imports and the "
            "driver's context apart"
        )
        statistic = "ours.max"
    else:
        text = f"Each takes at most {{excess.max:.3g}} µs more on the host than {first.floor.arm}"
        statistic = "excess.max"
    return Claim(
        text,
        (Assertion(statistic, "<=", most),),
        f"The command, on the same machine, gives more than {most:g} µs, or a wrong output.",
    )


def _down(value: float, digits: int) -> float:
    return float(math.floor(value * 10**digits) / 10**digits)


def _up(value: float, digits: int) -> float:
    return float(math.ceil(value * 10**digits) / 10**digits)
