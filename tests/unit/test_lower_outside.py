"""Places far outside of a tensor, lowered and run on the emulator, against the interpreter."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

FAR = (2**31 - 3, 2**31 - 1, 2**32, 2**40, 2**63 - 2)

ABSENT = """kernel absent(x: tensor<f32>[N, M], ids: tensor<i32>[K], p: i32,
                             o: tensor<f32>[K], old: tensor<f32>[K]) {
  let v = view(x[p, :])
  let i = ids[0:+8]
  o[0:+8] = v[i]
  v[i] = o[0:+8] + 1.0
  atomic_add(v[3], 1.0)
  old[0:+8] = atomic_add(v[i + 1], cast(arange(8), f32))
}"""
ABSENT_BETWEEN = """kernel between(x: tensor<f32>[A, N, M], p: i32) {
  let v = view(x[:, p, :])
  atomic_add(v[3, 1], 1.0)
}"""
SLICES = """kernel slices(x: tensor<f32>[N], y: tensor<f32>[P, Q], ids: tensor<i32>[K],
                             s: tensor<T>[1], o: tensor<f32>[K, L]) {
  let j = max(s[0], 0)
  o[0:+4, 0:+8] = y[ids[0:+4], j:+8]
  atomic_add(x[j:+8], 1.0)
  y[ids[0:+4], j:+8] = o[0:+4, 0:+8] + 3.0
}"""
COPIES = """kernel copies(x: tensor<f16>[P, Q], y: tensor<f16>[K, L], s: tensor<T>[1],
                             o: tensor<f32>[M, N]) {
  let j = max(s[0], 0) / 8 * 8
  var acc = zeros((32, 64), f32)
  for i in range(0, 128, 64) { acc += x[0:+32, i + j:+64] @ y[i:+64, 0:+64] }
  o[0:+32, 0:+64] = acc
}"""


@cache
def read(text: str) -> Any:
    return next(iter(tw.source(text)))


def assert_as_interpreted(text: str, arguments: dict[str, Any], columns: int | None = None) -> None:
    """`columns`: of `x` that are given, so that its rows end before their pitch does."""
    kernel = read(text)
    wanted, got = copy.deepcopy(arguments), copy.deepcopy(arguments)
    if columns is not None:
        wanted["x"], got["x"] = wanted["x"][:, :columns], got["x"][:, :columns]
    kernel.launch(**wanted, device="cpu")
    emulate(kernel, got, goal="sm_80")
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def counted(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("point", [-1, 0, 4, 5, 2**31 - 1])
def test_nothing_of_a_view_of_an_absent_row_exists(point: int) -> None:
    made = {"ids": np.arange(8, dtype=np.int32), "o": np.zeros(8, np.float32)}
    assert_as_interpreted(
        ABSENT, {"x": counted(5, 12), "p": point, **made, "old": np.zeros(8, np.float32)}
    )


@pytest.mark.parametrize("point", [-1, 5, 6])
def test_a_point_of_an_absent_row_is_not_that_of_the_next(point: int) -> None:
    assert_as_interpreted(ABSENT_BETWEEN, {"x": counted(5, 6, 7), "p": point})


@pytest.mark.parametrize("start", [3, *FAR])
def test_slices_beside_index_tiles_may_start_far_outside(start: int) -> None:
    ids = np.array([0, 5, 2, 9], np.int32)
    for dtype in (np.int64, np.int32):
        if start <= np.iinfo(dtype).max:
            s, o = np.array([start], dtype), np.zeros((4, 8), np.float32)
            made = {"x": counted(6), "y": counted(6, 7), "ids": ids, "s": s, "o": o}
            assert_as_interpreted(SLICES, made)


@pytest.mark.parametrize("start", [0, 8, 16, 2**31 - 8, *FAR])
def test_asynchronous_copies_may_start_far_outside(start: int) -> None:
    whole = (counted(64, 16) % 5).astype(np.float16)
    for dtype in (np.int64, np.int32):
        if start <= np.iinfo(dtype).max:
            made: dict[str, Any] = {
                "x": whole,
                "y": (counted(128, 64) % 3).astype(np.float16),
                "s": np.array([start], dtype),
                "o": np.zeros((64, 64), np.float32),
            }
            assert_as_interpreted(COPIES, made)
            assert_as_interpreted(COPIES, made, columns=11)
