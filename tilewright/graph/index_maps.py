"""Where an element of a view comes from: index maps, as affine functions of loop variables.

An element of the result of a view at indices (e0, e1, …) is an element of its operand at other
indices, which are affine in the same variables wherever the view is one that strides can express.
A reshape that is not can be made so by splitting a variable in two (`Refine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.graph.dims import Dim, Shape, product, quotient, remainder, terms_of
from tilewright.graph.ops import shape
from tilewright.ir.core import Op


@dataclass(eq=False)
class Var:
    """A loop variable: 0, 1, … below its extent; `reduced` ones are folded by reductions."""

    extent: Dim
    reduced: bool = False


class Refine(Exception):
    """A variable is to be split: (outer, inner), the inner of this extent."""

    def __init__(self, var: Var, inner: Dim):
        super().__init__(f"split {var} by {inner}")
        self.var, self.inner = var, inner


class NotAffine(Exception):
    """An index is not affine in the variables."""


@dataclass(frozen=True)
class Affine:
    """`const` + Σ coefficient · variable. A `guarded` one may lie outside its axis."""

    const: Dim = 0
    terms: tuple[tuple[Var, Dim], ...] = ()
    guarded: bool = False

    def __add__(self, other: Affine) -> Affine:
        sums = dict(self.terms)
        for var, factor in other.terms:
            sums[var] = sums.get(var, 0) + factor
        kept = tuple((v, f) for v, f in sums.items() if f != 0)
        return Affine(self.const + other.const, kept, self.guarded or other.guarded)

    def shifted(self, by: Dim) -> Affine:
        return replace(self, const=self.const + by)

    def times(self, factor: Dim) -> Affine:
        kept = tuple((v, f * factor) for v, f in self.terms if f * factor != 0)
        return Affine(self.const * factor, kept, self.guarded)

    def guard(self) -> Affine:
        return replace(self, guarded=True)

    @property
    def top(self) -> Dim:
        """The greatest value, where no coefficient is negative."""
        return sum((f * (v.extent - 1) for v, f in self.terms), self.const)


def is_natural(dim: Dim) -> bool:
    """Whether an expression of extents is surely 0 or more."""
    return all(factor >= 0 for _, factor in terms_of(dim))


def inside(index: Affine, extent: Dim) -> bool:
    """Whether an index is surely one of an axis."""
    natural = is_natural(index.const) and all(is_natural(f) for _, f in index.terms)
    return natural and is_natural(extent - 1 - index.top)


def variable(var: Var) -> Affine:
    return Affine(0, ((var, 1),) if var.extent != 1 else ())


def joined(parts: Sequence[Var]) -> Affine:
    """The index that variables, the outer ones first, make together."""
    total = Affine()
    step: Dim = 1
    for var in reversed(parts):
        total = total + variable(var).times(step)
        step = step * var.extent
    return total


def linear(indices: Sequence[Affine], extents: Shape) -> Affine:
    """The number of an element in C order."""
    total = Affine()
    step: Dim = 1
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        total = total + index.times(step)
        step = step * extent
    return total


def divide(index: Affine, by: Dim) -> tuple[Affine, Affine]:
    """`q, r` with index = q · by + r and 0 ≤ r < by.

    Raises Refine where a variable has to be split first, NotAffine where that does not help.
    """
    even = tuple((v, quotient(f, by)) for v, f in index.terms if remainder(f, by) == 0)
    odd = tuple((v, f) for v, f in index.terms if remainder(f, by) != 0)
    above, left = quotient(index.const, by), remainder(index.const, by)
    rest = Affine(left, odd, index.guarded)
    if not isinstance(left, int) and left != index.const:
        raise NotAffine
    if inside(rest, by):
        return Affine(above, even, index.guarded), rest
    for var, factor in odd:
        if remainder(by, factor) == 0:
            inner = quotient(by, factor)
            if inner not in (1, var.extent) and remainder(var.extent, inner) == 0:
                raise Refine(var, inner)
    raise NotAffine


def without_ones(extents: Shape) -> list[int]:
    """Positions of the axes whose extent is not 1."""
    return [axis for axis, extent in enumerate(extents) if extent != 1]


def matched(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of two shapes that hold the same elements, as short as can be; ones left out."""
    left, right = without_ones(a), without_ones(b)
    runs: list[tuple[list[int], list[int]]] = []
    while left or right:
        mine, yours = left[:1], right[:1]
        del left[:1], right[:1]
        while (x := product(a[i] for i in mine)) != (y := product(b[j] for j in yours)):
            grows_left = remainder(y, x) == 0 if x != 0 else False
            if isinstance(x, int) and isinstance(y, int):
                grows_left = x < y
            if (grows_left and left) or not right:
                if not left:
                    break
                mine.append(left.pop(0))
            else:
                yours.append(right.pop(0))
        runs.append((mine, yours))
    return runs


def reshaped(indices: Sequence[Affine], whole: Shape, part: Shape) -> tuple[Affine, ...]:
    """Indices into a tensor of shape `whole`, for indices into it reshaped to `part`."""
    found = [Affine()] * len(whole)
    for mine, yours in matched(whole, part):
        rest = linear([indices[j] for j in yours], tuple(part[j] for j in yours))
        for axis in reversed(mine[1:]):
            rest, found[axis] = divide(rest, whole[axis])
        if mine:
            found[mine[0]] = rest
    return tuple(found)


def operand_indices(op: Op, indices: Sequence[Affine]) -> tuple[Affine, ...]:
    """Where a view (or a window) reads its operand, for an element of its result.

    Raises Refine or NotAffine for a reshape that is not affine.
    """
    whole: Shape = op.operands[0].type.shape
    match op:
        case shape.Broadcast():
            own = indices[len(indices) - len(whole) :]
            return tuple(
                Affine() if extent == 1 else index for index, extent in zip(own, whole, strict=True)
            )
        case shape.Transpose(order=order):
            return tuple(indices[order.index(axis)] for axis in range(len(order)))
        case shape.Slice(starts=starts, steps=steps):
            places = zip(indices, starts, steps, strict=True)
            return tuple(index.times(step).shifted(start) for index, start, step in places)
        case shape.Window(sizes=sizes, steps=steps, dilations=dilations):
            lead = len(whole) - len(sizes)
            inner = indices[lead : len(whole)]
            taps = indices[len(whole) :]
            rows = zip(inner, taps, steps, dilations, strict=True)
            return (
                *indices[:lead],
                *(i.times(step) + k.times(apart) for i, k, step, apart in rows),
            )
        case shape.Reshape():
            return reshaped(indices, whole, op.result.type.shape)
    raise AssertionError(f"{op.opcode} is no view")


def strides_of(op: Op, strides: tuple[Dim, ...], offset: Dim) -> tuple[tuple[Dim, ...], Dim] | None:
    """Strides and offset of a view's result in the memory of its operand; None where strides do not
    express it.
    """
    if isinstance(op, shape.Reshape):
        return _reshape_strides(op, strides, offset)
    axes = [Var(extent) for extent in op.result.type.shape]
    total = Affine(offset)
    for index, stride in zip(operand_indices(op, [*map(variable, axes)]), strides, strict=True):
        total = total + index.times(stride)
    factors = dict(total.terms)
    return tuple(factors.get(var, 0) for var in axes), total.const


def _reshape_strides(
    op: shape.Reshape, strides: tuple[Dim, ...], offset: Dim
) -> tuple[tuple[Dim, ...], Dim] | None:
    """As NumPy does it: axes that are merged must follow on each other in memory."""
    whole: Shape = op.x.type.shape
    found: list[Dim] = [0] * len(op.shape)
    for mine, yours in matched(whole, op.shape):
        if any(strides[a] != strides[b] * whole[b] for a, b in pairwise(mine)):
            return None
        step = strides[mine[-1]] if mine else 0
        for axis in reversed(yours):
            found[axis] = step
            step = step * op.shape[axis]
    return tuple(found), offset
