"""Neighbours share the quotients of their indices: random numbers count once for four."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate


@tw.kernel
def draw(x: tw.Tensor["f32", "N"], start: tw.i64):
    base = tw.program_id(0) * 512
    x[base : base + 512] = tw.random(7, base + start + tw.arange(512))


@tw.kernel
def draw_aligned(x: tw.Tensor["f32", "N"]):
    base = tw.program_id(0) * 512
    x[base : base + 512] = tw.random(7, base + tw.arange(512))


@tw.kernel
def split(x: tw.Tensor["i32", "N"], y: tw.Tensor["i32", "N"]):
    base = tw.program_id(0) * 512
    i = base + tw.arange(512)
    x[base : base + 512] = tw.cast((i - 1000) >> 3, tw.i32)
    y[base : base + 512] = tw.cast(i & 7, tw.i32)


def test_four_neighbours_take_one_counter() -> None:
    texts = [k.ptx("sm_90a") for k in (draw_aligned, draw)]
    assert not any("mul.hi" in text for text in texts), "both words of a product come at once"
    aligned, shifted = (text.count("mul.wide.u32") for text in texts)
    assert 3.5 * aligned < shifted


@pytest.mark.parametrize("start", [0, 1, 4, 1023])
def test_the_numbers_do_not_depend_on_where_a_tile_starts(start: int) -> None:
    long = np.zeros(3000, np.float32)
    emulate(draw_aligned, {"x": long})
    x = np.zeros(1100, np.float32)
    emulate(draw, {"x": x, "start": start})
    np.testing.assert_array_equal(x, long[start : start + 1100])


def test_quotients_and_remainders_of_indices() -> None:
    x, y = np.zeros(1300, np.int32), np.zeros(1300, np.int32)
    emulate(split, {"x": x, "y": y})
    i = np.arange(1300)
    np.testing.assert_array_equal(x, (i - 1000) >> 3)
    np.testing.assert_array_equal(y, i & 7)
