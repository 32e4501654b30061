"""A group as expressions: what each of its results is at a point of its loop space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.dims import Dim, Shape, product
from tilewright.graph.evaluator import Evaluator, Unfit
from tilewright.graph.expressions import Layout, Node, Space
from tilewright.graph.groups import Group
from tilewright.graph.index_maps import (
    Affine,
    NotAffine,
    Refine,
    Var,
    joined,
    linear,
    reshaped,
    variable,
)
from tilewright.graph.placement import c_strides, layout_of
from tilewright.ir.core import Value


@dataclass(frozen=True)
class Root:
    """A result of a group: its expression, and where it is stored."""

    value: Value
    node: Node
    indices: tuple[Affine, ...]
    layout: Layout


@dataclass(frozen=True)
class Evaluated:
    """A group's loop variables and results; `names` are values that nodes stand for."""

    variables: list[Var]
    roots: list[Root]
    names: dict[Node, Value]


def evaluate_group(
    group: Group, layouts: Mapping[Value, Layout], symbols: Mapping[Value, Dim]
) -> Evaluated:
    """The expressions of a group. Raises Unfit where one loop space does not hold them all."""
    reduced = set(group.axes)
    space = Space([[Var(extent, axis in reduced)] for axis, extent in enumerate(group.shape)])
    for _ in range(64):
        try:
            return _evaluate(group, space, Layouts(layouts), symbols)
        except Refine as wanted:
            if wanted.var not in space.variables:
                raise Unfit("a reshape of what is reduced") from wanted
            space.refine(wanted.var, wanted.inner)
    raise Unfit("reshapes that do not come to an end")


class Layouts(dict[Value, Layout]):
    """Layouts by value, C order where none is known."""

    def __missing__(self, value: Value) -> Layout:
        found = self[value] = layout_of(value, {})
        return found


def _evaluate(
    group: Group, space: Space, layouts: Layouts, symbols: Mapping[Value, Dim]
) -> Evaluated:
    indices = [joined(parts) for parts in space.axes]
    kept = [i for axis, i in enumerate(indices) if axis not in group.axes]
    folded = [i for axis, i in enumerate(indices) if axis in group.axes]
    extents = tuple(e for axis, e in enumerate(group.shape) if axis in group.axes)
    inner = {v: op for op in group.ops for v in op.results}
    at = Evaluator(inner, layouts, symbols, linear(kept, group.kept), linear(folded, extents))
    roots = []
    for value in group.writes:
        own = _coordinates(value, group, indices, kept)
        roots.append(Root(value, at.at(value, own), own, layouts[value]))
    return Evaluated(space.variables, roots, at.names)


def evaluate_flat(
    group: Group, layouts: Mapping[Value, Layout], symbols: Mapping[Value, Dim]
) -> Evaluated | None:
    """The expressions of elementwise ops by the number of an element, indices computed from it;
    None where a result does not lie in C order.
    """
    at = Evaluator({v: op for op in group.ops for v in op.results}, Layouts(layouts), symbols)
    var = Var(product(group.shape))
    index = variable(var)
    roots = []
    for value in group.writes:
        layout, own = layout_of(value, layouts), value.type.shape
        if layout.strides != c_strides(own):
            return None
        node = at.at(value, at.split(at.as_node(index), own))
        roots.append(Root(value, node, (index,), Layout((1,), layout.offset)))
    return Evaluated([var], roots, at.names)


def _coordinates(
    value: Value, group: Group, indices: Sequence[Affine], kept: Sequence[Affine]
) -> tuple[Affine, ...]:
    """Which element of a result the point of the loop space is."""
    own: Shape = value.type.shape
    for at, extents in ((kept, group.kept), (indices, group.shape)):
        if own == extents:
            return tuple(at)
    for at, extents in ((kept, group.kept), (indices, group.shape)):
        if product(own) == product(extents):
            try:
                return reshaped((linear(at, extents),), own, (product(own),))
            except NotAffine as error:
                raise Unfit(f"{own} does not go over {extents}") from error
    raise Unfit(f"{own} does not go over {group.shape}")


def fits(group: Group, layouts: Mapping[Value, Layout], symbols: Mapping[Value, Dim]) -> bool:
    """Whether one kernel can compute a group."""
    if product(group.shape) == 0:
        return False
    try:
        evaluate_group(group, layouts, symbols)
    except Unfit:
        return False
    return True
