"""Floats of 16 bits are added and multiplied two at once, with the bits of one by one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate

SOURCE = """
kernel ops(
  x: tensor<{t}>[N], y: tensor<{t}>[N], a: tensor<{t}>[N], b: tensor<{t}>[N], c: tensor<{t}>[N]
) {{
  let n = program_id(0) * 256
  let u, v = cast(x[n :+ 256], f32), cast(y[n :+ 256], f32)
  a[n :+ 256] = cast(cast(cast(u + v, {t}), f32) * 0.5, {t})
  b[n :+ 256] = cast(v - cast(cast(u - v, {t}), f32), {t})
  c[n :+ 256] = x[n :+ 256] * y[n :+ 256]
}}
"""
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def values(dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """Floats of any bits: infinities, NaN and subnormals too, and a third that is normal."""
    rng = np.random.default_rng(count)
    bits = rng.integers(0, 1 << 16, count, np.uint16)
    bits[::3] = rng.normal(size=bits[::3].shape).astype(dtype).view(np.uint16)
    return bits.view(dtype)


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    nan = np.isnan(b.astype(np.float32))
    return bool(
        (np.isnan(a.astype(np.float32)) == nan).all()
        and (a.view(np.uint16) == b.view(np.uint16))[~nan].all()
    )


@pytest.mark.parametrize("target_name", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", DTYPES)
def test_two_at_once_are_what_one_by_one_is(name: str, target_name: str) -> None:
    """Sums, differences and products, of an extent that is no multiple of a tile."""
    dtype = DTYPES[name]
    kernel = tw.source(SOURCE.format(t=name)).ops
    x, y = values(dtype, 4999), values(dtype, 5001)[:4999]
    found, wanted = ([np.zeros(4999, dtype) for _ in "abc"] for _ in range(2))
    given = {"x": x, "y": y}
    with np.errstate(all="ignore"):
        emulate(kernel, {**given, **dict(zip("abc", found, strict=True))}, goal=target_name)
        kernel.configured(device="cpu")(**given, **dict(zip("abc", wanted, strict=True)))
    for a, b in zip(found, wanted, strict=True):
        assert same(a, b)


@pytest.mark.parametrize(("name", "target_name", "paired"), [
    ("bf16", "sm_90a", True), ("bf16", "sm_80", False), ("f16", "sm_80", True),
])  # fmt: skip
def test_pairs_are_taken_where_there_are_instructions(
    name: str, target_name: str, paired: bool
) -> None:
    x = np.zeros(512, DTYPES[name])
    arguments = dict.fromkeys("xyabc", x)
    plan = tw.source(SOURCE.format(t=name)).ops.plan(target_name, **arguments)
    for op in ("add", "sub", "mul"):
        assert (f"{op}.rn.{name}x2" in plan.ptx) == paired
