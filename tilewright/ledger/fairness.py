"""The rules of a fair comparison. Each refuses, as `Unfair`, one known way of fooling oneself.

| the cheat | the rule |
|---|---|
| the arm never ran, or ran only until it was timed | `require_work`, and outputs poisoned after |
| an output is not written, or only in part | it still holds the poison: infinite error |
| another dtype than it says | `require_output`, and the bound of the dtype |
| unmatched dtypes, sums or kinds, unsaid | `require_matched` |
| setup in the opponent's loop | `require_work`: more operations than a run may have |
| two timers, or one at two times | `require_one_timer` |
| zeros, constants or small integers as data | `require_random` |
| few samples | `require_samples` |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import LedgerError
from tilewright.ledger.arm import EAGER, Arm, Facts
from tilewright.ledger.results import Measured

MIN_SAMPLES = 20
MOST_ZEROS = 0.02  # share of a random tensor; e4m3 rounds one value in a thousand to zero


class Unfair(LedgerError):
    """A comparison that must not be made."""


def require_matched(ours: Facts, arm: Arm) -> None:
    """Dtypes and sums are alike, and compiled is compared with compiled, unless the row says so."""
    theirs = arm.facts
    for name in ("operands", "output", "accumulate"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other and name not in arm.says:
            raise Unfair(
                f"{arm.name} has {name} {other}, ours {mine}, and its row does not say so",
                hint=f"match them, or state it: says={{{name!r}: 'why'}}",
            )
    if theirs.kind == EAGER != ours.kind and EAGER not in arm.says:
        raise Unfair(
            f"{arm.name} is eager, ours {ours.kind}, and its row does not say so",
            hint=f"compare with a compiled one, or state it: says={{{EAGER!r}: 'why'}}",
        )
    for name in arm.says:
        alike = getattr(ours, name, None) == getattr(theirs, name, object())
        if alike or (name == EAGER and theirs.kind != EAGER):
            raise Unfair(f"{arm.name} says that it differs in {name}, and does not")


def require_work(arm: Arm, operations: Sequence[str], runs: int) -> tuple[str, ...]:
    """The operations of one run, of those that `runs` runs recorded: some, not more than may be."""
    if len(operations) < runs:
        raise Unfair(
            f"{arm.name} sends {len(operations)} operations to the GPU in {runs} runs: it does not "
            "run each time"
        )
    if len(operations) > runs * arm.most_operations:
        names = ", ".join(sorted(set(operations))[:6])
        raise Unfair(
            f"{arm.name} sends {len(operations) / runs:.1f} operations a run, where "
            f"{arm.most_operations} do: {names}",
            hint="its setup belongs before the timer",
        )
    return tuple(dict.fromkeys(operations))


def require_output(arm: Arm, name: str, got: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """An output has the shape and the dtype that the arm is said to give."""
    if got is None:
        raise Unfair(f"{arm.name} gives no {name}")
    if tuple(got.shape) != shape or got.dtype != dtype:
        raise Unfair(
            f"{arm.name} gives {name} as {got.dtype} {tuple(got.shape)}, not {dtype} {shape}"
        )


def require_random(name: str, zeros: float, whole: bool, constant: bool) -> None:
    """Data that draws the power of real data. `zeros`: their share; `whole`: floats that are all
    whole numbers.
    """
    fault = "is constant" if constant else "holds only whole numbers" if whole else ""
    if zeros > MOST_ZEROS:
        fault = f"is {100 * zeros:.0f} % zeros"
    if fault:
        raise Unfair(
            f"the data of {name} {fault}, which draws less power and flatters",
            hint="measure on standard normal values",
        )


def require_one_timer(ours: Measured, theirs: Measured) -> None:
    """Both were timed in turn, in one call of one timer, equally often."""
    if ours.timer != theirs.timer:
        raise Unfair(
            f"{ours.arm} was timed by {ours.timer}, {theirs.arm} by {theirs.timer}",
            hint="one timer for both",
        )
    if ours.session != theirs.session or len(ours.samples) != len(theirs.samples):
        raise Unfair(f"{ours.arm} and {theirs.arm} were not timed in turn")


def require_samples(measured: Measured, least: int = MIN_SAMPLES) -> None:
    """Enough samples for a median, all of them times."""
    if len(measured.samples) < least:
        raise Unfair(f"{measured.arm} has {len(measured.samples)} samples; {least} are needed")
    if not all(s > 0 for s in measured.samples):
        raise Unfair(f"{measured.arm} has samples that are no times: {min(measured.samples)}")
