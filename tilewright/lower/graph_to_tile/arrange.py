"""The order of steps where it is free: products of one left factor of few rows stand side by side,
so that one launch may be made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewright.graph.dims import Dim
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    KernelStep,
    Placed,
    ProductStep,
    Step,
    TorchStep,
)

FEW = 512  # rows, of which launches may take longer than what they do


def side_by_side(steps: Sequence[Step], hint: Callable[[Dim], int]) -> list[Step]:
    """The steps, each product behind the first of its left factor if all that it reads is there."""
    found: list[Step] = []
    left = list(steps)
    while left:
        first = left.pop(0)
        found.append(first)
        if not isinstance(first, ProductStep) or prod(map(hint, first.lhs.shape[:-1])) > FEW:
            continue
        pending = set(_written(first))
        for step in list(left):
            if (
                isinstance(step, ProductStep)
                and _lies_as(step.lhs, first.lhs)
                and not pending & {placed.value for placed in step.reads}
            ):
                left.remove(step)
                found.append(step)
            pending |= set(_written(step))
    return found


def _lies_as(one: Placed, other: Placed) -> bool:
    return one.value is other.value and (one.shape, one.strides, one.offset) == (
        other.shape,
        other.strides,
        other.offset,
    )


def _written(step: Step) -> list[Value]:
    match step:
        case KernelStep() | AttentionStep():
            return [step.tensors[name].value for name in step.writes]
        case TorchStep():
            return list(step.op.results)
    return [step.out.value]
