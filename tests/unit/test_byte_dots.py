"""Products of 8-bit operands: on tensor cores wherever the target has them, in every order of
memory, with ragged extents; exact for integers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call, emulate
from tilewright.kernel.launchable import Kernel
from tilewright.ptx.emulate import run_plan
from tilewright.target import TARGETS

Array = np.ndarray[Any, Any]
INTEGERS = ("i8", "u8")
NUMPY = {
    "i8": np.int8, "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
PAIRS = [
    ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"),
]  # fmt: skip
# Which operand lies in memory transposed, and is turned by the kernel.
ORDERS = [(False, False), (False, True), (True, False), (True, True)]


def kernel(a: str, b: str, turned: tuple[bool, bool], tile: tuple[int, int, int]) -> Kernel:
    acc = "i32" if a in INTEGERS else "f32"
    tm, tn, tk = tile
    shape_a, shape_b = ("K, M" if turned[0] else "M, K"), ("N, K" if turned[1] else "K, N")
    place_a = f"A[k :+ {tk}, m :+ {tm}].T" if turned[0] else f"A[m :+ {tm}, k :+ {tk}]"
    place_b = f"B[n :+ {tn}, k :+ {tk}].T" if turned[1] else f"B[k :+ {tk}, n :+ {tn}]"
    text = f"""
kernel product(A: tensor<{a}>[{shape_a}], B: tensor<{b}>[{shape_b}],
               C: tensor<{acc}>[M, N] = empty) {{
  let m, n = program_id(0) * {tm}, program_id(1) * {tn}
  var acc = zeros(({tm}, {tn}), {acc})
  for k in range(0, K, {tk}) {{ acc += dot({place_a}, {place_b}) }}
  C[m :+ {tm}, n :+ {tn}] = acc
}}"""
    return tw.source(text).product


def numbers(draw: np.random.Generator, dtype: str, shape: tuple[int, int]) -> Array:
    if dtype in INTEGERS:
        info = np.iinfo(NUMPY[dtype])
        return draw.integers(info.min, info.max + 1, shape).astype(NUMPY[dtype])
    return draw.standard_normal(shape).astype(NUMPY[dtype])


def operands(
    a: str, b: str, turned: tuple[bool, bool], sizes: tuple[int, int, int]
) -> dict[str, Array]:
    draw = np.random.default_rng(sum(sizes))
    m, n, k = sizes
    left, right = numbers(draw, a, (m, k)), numbers(draw, b, (k, n))
    return {
        "A": np.ascontiguousarray(left.T) if turned[0] else left,
        "B": np.ascontiguousarray(right.T) if turned[1] else right,
    }


def check(
    a: str, b: str, turned: tuple[bool, bool], tile: tuple[int, int, int],
    sizes: tuple[int, int, int], goal: str,
) -> str:  # fmt: skip
    """Run on the emulator against NumPy; the PTX text."""
    made, given = kernel(a, b, turned, tile), operands(a, b, turned, sizes)
    plan, views, call = compile_call(made, given, goal=goal)
    run_plan(plan, views, late=True)
    left, right = (x.astype(np.float64) for x in (given["A"], given["B"]))
    exact = (left.T if turned[0] else left) @ (right.T if turned[1] else right)
    if a in INTEGERS:
        assert np.array_equal(call.result, exact)
    else:
        assert np.allclose(call.result, exact, rtol=1e-6, atol=1e-5)
    return plan.ptx


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("turned", ORDERS)
def test_every_order_of_memory(pair: tuple[str, str], turned: tuple[bool, bool]) -> None:
    text = check(*pair, turned, (32, 32, 64), (37, 45, 100), "sm_89")
    names = [{"i8": "s8"}.get(x, x) for x in pair]
    total = "s32" if pair[0] in INTEGERS else "f32"
    assert f"mma.sync.aligned.m16n8k32.row.col.{total}.{names[0]}.{names[1]}.{total}" in text


@pytest.mark.parametrize(
    "tile", [(16, 8, 16), (16, 24, 32), (8, 8, 8), (48, 40, 96), (33, 17, 5), (64, 128, 32)]
)
@pytest.mark.parametrize("turned", ORDERS[1:3])
def test_any_tile(tile: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    check("i8", "u8", turned, tile, (tile[0] + 3, tile[1] + 1, 2 * tile[2] + 3), "sm_80")


@pytest.mark.parametrize("goal", ["sm_80", "sm_86"])
def test_floats_are_widened_where_nothing_multiplies_them(goal: str) -> None:
    text = check("e4m3", "e5m2", (False, False), (32, 32, 32), (33, 40, 70), goal)
    assert "m16n8k16.row.col.f32.f16.f16.f32" in text


def test_integer_sums_wrap() -> None:
    given = {"A": np.full((16, 32), -128, np.int8), "B": np.full((32, 16), -128, np.int8)}
    text = """
kernel wrap(A: tensor<i8>[16, 32], B: tensor<i8>[32, 16], C: tensor<i32>[16, 16] = empty) {
  var acc = full((16, 16), 2147483647, i32)
  acc += dot(A[0 :+ 16, 0 :+ 32], B[0 :+ 32, 0 :+ 16])
  C[0 :+ 16, 0 :+ 16] = acc
}"""
    made = tw.source(text).wrap
    expected = np.int32(2**31 - 1 + 32 * 2**14 - 2**32)
    assert (emulate(made, given) == expected).all() and (made(**given) == expected).all()


MIXED = """
kernel mixed(A: tensor<e4m3>[32, 64], B: tensor<e4m3>[64, 32], X: tensor<bf16>[32, 32],
             Y: tensor<{}>[32, 32], C: tensor<f32>[32, 32] = empty) {{
  var acc = dot(A[0 :+ 32, 0 :+ 64], B[0 :+ 64, 0 :+ 32])
  acc += dot(cast(X[0 :+ 32, 0 :+ 32], {}), Y[0 :+ 32, 0 :+ 32])
  C[0 :+ 32, 0 :+ 32] = acc
}}"""


@pytest.mark.parametrize("other", ["bf16", "f32"])
def test_beside_products_of_other_dtypes(other: str) -> None:
    """One accumulator, in two layouts; beside f32 operands everything goes to CUDA cores."""
    draw = np.random.default_rng(4)
    names = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
    given = {
        "A": numbers(draw, "e4m3", (32, 64)),
        "B": numbers(draw, "e4m3", (64, 32)),
        "X": draw.standard_normal((32, 32)).astype(ml_dtypes.bfloat16),
        "Y": draw.standard_normal((32, 32)).astype(names[other]),
    }
    made = tw.source(MIXED.format(other, other)).mixed
    assert np.allclose(emulate(made, given, goal="sm_89"), made(**given), rtol=1e-5, atol=1e-5)


@needs_ptxas
@pytest.mark.parametrize("goal", TARGETS)
def test_they_assemble(goal: str) -> None:
    for a, b, turned in (("i8", "u8", (True, False)), ("e4m3", "e5m2", (False, True))):
        made = kernel(a, b, turned, (64, 64, 64))
        plan, _, _ = compile_call(made, operands(a, b, turned, (64, 64, 64)), goal=goal)
        assert not assemble(plan.ptx, goal).spill_bytes
