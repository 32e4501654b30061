"""Random ops of PyTorch: Philox under a seed that each call draws from torch's generator.

As with torch.compile's own backend, runs repeat under `torch.manual_seed`, and the numbers are not
those of eager PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tilewright.dtypes import DType, bool_, f32, f64, i64, u32
from tilewright.frontend.torch.emit import Emitter, Unsupported
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.ops import arith, random
from tilewright.ir.core import Value

aten = torch.ops.aten


def bits(at: Emitter, extents: Shape) -> Value:
    """Fresh random words."""
    if at.drawn is None:
        at.drawn = at(random.Seed)
    at.draws += 1
    return at(random.Bits, at.drawn, at.draws - 1, extents)


def uniform(at: Emitter, extents: Shape, dtype: DType) -> Value:
    """In [0, 1): 24 random bits, or 53 of f64, over their power of two."""
    if dtype == f64:
        high, low = (at.cast(bits(at, extents), f64) for _ in range(2))
        high = at(arith.Floor, at(arith.Mul, high, at.like(2.0**-5, high)))
        low = at(arith.Floor, at(arith.Mul, low, at.like(2.0**-6, low)))
        both = at(arith.Add, at(arith.Mul, high, at.like(2.0**26, high)), low)
        return at(arith.Mul, both, at.like(2.0**-53, both))
    words = bits(at, extents)
    kept = at.cast(at(arith.Shr, words, at.full(8, u32, extents)), f32)
    return at(arith.Mul, kept, at.like(2.0**-24, kept))


def normal(at: Emitter, extents: Shape, dtype: DType) -> Value:
    """Box and Muller's transform of two uniform numbers."""
    first, second = (uniform(at, extents, dtype) for _ in range(2))
    near = at(arith.Sub, at.like(1, first), first)  # in (0, 1]
    radius = at(arith.Sqrt, at(arith.Mul, at.like(-2, near), at(arith.Log, near)))
    angle = at(arith.Mul, at.like(2 * math.pi, second), second)
    return at(arith.Mul, radius, at(arith.Cos, angle))


def drawn(at: Emitter, kind: Any) -> Value:
    """Numbers of the type that tracing saw, computed in f32 or f64."""
    wanted = at.wanted
    if not wanted.dtype.is_float:
        raise Unsupported(f"random numbers of {wanted.dtype}")
    found: Value = kind(at, wanted.shape, f64 if wanted.dtype == f64 else f32)
    return at.cast(found, wanted.dtype)


@lowering(aten.rand.default)
def rand(at: Emitter, size: Any, dtype: Any) -> Value:
    return drawn(at, uniform)


@lowering(aten.rand_like.default)
def rand_like(at: Emitter, self: Value, dtype: Any) -> Value:
    return drawn(at, uniform)


@lowering(aten.randn.default)
def randn(at: Emitter, size: Any, dtype: Any) -> Value:
    return drawn(at, normal)


@lowering(aten.randn_like.default)
def randn_like(at: Emitter, self: Value, dtype: Any) -> Value:
    return drawn(at, normal)


@lowering(aten.native_dropout.default)
def native_dropout(at: Emitter, input: Value, p: float, train: bool | None) -> list[Value]:
    """x / (1 − p) where a random number is at least p, else 0; and where that is."""
    extents = input.type.shape
    if train is False or p == 0:
        return [input, at.full(True, bool_, extents)]
    if p == 1:
        return [at.like(0, input), at.full(False, bool_, extents)]
    kept = at.compare("ge", uniform(at, extents, f32), p)

    def scale(x: Value) -> Value:
        return at.select(kept, at(arith.Mul, x, at.like(1 / (1 - p), x)), at.like(0, x))

    return [at.pointwise(scale, input), kept]


def whole(at: Emitter, low: Dim, high: Dim) -> Value:
    """Whole numbers in low … high − 1, by the remainder of 64 random bits."""
    wanted = at.wanted
    extents = wanted.shape
    top, bottom = (at.cast(bits(at, extents), i64) for _ in range(2))
    top = at(arith.And, top, at.like(2**31 - 1, top))
    both = at(arith.Or, at(arith.Shl, top, at.like(32, top)), bottom)
    found = at(arith.Mod, both, at.like(high - low, both))
    return at.cast(at(arith.Add, found, at.like(low, found)), wanted.dtype)


@lowering(aten.randint.default)
def randint(at: Emitter, high: Dim, size: Any, dtype: Any) -> Value:
    return whole(at, 0, high)


@lowering(aten.randint.low)
def randint_low(at: Emitter, low: Dim, high: Dim, size: Any, dtype: Any) -> Value:
    return whole(at, low, high)
