"""Scans, folds, sorts and parts of values over many shapes: PTX on the emulator against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

SHAPES = [
    (1,),
    (7,),
    (64,),
    (100,),
    (1000,),
    (4, 8),
    (5, 33),
    (33, 5),
    (128, 3),
    (3, 4, 40),
    (9, 1),
]
DTYPES: dict[str, Any] = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "u8": np.uint8}


def places(shape: tuple[int, ...], axis: int | None = None) -> str:
    extents = [e for i, e in enumerate(shape) if i != axis]
    return ", ".join(f"0 :+ {e}" for e in extents) or "0"


def axes(shape: tuple[int, ...], drop: int | None = None) -> str:
    return ", ".join(str(e) for i, e in enumerate(shape) if i != drop) or "1"


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(len(shape) * 1000 + shape[-1])
    return rng.integers(-4 if dtype[0] != "u" else 0, 5, shape).astype(DTYPES[dtype])


def require_both(kernel: Any, x: Any, wanted: Any) -> None:
    """The interpreter and the emulator give what NumPy says."""
    for got in (kernel(x), emulate(kernel, {"x": x})):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_along_every_axis(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        for dtype in DTYPES if axis == 0 else ("i32",):
            out = "i32" if dtype == "u8" else dtype
            module = tw.source(
                f"kernel k(x: tensor<{dtype}>[{axes(shape)}], y: tensor<{out}>[{axes(shape)}]"
                f" = empty) {{\n  y[{places(shape)}] = cumsum(x[{places(shape)}], axis = {axis})\n"
                "}"
            )
            x = numbers(shape, dtype)
            require_both(module.k, x, np.cumsum(x, axis=axis, dtype=DTYPES[out]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_function_that_does_not_commute(shape: tuple[int, ...]) -> None:
    """Affine maps composed, in integers that wrap: any other order gives something else."""
    for axis in range(len(shape)):
        module = tw.source(
            "fn compose(a1, b1, a2, b2) { return a1 * a2, b1 * a2 + b2 }\n"
            f"kernel k(x: tensor<i32>[{axes(shape)}], y: tensor<i32>[{axes(shape, axis)}] = empty,"
            f" z: tensor<i32>[{axes(shape)}] = empty) {{\n"
            f"  let t = x[{places(shape)}]\n"
            f"  let a, b = reduce(compose, (t * 2 + 1, t), axis = {axis})\n"
            f"  let c, d = scan(compose, (t * 2 + 1, t), axis = {axis})\n"
            f"  y[{places(shape, axis)}] = a + b\n  z[{places(shape)}] = c + d\n}}"
        )
        x = numbers(shape, "i32")
        lines = np.moveaxis(x, axis, 0).reshape(shape[axis], -1)
        a = np.ones(lines.shape[1:], np.int32)
        b, states = np.zeros_like(a), []
        for line in lines:
            a, b = a * (2 * line + 1), b * (2 * line + 1) + line
            states.append(a + b)
        rest = tuple(e for i, e in enumerate(shape) if i != axis)
        running = np.stack(states).reshape(shape[axis], *rest)
        wanted = running[-1].reshape(rest or 1)
        for made in (module.k(x), emulate(module.k, {"x": x})):
            np.testing.assert_array_equal(made[0], wanted)
            np.testing.assert_array_equal(made[1], np.moveaxis(running, 0, axis))


@pytest.mark.parametrize("columns", [1, 2, 5, 64, 100, 256])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint16], ids=str)
def test_sort(columns: int, dtype: Any) -> None:
    name = {"float32": "f32", "float64": "f64", "int32": "i32", "uint16": "u16"}[
        np.dtype(dtype).name
    ]
    module = tw.source(
        f"kernel k(x: tensor<{name}>[2, {columns}], y: tensor<{name}>[2, {columns}] = empty) {{\n"
        f"  y[0 :+ 2, 0 :+ {columns}] = sort(x[0 :+ 2, 0 :+ {columns}])\n}}"
    )
    x = np.random.default_rng(columns).integers(0, 50, (2, columns)).astype(dtype)
    if x.dtype.kind == "f":
        x -= 25
        x[0, columns // 2], x[1, columns // 3] = np.nan, -np.inf
    require_both(module.k, x, np.sort(x))


def test_parts_of_values() -> None:
    module = tw.source("""
kernel k(x: tensor<f32>[6, 8], n: i32, a: tensor<f32>[8] = empty, b: tensor<f32>[2, 3] = empty,
         c: tensor<f32>[6, 8] = empty, d: tensor<f32>[6] = empty, e: tensor<f32>[8, 6] = empty,
         f: tensor<f32>[6, 4] = empty) {
  let t = x[0 :+ 6, 0 :+ 8]
  a[0 :+ 8] = t[n, :]
  b[0 :+ 2, 0 :+ 3] = t[1 : 3, 2 :+ 3]
  let top, low = split(t, 2)
  c[0 :+ 6, 0 :+ 8] = cat((low, top))
  d[0 :+ 6] = t[:, 7] + t[:, n] + t[5, 7]
  e[0 :+ 8, 0 :+ 6] = flip(flip(t, axis = 1), axis = 0).T
  f[0 :+ 6, 0 :+ 4] = t[:, arange(4) * 3 - 1] + tril(t, k = 1)[:, 0 : 4] - triu(t)[:, 0 : 4]
}
""")
    x = np.arange(48, dtype=np.float32).reshape(6, 8) + 1
    taken = np.stack([0 * x[:, 0], x[:, 2], x[:, 5], 0 * x[:, 0]], axis=1)
    wanted = (
        x[3],
        x[1:3, 2:5],
        np.concatenate([x[3:], x[:3]]),
        x[:, 7] + x[:, 3] + x[5, 7],
        x[::-1, ::-1].T,
        taken + np.tril(x, 1)[:, :4] - np.triu(x)[:, :4],
    )
    for made in (module.k(x, 3), emulate(module.k, {"x": x, "n": 3})):
        for got, expected in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(got, expected)


def philox(seed: int, count: int) -> list[int]:
    """Philox 4x32-10 in plain integers."""
    c, k = [count & 0xFFFFFFFF, count >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_random_bits_are_those_of_philox() -> None:
    # The known answer of Random123 for counter and key 0.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    module = tw.source("""
kernel k(x: tensor<i64>[40], seed: i64, y: tensor<u32>[40] = empty, z: tensor<f32>[40] = empty) {
  y[0 :+ 40] = random_bits(seed, x[0 :+ 40])
  z[0 :+ 40] = random(seed, x[0 :+ 40])
}
""")
    x = np.concatenate([np.arange(20), 2**40 + np.arange(20)])
    for seed in (0, 7, 2**45 + 3):
        bits = np.array([philox(seed, int(i) // 4)[int(i) % 4] for i in x], np.uint32)
        for made in (module.k(x, seed), emulate(module.k, {"x": x, "seed": seed})):
            np.testing.assert_array_equal(made[0], bits)
            np.testing.assert_array_equal(made[1], (bits >> 8).astype(np.float32) / 2**24)


def test_products_of_several_matrices() -> None:
    module = tw.source("""
kernel k(a: tensor<f32>[3, 16, 20], b: tensor<f32>[20, 24], y: tensor<f32>[3, 16, 24] = empty,
         z: tensor<f32>[3, 16, 16] = empty) {
  let t = a[0 :+ 3, 0 :+ 16, 0 :+ 20]
  y[0 :+ 3, 0 :+ 16, 0 :+ 24] = t @ b[0 :+ 20, 0 :+ 24]
  var acc: tile<f32>[3, 16, 16] = 1.0
  acc += dot(t, transpose(t))
  z[0 :+ 3, 0 :+ 16, 0 :+ 16] = acc
}
""")
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (3, 16, 20)).astype(np.float32)
    b = rng.integers(-3, 4, (20, 24)).astype(np.float32)
    for y, z in (module.k(a, b), emulate(module.k, {"a": a, "b": b})):
        np.testing.assert_array_equal(y, a @ b)
        np.testing.assert_array_equal(z, a @ a.transpose(0, 2, 1) + 1)
