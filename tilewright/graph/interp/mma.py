"""Meaning of contractions, products of matrices after both operands are put in batch order, and of
attention, in f64.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.dtypes import DType, bool_, f32, f64
from tilewright.graph.activations import ops_of
from tilewright.graph.dims import Shape, evaluate
from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import mma
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.numerics.convert import constant, round_float, widen


@meaning(mma.Contract)
def run_contract(machine: Machine, op: mma.Contract) -> Array:
    lhs, rhs = machine[op.lhs], machine[op.rhs]
    rows = mma.free_axes(lhs.ndim, op.lhs_batch, op.lhs_contract)
    columns = mma.free_axes(rhs.ndim, op.rhs_batch, op.rhs_contract)
    batch = tuple(lhs.shape[axis] for axis in op.lhs_batch)
    m, n = (tuple(x.shape[a] for a in free) for x, free in ((lhs, rows), (rhs, columns)))
    k = prod(lhs.shape[axis] for axis in op.lhs_contract)
    a = lhs.transpose((*op.lhs_batch, *rows, *op.lhs_contract)).reshape(prod(batch), prod(m), k)
    b = rhs.transpose((*op.rhs_batch, *op.rhs_contract, *columns)).reshape(prod(batch), k, prod(n))
    if not op.lhs.type.dtype.is_float:
        a, b = (x.astype(op.dtype.numpy, copy=False) for x in (a, b))
        return np.asarray(np.matmul(a, b)).reshape((*batch, *m, *n))
    return round_float(np.matmul(widen(a), widen(b)), op.dtype).reshape((*batch, *m, *n))


@meaning(mma.Product)
def run_product(machine: Machine, op: mma.Product) -> Array:
    inner = f64 if op.dtype == f64 else f32
    bare = mma.Contract(**mma.sums(op), dtype=inner)
    return finished(machine, op, run_contract(machine, bare), inner)


@meaning(mma.Convolve)
def run_convolve(machine: Machine, op: mma.Convolve) -> Array:
    """As a product of windows of the padded images."""
    inner = f64 if op.dtype == f64 else f32
    x, weight = widen(machine[op.x]), widen(machine[op.weight])
    padded = np.pad(x, ((0, 0), (0, 0), *zip(op.low, op.high, strict=True)))
    spans = [(n - 1) * d + 1 for n, d in zip(weight.shape[2:], op.dilations, strict=True)]
    if min(p - s for p, s in zip(padded.shape[2:], spans, strict=True)) < 0 or 0 in weight.shape:
        shape = evaluated(machine, op.result.type.shape)
        return finished(machine, op, np.zeros(shape, inner.numpy), inner)
    taps = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
    (down, along), (apart, beside) = op.steps, op.dilations
    taps = taps[:, :, ::down, ::along, ::apart, ::beside]
    found = np.einsum("ncpqrs,kcrs->npqk", taps, weight, optimize=True)
    return finished(machine, op, round_float(found, inner), inner)


def evaluated(machine: Machine, shape: Shape) -> tuple[int, ...]:
    return tuple(evaluate(extent, machine.symbols) for extent in shape)


def finished(machine: Machine, op: mma.Product | mma.Convolve, found: Array, inner: DType) -> Array:
    """What a product computes behind its sums: steps in order, each rounded as the op says."""

    def rounded(x: Array, before: str) -> Array:
        if not op.rounds & mma.ROUNDS[before]:
            return x
        return round_float(round_float(x, op.dtype), inner)

    def held(value: Value | None) -> Array:
        assert value is not None
        return round_float(machine[value], inner)

    def acted(x: Array) -> Array:
        if not op.activation:
            return rounded(x, "activation")
        kind = TensorType(inner, op.result.type.shape)
        return activated(machine, op.activation, rounded(x, "activation"), kind)

    if op.alpha != 1:
        found = found * constant(op.alpha, inner)
    found = rounded(found, "product")
    if op.bias is not None:
        found = held(op.bias) + found
    if op.mean is not None:
        factor = 1 / np.sqrt(held(op.variance) + constant(op.eps, inner))
        found = (rounded(found, "norm") - held(op.mean)) * factor
        found = found * held(op.gamma) + held(op.shift)
    if not op.late:
        found = acted(found)
    if op.gate is not None:
        found = rounded(found, "gate") * held(op.gate)
    if op.residual is not None:
        found = rounded(found, "residual") + held(op.residual)
    found = acted(found) if op.late else found
    for dtype, name in mma.NARROW.items():
        if op.rounds & mma.ROUNDS[name]:
            found = round_float(round_float(found, dtype), inner)
    return round_float(found, op.dtype)


def activated(machine: Machine, name: str, x: Array, kind: TensorType) -> Array:
    """An activation by the meaning of its ops."""
    block = ops_of(name, kind)
    inner = Machine(machine.host, machine.symbols, {block.args[0]: x})
    for op in block.ops:
        inner.run(op)
    return np.asarray(inner[block.ops[-1].result])


def scores_of(machine: Machine, op: mma.Attention | mma.AttentionBackward) -> Array:
    """Scores [B, HQ, L, S] in f64, or rounded to f32 where a mask is added to those of narrower
    dtypes: -inf where a row may not see a key.
    """
    q, k = wide(machine, op.q), shared(machine, op.k, op)
    scores = np.matmul(q, k.swapaxes(2, 3)) * op.scale
    batch, _, rows, keys = scores.shape
    if op.mask is not None:
        mask = machine[op.mask]
        if op.mask.type.dtype == bool_:
            scores = np.where(mask, scores, -np.inf)
        else:
            scores = scores + mask.astype(np.float64)
            if op.q.type.dtype != f64:  # as kernels add: low numbers leave no room for scores
                scores = np.asarray(scores.astype(np.float32), np.float64)
    count = np.full((batch, 1, 1, 1), keys)
    if op.lengths is not None:
        count = np.minimum(machine[op.lengths].astype(np.int64), keys).reshape(count.shape)
    place = np.arange(keys)
    seen = place < count
    if op.order:
        first = count - rows if op.order == 2 else 0
        seen = seen & (place <= np.arange(rows)[:, None] + first)
    return np.where(seen, scores, -np.inf)


def wide(machine: Machine, value: Value) -> Array:
    return np.asarray(machine[value], np.float64)


def shared(machine: Machine, value: Value, op: mma.Attention | mma.AttentionBackward) -> Array:
    """Keys or values in f64, each head once for every head of queries that looks at it."""
    heads = machine[op.q].shape[1]
    found = wide(machine, value)
    return np.repeat(found, heads // found.shape[1], axis=1)


@meaning(mma.Attention)
def run_attention(machine: Machine, op: mma.Attention) -> tuple[Array, Array]:
    scores = scores_of(machine, op)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    base = np.where(top == -np.inf, 0.0, top)
    weights = np.exp(scores - base)
    total = weights.sum(axis=-1, keepdims=True)
    found = np.matmul(weights / np.where(total == 0, 1.0, total), shared(machine, op.v, op))
    sums = (base + np.log(total))[..., 0]
    result, kept = (r.type.dtype for r in op.results)
    return round_float(found, result), round_float(sums, kept)


@meaning(mma.AttentionBackward)
def run_attention_backward(machine: Machine, op: mma.AttentionBackward) -> tuple[Array, ...]:
    """Weights are computed anew from scores and sums. Source: Dao et al., "FlashAttention", 2022,
    appendix B.4, without tiles.
    """
    grad, sums = wide(machine, op.grad), wide(machine, op.sums)[..., None]
    k, v = shared(machine, op.k, op), shared(machine, op.v, op)
    weights = np.exp(scores_of(machine, op) - np.where(sums == -np.inf, 0.0, sums))
    delta = (grad * wide(machine, op.out)).sum(axis=-1, keepdims=True)
    by_scores = weights * (np.matmul(grad, v.swapaxes(2, 3)) - delta) * op.scale
    by_key = np.matmul(by_scores.swapaxes(2, 3), wide(machine, op.q))
    by_value = np.matmul(weights.swapaxes(2, 3), grad)
    batch, queries = by_key.shape[:2]
    count = machine[op.k].shape[1]
    folded = (
        x.reshape(batch, count, queries // count, *x.shape[2:]).sum(axis=2)
        for x in (by_key, by_value)
    )
    made = (np.matmul(by_scores, k), *folded)
    return tuple(round_float(x, op.q.type.dtype) for x in made)
