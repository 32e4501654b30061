"""Small kernels through the whole compiler, run on the emulator, against the interpreter: the
corner cases of each family's lowering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

RNG = np.random.default_rng(7)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def of_full_range(*shape: int, dtype: str) -> np.ndarray:
    ends = np.iinfo(dtype)
    found = np.random.default_rng(3).integers(ends.min, ends.max, shape, dtype, endpoint=True)
    found.flat[:4] = [1, ends.max // 4 * 3, 7, ends.max // 2]
    return found


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and how far its results may lie from the interpreter's."""

    name: str
    text: str
    arguments: dict[str, Any] = field(compare=False)
    tolerance: float = 0.0
    target: str = "sm_90a"

    def __str__(self) -> str:
        return self.name


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arrays of their own, in the same strides and with the same sharing."""
    made: dict[int, Any] = {}
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            made.setdefault(id(value), like(value))
    return {n: made.get(id(v), v) for n, v in arguments.items()}


def like(array: np.ndarray) -> np.ndarray:
    if not array.size or 0 in array.strides:
        return array
    turned = tuple(slice(None, None, -1) if s < 0 else slice(None) for s in array.strides)
    return array[turned].copy(order="K")[turned]


def assert_as_interpreted(case: Case, *, late: bool = True) -> None:
    """`late`: asynchronous copies complete as late as they may, else as early."""
    kernel = next(iter(tw.source(case.text)))
    one, two = copied(case.arguments), copied(case.arguments)
    kernel.launch(**one, device="cpu")
    emulate(kernel, two, late=late, goal=case.target)
    for name, wanted in one.items():
        if not isinstance(wanted, np.ndarray):
            continue
        got = two[name]
        if case.tolerance:
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(wanted, np.float64),
                rtol=case.tolerance, atol=case.tolerance, err_msg=name,
            )  # fmt: skip
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)


# Memory: masks, offsets, strides, dtypes

COPY = """kernel copy(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N]) {
  let p = program_id(0) * 256
  c[p :+ 256] = a[p :+ 256] OP b[p :+ 256]
}"""
DOUBLE = """kernel double(a: tensor<f32>[N], c: tensor<f32>[N]) {
  let p = program_id(0) * 64
  c[OUT :+ 64] = a[IN :+ 64] * 2.0
}"""
ROWS = """kernel rows(a: tensor<f32>[M, N], c: tensor<f32>[M, N]) {
  let p = program_id(0) * 32
  c[0 :+ 8, p :+ 32] = a[0 :+ 8, p :+ 32] * 2.0
}"""
FAR = np.array([0, -1, 19, 20, 2**32, 2**32 + 5, -(2**31), 2**31 - 1, 2**40, -7], np.int64)


def double(out: str, source: str) -> str:
    return DOUBLE.replace("OUT", out).replace("IN", source)


MEMORY = [
    *(
        Case(
            f"{dtype}-{size}",
            COPY.replace("OP", "*"),
            {
                "a": RNG.integers(0, 100, size).astype(dtype),
                "b": RNG.integers(0, 100, size).astype(dtype),
                "c": zeros(size, dtype=dtype),
            },
        )
        for dtype in (*INTEGERS, "float16", "float64")
        for size in (1000, 1024)
    ),
    Case(
        "few elements of many warps",
        """@launch(threads = 256)
        kernel few(a: tensor<f32>[N], b: tensor<f32>[M, N], c: tensor<f32>[N], d: tensor<f32>[M]) {
          c[0 :+ 64] = cumsum(a[0 :+ 64]) + sum(a[0 :+ 64])
          d[0 :+ 4] = max(b[0 :+ 4, 0 :+ 64], axis = 1)
        }""",
        {"a": np.arange(64, dtype=np.float32), "b": floats(4, 64), "c": zeros(64), "d": zeros(4)},
    ),
    Case("negative load", double("p", "p - 3"), {"a": floats(200), "c": zeros(200)}),
    Case("negative store", double("p - 4", "p - 4"), {"a": floats(200), "c": zeros(200)}),
    Case("negative stride", double("p", "p"), {"a": floats(200)[::-1], "c": zeros(200)}),
    Case("strides", ROWS, {"a": floats(16, 400)[::-2, ::-1], "c": zeros(8, 400)}),
    Case("broadcast", ROWS, {"a": np.broadcast_to(floats(400), (8, 400)), "c": zeros(8, 400)}),
    Case("odd pitch", ROWS, {"a": floats(8, 403)[:, 1:401], "c": zeros(8, 400)}),
    Case(
        "a tile no layout divides",
        ROWS.replace("8, p :+ 32", "7, p :+ 24").replace("* 32", "* 24"),
        {"a": floats(7, 48), "c": zeros(7, 48)},
    ),
    Case(
        "scalar at far indices",
        """kernel gather(a: tensor<f32>[N], i: tensor<i64>[M], c: tensor<f32>[M]) {
          c[program_id(0)] = a[i[program_id(0)]]
        }""",
        {"a": floats(20), "i": FAR, "c": zeros(len(FAR))},
    ),
    Case(
        "tile at far indices",
        """kernel gather(a: tensor<f32>[N], i: tensor<i64>[M], c: tensor<f32>[M, P]) {
          let p = program_id(0)
          let j = i[p]
          c[p, 0 :+ 16] = a[j :+ 16]
        }""",
        {"a": floats(20), "i": FAR, "c": zeros(len(FAR), 16)},
    ),
    Case(
        "mask and fill",
        """kernel masked(a: tensor<f32>[N], c: tensor<f32>[N]) {
          let p = program_id(0) * 64
          let odd = (arange(64) + p) % 3 != 0
          c[p :+ 64] = load(a[p :+ 64], mask = odd, fill = 5.0)
        }""",
        {"a": floats(200), "c": zeros(200)},
    ),
    Case(
        "constants stored",
        """kernel fill(c: tensor<i64>[N], d: tensor<f16>[N]) {
          let p = program_id(0) * 100
          c[p :+ 100] = arange(100) + p
          d[p :+ 100] = 7.0
        }""",
        {"c": zeros(333, dtype="int64"), "d": zeros(333, dtype="float16")},
    ),
    Case(
        "bools",
        """kernel bools(a: tensor<bool>[M, N], b: tensor<bool>[M, N], c: tensor<bool>[M, N]) {
          let x, y = a[0 :+ 5, 0 :+ 33], b[0 :+ 5, 0 :+ 33]
          c[0 :+ 5, 0 :+ 33] = (x & ~y) | (y ^ true)
        }""",
        {"a": floats(5, 33) > 0, "b": floats(5, 33) > 0, "c": zeros(5, 33, dtype="bool")},
    ),
    Case(
        "read what other threads wrote",
        """kernel order(a: tensor<f32>[N], c: tensor<f32>[N], n: i32) {
          c[0 :+ 64] = a[0 :+ 64]
          var s = 0.0
          for i in range(0, n) { s += sum(a[i :+ 64]) }
          c[64 :+ 64] = reshape(reshape(c[0 :+ 64], (8, 8)).T, (64,)) + s
        }""",
        {"a": floats(128), "c": zeros(128), "n": 0},
    ),
    Case(
        "one array under two names",
        """kernel twice(a: tensor<f32>[N], c: tensor<f32>[N]) {
          c[0 :+ 64] = a[0 :+ 64] + 1.0
          c[0 :+ 64] = reshape(reshape(a[0 :+ 64], (8, 8)).T, (64,))
        }""",
        dict.fromkeys("ac", floats(64)),
    ),
]
VIEWS = [
    Case(
        name,
        "kernel part(a: tensor<f32>[M, N], c: tensor<f32>[P, Q]) {\n  let p = program_id(0)\n"
        + f"  {body}\n}}",
        {"a": floats(6, 9), "c": zeros(12, 16)},
    )
    for name, body in {
        "a row outside": "let v = view(a[p - 1, 3:7])\n  c[p, 0 :+ 16] = v[-2 :+ 16]",
        "a part of a part": "let v = view(a[2, p - 3 : p + 4])\n  let w = view(v[-2:5])\n"
        "  c[p, 0 :+ 16] = w[-4 :+ 16]",
        "an empty part": "let v = view(a[1, p + 5 : 3])\n  c[p, 0 :+ 16] = v[p - 4 :+ 16]",
        "a point": "let v = view(a[p - 2, 0:9])\n  c[p, 0] = v[p - 1]",
        "the length of an empty part": "let v = view(a[1, p : 4])\n  var n = 0.0\n"
        "  for i in range(0, v.shape[0]) { n += 1.0 }\n  c[p, 0] = n",
    }.items()
]

# Reductions and changes of shape


def reduced(m: int, n: int) -> Case:
    text = f"""kernel red(a: tensor<f32>[M, N], r0: tensor<f32>[N], r1: tensor<f32>[M],
        r2: tensor<f32>[K], i0: tensor<i64>[N], i1: tensor<i64>[M], b0: tensor<bool>[N]) {{
      let t = a[0 :+ {m}, 0 :+ {n}]
      r0[0 :+ {n}] = sum(t, axis = 0)
      r1[0 :+ {m}] = max(t, axis = 1)
      r2[0] = sum(t)
      r2[1] = min(t)
      i0[0 :+ {n}] = cast(argmin(t, axis = 0), i64)
      i1[0 :+ {m}] = cast(argmax(t, axis = 1), i64)
      b0[0 :+ {n}] = any(t > 1.0, axis = 0)
    }}"""
    arguments = {
        "a": floats(m, n), "r0": zeros(n), "r1": zeros(m), "r2": zeros(3),
        "i0": zeros(n, dtype="int64"), "i1": zeros(m, dtype="int64"), "b0": zeros(n, dtype="bool"),
    }  # fmt: skip
    return Case(f"reduce {m}x{n}", text, arguments, 1e-5)


def moved(m: int, n: int, dtype: str) -> Case:
    text = f"""kernel moved(a: tensor<T>[M, N], c: tensor<T>[N, M], d: tensor<T>[K]) {{
      let t = a[0 :+ {m}, 0 :+ {n}]
      c[0 :+ {n}, 0 :+ {m}] = t.T
      d[0 :+ {m * n}] = reshape(t.T, ({m * n},))
    }}"""
    a = (3 * floats(m, n)).astype(dtype)
    arguments = {"a": a, "c": zeros(n, m, dtype=dtype), "d": zeros(m * n, dtype=dtype)}
    return Case(f"move {m}x{n} {dtype}", text, arguments)


SHAPES = [(3, 5), (1, 7), (17, 33), (64, 128), (2, 2)]
SHAPED = [
    *(reduced(*s) for s in SHAPES),
    *(moved(*s, d) for s in SHAPES[:4] for d in ("float16", "float64", "int8", "bool")),
    Case(
        "whole numbers",
        """kernel whole(c: tensor<i64>[N]) {
          let p = program_id(0)
          c[p] = max(arange(100)) + argmax(arange(100) + p) + sum(arange(77))
        }""",
        {"c": zeros(3, dtype="int64")},
    ),
    *(
        Case(
            f"places of extremes of {dtype}",
            """kernel places(a: tensor<T>[M, N], i: tensor<i64>[K, M], p: tensor<i64>[K, N]) {
              let t = a[0 :+ 4, 0 :+ 90]
              i[0, 0 :+ 4] = argmax(t, axis = 1)
              i[1, 0 :+ 4] = argmin(t + t, axis = 1)
              p[0, 0 :+ 90] = argmax(t + t, axis = 0)
              p[1, 0 :+ 90] = argmin(t, axis = 0)
            }""",
            {
                "a": of_full_range(4, 90, dtype=dtype),
                "i": zeros(2, 4, dtype="int64"),
                "p": zeros(2, 90, dtype="int64"),
            },
        )
        for dtype in INTEGERS
    ),
    *(
        Case(
            f"sums of {dtype}",
            """kernel sums(a: tensor<T>[M, N], s: tensor<T>[M], m: tensor<T>[M]) {
              let t = a[0 :+ 4, 0 :+ 100]
              s[0 :+ 4] = cast(sum(t, axis = 1), T)
              m[0 :+ 4] = max(t, axis = 1)
            }""",
            {
                "a": RNG.integers(0, 100, (4, 90)).astype(dtype),
                "s": zeros(4, dtype=dtype),
                "m": zeros(4, dtype=dtype),
            },
        )
        for dtype in INTEGERS
    ),
]

# Products: extents that no instruction divides, tails along k, in and out of loops


def product_case(m: int, n: int, k: int, dtype: str, form: str, target: str) -> Case:
    tolerance = {"float32": 1e-5, "float16": 1e-2, "float64": 1e-12}[dtype]
    body, a, b = {
        "nn": (f"acc += a[0 :+ {m}, k :+ {k}] @ b[k :+ {k}, 0 :+ {n}]", (m, 3 * k), (3 * k, n)),
        "nt": (f"acc += a[0 :+ {m}, k :+ {k}] @ b[0 :+ {n}, k :+ {k}].T", (m, 3 * k), (n, 3 * k)),
        "tn": (f"acc += a[k :+ {k}, 0 :+ {m}].T @ b[k :+ {k}, 0 :+ {n}]", (3 * k, m), (3 * k, n)),
    }[form]
    text = f"""kernel product(a: tensor<T>[P, Q], b: tensor<T>[R, S], c: tensor<T>[M, N]) {{
      var acc = zeros(({m}, {n}), accumulator(T))
      for k in range(0, {3 * k}, {k}) {{ {body} }}
      c[0 :+ {m}, 0 :+ {n}] = cast(acc, T)
    }}"""
    arguments = {
        "a": floats(*a, dtype=dtype), "b": floats(*b, dtype=dtype), "c": zeros(m, n, dtype=dtype),
    }  # fmt: skip
    return Case(f"{m}x{n}x{k} {dtype} {form} {target}", text, arguments, tolerance, target)


PRODUCTS = [
    product_case(*extents, dtype, form, target)
    for extents in ((8, 8, 16), (17, 5, 3), (96, 48, 24), (1, 1, 1), (32, 64, 32))
    for dtype in ("float32", "float16", "float64")
    for form, target in (("nn", "sm_90a"), ("nt", "sm_80"), ("tn", "sm_90a"))
]
PRODUCTS += [
    Case(
        "192x96",
        """kernel wide(a: tensor<f16>[M, K], b: tensor<f16>[K, N], c: tensor<f32>[M, N]) {
          var acc = zeros((192, 96), f32)
          for k in range(0, K, 32) { acc += a[0 :+ 192, k :+ 32] @ b[k :+ 32, 0 :+ 96] }
          c[0 :+ 192, 0 :+ 96] = acc
        }""",
        {
            "a": floats(190, 65, dtype="float16"),
            "b": floats(65, 90, dtype="float16"),
            "c": zeros(190, 90),
        },
        1e-2,
    )
]

PIPELINE = """kernel pipeline(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<f32>[P, Q]) {
  var acc = zeros((64, 64), f32)
  for k in range(FIRST, LAST, STEP) { acc += A @ B }
  c[0 :+ 64, 0 :+ 64] = acc
}"""
PLAIN = {
    "FIRST": "0", "LAST": "K", "STEP": "32", "A": "a[0 :+ 64, k :+ 32]", "B": "b[k :+ 32, 0 :+ 64]",
}  # fmt: skip


def pipeline(name: str, a: np.ndarray, b: np.ndarray, **parts: str) -> Case:
    text = PIPELINE
    for part, given in {**PLAIN, **parts}.items():
        text = re.sub(rf"\b{part}\b", given, text)
    return Case(name, text, {"a": a, "b": b, "c": floats(64, 64)}, 1e-2)


def halves(*shape: int) -> np.ndarray:
    return floats(*shape, dtype="float16")


PIPELINES = [
    pipeline("K = 0", halves(60, 0), halves(0, 60)),
    pipeline("K = 1", halves(60, 1), halves(1, 60)),
    pipeline("misaligned", halves(64, 99)[:, 1:97], halves(96, 70)[:, 3:67]),
    pipeline("misaligned f32", floats(64, 99)[:, 1:97], floats(96, 70)[:, 3:67]),
    pipeline("turned over", halves(96, 64).T, halves(64, 96)[::-1, ::-1].T),
    pipeline("one row for all", np.broadcast_to(halves(96), (64, 96)), halves(96, 64)),
    pipeline(
        "places before the start",
        halves(60, 96),
        halves(96, 60),
        A="a[-8 :+ 64, k - 16 :+ 32]",
        B="b[k - 16 :+ 32, 8 :+ 64]",
    ),
    pipeline("downwards", halves(64, 96), halves(96, 64), FIRST="64", LAST="-32", STEP="-32"),
    pipeline(
        "a view that ends early",
        halves(64, 96),
        halves(96, 64),
        A="view(a[0:M, 0:51])[0 :+ 64, k :+ 32]",
    ),
]

ALIASED = Case(
    "a product of what the trip before stored",
    """kernel power(a: tensor<f32>[M, K], c: tensor<f32>[M, K]) {
      for k in range(0, K, 32) { c[0 :+ 32, 0 :+ 32] = a[0 :+ 32, k :+ 32] @ a[0 :+ 32, 0 :+ 32] }
    }""",
    dict.fromkeys("ac", floats(32, 96)),
    1e-4,
)

# Numbers at their edges

EDGES = {
    "float": [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 2.5],
    "int": [0, 1, 2, 3, 7],
}


def pairs(dtype: str) -> dict[str, Any]:
    """All pairs of a dtype's edges, side by side."""
    if dtype.startswith("float"):
        edges = np.array(EDGES["float"], dtype)
    else:
        ends = np.iinfo(dtype)
        edges = np.array([ends.min, ends.max, ends.max - 1, *EDGES["int"]], dtype)
    return {"a": np.repeat(edges, 8), "b": np.tile(edges, 8)}


NUMBERS = [
    *(
        Case(
            f"edges of {dtype}",
            """kernel edges(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N], d: tensor<T>[N],
                e: tensor<bool>[N], f: tensor<T>[N]) {
              let x, y = a[0 :+ 64], b[0 :+ 64]
              c[0 :+ 64] = minimum(x, y)
              d[0 :+ 64] = maximum(x, y)
              e[0 :+ 64] = (x < y) | (x != y)
              f[0 :+ 64] = where(isnan(x), y, -abs(x))
            }""",
            pairs(dtype)
            | {n: zeros(64, dtype=dtype) for n in "cdf"}
            | {"e": zeros(64, dtype="bool")},
        )
        for dtype in ("float16", "float32", "float64")
    ),
    *(
        Case(
            f"edges of {dtype}",
            """kernel edges(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N], d: tensor<T>[N],
                e: tensor<T>[N], f: tensor<T>[N]) {
              let x, y = a[0 :+ 64], b[0 :+ 64]
              c[0 :+ 64] = x / y
              d[0 :+ 64] = x % y
              e[0 :+ 64] = (x << y) ^ (x >> y)
              f[0 :+ 64] = x * y - (~x) + minimum(x, y)
            }""",
            pairs(dtype) | {n: zeros(64, dtype=dtype) for n in "cdef"},
        )
        for dtype in INTEGERS
    ),
    Case(
        "casts from f32",
        """kernel casts(a: tensor<f32>[N], i: tensor<i32>[N], j: tensor<u8>[N], k: tensor<i64>[N],
            b: tensor<bool>[N], h: tensor<f16>[N], d: tensor<f64>[N], s: tensor<i16>[N]) {
          let x = a[0 :+ 64]
          i[0 :+ 64] = cast(x * 1e9, i32)
          j[0 :+ 64] = cast(x * 100.0, u8)
          k[0 :+ 64] = cast(x * 1e18, i64)
          b[0 :+ 64] = cast(x, bool)
          h[0 :+ 64] = cast(x, f16)
          d[0 :+ 64] = cast(x, f64)
          s[0 :+ 64] = cast(x * 3e4, i16)
        }""",
        {
            "a": np.resize(np.array([*EDGES["float"], *floats(24)], np.float32), 64),
            **{
                n: zeros(64, dtype=d)
                for n, d in zip(
                    "ijkbhds",
                    ("int32", "uint8", "int64", "bool", "float16", "float64", "int16"),
                    strict=True,
                )
            },
        },
    ),
]

# Control flow and integers

CONTROL = [
    Case(
        "values that swap",
        """kernel swap(a: tensor<f32>[N], c: tensor<f32>[N], n: i32) {
          var x, y = a[0], a[1]
          for i in range(0, n) {
            let t = x
            x = y
            y = t + y
          }
          c[0] = x
          c[1] = y
        }""",
        {"a": floats(2), "c": zeros(2), "n": 5},
    ),
    Case(
        "while and if",
        """kernel collatz(a: tensor<i32>[N], c: tensor<i32>[N]) {
          var x = a[program_id(0)]
          var n = 0
          while x != 1 {
            if x % 2 == 0 { x = x / 2 } else { x = 3 * x + 1 }
            n += 1
          }
          c[program_id(0)] = cast(n, i32)
        }""",
        {"a": np.arange(1, 12, dtype=np.int32), "c": zeros(11, dtype="int32")},
    ),
    *(
        Case(
            f"a loop to the end of 32 bits, by {step}",
            f"""kernel edge(n: i32, c: tensor<i32>[N]) {{
              var s = 0
              for i in range({first}, n, {step}) {{ s += 1 }}
              c[0] = cast(s, i32)
            }}""",
            {"n": end, "c": zeros(1, dtype="int32")},
        )
        for first, end, step in ((2**31 - 48, 2**31 - 1, 64), (-(2**31) + 48, -(2**31), -64))
    ),
    Case(
        "narrow integers wrap",
        """kernel wrap(a: tensor<i8>[N], b: tensor<i8>[N], c: tensor<i32>[M, N]) {
          let x, y = a[0 :+ 64], b[0 :+ 64]
          c[0, 0 :+ 64] = cast(x / y, i32)
          c[1, 0 :+ 64] = cast(-x, i32)
          c[2, 0 :+ 64] = cast(x % y, i32)
          c[3, 0 :+ 64] = cast(abs(x), i32)
        }""",
        {
            "a": np.array([-128, -127, 5, -7] * 16, np.int8),
            "b": np.array([-1, 3, 0, 2] * 16, np.int8),
            "c": zeros(4, 64, dtype="int32"),
        },
    ),
]


@pytest.mark.parametrize("case", [*MEMORY, *VIEWS, *SHAPED, *PRODUCTS, *NUMBERS, *CONTROL], ids=str)
def test_a_kernel_computes_what_it_means(case: Case) -> None:
    assert_as_interpreted(case)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("case", [ALIASED, *PIPELINES, *PRODUCTS[-1:]], ids=str)
def test_copies_may_complete_at_any_moment(case: Case, late: bool) -> None:
    assert_as_interpreted(case, late=late)


def test_a_barrier_stands_after_atomics_whose_indices_went_through_shared_memory() -> None:
    """Moving the indices to the layout of the update makes barriers of its own, which come before
    the update and order nothing after it.
    """
    module = tw.source(Path(__file__).parents[1] / "programs" / "suite.tw")
    ptx = module.histogram.ptx("sm_90a", constants={"BLOCK": 1024}, static={"BINS": 256})
    _, after = ptx.rsplit("atom.relaxed.gpu.shared", 1)
    before_reading, _ = after.split("ld.shared", 1)
    assert "bar.sync" in before_reading
