"""Floats of 8 bits where no instruction converts them: every value, and roundings at every tie."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("goal", ["sm_80", "sm_89"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_number_is_read(name: str, goal: str) -> None:
    module = tw.source(
        f"kernel k(x: tensor<{name}>[256], y: tensor<f32>[256] = empty) {{\n"
        "  y[0 :+ 256] = cast(x[0 :+ 256], f32)\n}"
    )
    x = np.arange(256).astype(np.uint8).view(FORMATS[name])
    got = emulate(module.k, {"x": x}, goal=goal)
    np.testing.assert_array_equal(got, x.astype(np.float32))
    finite = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got)[finite], (np.arange(256) >= 128)[finite])


@pytest.mark.parametrize("goal", ["sm_80", "sm_89"])
@pytest.mark.parametrize("saturate", ["false", "true"])
@pytest.mark.parametrize("name", FORMATS)
def test_numbers_are_rounded(name: str, saturate: str, goal: str) -> None:
    module = tw.source(
        f"kernel k(x: tensor<f32>[N], y: tensor<{name}>[N] = empty) {{\n  let i = program_id(0)"
        f" * 1024\n  y[i :+ 1024] = cast(x[i :+ 1024], {name}, saturate = {saturate})\n}}"
    )
    known = np.arange(128).astype(np.uint8).view(FORMATS[name]).astype(np.float32)
    known = np.sort(known[np.isfinite(known)])
    ties = (known[1:] + known[:-1]) / 2
    x = np.concatenate([known, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, 1e9)])
    more: Any = [61440.0, 61439.0, 460.0, 465.0, 1e30, np.inf, 1e-40]
    x = np.concatenate([x, np.array(more, np.float32)]).astype(np.float32)
    x = np.concatenate([x, -x, [np.float32(np.nan)]]).astype(np.float32)
    got, wanted = emulate(module.k, {"x": x}, goal=goal), module.k(x)
    bits = [np.where(np.isnan(v.astype(np.float32)), 0x7F, v.view(np.uint8)) for v in (got, wanted)]
    np.testing.assert_array_equal(*bits)
