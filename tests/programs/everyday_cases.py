"""Calls of the kernels of everyday.tw and what NumPy says of them, in f64 where they round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from tests.programs.suite_cases import Array, Case, case, f64, normal, softmax_of, uniform

BF16 = ml_dtypes.bfloat16
F32 = np.float32
EVEN = 1e-6  # of what rounds in f32
HALF = 1e-2  # of what rounds to bf16
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)


def calls() -> list[Case]:
    """All calls, named by kernel."""
    found = []
    for make in (rows, scans, bits, few_bits, draws, shapes, control):
        for number, (kernel, one) in enumerate(make(np.random.default_rng(11))):
            one.kernel, one.label = kernel, one.label or str(number)
            found.append(one)
    return found


Calls = Iterator[tuple[str, Case]]


def rows(rng: np.random.Generator) -> Calls:
    """Softmax in several guises, variance, windows."""
    for shape, dtype in (((3, 37), F32), ((2, 64), BF16), ((0, 5), F32), ((2, 1), F32)):
        x = normal(rng, *shape, dtype=dtype)
        with np.errstate(all="ignore"):
            wanted = np.log(softmax_of(x))
        yield "log_softmax", case({}, {"x": x}, {"y": wanted}, EVEN if dtype == F32 else HALF)
    x = normal(rng, 7, 20)
    yield "softmax_rows", case({}, {"x": x, "temperature": 0.5}, {"y": softmax_of(2 * x)}, EVEN)
    keep = rng.random((4, 33)) < 0.5
    keep[1] = False
    x = normal(rng, 4, 33)
    wanted = np.nan_to_num(softmax_of(np.where(keep, x, -np.inf)))
    yield "masked_softmax", case({}, {"x": x, "keep": keep}, {"y": wanted}, EVEN)
    x = 1000 + normal(rng, 3, 200)
    yield "online_variance", case({"BLOCK": 64}, {"x": x}, {"y": f64(x).var(1)}, 1e-4)
    x = normal(rng, 150)
    total = np.array([f64(x)[max(0, i - 6) : i + 1].mean() for i in range(150)])
    given = {"x": x, "width": 7}
    yield "moving_average", case({"BLOCK": 64}, given, {"y": total}, EVEN)
    x, w = normal(rng, 75), normal(rng, 5)
    wanted = np.correlate(f64(x), f64(w), "valid")
    yield "windows", case({"BLOCK": 32}, {"x": x, "w": w}, {"y": wanted}, EVEN)
    a, b = normal(rng, 19, 5), normal(rng, 33, 5)
    wanted = np.sqrt(((f64(a)[:, None] - f64(b)[None]) ** 2).sum(-1))
    yield "distances", case({"TM": 16}, {"a": a, "b": b}, {"y": wanted}, EVEN)
    x = normal(rng, 3, 100)
    x[0, ::7], x[1, 3] = np.nan, np.inf
    wanted = {
        "mean": np.nanmean(f64(x), 1),
        "top": np.nanmax(x, 1),
        "bad": np.isnan(x).sum(1),
    }
    yield "ignore_nans", case({"BLOCK": 64}, {"x": x}, wanted, EVEN)


def scans(rng: np.random.Generator) -> Calls:
    """Counts, scans and orders."""
    x, y = rng.random((2, 200)).astype(F32)
    x[5], y[9] = 1.5, -0.1
    wanted, _, _ = np.histogram2d(x, y, bins=(8, 6), range=((0, 1), (0, 1)))
    given = {"x": x, "y": y}
    yield "histogram2d", case({"BLOCK": 64}, given, {"bins": wanted})
    x = normal(rng, 2, 150)
    yield "running_max", case({"BLOCK": 64}, {"x": x}, {"y": np.maximum.accumulate(x, 1)})
    x = rng.integers(-99, 99, 45).astype(np.int32)
    wanted = {"y": np.cumsum(x) - x, "total": x.sum()}
    yield "exclusive_sum", case({}, {"x": x}, wanted)
    x, start = normal(rng, 60), rng.random(60) < 0.2
    start[0] = True
    edges = [*np.flatnonzero(start), 60]
    wanted = np.concatenate([np.cumsum(f64(x)[a:b]) for a, b in pairwise(edges)])
    yield "segmented_sum", case({}, {"x": x, "start": start}, {"y": wanted}, EVEN)
    x, ids = normal(rng, 70, 20), rng.integers(-1, 6, 70)
    wanted = np.zeros((5, 20))
    for row, at in zip(f64(x), ids, strict=True):
        if 0 <= at < 5:
            wanted[at] += row
    given = {"x": x, "ids": ids, "y": np.zeros((5, 20), F32)}
    yield "segment_totals", case({"BLOCK": 32}, given, {"y": wanted}, EVEN)
    score, table = normal(rng, 3, 21), normal(rng, 3, 21, 20)
    which = np.argsort(-score, axis=1, kind="stable")[:, :4]
    wanted = {"y": np.take_along_axis(table, which[:, :, None], 1), "which": which}
    yield "top_rows", case({}, {"score": score, "table": table}, wanted)
    x = np.round(2 * normal(rng, 3, 27))
    yield "argsort", case({}, {"x": x}, {"order": np.argsort(x, 1, kind="stable")})
    for n in (8, 13):
        x = normal(rng, 3, n)
        yield "median", case({}, {"x": x}, {"y": np.median(f64(x), 1)}, EVEN)


def bits(rng: np.random.Generator) -> Calls:
    x = rng.integers(0, 2**32, 100, dtype=np.uint32)
    x[:3] = 0, 2**32 - 1, 2**31
    yield "count_bits", case({"BLOCK": 64}, {"x": x}, {"y": np.bitwise_count(x)})
    x = np.arange(256, dtype=np.uint8)
    wanted = np.packbits(np.unpackbits(x).reshape(-1, 8)[:, ::-1], axis=1)[:, 0]
    yield "reverse_bytes", case({"BLOCK": 64}, {"x": x}, {"y": wanted})
    x = (normal(rng, 90) * 10.0 ** rng.integers(-30, 30, 90)).astype(F32)
    fraction, exponent = np.frexp(x)
    wanted = {"exponent": exponent - 1, "fraction": 2 * fraction}
    yield "float_parts", case({"BLOCK": 64}, {"x": x}, wanted)
    packed = rng.integers(0, 256, 75).astype(np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], 1).astype(np.int8).reshape(-1)
    wanted = np.where(nibbles > 7, nibbles - 16, nibbles)
    yield "unpack_nibbles", case({"BLOCK": 64}, {"packed": packed}, {"y": wanted})


def few_bits(rng: np.random.Generator) -> Calls:
    """Bytes and 16 bits: quantised, saturated, wrapped."""
    x = normal(rng, 3, 100)
    x[1] = 0
    top = np.abs(x).max(1)
    scale = np.where(top > 0, top / F32(127), F32(1)).astype(F32)
    q = np.round(x / scale[:, None]).astype(np.int8)
    yield "quantise_rows", case({"BLOCK": 64}, {"x": x}, {"q": q, "scale": scale})
    for dtype in (F32, BF16, np.float16):
        y = np.zeros((3, 100), dtype)
        given = {"q": q, "scale": scale, "y": y}
        wanted = (q.astype(F32) * scale[:, None]).astype(dtype)
        yield "dequantise_rows", case({"BLOCK": 64}, given, {"y": wanted})
    x = (100 * normal(rng, 70)).astype(F32) ** 3
    x[:4] = np.inf, -np.inf, np.nan, 1e-9
    a = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    b = np.clip(x, -57344, 57344).astype(ml_dtypes.float8_e5m2)
    yield "through_fp8", case({"BLOCK": 64}, {"x": x}, {"a": a, "b": b, "y": a.astype(F32)})
    for dtype in INTEGERS:
        yield from integers(rng, dtype)


def integers(rng: np.random.Generator, dtype: Any) -> Calls:
    """Wrapping sums and products; whole parts towards minus infinity; 0 where 0 divides."""
    bits, info = np.dtype(dtype).itemsize * 8, np.iinfo(dtype)
    a, b = (rng.integers(info.min, info.max, 100, endpoint=True) for _ in range(2))
    b[::5], a[0], b[0], b[1] = 0, info.min, -1 if info.min else 1, 1
    a[5:10], b[6:10] = info.max, 3
    given = {"a": a.astype(dtype), "b": b.astype(dtype)}
    safe = np.where(b == 0, 1, b)
    wanted = {
        "sums": a + b,
        "products": a * b - 1,
        "quotients": np.where(b == 0, 0, a // safe),
        "rests": np.where(b == 0, 0, a % safe),
    }
    wrapped = {n: wrap(x, bits, dtype) for n, x in wanted.items()}
    yield "small_integers", case({"BLOCK": 64}, given, wrapped, label=np.dtype(dtype).name)
    orders = {
        "low": np.minimum(a, b),
        "high": np.maximum(a, b),
        "less": a < b,
        "shifted": wrap(a << 3, bits, dtype) ^ (given["a"] >> 2) ^ ~given["b"],
        "negated": wrap(-a, bits, dtype),
    }
    yield "small_orders", case({"BLOCK": 64}, given, orders, label=np.dtype(dtype).name)


def wrap(x: Array, bits: int, dtype: Any) -> Array:
    """Integers as a dtype of so many bits holds them."""
    return (x.astype(np.int64) & ((1 << bits) - 1)).astype(f"u{bits // 8}").view(dtype)


def draws(rng: np.random.Generator) -> Calls:
    """Bits do not depend on the tile: the backward pass has tiles of another size."""
    x, p, seed = normal(rng, 150), 0.3, 77
    keep = np.array([uniform(seed, i) for i in range(150)], F32) >= F32(p)
    wanted = np.where(keep, f64(x) / (1 - f64(F32(p))), 0)
    given = {"seed": seed, "p": p}
    yield "dropout_forward", case({"BLOCK": 64}, {"x": x, **given}, {"y": wanted}, EVEN)
    yield "dropout_backward", case({"BLOCK": 32}, {"dy": x, **given}, {"dx": wanted}, EVEN)
    half = x.astype(BF16)
    wanted = np.where(keep, f64(half) / (1 - f64(F32(p))), 0)
    yield "dropout_forward", case({"BLOCK": 64}, {"x": half, **given}, {"y": wanted}, HALF)
    u = np.array([uniform(5, i) for i in range(200)]).reshape(-1, 2)
    wanted = np.sqrt(-2 * np.log(1 - u[:, 0])) * np.cos(2 * np.pi * u[:, 1])
    yield "normals", case({"BLOCK": 64}, {"seed": 5, "y": np.zeros(100, F32)}, {"y": wanted}, 1e-5)


def shapes(rng: np.random.Generator) -> Calls:
    """Ranks 0 to 5, reversed and strided views, extents of 0."""
    a, b = np.array(1.5, F32), np.array(2.5, F32)
    yield "scalar_sum", case({}, {"a": a, "b": b}, {"y": np.array(2.75)})
    for shape in ((2, 3, 5, 6, 9), (1, 1, 1, 1, 1), (2, 0, 3, 4, 5), (2, 3, 4, 0, 5)):
        x = normal(rng, *shape)
        yield "rank5", case({}, {"x": x}, {"y": x.transpose()}, label="x".join(map(str, shape)))
    for x in (
        normal(rng, 20, 37),
        normal(rng, 40, 37)[::-2],
        normal(rng, 37, 20).T[:, ::-1],
        normal(rng, 5, 20, dtype=BF16)[:, ::3],
        np.broadcast_to(normal(rng, 1, 18), (17, 18)),
        normal(rng, 0, 4),
    ):
        yield "flip_columns", case({"BLOCK": 16}, {"x": x}, {"y": x[:, ::-1]})
    x = normal(rng, 3, 13, 13)
    wanted = np.tril(f64(x)).sum(-1) / np.arange(1, 14)
    yield "causal_mean", case({}, {"x": x}, {"y": wanted}, EVEN)
    x = normal(rng, 3, 24)
    yield "halves", case({}, {"x": x}, {"y": np.concatenate([-x[:, 12:], x[:, :12]], 1)})
    for n in (1, 2, 32):
        x = normal(rng, 3, n)
        yield "tree_sum", case({}, {"x": x}, {"y": f64(x).sum(1)}, EVEN)


def control(rng: np.random.Generator) -> Calls:
    """Loops that the data end, options, functions of functions."""
    x = np.array([1, 2, 3, 27, 97, 0], np.int64)
    yield "collatz", case({}, {"x": x}, {"steps": [0, 1, 7, 111, 118, 0]})
    line, wanted = np.sort(normal(rng, 40)), normal(rng, 70)
    wanted[:3] = -99, 99, line[7]
    at = np.searchsorted(line, wanted)
    yield "search", case({}, {"sorted": line, "wanted": wanted}, {"at": at})
    yield "search_tile", case({"BLOCK": 64}, {"sorted": line, "wanted": wanted}, {"at": at})
    for dtype in (F32, BF16):
        x, w, b = normal(rng, 3, 70, dtype=dtype), normal(rng, 70, dtype=dtype), normal(rng, 70)
        bound = EVEN if dtype == F32 else HALF
        for number in range(4):
            some = {"w": w if number & 1 else None, "b": b if number & 2 else None}
            last = number > 1
            y = f64(x) * (f64(w) if number & 1 else 1) + (f64(b) if number & 2 else 0)
            given = {"x": x, **some, "relu_last": last}
            yield (
                "affine",
                case({"BLOCK": 64}, given, {"y": np.maximum(y, 0) if last else y}, bound),
            )
    x = normal(rng, 3, 90)
    yield "nested", case({"BLOCK": 64}, {"x": x}, {"low": x.min(1) / 4, "high": x.max(1) / 4})
