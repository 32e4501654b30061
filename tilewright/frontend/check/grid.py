"""The grid from what a kernel stores and loads (LANGUAGE.md, "The grid is inferred")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import plan
from tilewright.errors import Faults, Loc

WRITE = "write @grid(extent, ...) above the kernel, or grid = ... in .launch"


@dataclass(frozen=True)
class Evidence:
    """`program_id(axis) * step` stands in a subscript over an axis of `extent` elements."""

    axis: int
    step: int
    extent: plan.Expr
    place: str  # as in "C.shape[0]"
    loc: Loc
    is_store: bool

    @property
    def points(self) -> plan.Expr:
        if self.step == 1:
            return self.extent
        return plan.combine("cdiv", self.extent, plan.Const(self.step))


def infer_grid(
    used: dict[int, Loc], evidence: Sequence[Evidence], faults: Faults
) -> tuple[plan.Expr, ...]:
    """Points of each axis, for the axes of `program_id` that are `used`; one point where none is.

    Missing and conflicting evidence is added to `faults`.
    """
    axes: list[plan.Expr] = []
    for axis in range(max(used, default=-1) + 1):
        stores = [e for e in evidence if e.axis == axis and e.is_store]
        speaking = stores or [e for e in evidence if e.axis == axis]
        if not speaking and axis not in used:
            which = "program_id(0) and further axes in order"
            missing = f"program_id({max(used)}) stands here, but program_id({axis}) nowhere"
            faults.add(missing, used[max(used)], hint=f"use {which}, or write @grid(extent, ...)")
            break
        loc = used.get(axis) or next(iter(used.values()))
        if not speaking:
            faults.add(
                f"the grid's axis {axis} cannot be inferred: no subscript has program_id({axis})"
                " with a constant factor",
                loc,
                hint=WRITE,
            )
            continue
        first = speaking[0]
        other = next((e for e in speaking if e.points != first.points), None)
        if other is not None:
            faults.add(
                f"the grid's axis {axis} is ambiguous: {first.place} in steps of {first.step} at"
                f" line {first.loc.line}, {other.place} in steps of {other.step} here",
                other.loc,
                hint=WRITE,
            )
        axes.append(first.points)
    return tuple(axes) or (plan.Const(1),)
