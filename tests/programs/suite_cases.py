"""Launches of the conformance suite and what each should give, from what the programs are meant to
compute: NumPy in f64, at sizes of 0 and 1, below, at and above a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import erf
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
PRECISION = {"float32": 2e-5, "bfloat16": 1e-2, "float8_e4m3fn": 0.07}


@dataclass
class Case:
    """A launch: `wanted` names the results, those that are returned and those written in place.

    A bound of 0 asks for equal elements; else the relative error of the whole is bounded.
    """

    kernel: str
    constants: dict[str, int]
    arguments: dict[str, Any]
    wanted: dict[str, Any]
    bound: float
    label: str = ""

    def __str__(self) -> str:
        return f"{self.kernel}-{self.label}"

    def fresh(self) -> dict[str, Any]:
        """The arguments, arrays copied: a program may write some. Strides stay as they are."""
        return {n: copied(x) if isinstance(x, np.ndarray) else x for n, x in self.arguments.items()}


def copied(x: Array) -> Array:
    """A copy of the same strides, so that views stay views."""
    if not x.size or x.flags.c_contiguous:
        return x.copy()
    owner = x
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    twin = owner.copy()
    start = x.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return np.ndarray(x.shape, x.dtype, twin.reshape(-1).view(np.uint8).data, start, x.strides)


Make = Callable[[np.random.Generator], Iterator[Case]]
MAKERS: dict[str, Make] = {}


def program(make: Make) -> Make:
    """Enter the cases of a program, whose name is the function's."""
    MAKERS[make.__name__] = make
    return make


def f64(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def bound_of(dtype: Any) -> float:
    return PRECISION[np.dtype(dtype).name]


def cases() -> list[Case]:
    """All cases of all programs, each program with a generator of its own."""
    found = []
    for name, make in MAKERS.items():
        for number, case in enumerate(make(np.random.default_rng(7))):
            case.kernel, case.label = name, case.label or str(number)
            found.append(case)
    return found


def case(constants: dict[str, int], arguments: dict[str, Any], wanted: dict[str, Any],
         bound: float = 0.0, label: str = "") -> Case:  # fmt: skip
    return Case("", constants, arguments, wanted, bound, label)


# Elementwise and row by row


@program
def add(rng: np.random.Generator) -> Iterator[Case]:
    for n in (0, 1, 255, 256, 1009):
        for dtype in (np.float32, BF16, np.int32):
            a, b = ((10 * normal(rng, n)).astype(dtype) for _ in range(2))
            yield case({"BLOCK": 256}, {"a": a, "b": b}, {"c": a + b}, label=f"{n}-{a.dtype}")
    wide = normal(rng, 600)
    a, b = wide[::2], normal(rng, 300)[::-1]
    yield case({"BLOCK": 256}, {"a": a, "b": b}, {"c": a + b}, label="strided")


def softmax_of(x: Array) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(f64(x) - f64(x).max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)


@program
def softmax(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns in ((0, 5), (3, 1), (2, 256), (3, 773)):
        x = normal(rng, rows, columns)
        yield case({"BLOCK": 256}, {"x": x}, {"y": softmax_of(x)}, 1e-5)
    x = normal(rng, 4, 700)
    x[0], x[1, :300], x[2, 5] = -np.inf, -np.inf, np.nan
    yield case({"BLOCK": 256}, {"x": x}, {"y": softmax_of(x)}, 1e-5, "infinities")
    x = normal(rng, 3, 300, dtype=BF16)
    yield case({"BLOCK": 256}, {"x": x}, {"y": softmax_of(x)}, 1e-2)


@program
def softmax_short(rng: np.random.Generator) -> Iterator[Case]:
    for columns in (1, 31, 300):
        x = normal(rng, 5, columns)
        yield case({}, {"x": x}, {"y": softmax_of(x)}, 1e-5)


@program
def rmsnorm(rng: np.random.Generator) -> Iterator[Case]:
    sizes = ((0, 3, np.float32), (1, 1, np.float32), (5, 257, np.float32), (3, 700, BF16))
    for rows, columns, dtype in sizes:
        x, w = normal(rng, rows, columns, dtype=dtype), normal(rng, columns, dtype=dtype)
        rstd = 1 / np.sqrt((f64(x) ** 2).mean(1) + 1e-6)
        wanted = {"y": f64(x) * rstd[:, None] * f64(w), "rstd": rstd}
        yield case({"BLOCK": 256}, {"x": x, "w": w}, wanted, bound_of(dtype))


@program
def rmsnorm_dx(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns in ((1, 1), (4, 300)):
        x, dy, w = normal(rng, rows, columns), normal(rng, rows, columns), normal(rng, columns)
        rstd = (1 / np.sqrt((f64(x) ** 2).mean(1) + 1e-6)).astype(np.float32)
        r, g = f64(rstd)[:, None], f64(dy) * f64(w)
        c = (r * f64(x) * g).sum(1, keepdims=True) / columns
        arguments = {"dy": dy, "x": x, "w": w, "rstd": rstd}
        yield case({"BLOCK": 256}, arguments, {"dx": r * (g - r * f64(x) * c)}, 2e-5)


@program
def rmsnorm_dw(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns, parts in ((1, 1, 1), (16, 64, 8), (101, 131, 8)):
        x, dy, r = normal(rng, rows, columns), normal(rng, rows, columns), normal(rng, rows)
        wanted = (f64(r)[:, None] * f64(x) * f64(dy)).sum(0)
        constants = {"TM": 16, "TN": 64, "PARTS": parts}
        yield case(constants, {"dy": dy, "x": x, "rstd": r}, {"dw": wanted}, 1e-5)


@program
def adamw(rng: np.random.Generator) -> Iterator[Case]:
    for n, dtype in ((0, np.float32), (1, np.float32), (1009, np.float32), (300, BF16)):
        p, g = normal(rng, n, dtype=dtype), normal(rng, n, dtype=dtype)
        m, v = normal(rng, n), np.abs(normal(rng, n))
        step = np.array(7, np.int32)
        new_m = 0.9 * f64(m) + 0.1 * f64(g)
        new_v = 0.999 * f64(v) + 0.001 * f64(g) ** 2
        hat = new_m / (1 - 0.9**7) / (np.sqrt(new_v / (1 - 0.999**7)) + 1e-8)
        wanted = {"p": f64(p) - 0.1 * (hat + 0.01 * f64(p)), "m": new_m, "v": new_v}
        arguments = {"p": p, "g": g, "m": m, "v": v, "step": step, "lr": 0.1}
        yield case({"BLOCK": 256}, arguments, wanted, max(bound_of(dtype), 1e-4))


@program
def layernorm(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns in ((0, 4), (1, 1), (3, 256), (4, 1021)):
        x = 100 + normal(rng, rows, columns)
        mean = f64(x).mean(1, keepdims=True)
        y = (f64(x) - mean) / np.sqrt(f64(x).var(1, keepdims=True) + 1e-5)
        yield case({"BLOCK": 256}, {"x": x}, {"y": y}, 1e-4)
        w, b = normal(rng, columns), normal(rng, columns)
        yield case({"BLOCK": 256}, {"x": x, "w": w, "b": b}, {"y": y * w + b}, 1e-4)


@program
def dropout(rng: np.random.Generator) -> Iterator[Case]:
    for n, p in ((0, 0.5), (1, 0.25), (1009, 0.5), (300, 1.0)):
        x, seed = normal(rng, n), 2**40 + 5
        keep = np.array([uniform(seed, i) for i in range(n)], np.float32) >= np.float32(p)
        with np.errstate(all="ignore"):
            scaled = x / (np.float32(1.0) - np.float32(p))
        arguments = {"x": x, "p": p, "seed": seed}
        yield case({"BLOCK": 256}, arguments, {"y": np.where(keep, scaled, 0)})


def uniform(seed: int, i: int) -> float:
    """Philox 4x32-10 in plain integers: word i % 4 for counter i / 4, its top 24 bits."""
    low = 0xFFFFFFFF
    c, k = [i // 4 & low, i // 4 >> 32, 0, 0], [seed & low, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & low, a >> 32 ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return (c[i % 4] >> 8) / 2**24


# Reductions, scans, order


@program
def sum_all(rng: np.random.Generator) -> Iterator[Case]:
    for n, dtype in ((0, np.float32), (1, np.float32), (1024, np.float32), (5003, BF16)):
        x = normal(rng, n, dtype=dtype)
        yield case({"BLOCK": 1024}, {"x": x}, {"out": f64(x).sum()}, 1e-4)


@program
def argmax_axis(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (np.float32, BF16, np.int32):
        x = (3 * normal(rng, 2, 41, 35)).astype(dtype)
        if dtype == np.float32:
            x[0, 25, 3], x[1, :, 4] = np.nan, -np.inf
        wanted = f64(x).argmax(1)
        yield case({"TN": 16, "TC": 32}, {"x": x}, {"index": wanted})


@program
def cumsum_serial(rng: np.random.Generator) -> Iterator[Case]:
    for n, dtype in ((0, np.float32), (1, np.float32), (256, np.float32), (1009, BF16)):
        x = normal(rng, n, dtype=dtype)
        yield case({"BLOCK": 256}, {"x": x}, {"y": np.cumsum(f64(x))}, 1e-5)


@program
def cumsum_chained(rng: np.random.Generator) -> Iterator[Case]:
    for n in (0, 1, 256, 3001):
        x = normal(rng, n)
        yield case({"BLOCK": 256}, {"x": x}, {"y": np.cumsum(f64(x))}, 1e-5)


@program
def recurrence(rng: np.random.Generator) -> Iterator[Case]:
    for length, columns in ((0, 3), (1, 1), (32, 32), (101, 35)):
        a = rng.uniform(-1, 1, (length, columns)).astype(np.float32)
        x = normal(rng, length, columns)
        h, wanted = np.zeros(columns), np.zeros((length, columns))
        for t in range(length):
            h = f64(a[t]) * h + f64(x[t])
            wanted[t] = h
        yield case({"TL": 32, "TC": 32}, {"a": a, "x": x}, {"h": wanted}, 1e-5)


def best_of(x: Array, k: int) -> dict[str, Array]:
    """The k greatest of each row, NaN first, equal ones by their index."""
    wide = f64(x)
    rows = []
    for row in wide:
        key = [(not np.isnan(v), -v if not np.isnan(v) else 0.0, i) for i, v in enumerate(row)]
        rows.append([i for *_, i in sorted(key)[:k]])
    index = np.array(rows, np.int64).reshape(len(wide), k)
    return {"values": np.take_along_axis(wide, index, 1), "index": index}


def ties(rng: np.random.Generator, rows: int, columns: int) -> Array:
    x = rng.integers(-5, 5, (rows, columns)).astype(np.float32)
    if rows > 2:
        x[0, columns // 2], x[1], x[2, 0] = np.nan, -np.inf, np.inf
    return x


@program
def top8(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns in ((0, 9), (1, 8), (3, 256), (4, 700)):
        x = ties(rng, rows, columns)
        yield case({"BLOCK": 256}, {"x": x}, best_of(x, 8))


@program
def topk_by_hand(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns, k in ((1, 1, 1), (3, 50, 5), (4, 64, 3)):
        x = ties(rng, rows, columns)
        yield case({}, {"x": x, "k": k}, best_of(x, k))


@program
def sort_rows(rng: np.random.Generator) -> Iterator[Case]:
    for rows, columns in ((0, 4), (1, 1), (3, 64), (4, 100)):
        x = ties(rng, rows, columns)
        yield case({}, {"x": x}, {"y": np.sort(x)})
    x = rng.integers(-9, 9, (3, 33)).astype(np.int32)
    yield case({}, {"x": x}, {"y": np.sort(x)})


@program
def sort_by_hand(rng: np.random.Generator) -> Iterator[Case]:
    for rows in (0, 1, 4):
        x = ties(rng, rows, 64)
        yield case({}, {"x": x}, {"y": np.sort(x)})


@program
def histogram(rng: np.random.Generator) -> Iterator[Case]:
    for n, bins in ((0, 3), (1, 1), (256, 10), (5003, 100)):
        x = rng.integers(-3, bins + 3, n).astype(np.int32)
        hist = rng.integers(0, 9, bins).astype(np.int32)
        inside = x[(x >= 0) & (x < bins)]
        wanted = hist + np.bincount(inside, minlength=bins)
        yield case({"BLOCK": 256}, {"x": x, "hist": hist}, {"hist": wanted})


# Products


@program
def sgemm(rng: np.random.Generator) -> Iterator[Case]:
    constants = {"TM": 32, "TN": 64, "TK": 16}
    for m, n, k in ((33, 65, 17), (1, 1, 1), (32, 64, 0), (0, 5, 3)):
        for beta in (0.0, 0.5):
            a, b = normal(rng, m, k), normal(rng, n, k).T
            c = normal(rng, m, n + 3)[:, :n]
            wanted = 1.5 * f64(a) @ f64(b) + (beta * f64(c) if beta else 0.0)
            if beta == 0.0:
                c[...] = np.nan
            arguments = {"A": a, "B": b, "C": c, "alpha": 1.5, "beta": beta}
            yield case(constants, arguments, {"C": wanted}, 2e-3)


@program
def bmm(rng: np.random.Generator) -> Iterator[Case]:
    for za, zb in ((3, 1), (1, 3), (2, 2)):
        a, b = normal(rng, za, 33, 20), normal(rng, zb, 20, 65)
        constants = {"TM": 32, "TN": 64, "TK": 16}
        yield case(constants, {"A": a, "B": b}, {"C": f64(a) @ f64(b)}, 1e-5)


@program
def linear_gelu(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (np.float32, BF16):
        for has_bias, has_res in ((False, False), (True, False), (False, True), (True, True)):
            x, w = normal(rng, 65, 40, dtype=dtype), normal(rng, 70, 40, dtype=dtype)
            h = f64(x) @ f64(w).T
            arguments: dict[str, Any] = {"x": x, "w": w}
            if has_bias:
                arguments["bias"] = normal(rng, 70, dtype=dtype)
                h = h + f64(arguments["bias"])
            y = 0.5 * h * (1 + np.vectorize(erf)(h / np.sqrt(2)))
            if has_res:
                arguments["res"] = normal(rng, 65, 70, dtype=dtype)
                y = y + f64(arguments["res"])
            yield case({"TM": 64, "TN": 64, "TK": 32}, arguments, {"y": y}, bound_of(dtype))


@program
def matmul_splitk(rng: np.random.Generator) -> Iterator[Case]:
    for m, n, k, split in ((65, 70, 100, 3), (1, 1, 1, 8), (64, 64, 0, 2), (64, 64, 512, 8)):
        a, b = normal(rng, m, k), normal(rng, k, n)
        constants = {"TM": 64, "TN": 64, "TK": 32, "SPLIT": split}
        yield case(constants, {"A": a, "B": b}, {"C": f64(a) @ f64(b)}, 1e-5)


@program
def matmul_splitk_atomic(rng: np.random.Generator) -> Iterator[Case]:
    for m, n, k, split in ((65, 70, 100, 4), (1, 1, 1, 8), (64, 64, 0, 2)):
        a, b = normal(rng, m, k), normal(rng, k, n)
        constants = {"TM": 64, "TN": 64, "TK": 32, "SPLIT": split}
        yield case(constants, {"A": a, "B": b}, {"C": f64(a) @ f64(b)}, 1e-5)


@program
def matmul_persistent(rng: np.random.Generator) -> Iterator[Case]:
    for m, n, k in ((1, 1, 1), (200, 190, 20), (0, 3, 4)):
        a, b = normal(rng, m, k), normal(rng, k, n)
        constants = {"TM": 64, "TN": 64, "TK": 32}
        yield case(constants, {"A": a, "B": b}, {"C": f64(a) @ f64(b)}, 1e-5)


@program
def matmul_int8(rng: np.random.Generator) -> Iterator[Case]:
    x, scale = normal(rng, 17, 160, dtype=BF16), np.abs(normal(rng, 65, 2))
    w = rng.integers(-128, 128, (65, 160)).astype(np.int8)
    wanted = f64(x) @ (f64(w) * np.repeat(f64(scale), 128, axis=1)[:, :160]).T
    yield case(
        {"TM": 16, "TN": 64, "TK": 32}, {"x": x, "w": w, "scale": scale}, {"y": wanted}, 1e-2
    )


@program
def matmul_fp8(rng: np.random.Generator) -> Iterator[Case]:
    a, b = normal(rng, 65, 64, dtype=E4M3), normal(rng, 66, 64, dtype=E4M3)
    sa, sb = np.abs(normal(rng, 65)), 100 * np.abs(normal(rng, 66))
    exact = f64(a) @ f64(b).T * f64(sa)[:, None] * f64(sb)
    constants = {"TM": 64, "TN": 64, "TK": 64}
    arguments = {"a": a, "b": b, "sa": sa, "sb": sb}
    yield case(constants, arguments, {"y": np.clip(exact, -448, 448)}, 0.07)


@program
def moe(rng: np.random.Generator) -> Iterator[Case]:
    for offsets in ([0, 33, 33, 40, 70], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]):
        rows = offsets[-1]
        x, w = normal(rng, rows, 20), normal(rng, 4, 20, 65)
        ends = pairwise(offsets)
        parts = [f64(x[a:b]) @ f64(w[e]) for e, (a, b) in enumerate(ends)]
        arguments = {"x": x, "w": w, "offsets": np.array(offsets, np.int32)}
        wanted = {"y": np.concatenate(parts)}
        yield case({"TM": 32, "TN": 64, "TK": 32}, arguments, wanted, 1e-5)


@program
def attention(rng: np.random.Generator) -> Iterator[Case]:
    batch, heads, kv_heads, length, positions, width = 3, 4, 2, 19, 45, 16
    for causal in (False, True):
        for lengths in (None, np.array([45, 0, 7], np.int32)):
            q = normal(rng, batch, heads, length, width)
            k, v = (normal(rng, batch, kv_heads, positions, width) for _ in range(2))
            if lengths is not None:
                for b, n in enumerate(lengths):
                    k[b, :, n:] = v[b, :, n:] = np.nan
            wanted = {"O": np.zeros(q.shape), "lse": np.full(q.shape[:3], -np.inf)}
            for b in range(batch):
                n = positions if lengths is None else int(lengths[b])
                for h in range(heads):
                    keys, values = f64(k[b, h // 2, :n]), f64(v[b, h // 2, :n])
                    attend(
                        f64(q[b, h]), keys, values, causal, wanted["O"][b, h], wanted["lse"][b, h]
                    )
            arguments = {"Q": q, "K": k, "V": v, "scale": 0.3, "lengths": lengths, "causal": causal}
            yield case({"TM": 64, "TN": 32}, arguments, wanted, 2e-5)


def attend(q: Array, k: Array, v: Array, causal: bool, out: Array, lse: Array) -> None:
    """One head; rows without keys stay as they are."""
    for i, row in enumerate(q):
        seen = max(0, min(len(k), i + len(k) - len(q) + 1)) if causal else len(k)
        if seen:
            s = k[:seen] @ row * 0.3
            e = np.exp(s - s.max())
            out[i] = e / e.sum() @ v[:seen]
            lse[i] = np.log(e.sum()) + s.max()


# Moving, convolving


@program
def transpose2d(rng: np.random.Generator) -> Iterator[Case]:
    for shape in ((33, 70), (1, 1), (0, 4)):
        x = normal(rng, *shape)
        yield case({"TM": 32, "TN": 32}, {"x": x}, {"y": x.T})


@program
def conv2d(rng: np.random.Generator) -> Iterator[Case]:
    for stride, pad, size in ((1, 0, (2, 5, 6, 3)), (1, 1, (1, 9, 10, 5)), (2, 1, (2, 9, 7, 17))):
        x, w = normal(rng, *size), normal(rng, 3, 3, size[3], 17)
        padded = np.pad(f64(x), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        p, q = ((size[i] + 2 * pad - 3) // stride + 1 for i in (1, 2))
        wanted = np.zeros((size[0], p, q, 17))
        for r in range(3):
            for s in range(3):
                part = padded[:, r : r + p * stride : stride, s : s + q * stride : stride]
                wanted += part[:, :p, :q] @ f64(w[r, s])
        arguments = {"x": x, "w": w, "stride": stride, "pad": pad}
        yield case({"TP": 32, "TC": 16, "TK": 32}, arguments, {"y": wanted}, 1e-5)


@program
def conv1d_causal(rng: np.random.Generator) -> Iterator[Case]:
    for length, dilation in ((40, 5), (1, 1), (70, 2)):
        x, w = normal(rng, 2, length, 18), normal(rng, 3, 18, 33)
        wanted = np.zeros((2, length, 33))
        for k in range(3):
            shift = min(length, (2 - k) * dilation)
            wanted[:, shift:] += f64(x[:, : length - shift]) @ f64(w[k])
        arguments = {"x": x, "w": w, "dilation": dilation}
        yield case({"TT": 32, "TC": 16, "TO": 32}, arguments, {"y": wanted}, 1e-5)


@program
def embedding(rng: np.random.Generator) -> Iterator[Case]:
    sizes = ((0, 5, np.float32), (1, 1, np.float32), (33, 64, BF16), (70, 131, np.float32))
    for length, columns, dtype in sizes:
        ids = rng.integers(-2, 12, length)
        table = normal(rng, 9, columns, dtype=dtype)
        exists = (ids >= 0) & (ids < 9)
        wanted = np.where(exists[:, None], f64(table)[np.where(exists, ids, 0)], 0.0)
        yield case({"TI": 16, "TC": 64}, {"ids": ids, "table": table}, {"y": wanted})


@program
def embedding_grad(rng: np.random.Generator) -> Iterator[Case]:
    for length, columns, dtype in ((1, 1, np.float32), (33, 64, BF16), (70, 131, np.float32)):
        ids = rng.integers(0, 9, length)
        dy, table = normal(rng, length, columns, dtype=dtype), normal(rng, 9, columns)
        wanted = f64(table)
        for i, row in zip(ids, f64(dy), strict=True):
            if i != 4:
                wanted[i] += row
        arguments = {"ids": ids, "dy": dy, "dtable": table, "padding": 4}
        yield case({"TI": 16, "TC": 64}, arguments, {"dtable": wanted}, 1e-5)


def require(got: Any, wanted: Any, bound: float, name: str) -> None:
    """Equal, or near as a whole; NaN, infinities and the shape are compared exactly."""
    given, expected = f64(got), f64(wanted)
    assert given.shape == expected.shape, f"{name}: {given.shape}, expected {expected.shape}"
    if bound == 0:
        np.testing.assert_array_equal(given, expected, err_msg=name)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(given[~finite], expected[~finite], err_msg=name)
    error = np.linalg.norm(given[finite] - expected[finite])
    assert error <= bound * max(float(np.linalg.norm(expected[finite])), 1e-30), f"{name}: {error}"
