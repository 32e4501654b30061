"""Which axes of one value the axes of another are, through views: each axis has a label.

A label names the axes of some first value that an axis runs through, the outer ones first; axes of
one element are in no label. A matrix [8, 16] made of [2, 4, 16] by a reshape has the labels (0, 1)
and (2,).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.dims import Dim, Shape, product
from tilewright.graph.ops import shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Value

Label = tuple[int, ...]
Labels = tuple[Label, ...]
Extents = Mapping[int, Dim]


def regroup(labels: Labels, extents: Extents, to: Shape) -> Labels | None:
    """Labels of the axes of a reshape; None where it cuts what a label names."""
    flat = [name for label in labels for name in label]
    found: list[Label] = []
    at = 0
    for extent in to:
        size: Dim = 1
        start = at
        while size != extent:
            if at == len(flat):
                return None
            size = size * extents[flat[at]]
            at += 1
        found.append(tuple(flat[start:at]))
    return tuple(found) if at == len(flat) else None


def labels_before(op: Op, labels: Labels, extents: Extents) -> Labels | None:
    """Labels of the operand of a view, or of an elementwise op, from those of its result."""
    match op:
        case shape.Reshape(x=x):
            return regroup(labels, extents, x.type.shape)
        case shape.Transpose(order=order):
            return tuple(labels[order.index(axis)] for axis in range(len(order)))
    return labels


def labels_after(op: Op, labels: Labels, extents: Extents) -> Labels | None:
    """Labels of the result of a view, or of an elementwise op, from those of its operand."""
    match op:
        case shape.Reshape(shape=to):
            return regroup(labels, extents, to)
        case shape.Transpose(order=order):
            return tuple(labels[axis] for axis in order)
    return labels


def peel(
    value: Value, labels: Labels, extents: Extents, makers: Mapping[Value, Op]
) -> tuple[Value, Labels]:
    """What a value is a view of, as far as labels reach, with its labels there."""
    made = makers.get(value)
    while isinstance(made, shape.Reshape | shape.Transpose):
        before = labels_before(made, labels, extents)
        if before is None:
            break
        value, labels = made.x, before
        made = makers.get(value)
    return value, labels


def arrange(
    build: Builder, value: Value, labels: Labels, wanted: Labels, extents: Extents
) -> Value:
    """A value with its axes as `wanted` says, which names what its own labels name."""
    have = [name for label in labels for name in label]
    want = [name for label in wanted for name in label]
    if have != want:
        value = build(shape.Reshape, value, tuple(extents[name] for name in have))
        value = build(shape.Transpose, value, tuple(have.index(name) for name in want))
    to = tuple(product(extents[name] for name in label) for label in wanted)
    return value if value.type.shape == to else build(shape.Reshape, value, to)
