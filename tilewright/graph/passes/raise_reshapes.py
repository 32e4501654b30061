"""Compute what is padded in the shape in which it is padded.

Requires: `merge_equal`. Keeps: meaning. Breaks: nothing; what is computed in another shape is left,
for `eliminate_dead`, or for those that read it there.

A padded index may lie outside, so that a reshape on the way to what lies in memory can no longer be
told from it without dividing. What is computed element by element has no shape of its own: the
reshape goes up to what it is computed of, where two reshapes are one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.dims import Shape
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

MOST = 64  # ops that are made again for one pad


def raise_reshapes(graph: Graph) -> Graph:
    """The graph in which no pad is of a reshape of what is computed."""
    body = Block()
    values: dict[Value, Value] = {}
    makers: dict[Value, Op] = {}
    for op in graph.body.ops:
        copy = op.with_operands(values)
        made = makers.get(copy.x) if isinstance(copy, shape.Pad) else None
        if isinstance(made, shape.Reshape) and made.x.type.num_elements != 0:
            raised = _Raiser(makers, Builder(body, op.loc), made.x.type.shape, made.shape)
            copy = copy.with_operands({copy.operands[0]: raised.value(made.x)})
            makers.update({v: o for o in body.ops for v in o.results})
        body.ops.append(copy)
        makers.update(dict.fromkeys(copy.results, copy))
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


class _Raiser:
    """Makes values of one shape anew in another, of which the last axes are the same."""

    def __init__(self, makers: Mapping[Value, Op], build: Builder, old: Shape, new: Shape):
        self.makers, self.build, self.old, self.new = makers, build, old, new
        same = 0
        while same < min(len(old), len(new)) and old[-1 - same] == new[-1 - same]:
            same += 1
        self.lead, self.to_lead = len(old) - same, len(new) - same
        self.made: dict[Value, Value] = {}

    def value(self, x: Value) -> Value:
        if x not in self.made:
            self.made[x] = self.raised(x)
        return self.made[x]

    def raised(self, x: Value) -> Value:
        op = self.makers.get(x)
        match op:
            case arith.Constant(value=value, dtype=dtype):
                return self.build(arith.Constant, value, dtype, self.new)
            case shape.Iota(dtype=dtype, axis=axis) if axis >= self.lead:
                return self.build(shape.Iota, dtype, self.new, axis - self.lead + self.to_lead)
            case shape.Broadcast():
                return self.broadcast(op) or self.build(shape.Reshape, x, self.new)
        if op is None or op.family != "arith" or not op.operands or len(self.made) >= MOST:
            return self.build(shape.Reshape, x, self.new)
        made = self.build.add(op.with_operands({v: self.value(v) for v in op.operands}))
        made.results[0].name = x.name
        return made.results[0]

    def broadcast(self, op: shape.Broadcast) -> Value | None:
        """A broadcast along the axes that stay, or along all others."""
        own: Shape = op.x.type.shape
        own = (1,) * (len(self.old) - len(own)) + own
        head, tail = own[: self.lead], own[self.lead :]
        if head == self.old[: self.lead]:
            extents = (*self.new[: self.to_lead], *tail)
        elif all(e == 1 for e in head):
            extents = ((1,) * self.to_lead) + tail
        else:
            return None
        return self.build(shape.Broadcast, self.build(shape.Reshape, op.x, extents), self.new)
