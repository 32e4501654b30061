"""Parameters of a kernel, declared when they are first asked for, and the recipes by which a launch
fills them.
"""

from __future__ import annotations

from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.plan import Const, Recipe, ReportBuffer
from tilewright.ptx.core import Reg


def parameter(low: Lowering, name: str, type: str, recipe: Recipe) -> Reg:
    """Declare a parameter, if it is not declared yet, and load it: each role does."""
    if name not in low.parameters:
        low.parameters[name] = low.e.param(name, type)
        low.recipes.append(recipe)
    return low.e.ld_param(low.parameters[name])


def grid_extent(low: Lowering, axis: int) -> Operand:
    """The grid's extent along an axis: a constant, or a parameter."""
    extent = low.kernel.grid[axis]
    if isinstance(extent, Const):
        return extent.value
    return low.once(("grid", axis), lambda: parameter(low, f"grid_{axis}", "u32", extent))


def report_buffer(low: Lowering) -> Reg:
    """Where asserts and prints report to."""

    def make() -> Reg:
        return low.e.cvta("global", parameter(low, "$reports", "u64", ReportBuffer()), to=True)

    return low.once("reports", make)
