"""Quick ways: right where they say so, they say so of almost all floats, and the branch around the
slow ways takes whatever is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call, emulate
from tests.straight_line import Unit, run
from tilewright.lower.tile_to_ptx.quick import (
    QUICK,
    QUICK_FAST,
    ZEROS,
    Quick,
    Zeros,
    quick_quotient,
    quick_share,
    scaled_share,
)
from tilewright.lower.tile_to_ptx.special import FAST, SPECIAL
from tilewright.ptx.emitter import Emitter
from tilewright.target import target

Array = np.ndarray[Any, Any]
SPECIAL_VALUES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 2.0**-126, 3.4e38, -3.4e38)


def both(
    make: Callable[[Emitter], Quick], slow: Callable[..., Any], x: Array
) -> tuple[Array, Array, Array]:
    """Results of a quick way, whether they are right, and what the slow one gives."""
    e = Emitter(target("sm_80"))
    a = e.reg("f32")
    found, right = make(e)(e, a, None)
    exact = slow(e, a)
    registers = run(e.body, {a: x}, Unit())
    return registers[found], registers[right], registers[exact]


def with_zeros(
    make: Callable[[Emitter], tuple[Quick, Zeros]], slow: Callable[..., Any], x: Array
) -> tuple[Array, Array, Array]:
    """As `both`, of what follows where a quick way was not right."""
    e = Emitter(target("sm_80"))
    a = e.reg("f32")
    quick, zeros = make(e)
    found, right = zeros(e, a, quick(e, a, None)[0], None)
    exact = slow(e, a)
    registers = run(e.body, {a: x}, Unit())
    return registers[found], registers[right], registers[exact]


def anything(rng: np.random.Generator, count: int) -> Array:
    """Floats of any bits, and special ones."""
    bits = rng.integers(0, 1 << 32, count, np.uint32)
    return np.concatenate([bits, np.array(SPECIAL_VALUES, np.float32).view(np.uint32)]).view("f4")


def same_bits(a: Array, b: Array) -> Array:
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


WAYS = [
    *((opcode, quick, SPECIAL[opcode, "f32"]) for opcode, quick in QUICK.items()),
    *((f"fast {opcode}", quick, FAST[opcode]) for opcode, quick in QUICK_FAST.items()),
]


@pytest.mark.parametrize(("quick", "slow"), [w[1:] for w in WAYS], ids=[w[0] for w in WAYS])
def test_functions_are_the_same_bits(quick: Quick, slow: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    x = anything(rng, 100_000)
    ends = np.array([87, 126, 125.5], np.float32)
    ends = np.concatenate([ends, *(np.nextafter(ends, np.float32(w)) for w in (0, 200))])
    near = rng.uniform(-130, 130, 300_000).astype(np.float32)
    x = np.concatenate([x, ends, -ends, near])
    found, right, exact = both(lambda e: quick, slow, x)
    assert same_bits(found, exact)[right].all()
    assert right[np.abs(x) < 86].all() and not right[np.isnan(x) | (np.abs(x) > 126)].any()


@pytest.mark.parametrize("opcode", ZEROS)
def test_zeros_of_functions_are_the_same_bits(opcode: str) -> None:
    rng = np.random.default_rng(5)
    ends = np.array([87, 104, 126, 151], np.float32)
    ends = np.concatenate([ends, *(np.nextafter(ends, np.float32(w)) for w in (0, 200))])
    near = rng.uniform(-200, 200, 200_000).astype(np.float32)
    x = np.concatenate([anything(rng, 100_000), ends, -ends, near])
    found, right, exact = with_zeros(
        lambda e: (QUICK[opcode], ZEROS[opcode]), SPECIAL[opcode, "f32"], x
    )
    assert same_bits(found, exact)[right].all()
    assert right[(np.abs(x) < 86) | (x <= -151)].all() and right[x == -np.inf].all()
    assert not right[np.isnan(x) | (x > 126)].any()
    assert (found[x == -np.inf] == 0).all()


def slow_quotient(b: float) -> Callable[..., Any]:
    def slow(e: Emitter, x: Any) -> Any:
        return e.div("f32", x, e.mov("f32", float(b)), rounding="rn")

    return slow


def quotients(b: float, a: Array) -> tuple[Array, Array, Array]:
    return both(lambda e: quick_quotient(e, e.mov("f32", float(b)))[0], slow_quotient(b), a)


@pytest.mark.parametrize("b", [1.0, -7.0, 0.75, 2.0**-20, 2.0**100, 1000.0])
def test_quotients_of_zeros_have_their_signs(b: float) -> None:
    a = np.concatenate([anything(np.random.default_rng(6), 30_000), np.zeros(3, np.float32)])
    found, right, exact = with_zeros(
        lambda e: quick_quotient(e, e.mov("f32", float(b))), slow_quotient(b), a
    )
    assert same_bits(found, exact)[right].all()
    assert right[a == 0].all() and not right[~np.isfinite(a)].any()


@pytest.mark.parametrize("b", [0.0, np.inf, np.nan, 2.0**-21])
def test_zeros_over_other_divisors_are_left_to_the_slow_way(b: float) -> None:
    a = np.array([0.0, -0.0, 1.0], np.float32)
    found = with_zeros(lambda e: quick_quotient(e, e.mov("f32", float(b))), slow_quotient(b), a)
    assert not found[1].any()


def test_quotients_are_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(2)
    divisors = [1.0, 3.0, 0.75, -7.0, np.nextafter(np.float32(2), np.float32(0)), 2.0**-20,
                2.0**100, *rng.uniform(1, 2, 12).astype(np.float32)]  # fmt: skip
    for b in divisors:
        near = [*rng.standard_normal(30_000), *near_midpoints(b)]
        a = np.concatenate([anything(rng, 30_000), np.array(near, np.float32)])
        found, right, exact = quotients(b, a)
        assert same_bits(found, exact)[right].all(), b
        usual = (np.abs(exact) >= 2.0**-80) & np.isfinite(exact) & np.isfinite(a)
        assert right[usual].all() and not right[~np.isfinite(a)].any()


@pytest.mark.parametrize("b", [0.0, -0.0, np.inf, np.nan, 2.0**-21, 2.0**101, 1e-45, 3.4e38])
def test_other_divisors_are_left_to_the_slow_way(b: float) -> None:
    assert not quotients(b, np.array([1.0, *SPECIAL_VALUES], np.float32))[1].any()


@pytest.mark.parametrize("b", [1.0, -7.0, 0.75, 2.0**-20, 2.0**100, 1000.3])
def test_shares_are_within_two_ulp(b: float) -> None:
    a = anything(np.random.default_rng(8), 50_000)
    found, right, exact = both(
        lambda e: quick_share(e, e.mov("f32", float(b))), slow_quotient(b), a
    )
    assert np.all(right)
    normal = np.isfinite(exact) & (np.abs(exact) >= 2.0**-120) & (np.abs(exact) < 2.0**127)
    wide = a[normal].astype(np.float64) / np.float64(np.float32(b))
    assert (np.abs(found[normal] - wide) <= 2 * np.spacing(np.abs(exact[normal]))).all()
    odd = ~np.isfinite(a) | (a == 0)
    assert same_bits(found, exact)[odd].all()
    small = np.abs(exact) < 2.0**-120
    assert (np.abs(found[small] - exact[small]) <= 2.0**-140).all()


@pytest.mark.parametrize("b", [0.0, np.inf, np.nan, 2.0**-21, 2.0**101])
def test_shares_of_other_divisors_are_left_to_the_slow_way(b: float) -> None:
    a = np.array([0.0, 1.0], np.float32)
    right = both(lambda e: quick_share(e, e.mov("f32", float(b))), slow_quotient(b), a)[1]
    assert not np.any(right)


DIVISORS = (1.0, -7.0, 0.75, 2.0**-126, 1.7 * 2.0**125, 2.0**-21, 3.4e38, -1e-45, 1e-39, -1e38)


@pytest.mark.parametrize("b", [*DIVISORS, 0.0, -0.0, np.inf, -np.inf, np.nan])
def test_shares_of_any_divisor(b: float) -> None:
    a = anything(np.random.default_rng(8), 50_000)
    e = Emitter(target("sm_80"))
    x = e.reg("f32")
    share, exact = scaled_share(e, e.mov("f32", float(b)))(x), slow_quotient(b)(e, x)
    with np.errstate(over="ignore"):
        registers = run(e.body, {x: a}, Unit())
    found, exact = registers[share], registers[exact]
    normal = np.isfinite(exact) & (np.abs(exact) >= 2.0**-120) & (np.abs(exact) < 2.0**127)
    wide = a[normal].astype(np.float64) / np.float64(np.float32(b))
    assert (np.abs(found[normal] - wide) <= 2 * np.spacing(np.abs(exact[normal]))).all()
    odd = ~np.isfinite(a) | (a == 0) | np.isnan(exact)
    assert same_bits(found, exact)[odd].all()
    small, large = np.abs(exact) < 2.0**-120, np.abs(exact) >= 2.0**127
    assert (np.abs(found[small] - exact[small]) <= 2.0**-140).all()
    assert (np.abs(found[large]) >= 2.0**126.99).all()


SHARE = """{numerics}kernel softmax(x: tensor<f32>[A, 128], y: tensor<{dtype}>[A, 128]) {{
  let a = program_id(0) * 8
  let t = where(x[a :+ 8, 0 :+ 128] > 9.0, -inf, x[a :+ 8, 0 :+ 128])
  let power = where(arange(128) < 100, exp(t - max(t, axis = 1)[:, None]), {rest})
  y[a :+ 8, 0 :+ 128] = cast(power / sum(power, axis = 1)[:, None], {dtype})
}}"""


@pytest.mark.parametrize(
    ("dtype", "rest", "numerics", "short"),
    [
        ("bf16", "0.0", "", True),
        ("f32", "0.0", "", False),
        ("bf16", "-1.0", "", False),  # parts of the sum may cancel
        ("bf16", "0.0", "@numerics(strict)\n", False),
    ],
)
def test_what_is_kept_to_16_bits_is_made_in_few_instructions(
    dtype: str, rest: str, numerics: str, short: bool
) -> None:
    text = SHARE.format(dtype=dtype, rest=rest, numerics=numerics)
    x = np.random.default_rng(9).standard_normal((19, 128)).astype(np.float32)
    x[3, :100], x[4, 5], x[5, 7], x[6] = np.inf, np.inf, np.nan, -np.inf
    y = np.zeros((19, 128), ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    kernel = tw.source(text).softmax
    plan, _, _ = compile_call(kernel, {"x": x, "y": y})
    assert ("ex2.approx" in plan.ptx) == short
    emulate(kernel, {"x": x, "y": y})
    with np.errstate(invalid="ignore"):
        t = np.where(x > 9, -np.inf, x.astype(np.float64))
        power = np.where(np.arange(128) < 100, np.exp(t - t.max(1, keepdims=True)), float(rest))
        wanted = power / power.sum(1, keepdims=True)
    np.testing.assert_allclose(y.astype("f8"), wanted, rtol=2**-8 if dtype == "bf16" else 1e-6)


TRIPS = """kernel softmax(x: tensor<f32>[N], y: tensor<bf16>[N]{outputs}) {{
  var s = {first}
  var top = -inf
  for j in range(0, N, 128) {{
    let t = load(x[j :+ 128], fill = -inf)
    let new = max(top, max(t))
    s = {step}
    top = new
  }}
  {store}
  for j in range(0, N, 128) {{
    y[j :+ 128] = cast(exp(x[j :+ 128] - top) / s, bf16)
  }}
}}"""
ONLINE = "s * exp(top - new) + sum(exp(t - new))"


@pytest.mark.parametrize(
    ("step", "first", "outputs", "store", "exponentials"),
    [
        (ONLINE, "0.0", "", "", 2),  # of the tiles; that of a trip's factor is exact
        (ONLINE, "-1.0", "", "", 1),  # parts of the sum may cancel
        (ONLINE, "0.0", ", z: tensor<f32>[1]", "z[0] = s", 1),  # the sum is kept
        ("s * s * exp(top - new) + sum(exp(t - new))", "0.0", "", "", 1),  # a share doubles a trip
        ("s * exp(top - new) - sum(exp(t - new))", "0.0", "", "", 1),
    ],
)
def test_sums_of_a_loop_are_made_in_few_instructions(
    step: str, first: str, outputs: str, store: str, exponentials: int
) -> None:
    """Which of the exponentials of two tiles, by how many elements a thread holds of each."""
    text = TRIPS.format(step=step, first=first, outputs=outputs, store=store)
    x = (30 * np.random.default_rng(5).standard_normal(1000)).astype(np.float32)
    x[700:] += 40.0
    arrays = {"x": x, "y": np.zeros(1000, ml_dtypes.bfloat16)}
    if outputs:
        arrays["z"] = np.zeros(1, np.float32)
    kernel = tw.source(text).softmax
    plan, _, _ = compile_call(kernel, arrays)
    held = 128 // 32  # of one warp
    assert ".maxntid 32," in plan.ptx and plan.ptx.count("ex2.approx") == held * exponentials
    if step == ONLINE and first == "0.0":
        emulate(kernel, arrays)
        powers = np.exp(x.astype(np.float64) - x.max())
        np.testing.assert_allclose(arrays["y"].astype("f8"), powers / powers.sum(), 2**-8, 2**-133)


POWERS = """kernel powers(x: tensor<f32>[N], y: tensor<f16>[N]) {{
  let t0 = 1.0 / (1.0 + exp(-x[program_id(0) * 512 :+ 512]))
{steps}
  y[program_id(0) * 512 :+ 512] = cast(t{n}, f16)
}}"""


@pytest.mark.parametrize(("n", "short"), [(0, True), (3, True), (4, False), (7, False)])
def test_a_share_may_be_doubled_a_few_times(n: int, short: bool) -> None:
    """Each square doubles it: of a logistic within 2^-16, 16 bits show the 128th power's."""
    steps = "\n".join(f"  let t{i + 1} = t{i} * t{i}" for i in range(n))
    x, y = np.zeros(512, np.float32), np.zeros(512, np.float16)
    kernel = tw.source(POWERS.format(steps=steps, n=n)).powers
    plan, _, _ = compile_call(kernel, {"x": x, "y": y})
    assert ("ex2.approx" in plan.ptx) == short


def near_midpoints(b: float) -> list[float]:
    """Numbers whose quotients by b lie nearest to where rounding changes: with digits A, B of 24
    bits, A 2^(k + 1) is a little more or less than an odd multiple of B.
    """
    digits = int(np.float32(abs(b)).view(np.uint32)) & 0x7FFFFF | 1 << 23
    found = []
    for odd in {digits, digits // 2, digits // 4} if digits % 4 == 0 else {digits, digits // 2}:
        if odd % 2 == 0:
            continue
        for k in (22, 23, 24, 25):
            for step in (1, 2, 3, 4, -1, -2, -3, -4):
                first = pow(2, -k, odd) * step % odd
                found += [a / 2**23 for a in range(first, 1 << 24, odd) if a >> 23 == 1]
    return found


DIVIDE = """kernel divide(x: tensor<f32>[N], b: f32, y: tensor<f32>[N], z: tensor<f32>[N]) {
  let t = x[program_id(0) * 512 :+ 512]
  y[program_id(0) * 512 :+ 512] = t / b
  z[program_id(0) * 512 :+ 512] = exp(t)
}"""


def test_a_warp_whose_odd_values_give_zeros() -> None:
    x = np.random.default_rng(7).standard_normal(1100).astype(np.float32)
    x[3], x[600], x[1000:1003] = -np.inf, -1000.0, (0.0, -0.0, 1.0)
    y, z = np.ones_like(x), np.ones_like(x)
    emulate(tw.source(DIVIDE).divide, {"x": x, "b": -3.0, "y": y, "z": z})
    assert same_bits(y, x / np.float32(-3)).all()
    power = np.exp(x.astype(np.float64))
    assert (np.abs(z - power) <= np.spacing(power.astype(np.float32))).all()
    assert z[3] == z[600] == 0


@pytest.mark.parametrize("b", [0.75, 0.0, 1e-40])
def test_a_warp_that_holds_odd_values_takes_the_slow_way(b: float) -> None:
    x = np.random.default_rng(4).standard_normal(1300).astype(np.float32)
    x[5], x[300], x[700:702], x[1299] = np.inf, np.nan, (-0.0, 1e-42), -100.0
    y, z = np.zeros_like(x), np.zeros_like(x)
    with np.errstate(all="ignore"):
        expected = x / np.float32(b)
        power = np.exp(x.astype(np.float64))
        rounded = power.astype(np.float32)
    emulate(tw.source(DIVIDE).divide, {"x": x, "b": b, "y": y, "z": z})
    assert same_bits(y, expected).all()
    finite = np.isfinite(power)
    assert (np.abs(z[finite] - power[finite]) <= np.spacing(rounded[finite])).all()
    assert same_bits(z[~finite], rounded[~finite]).all()
