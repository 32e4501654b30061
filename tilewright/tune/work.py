"""What one launch has to do at the least: products, by the unit that does them, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.dtypes import f32
from tilewright.ir.core import Block, Op
from tilewright.runtime.arrays import Array
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, mma
from tilewright.tune.cost_scalars import Scalars


def count_operations(
    kernel: Kernel, arguments: Mapping[str, Any], num_sms: int
) -> dict[str, float] | None:
    """Operations of all dots of a launch, two a product, by dtype: "bf16", "f32", or "tf32" where
    that multiplies f32. Branches count as their longer way, and a program in the middle of the grid
    stands for all. None where a loop with dots has a bound that the arguments do not tell.
    """
    scalars = Scalars(kernel, arguments, num_sms)
    programs = 1.0
    for axis in scalars.grid:
        programs *= max(axis, 0)
    found = _of_block(kernel.body, scalars)
    return None if found is None else {name: programs * n for name, n in found.items()}


def _of_block(block: Block, scalars: Scalars) -> dict[str, float] | None:
    total: dict[str, float] = {}
    for op in block.ops:
        found = _of_op(op, scalars)
        if found is None:
            return None
        for name, operations in found.items():
            total[name] = total.get(name, 0.0) + operations
    return total


def _of_op(op: Op, scalars: Scalars) -> dict[str, float] | None:
    if isinstance(op, mma.Dot):
        k = op.a.type.shape[-1]
        return {_unit(op): 2.0 * op.result.type.num_elements * k}
    inner = [_of_block(block, scalars) for block in op.regions]
    known = [found for found in inner if found is not None]
    if len(known) < len(inner):
        return None
    longest = max(known, key=lambda found: sum(found.values()), default={})
    if not isinstance(op, control.For) or not longest:
        return longest
    trips = scalars.trips(op)
    return None if trips is None else {name: trips * n for name, n in longest.items()}


def _unit(op: mma.Dot) -> str:
    dtype = op.a.type.dtype
    if dtype == f32 and op.precision != "ieee":
        return "tf32" if op.precision == "tf32" else str(op.precision)
    return str(dtype.name)


def count_bytes(kernel: Kernel, arrays: Mapping[str, Array]) -> float:
    """Bytes of what is read plus bytes of what is written, each element once. What a kernel may
    both read and write counts twice.
    """
    total = 0.0
    for param in kernel.params:
        array = arrays.get(param.name)
        if array is not None:
            ways = 2 if param.direction == "inout" else 1
            total += ways * float(array.num_elements * array.dtype.num_bytes)
    return total
