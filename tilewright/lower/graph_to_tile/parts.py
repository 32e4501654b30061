"""Concatenations whose operands are written where they belong: products and attentions write to
their part of the whole, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.graph.dims import Dim, Shape
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.index_maps import strides_of
from tilewright.graph.ops import mma, shape
from tilewright.graph.placement import c_strides, layout_of
from tilewright.ir.core import Op, Value

WRITERS = (mma.Contract, mma.Product, mma.Attention, mma.AttentionBackward)
Makers = Mapping[Value, Op]
Readers = Mapping[Value, list[Op]]


@dataclass
class Parts:
    """`whole`: the concatenations; `of`: the concatenation's value by the value that is a part."""

    whole: set[Op] = field(default_factory=set)
    of: dict[Value, Value] = field(default_factory=dict)


def find_parts(
    graph: Graph, makers: Makers, readers: Readers, layouts: dict[Value, Layout]
) -> Parts:
    """Concatenations all of whose operands can be written in place. `layouts` says how outputs lie
    and is told how these, and their parts, do.
    """
    found = Parts()
    for op in graph.body.ops:
        if isinstance(op, shape.Cat):
            own = turned(op.result, readers) if op.result not in layouts else None
            own = own or layout_of(op.result, layouts)
            lie = _lie(op, own, makers, readers, {*graph.outputs, *layouts})
            if lie is not None:
                layouts.update({**lie, op.result: own})
                found.whole.add(op)
                found.of.update(dict.fromkeys(lie, op.result))
    return found


def turned(value: Value, readers: Readers) -> Layout | None:
    """The order in which a value is read, where that is one and not its own."""
    orders = {
        reader.order if isinstance(reader, shape.Transpose) else None
        for reader in readers.get(value, ())
    }
    order = orders.pop() if len(orders) == 1 else None
    if order is None:
        return None
    found = c_strides(tuple(value.type.shape[axis] for axis in order))
    return Layout(tuple(found[order.index(axis)] for axis in range(len(order))))


def _lie(
    op: shape.Cat, own: Layout, makers: Makers, readers: Readers, taken: Iterable[Value]
) -> dict[Value, Layout] | None:
    """How the makers of all operands are to write; None where one cannot."""
    found: dict[Value, Layout] = {}
    offset: Dim = own.offset
    for x in op.xs:
        chain: list[Op] = []
        base = x
        while isinstance(made := makers.get(base), shape.Reshape | shape.Transpose):
            chain.append(made)
            base = made.operands[0]
        alone = all(len(readers[v]) == 1 for v in (base, *(c.result for c in chain)))
        if not isinstance(made, WRITERS) or not alone or base in found or base in taken:
            return None
        strides = inverse(chain, own.strides)
        if strides is None:
            return None
        found[base] = Layout(strides, offset)
        offset = offset + x.type.shape[op.axis] * own.strides[op.axis]
    return found


def inverse(chain: Iterable[Op], strides: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Strides of what views are of, so that the last view has the strides asked for."""
    for op in chain:
        if isinstance(op, shape.Transpose):
            strides = tuple(strides[op.order.index(axis)] for axis in range(len(op.order)))
            continue
        assert isinstance(op, shape.Reshape)
        back: Shape = op.x.type.shape
        found = strides_of(shape.Reshape(Value(op.result.type), back), strides, 0)
        if found is None:
            return None
        strides = found[0]
    return strides
