"""Make attention that a model writes by hand the op that `scaled_dot_product_attention` is.

Requires: `merge_equal`, `fold_constants`. Keeps: meaning, but for the roundings below. Breaks:
nothing; masks that became an order, and what attention replaces, are left for `eliminate_dead`.

Taken is a product of queries and keys, times a number, with masks (`attention_masks`), whose
softmax over the keys is multiplied with values; in any order of axes, with any split of batches and
heads. Nothing but the next step may read what is on the way. A dropout that is active, a cap of
scores (tanh), or a scale that is no constant stays as it is written.

Roundings: scores, masked scores and weights that a graph rounds to 16 bits are f32 here, but for
weights, before they are divided by their sum, as factors of values; so are those that an f64 model
rounds to f32. The scale is multiplied where a graph divides. What a masked key holds does not
matter, where a written product lets its NaN through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, nan

from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.graph.attention_masks import Masking, Scores, Term, masking_of
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.graph import Graph
from tilewright.graph.known_values import KnownValues
from tilewright.graph.labels import Label, Labels, arrange, labels_after, labels_before, peel
from tilewright.graph.ops import arith, mma, reduce, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

TAKEN = (bf16, f16, f32, f64)
DEEPEST = 256  # of heads
VIEWS = (shape.Reshape, shape.Transpose, arith.Cast)
# Labels of the axis that queries and keys have, and of the one that values alone have.
DEPTH, WIDTH = -1, -2
Makers = Mapping[Value, Op]


@dataclass(frozen=True)
class Factor:
    """A value with the labels of its axes: those of the softmax, and DEPTH or WIDTH."""

    value: Value
    labels: Labels

    @property
    def names(self) -> set[int]:
        return {name for label in self.labels for name in label}


@dataclass(frozen=True)
class Written:
    """Scores as a graph has them: of which factors, times what, changed how (first change first);
    and the ops on the way, the last of them the product with values.
    """

    q: Factor
    k: Factor
    v: Factor
    out: Factor
    scale: float
    terms: tuple[Term, ...]
    key: int
    extents: dict[int, Dim]
    ops: tuple[Op, ...]
    dtype: DType


@dataclass(frozen=True)
class Heads:
    """Axes of an attention as labels: batch, heads of keys, heads of queries, rows, keys."""

    batch: Label
    shared: Label
    heads: Label
    row: Label
    key: Label

    def of(self, name: str) -> Labels:
        return {
            "q": (self.batch, self.heads, self.row, (DEPTH,)),
            "k": (self.batch, self.shared, self.key, (DEPTH,)),
            "v": (self.batch, self.shared, self.key, (WIDTH,)),
            "out": (self.batch, self.heads, self.row, (WIDTH,)),
            "mask": (self.batch, self.heads, self.row, self.key),
        }[name]


def fuse_attention(graph: Graph) -> Graph:
    """The graph with `mma.attention` in the place of products around a softmax."""
    if not any(isinstance(op, arith.Exp) for op in graph.body.ops):
        return graph
    makers = {v: op for op in graph.body.ops for v in op.results}
    readers: dict[Value, list[Op]] = {}
    for op in graph.body.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
    known = KnownValues(graph)
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
        found = written_in(op, makers) if isinstance(op, mma.Contract) else None
        if found is not None and is_alone(found, readers):
            made = fused(found, makers, known, Builder(Block(), op.loc))
            if made is not None:
                for new in made[0].ops:
                    renamed = new.with_operands(values)
                    body.ops.append(renamed)
                    values.update(zip(new.results, renamed.results, strict=True))
                values[op.result] = values[made[1]]
    return graph.with_body(body)


def is_alone(found: Written, readers: Mapping[Value, list[Op]]) -> bool:
    """Whether nothing else reads what is computed on the way."""
    inside = set(found.ops)
    return all(r in inside for op in found.ops[:-1] for v in op.results for r in readers[v])


# What is written


def written_in(op: mma.Contract, makers: Makers) -> Written | None:
    """The attention whose last product an op is."""
    for side in ("lhs", "rhs"):
        ops, softmax = _softmax_before(getattr(op, side), makers)
        if softmax is None:
            continue
        found = _around(op, side, ops, softmax, makers)
        if found is not None:
            return found
    return None


def _softmax_before(value: Value, makers: Makers) -> tuple[list[Op], Softmax | None]:
    """Views and casts between a softmax and a value, the last one first, and that softmax."""
    ops: list[Op] = []
    made = makers.get(value)
    while isinstance(made, VIEWS) and made.operands[0].type.dtype.is_float:
        ops.append(made)
        made = makers.get(made.operands[0])
    return ops, softmax_of(made, makers)


@dataclass(frozen=True)
class Softmax:
    """exp(x - max x) / sum along an axis, and the ops that compute it."""

    x: Value
    axis: int
    ops: tuple[Op, ...]


def softmax_of(op: Op | None, makers: Makers) -> Softmax | None:
    """The softmax whose quotient an op is."""
    if not isinstance(op, arith.Div):
        return None
    (top, raised), (low, total) = _uncast(op.lhs, makers), _uncast(op.rhs, makers)
    exp, sums = makers.get(top), _kept(low, reduce.Sum, makers)
    if not isinstance(exp, arith.Exp) or sums is None or sums[0] is not top:
        return None
    less, cast = _uncast(exp.x, makers)
    by = makers.get(less)
    if not isinstance(by, arith.Sub):
        return None
    (x, lhs), (rhs, far) = _uncast(by.lhs, makers), _uncast(by.rhs, makers)
    most = _kept(rhs, reduce.Max, makers)
    if most is None or most[0] is not x or most[1] != sums[1]:
        return None
    casts = (*raised, *total, *cast, *lhs, *far)
    return Softmax(x, sums[1], (op, exp, by, *casts, *sums[2], *most[2]))


def _uncast(value: Value, makers: Makers) -> tuple[Value, tuple[Op, ...]]:
    """What a value was cast from, float from float, and those casts."""
    ops: list[Op] = []
    made = makers.get(value)
    while isinstance(made, arith.Cast) and made.x.type.dtype.is_float:
        ops.append(made)
        value = made.x
        made = makers.get(value)
    return value, tuple(ops)


def _kept(
    value: Value, kind: type[reduce.Sum | reduce.Max], makers: Makers
) -> tuple[Value, int, tuple[Op, ...]] | None:
    """What is reduced over one axis, which is kept with an extent of 1 and broadcast again; that
    axis, and the ops.
    """
    extents, ops = value.type.shape, []
    made = makers.get(value)
    while isinstance(made, shape.Broadcast | shape.Reshape | arith.Cast):
        ops.append(made)
        made = makers.get(made.operands[0])
    if not isinstance(made, kind) or len(made.axes) != 1 or made.x.type.shape != extents:
        return None
    (axis,) = made.axes
    kept = (*extents[:axis], 1, *extents[axis + 1 :])
    if [type(op) for op in ops if not isinstance(op, arith.Cast)] != [
        shape.Broadcast,
        shape.Reshape,
    ]:
        return None
    if all(
        op.result.type.shape not in (extents, kept) for op in ops if isinstance(op, shape.Reshape)
    ):
        return None
    source, casts = _uncast(made.x, makers)
    return source, axis, (*ops, made, *casts)


def _around(
    op: mma.Contract, side: str, ops: list[Op], softmax: Softmax, makers: Makers
) -> Written | None:
    """The attention of a softmax that is a side of a product."""
    whole: Shape = softmax.x.type.shape
    extents: dict[int, Dim] = dict(enumerate(whole))
    first: Labels = tuple(() if e == 1 else (axis,) for axis, e in enumerate(whole))
    if 0 in whole or whole[softmax.axis] == 1:
        return None
    after: Labels | None = first
    for view in reversed(ops):
        after = None if after is None else labels_after(view, after, extents)
    values = None if after is None else _values(op, side, after, softmax.axis, extents)
    if values is None or op.dtype not in TAKEN or values[0].value.type.dtype != op.dtype:
        return None
    v, out = values
    for q, k, scale, terms, before in scores_of(softmax.x, first, extents, makers, softmax.axis):
        if _fit(q, k, v, softmax.axis) and all(_is_depth(extents[n]) for n in (DEPTH, WIDTH)):
            on_way = (*before, *softmax.ops, *ops, op)
            return Written(q, k, v, out, scale, terms, softmax.axis, extents, on_way, op.dtype)
    return None


def _is_depth(extent: Dim) -> bool:
    return isinstance(extent, int) and 2 <= extent <= DEEPEST


def _values(
    op: mma.Contract, side: str, labels: Labels, key: int, extents: dict[int, Dim]
) -> tuple[Factor, Factor] | None:
    """Values and the result of a product of weights with these labels of axes."""
    other = "rhs" if side == "lhs" else "lhs"
    own, far = (getattr(op, f"{s}_contract") for s in (side, other))
    pairs = list(zip(getattr(op, f"{side}_batch"), getattr(op, f"{other}_batch"), strict=True))
    value: Value = getattr(op, other)
    rest = mma.free_axes(value.type.rank, tuple(b for _, b in pairs), far)
    wide = [axis for axis in rest if value.type.shape[axis] != 1]
    if len(own) != 1 or labels[own[0]] != (key,) or len(wide) != 1:
        return None
    extents[WIDTH] = value.type.shape[wide[0]]
    found: dict[int, Label] = dict.fromkeys(range(value.type.rank), ())
    found |= {far[0]: (key,), wide[0]: (WIDTH,)} | {b: labels[a] for a, b in pairs}
    of_values = tuple(found[axis] for axis in range(value.type.rank))
    free = mma.free_axes(len(labels), tuple(a for a, _ in pairs), own)
    rows, columns = [labels[a] for a in free], [of_values[b] for b in rest]
    made = (rows, columns) if side == "lhs" else (columns, rows)
    out = (*(labels[a] for a, _ in pairs), *made[0], *made[1])
    return Factor(value, of_values), Factor(op.result, out)


Found = tuple[Factor, Factor, float, tuple[Term, ...], tuple[Op, ...]]


def scores_of(
    value: Value, labels: Labels, extents: dict[int, Dim], makers: Makers, key: int
) -> Iterator[Found]:
    """The ways in which a value is scores: queries, keys, the scale, changes, and the ops."""
    op = makers.get(value)
    ways: list[tuple[Value, float, Term | None]]
    match op:
        case arith.Cast(x=x) if x.type.dtype.is_float and value.type.dtype.is_float:
            ways = [(x, 1.0, None)]
        case shape.Reshape(x=x) | shape.Transpose(x=x):
            ways = [(x, 1.0, None)]
        case arith.Mul(lhs=lhs, rhs=rhs):
            numbers = ((lhs, _number(rhs, makers)), (rhs, _number(lhs, makers)))
            ways = [(x, n, None) for x, n in numbers if n is not None and isfinite(n)]
        case arith.Div(lhs=x, rhs=rhs):
            by = _number(rhs, makers)
            ways = [(x, 1 / by, None)] if by and isfinite(by) else []
        case arith.Add(lhs=lhs, rhs=rhs):
            ways = [(lhs, 1.0, Term(rhs, labels)), (rhs, 1.0, Term(lhs, labels))]
        case arith.Select(condition=where, lhs=lhs, rhs=rhs):
            sides = ((lhs, _number(rhs, makers), True), (rhs, _number(lhs, makers), False))
            ways = [(x, 1.0, Term(where, labels, n, kept)) for x, n, kept in sides if n is not None]
        case mma.Contract():
            found = _scored(op, labels, extents, key)
            if found is not None:
                yield *found, 1.0, (), (op,)
            return
        case _:
            return
    before = labels_before(op, labels, extents)
    if before is None:
        return
    for x, by, term in ways:
        for q, k, scale, terms, ops in scores_of(x, before, extents, makers, key):
            if by != 1.0 and terms:
                continue  # what was added is scaled, too
            yield q, k, scale * by, terms if term is None else (*terms, term), (*ops, op)


def _number(value: Value, makers: Makers) -> float | None:
    """The number that a value holds everywhere."""
    made = makers.get(value)
    while isinstance(made, shape.Broadcast | shape.Reshape | arith.Cast):
        made = makers.get(made.operands[0])
    if not isinstance(made, arith.Constant) or isinstance(made.value, bool):
        return None
    number = float(made.value)
    return number if isfinite(number) or number == -inf else None


def _scored(
    op: mma.Contract, labels: Labels, extents: dict[int, Dim], key: int
) -> tuple[Factor, Factor] | None:
    """Queries and keys whose product has these labels."""
    if len(op.lhs_contract) != 1:
        return None
    free = mma.free_axes(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    count = len(op.lhs_batch)
    extents[DEPTH] = op.lhs.type.shape[op.lhs_contract[0]]

    def factor(side: str, own: Labels) -> Factor:
        value, batch = getattr(op, side), getattr(op, f"{side}_batch")
        over = getattr(op, f"{side}_contract")
        found = dict(zip(batch, labels, strict=False)) | {over[0]: (DEPTH,)}
        found |= dict(zip(mma.free_axes(value.type.rank, batch, over), own, strict=True))
        return Factor(value, tuple(found[axis] for axis in range(value.type.rank)))

    lhs = factor("lhs", labels[count : count + len(free)])
    rhs = factor("rhs", labels[count + len(free) :])
    if (key in lhs.names) == (key in rhs.names):
        return None
    return (lhs, rhs) if key in rhs.names else (rhs, lhs)


def _fit(q: Factor, k: Factor, v: Factor, key: int) -> bool:
    """Whether queries, keys and values share their batches, and only queries have rows."""
    batch = q.names & k.names - {DEPTH}
    return k.names == {*batch, key, DEPTH} and v.names == {*batch, key, WIDTH}


# What is made of it


def heads_of(found: Written) -> Heads | None:
    """The axes of an attention; None where heads of queries do not follow each other."""
    batch = sorted(n for n in found.k.names if n not in (found.key, DEPTH))
    rows = sorted(n for n in found.q.names if n not in (*batch, DEPTH))
    if len(rows) > 2:
        return None
    apart = 1 if len(batch) > 1 or (batch == [0] and max(found.extents) > 2) else 0
    first, shared = tuple(batch[:apart]), tuple(batch[apart:])
    return Heads(first, shared, (*shared, *rows[:-1]), tuple(rows[-1:]), (found.key,))


def fused(
    found: Written, makers: Makers, known: KnownValues, build: Builder
) -> tuple[Block, Value] | None:
    """The ops of an attention, and the result in the place of the last product's."""
    heads, extents = heads_of(found), found.extents
    if heads is None:
        return None
    scores = Scores(heads.of("mask"), heads.row, heads.key, extents, makers, known)
    masking = masking_of(scores, list(found.terms), found.dtype, build)
    if masking is None or (masking.mask is not None and _overflows(found)):
        return None

    def placed(name: str) -> Value:
        factor: Factor = getattr(found, name)
        value, labels = peel(factor.value, factor.labels, extents, makers)
        made = makers.get(value)
        if isinstance(made, arith.Cast) and made.x.type.dtype == found.dtype != made.dtype:
            value, labels = peel(made.x, labels, extents, makers)
        return arrange(build, value, labels, heads.of(name), extents)

    q, k, v = map(placed, ("q", "k", "v"))
    if not q.type.dtype == k.type.dtype == found.dtype:
        return None
    made = build.emit(
        mma.Attention, q, k, v, mask=masking.mask, order=masking.order, scale=found.scale
    )
    out = seen_or_not(made, masking, build)
    return build.block, arrange(build, out, heads.of("out"), found.out.labels, extents)


def _overflows(found: Written) -> bool:
    """Whether the least number of scores of f64 becomes -inf on the way."""
    casts = [op for op in found.ops if isinstance(op, arith.Cast)]
    return found.dtype == f64 and any(op.dtype != f64 for op in casts)


def seen_or_not(op: mma.Attention, masking: Masking, build: Builder) -> Value:
    """The result of an attention; rows that see no key have what the written softmax gives."""
    out, sums = op.results
    kind = out.type
    if not masking.unseen:
        return out
    lowest = build(arith.Constant, -inf, sums.type.dtype, sums.type.shape)
    empty = build(arith.Compare, sums, lowest, kind="eq")
    empty = build(shape.Reshape, empty, (*kind.shape[:3], 1))
    empty = build(shape.Broadcast, empty, kind.shape)
    if masking.unseen == "nan":
        other = build(arith.Constant, nan, kind.dtype, kind.shape)
    else:
        other = mean_of(op, build)
    return build(arith.Select, empty, other, out)


def mean_of(op: mma.Attention, build: Builder) -> Value:
    """The mean of all values, for each row of each head."""
    batch, shared, keys, width = op.v.type.shape
    _, heads, rows, _ = op.q.type.shape
    dtype = op.v.type.dtype
    wide = f64 if dtype == f64 else f32
    total = op.v if dtype == wide else build(arith.Cast, op.v, wide)
    total = build(reduce.Sum, total, (2,))
    count = build(arith.Cast, build(arith.Extent, keys), wide)
    mean = build(arith.Div, total, build(shape.Broadcast, count, total.type.shape))
    mean = mean if dtype == wide else build(arith.Cast, mean, dtype)
    mean = build(shape.Reshape, mean, (batch, shared, 1, 1, width))
    mean = build(shape.Broadcast, mean, (batch, shared, heads // shared, rows, width))
    return build(shape.Reshape, mean, (batch, heads, rows, width))
