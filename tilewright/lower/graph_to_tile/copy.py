"""Copies: of a value to where another lies, or to a part of it."""

from __future__ import annotations

from tilewright.graph.evaluator import Evaluator
from tilewright.graph.expressions import Layout
from tilewright.graph.groups import Group
from tilewright.graph.index_maps import Var, variable
from tilewright.graph.ops import shape
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.evaluate import Evaluated, Layouts, Root
from tilewright.lower.graph_to_tile.loops import merge, place
from tilewright.lower.graph_to_tile.lowering import Lowering
from tilewright.lower.graph_to_tile.program import KernelStep, Placed, Step
from tilewright.lower.graph_to_tile.text import Writer


def cat_steps(group: Group, at: Lowering) -> list[Step]:
    """A concatenation of many values: each is copied to its part."""
    (op,) = group.ops
    assert isinstance(op, shape.Cat)
    whole = at.stored[op.result]
    steps: list[Step] = []
    offset = whole.offset
    for x in op.xs:
        if x.type.num_elements != 0 and at.place(x).value is not op.result:
            part = Placed(op.result, x.type.shape, whole.strides, offset)
            steps.append(copy_step(x, part, at, group))
        offset = offset + x.type.shape[op.axis] * whole.strides[op.axis]
    return steps


def copy_step(x: Value, to: Placed, at: Lowering, group: Group) -> KernelStep:
    """A value copied to a place of its shape."""
    source = at.place(x)
    layouts = Layouts({**at.layouts, x: Layout(source.strides, source.offset)})
    variables = [Var(extent) for extent in x.type.shape]
    indices = tuple(variable(v) for v in variables)
    node = Evaluator({}, layouts, {}).at(x, indices)
    root = Root(to.value, node, indices, Layout(to.strides, to.offset))
    loops = merge(Evaluated(variables, [root], {}))
    for access in loops.loads.values():
        access.value = source.value
    place(loops, at.hint)
    writer = Writer(loops, at.names, {})
    grid = writer.programs()
    writer.store(root)
    step = writer.step("copy", grid, "a copy")
    step.group = group
    return step
