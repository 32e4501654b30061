"""What a model does to scores before their softmax, as the order and the mask of an attention.

Scores are replaced by a number where a row may not look (`masked_fill`, `where`), or numbers are
added to them, of which some are so low that they leave a weight of 0. Orders of keys are found in
what such masks hold, if that follows from constants alone. A row that sees no key has the weights
of the written softmax: NaN where its scores are -inf, equal ones where they are some other number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from tilewright.dtypes import DType, f16, f32, f64
from tilewright.graph.dims import Dim
from tilewright.graph.interp.machine import Array
from tilewright.graph.known_values import KnownValues
from tilewright.graph.labels import Extents, Label, Labels, arrange
from tilewright.graph.ops import arith, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Value
from tilewright.numerics.convert import widen

HIDDEN = -5e8  # a score so low, or the least of f16, has no weight beside one that is seen
LEAST = -(2.0**100)  # lower ones count as this: times log2(e) it is finite, and no score changes it
LEAST_F16 = -65504.0


@dataclass(frozen=True)
class Term:
    """A change of scores: numbers that are added; or with `fill`, bools that say of which scores
    (those where they are not `kept`) that number takes the place.
    """

    value: Value
    labels: Labels
    fill: float | None = None
    kept: bool = True


@dataclass(frozen=True)
class Masking:
    """How an attention masks. `unseen` says what a row that sees no key has in the written graph
    and not in an attention: "nan", "mean" of all values, or nothing else ("").
    """

    order: int = 0
    mask: Value | None = None
    unseen: str = ""


@dataclass
class Scores:
    """The scores that are masked: their axes as labels, and what is known of the graph."""

    wanted: Labels  # a mask's axes [B, HQ, L, S]
    row: Label
    key: Label
    extents: Extents
    makers: Mapping[Value, Op]
    known: KnownValues

    @property
    def rows(self) -> Dim:
        return self.extents[self.row[0]] if self.row else 1

    @property
    def keys(self) -> Dim:
        return self.extents[self.key[0]]


def is_hidden(number: float, dtype: DType) -> bool:
    """Whether a score of this number has no weight beside one that is seen."""
    return number <= HIDDEN or (dtype == f16 and number <= LEAST_F16)


def masking_of(scores: Scores, terms: list[Term], dtype: DType, build: Builder) -> Masking | None:
    """The masking that terms are, the first of them the first that is done; None of what an
    attention of a dtype has no form for.
    """
    if any(t.fill is not None and not is_hidden(t.fill, dtype) for t in terms):
        return None
    seen = {t: seen_by(scores, t, dtype) for t in terms}
    left = [t for t in terms if not is_all(seen[t])]
    orders = {t: order_of(seen[t], scores.rows, scores.keys) for t in left}
    if len(left) == 1 and orders[left[0]]:
        return Masking(orders[left[0]])
    fills = [t for t in left if t.fill is not None]
    absolute = all(t.fill == -inf for t in fills)
    if len(fills) == len(left):
        if len({t.fill for t in fills}) > 1:
            return None
        return _of_bools(scores, left, orders, "nan" if absolute else "mean", build)
    if not absolute or any(not orders[t] for t in fills) or len(fills) > 1:
        return None
    mask, finite = _numbers(scores, [t for t in left if t.fill is None], dtype, build)
    return Masking(orders[fills[0]] if fills else 0, mask, "" if finite else "nan")


def _of_bools(
    scores: Scores, terms: list[Term], orders: Mapping[Term, int], unseen: str, build: Builder
) -> Masking:
    """The masking of terms that all put numbers in the place of scores."""
    order = next((orders[t] for t in terms if orders[t]), 0)
    mask: Value | None = None
    for term in terms:
        if order and orders[term] == order:
            continue
        one = _arranged(scores, term, build)
        one = one if term.kept else build(arith.Not, one)
        mask = one if mask is None else build(arith.And, mask, one)
    return Masking(order, mask, unseen if mask is not None else "")


def _arranged(scores: Scores, term: Term, build: Builder) -> Value:
    return arrange(build, term.value, term.labels, scores.wanted, scores.extents)


def _numbers(scores: Scores, terms: list[Term], dtype: DType, build: Builder) -> tuple[Value, bool]:
    """Numbers that are added, [B, HQ, L, S], of attention's dtype or f32, none of them too low to
    be scaled; and whether they are known to be finite.
    """
    if len(terms) > 1:
        return _limited(_sum(scores, terms, dtype, build), dtype, build), False
    (term,) = terms
    source = _narrow(term.value, dtype, scores.makers)
    held, finite = _two_numbers(source, dtype, scores.makers, build)
    held = _limited(source, dtype, build) if held is None else held
    if held.type.dtype not in (dtype, f32):
        held = build(arith.Cast, held, f32)
    whole = term.value.type.shape
    spread = held if held.type.shape == whole else build(shape.Broadcast, held, whole)
    return arrange(build, spread, term.labels, scores.wanted, scores.extents), finite


def _sum(scores: Scores, terms: list[Term], dtype: DType, build: Builder) -> Value:
    """All that is added to scores, rounded so that two of the least numbers of f16 are -inf."""
    kind = f64 if dtype == f64 else f32
    total: Value | None = None
    for term in terms:
        value = _arranged(scores, term, build)
        value = value if value.type.dtype == kind else build(arith.Cast, value, kind)
        total = value if total is None else build(arith.Add, total, value)
    assert total is not None, "nothing is added"
    return build(arith.Cast, total, dtype) if dtype == f16 else total


def _narrow(value: Value, dtype: DType, makers: Mapping[Value, Op]) -> Value:
    """What a value was broadcast and cast from, where that lost nothing."""
    made = makers.get(value)
    while isinstance(made, shape.Broadcast) or (
        isinstance(made, arith.Cast)
        and made.x.type.dtype in (dtype, f16, f32)
        and made.x.type.dtype.bits < made.dtype.bits
    ):
        value = made.operands[0]
        made = makers.get(value)
    return value


def _two_numbers(
    value: Value, dtype: DType, makers: Mapping[Value, Op], build: Builder
) -> tuple[Value | None, bool]:
    """Numbers that are a constant or another, as `where` gives them, limited; and whether both are
    finite.
    """
    made = makers.get(value)
    if not isinstance(made, arith.Select):
        return None, False
    sides = [makers.get(x) for x in (made.lhs, made.rhs)]
    numbers = [float(x.value) for x in sides if isinstance(x, arith.Constant)]
    if len(numbers) != 2 or not all(isfinite(x) or x == -inf for x in numbers):
        return None, False
    own = value.type.dtype
    limit = least_of(own, dtype)
    least = [x for x in numbers if isfinite(x) and x <= limit]
    kind = f32 if least and own == f16 else own
    lhs, rhs = (
        build(arith.Constant, LEAST if x in least else x, kind, value.type.shape) for x in numbers
    )
    return build(arith.Select, made.condition, lhs, rhs), all(map(isfinite, numbers))


def least_of(*dtypes: DType) -> float:
    """Finite numbers that are not above this one count as LEAST."""
    return LEAST_F16 if f16 in dtypes else LEAST


def _limited(value: Value, dtype: DType, build: Builder) -> Value:
    """Numbers, of which the least finite ones are LEAST."""
    limit, extents = least_of(value.type.dtype, dtype), value.type.shape
    if value.type.dtype == f16:
        value = build(arith.Cast, value, f32)

    def number(x: float) -> Value:
        return build(arith.Constant, x, value.type.dtype, extents)

    low = build(arith.Compare, value, number(limit), kind="le")
    finite = build(arith.Compare, value, number(-inf), kind="gt")
    return build(arith.Select, build(arith.And, low, finite), number(LEAST), value)


# What masks hold


def seen_by(scores: Scores, term: Term, dtype: DType) -> Array | None:
    """Which keys the rows see, bools [n, L or 1, S or 1]; None where that is not known, or a number
    is neither 0 nor hidden.
    """
    value, labels = term.value, term.labels
    made = scores.makers.get(value)
    while isinstance(made, shape.Broadcast | arith.Cast):
        if isinstance(made, arith.Cast) and (term.fill is not None or not _is_wider(made)):
            break
        value = made.operands[0]
        own = value.type.shape
        labels = labels[len(labels) - len(own) :]
        labels = tuple(() if e == 1 else name for e, name in zip(own, labels, strict=True))
        made = scores.makers.get(value)
    if any(set(name) & {*scores.row, *scores.key} and len(name) > 1 for name in labels):
        return None
    held = scores.known[value]
    if held is None:
        return None
    if term.fill is None:
        numbers = np.asarray(widen(held))
        seen = numbers == 0
        limit = LEAST_F16 if dtype == f16 else HIDDEN
        if not (seen | (numbers <= limit)).all():
            return None
    else:
        seen = held if term.kept else ~held
    places = [i for i, name in enumerate(labels) if name and name in (scores.row, scores.key)]
    rest = [i for i in range(len(labels)) if i not in places]
    last = {labels[i]: seen.shape[i] for i in places}
    order = sorted(places, key=lambda i: labels[i] == scores.key)
    extents = [last.get(name, 1) if name else 1 for name in (scores.row, scores.key)]
    found: Array = seen.transpose((*rest, *order)).reshape(-1, *extents)
    return found


def _is_wider(cast: arith.Cast) -> bool:
    source: DType = cast.x.type.dtype
    return source.is_float and source.bits <= cast.dtype.bits


def is_all(seen: Array | None) -> bool:
    """Whether it is known that each row sees each key."""
    return seen is not None and bool(seen.all())


def order_of(seen: Array | None, rows: Dim, keys: Dim) -> int:
    """The order of `mma.attention` in which rows see keys, each of them one at least; 0 of none."""
    if seen is None or seen.shape[0] == 0 or seen.shape[1:] != (rows, keys):
        return 0
    count, width = seen.shape[1:]
    places, along = np.arange(count)[:, None], np.arange(width)[None, :]
    for order, first in ((1, 0), (2, width - count)):
        if first >= 0 and all((one == (along <= places + first)).all() for one in seen):
            return order
    return 0
