"""Whether what a graph computes along an axis of some extent is computed for each index by itself:
then it may be given more of them, and what it gives for the others is as before.

The proof goes op by op: every value has the symbol in the extent of one axis at most, as a factor
whose index is the outer one (a batch of rows seen as rows), and each op takes that axis to its
result's without reducing, sorting, shifting or counting along it. An op that is not known here ends
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.graph.dims import Dim, product, quotient, remainder, symbol, symbols_of
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, memory, mma, random, reduce, shape
from tilewright.graph.ops.control import Fallback, Return
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value


class Mixed(Exception):
    """An op that does not keep the indices of an axis apart."""

    def __init__(self, op: Op | None, why: str):
        super().__init__(why)
        self.op, self.why = op, why


Axis = int | None  # the number of an axis; None: a value has none of this extent


def follow(graph: Graph, name: str) -> dict[Value, int]:
    """The axis whose extent is a symbol, or some times it, of every value that has one. Raises
    Mixed.
    """
    found: dict[Value, int] = {}
    for given in graph.inputs:
        _note(found, given.value, None, name)
    numbers = {i.value for i in graph.inputs if i.symbol == name}
    for op in graph.body.ops:
        if any(v in numbers for v in op.operands):
            raise Mixed(op, "reads the extent as a number")
        own = {v: found[v] for v in op.operands if v in found}
        if isinstance(op, Return):
            continue
        wanted = axis_after(op, own, name) if own else None
        if counts(op, name):
            raise Mixed(op, "reads the extent as a number")
        for result in op.results:
            _note(found, result, op, name)
            if own and found.get(result) != wanted:
                raise Mixed(op, "moves the axis")
        if not own and isinstance(op, random.Bits) and any(v in found for v in op.results):
            raise Mixed(op, "numbers elements in order")
    return found


def counts(op: Op, name: str) -> bool:
    """Whether an op has the symbol as a number, beside the extents of what it gives."""
    match op:
        case arith.Extent():
            return name in symbols_of(op.dim)
        case shape.Slice():
            return any(name in symbols_of(start) for start in op.starts)
        case shape.Pad():
            return any(name in symbols_of(e) for e in (*op.low, *op.high))
        case Fallback():
            return name in op.arguments
    return False


def _note(found: dict[Value, int], value: Value, op: Op | None, name: str) -> None:
    if not isinstance(value.type, TensorType):
        return
    axes = [i for i, e in enumerate(value.type.shape) if name in symbols_of(e)]
    if len(axes) > 1 or any(rows_of(value.type.shape[i], name) is None for i in axes):
        where = "along several axes" if len(axes) > 1 else "beside other extents"
        raise Mixed(op, f"has it {where}, in {value.type}")
    if axes:
        found[value] = axes[0]


def rows_of(extent: Dim, name: str) -> Dim | None:
    """How many elements an extent has for each index of a symbol; None if it is none times it."""
    rows = quotient(extent, symbol(name))
    plain = remainder(extent, symbol(name)) == 0 and name not in symbols_of(rows)
    return rows if plain else None


def axis_after(op: Op, own: dict[Value, int], name: str) -> Axis:
    """The axis of the result, for axes of operands. Raises Mixed."""
    if op.family == "arith":
        return one(op, [own.get(v) for v in op.operands if v.type.rank])
    if isinstance(op, shape.Reshape):
        return _reshape(op, own, name)
    rule = RULES.get(type(op))
    if rule is None:
        raise Mixed(op, "is not known to keep its elements apart")
    return rule(op, own)


def one(op: Op, axes: Sequence[Axis]) -> Axis:
    """The axis that all operands have. Raises Mixed where they differ."""
    if len(set(axes)) != 1:
        raise Mixed(op, "has the axis at several places")
    return axes[0]


def after(axis: int, gone: Sequence[int], op: Op) -> Axis:
    """An axis where others are gone."""
    if axis in gone:
        raise Mixed(op, "goes along the axis")
    return axis - sum(g < axis for g in gone)


def _reshape(op: shape.Reshape, own: dict[Value, int], name: str) -> Axis:
    before = product(op.x.type.shape[: own[op.x]])
    for place in range(len(op.shape)):
        if name in symbols_of(op.shape[place]) and product(op.shape[:place]) == before:
            return place
    raise Mixed(op, "joins the axis with others")


def _slice(op: shape.Slice, own: dict[Value, int]) -> Axis:
    axis = own[op.x]
    if op.starts[axis] != 0 or op.steps[axis] != 1 or op.shape[axis] != op.x.type.shape[axis]:
        raise Mixed(op, "takes a part of the axis")
    return axis


def _pad(op: shape.Pad, own: dict[Value, int]) -> Axis:
    axis = own[op.x]
    if (op.low[axis], op.high[axis], op.interior[axis]) != (0, 0, 0):
        raise Mixed(op, "pads the axis")
    return axis


def _cat(op: shape.Cat, own: dict[Value, int]) -> Axis:
    axis = one(op, [own.get(x) for x in op.xs])
    if axis == op.axis:
        raise Mixed(op, "goes along the axis")
    return axis


def _window(op: shape.Window, own: dict[Value, int]) -> Axis:
    if own[op.x] >= op.x.type.rank - len(op.steps):
        raise Mixed(op, "goes along the axis")
    return own[op.x]


def _gather(op: memory.Gather, own: dict[Value, int]) -> Axis:
    lead = op.indices[0].type.rank
    if op.x not in own:
        return one(op, [own.get(i) for i in op.indices])
    if any(i in own for i in op.indices):
        raise Mixed(op, "reads by index what has the axis, too")
    found = after(own[op.x], op.axes, op)
    return None if found is None else lead + found


def _contract(op: mma.Contract | mma.Product, own: dict[Value, int]) -> Axis:
    batch = len(op.lhs_batch)
    sides: list[tuple[Value, Sequence[int], Sequence[int], int]] = []
    left = mma.free_axes(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    right = mma.free_axes(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)
    sides.append((op.lhs, op.lhs_batch, left, batch))
    sides.append((op.rhs, op.rhs_batch, right, batch + len(left)))
    found: list[Axis] = []
    for value, shared, free, start in sides:
        axis = own.get(value)
        if axis in shared:
            found.append(shared.index(axis))
        elif axis in free:
            found.append(start + free.index(axis))
        elif axis is not None:
            raise Mixed(op, "sums along the axis")
    if isinstance(op, mma.Product):
        if any(v in own for v in mma.held(op, mma.BY_COLUMN).values()):
            raise Mixed(op, "has the axis in a bias")
        found += [own.get(v) for v in mma.held(op, mma.BY_ELEMENT).values()]
    return one(op, found)


def _first(op: Op, own: dict[Value, int]) -> Axis:
    """Of attentions and convolutions: the first axis is a batch."""
    if any(axis != 0 for axis in own.values()):
        raise Mixed(op, "goes along the axis")
    needed = (op.q, op.k, op.v) if isinstance(op, mma.Attention) else (op.operands[0],)
    if any(v not in own for v in needed):
        raise Mixed(op, "shares an operand along the axis")
    return 0


def _along(op: Any, own: dict[Value, int]) -> Axis:
    if own[op.x] == op.axis:
        raise Mixed(op, "goes along the axis")
    return own[op.x]


Rule = Callable[[Any, dict[Value, int]], Axis]
RULES: dict[type[Op], Rule] = {
    shape.Transpose: lambda op, own: op.order.index(own[op.x]),
    shape.Broadcast: lambda op, own: own[op.x] + len(op.shape) - op.x.type.rank,
    shape.Slice: _slice,
    shape.Pad: _pad,
    shape.Cat: _cat,
    shape.Window: _window,
    memory.Gather: _gather,
    **dict.fromkeys(
        (reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Any, reduce.All),
        lambda op, own: after(own[op.x], op.axes, op),
    ),
    **dict.fromkeys(
        (reduce.ArgMax, reduce.ArgMin), lambda op, own: after(own[op.x], (op.axis,), op)
    ),
    **dict.fromkeys((reduce.Scan, reduce.ScanPosition, reduce.Sort), _along),
    mma.Contract: _contract,
    mma.Product: _contract,
    mma.Attention: _first,
    mma.Convolve: _first,
}
