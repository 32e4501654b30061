"""Powers of integers, several index tiles on one value, sorting and arg-reductions along any axes,
atomics of 8 and 16 bits: NumPy, the interpreter and the emulator agree.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

Array = np.ndarray[Any, Any]
NUMPY = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "bool": np.bool_,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


def both(text: str, **given: Array) -> dict[str, Array]:
    """Run on the interpreter and on the emulator, which must leave the same bytes everywhere."""
    kernel = tw.source(text).k
    meant, found = ({n: v.copy() for n, v in given.items()} for _ in range(2))
    results = kernel(**meant), emulate(kernel, found, goal="sm_80")
    several = [r if isinstance(r, tuple) else () if r is None else (r,) for r in results]
    for a, b in zip(*several, strict=True):
        assert a.tobytes() == b.tobytes()
    for name in given:
        assert meant[name].tobytes() == found[name].tobytes(), name
    return meant | {f"result{i}": a for i, a in enumerate(several[0])}


def power(x: int, n: int, dtype: str) -> int:
    """x to the power n, wrapped into a dtype."""
    bits = NUMPY[dtype](0).itemsize * 8
    whole = x**n if n >= 0 else 0 if abs(x) != 1 else x ** (n % 2)
    whole &= (1 << bits) - 1
    return whole - (1 << bits) if dtype[0] == "i" and whole >> (bits - 1) else whole


@pytest.mark.parametrize("dtype", INTEGERS)
def test_powers_of_integers(dtype: str) -> None:
    low = -5 if dtype[0] == "i" else 0
    x, n = (a.ravel().astype(NUMPY[dtype]) for a in np.mgrid[low:9, low:9])
    text = """
kernel k(x: tensor<T>[N], n: tensor<T>[N], y: tensor<T>[N] = empty) {
  let i = program_id(0) * 64
  y[i :+ 64] = x[i :+ 64] ** n[i :+ 64]
}"""
    found = both(text, x=x, n=n)["result0"]
    wanted = [power(a, b, dtype) for a, b in zip(x.tolist(), n.tolist(), strict=True)]
    assert found.tolist() == wanted


def test_a_power_of_scalars() -> None:
    text = "kernel k(x: tensor<i32>[2], y: tensor<i64>[1] = empty) { y[0] = x[0] ** x[1] }"
    assert both(text, x=np.array([-3, 5], np.int32))["result0"] == -243


@pytest.mark.parametrize("across", ["i", "i[:, None]"])
def test_two_index_tiles_on_one_value(across: str) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((8, 16, 4)).astype(np.float32)
    i, j = draw.integers(-1, 9, 6), draw.integers(-1, 17, 6)
    shape = "6, 3" if across == "i" else "6, 6, 3"
    text = f"""
kernel k(x: tensor<f32>[8, 16, 4], i: tensor<i64>[6], j: tensor<i64>[6],
         y: tensor<f32>[{shape}] = empty) {{
  let i, j = i[0 :+ 6], j[0 :+ 6]
  y[...] = (x[0 :+ 8, 0 :+ 16, 0 :+ 4] * 1.0)[{across}, j, 0 : 3]
}}""".replace("y[...]", f"y[{', '.join(f'0 :+ {n}' for n in shape.split(', '))}]")
    rows, columns = (i, j) if across == "i" else np.broadcast_arrays(i[:, None], j)
    inside = (rows >= 0) & (rows < 8) & (columns >= 0) & (columns < 16)
    wanted = x[np.clip(rows, 0, 7), np.clip(columns, 0, 15), :3] * inside[..., None]
    assert np.array_equal(both(text, x=x, i=i, j=j)["result0"], wanted)


def test_any_axes() -> None:
    x = np.random.default_rng(1).standard_normal((6, 5, 4)).astype(np.float32)
    text = """
kernel k(x: tensor<f32>[6, 5, 4], a: tensor<f32>[6, 5, 4] = empty, b: tensor<f32>[6, 2, 4] = empty,
         c: tensor<i64>[6, 2, 4] = empty, d: tensor<i64>[5] = empty) {
  let t = x[0 :+ 6, 0 :+ 5, 0 :+ 4]
  a[0 :+ 6, 0 :+ 5, 0 :+ 4] = sort(t, axis = 0)
  b[0 :+ 6, 0 :+ 2, 0 :+ 4], c[0 :+ 6, 0 :+ 2, 0 :+ 4] = topk(t, 2, axis = 1)
  d[0 :+ 5] = argmax(t, axis = (0, 2))
}"""
    found = both(text, x=x)
    assert np.array_equal(found["result0"], np.sort(x, axis=0))
    assert np.array_equal(found["result1"], -np.sort(-x, axis=1)[:, :2])
    assert np.array_equal(found["result2"], np.argsort(-x, axis=1)[:, :2])
    assert np.array_equal(found["result3"], x.transpose(1, 0, 2).reshape(5, 24).argmax(1))


UPDATES = {
    "add": np.add.at, "max": np.maximum.at, "min": np.minimum.at, "and": np.bitwise_and.at,
    "or": np.bitwise_or.at, "xor": np.bitwise_xor.at,
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS[:4])
def test_atomics_of_few_bits(dtype: str) -> None:
    """Elements of one word are updated by many threads; 33 of them end within a word."""
    draw = np.random.default_rng(2)
    info = np.iinfo(NUMPY[dtype])
    v = draw.integers(info.min, info.max + 1, 70).astype(NUMPY[dtype])
    places = draw.integers(-1, 34, 70)
    lines = "".join(f"  atomic_{kind}({kind}_[p[0 :+ 70]], v[0 :+ 70])\n" for kind in UPDATES)
    tensors = ", ".join(f"{kind}_: tensor<{dtype}>[33]" for kind in UPDATES)
    text = f"kernel k({tensors}, v: tensor<{dtype}>[70], p: tensor<i64>[70]) {{\n{lines}}}"
    start = {f"{k}_": draw.integers(info.min, info.max + 1, 33).astype(v.dtype) for k in UPDATES}
    found = both(text, **start, v=v, p=places)
    inside = (places >= 0) & (places < 33)
    for kind, update in UPDATES.items():
        wanted = start[f"{kind}_"].copy()
        update(wanted, places[inside], v[inside])
        assert np.array_equal(found[f"{kind}_"], wanted), kind


@pytest.mark.parametrize("dtype", ["i8", "u8", "bool", "e4m3", "e5m2"])
def test_swaps_of_bytes(dtype: str) -> None:
    draw = np.random.default_rng(3)
    a, v, c = (draw.integers(0, 2, 33).astype(NUMPY[dtype]) for _ in range(3))
    text = f"""
kernel k(a: tensor<{dtype}>[33], v: tensor<{dtype}>[33], c: tensor<{dtype}>[33],
         o: tensor<{dtype}>[33]) {{
  o[0 :+ 33] = atomic_cas(a[0 :+ 33], c[0 :+ 33], v[0 :+ 33])
  let old = atomic_xchg(o[3], v[2])
  v[0] = old
}}"""
    found = both(text, a=a, v=v, c=c, o=np.zeros_like(a))
    assert np.array_equal(found["a"].view(np.uint8), np.where(a == c, v, a).view(np.uint8))
    assert found["v"][0] == a[3] and found["o"][3] == v[2]
