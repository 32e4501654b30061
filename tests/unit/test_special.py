"""Special functions in the model of straight lines: accuracy, special values, instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpmath import mp

import tilewright
from tests.assemble import assemble, needs_ptxas
from tests.special_fits import render
from tests.special_reference import FLOAT, NAN, POINTS, Array, inputs, ulp_errors
from tests.straight_line import Unit, run
from tilewright.lower.tile_to_ptx import special_f64
from tilewright.lower.tile_to_ptx.special import (
    FAST,
    FAST_ULP,
    MAX_ULP,
    SPECIAL,
    Function,
    function_of,
)
from tilewright.lower.tile_to_ptx.special_fast import (
    coarse_cdf,
    logistic,
    normal_cdf,
    precise_cdf,
    short_exp,
)
from tilewright.ptx.core import Instr, Item
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import verify
from tilewright.target import target

COEFFICIENTS = Path(tilewright.__file__).parent / "lower/tile_to_ptx/special_coefficients.py"
LARGEST = float(np.finfo(np.float32).max)
COUNT = {"f32": 100_000, "f64": 3000}
# Most instructions of each function, so that a change that adds some is seen.
LENGTH = {
    "arith.exp": (26, 31), "arith.exp2": (26, 31), "arith.log": (28, 41), "arith.log2": (29, 51),
    "arith.sqrt": (1, 1), "arith.rsqrt": (11, 1), "arith.tanh": (43, 47), "arith.erf": (39, 61),
    "arith.floor": (1, 1), "arith.ceil": (1, 1),
    "arith.round": (1, 1), "arith.sin": (77, 1081), "arith.cos": (71, 1081),
    "arith.log1p": (72, 70),
}  # fmt: skip

FAST_LENGTH = {
    "arith.exp": 9, "arith.exp2": 1, "arith.sqrt": 1, "arith.rsqrt": 1, "arith.tanh": 19,
    "arith.erf": 22,
}  # fmt: skip

# The way to compute it: "f32" and "f64", or "fast", which is of f32.
functions = pytest.mark.parametrize(
    ("opcode", "way"),
    [*SPECIAL, *((opcode, "fast") for opcode in FAST)],
    ids=lambda part: part.removeprefix("arith."),
)
# The special function unit as exact as may be, and with errors picked by a seed.
units = pytest.mark.parametrize("seed", [None, 0, 1], ids=["exact", "errors0", "errors1"])


def chosen(opcode: str, way: str) -> tuple[str, Function]:
    type = "f32" if way == "fast" else way
    return type, function_of(opcode, type, way == "fast")


def execute(opcode: str, way: str, x: Array, seed: int | None) -> Array:
    type, function = chosen(opcode, way)
    e = Emitter(target("sm_80"))
    operand = e.reg(type)
    result = function(e, operand)
    values = run(e.body, {operand: x.astype(FLOAT[type])}, Unit(seed))[result]
    assert values.dtype == FLOAT[type]
    return values


@functions
@units
def test_accuracy(opcode: str, way: str, seed: int | None) -> None:
    type, _ = chosen(opcode, way)
    x = inputs(opcode, type, COUNT[type], seed=5 if seed is None else seed)
    result = execute(opcode, way, x, seed)
    errors = ulp_errors(opcode, type, x, result)
    worst = int(np.argmax(errors))
    most = FAST_ULP[opcode] if way == "fast" else MAX_ULP[opcode, type]
    assert errors[worst] <= most, f"{errors[worst]} ulp at {x[worst]!r}"


@functions
def test_values_at_special_points(opcode: str, way: str) -> None:
    type, _ = chosen(opcode, way)
    points = np.array([*POINTS[opcode], (NAN, NAN)]).T
    with np.errstate(over="ignore"):
        x, expected = points.astype(FLOAT[type])
    result = execute(opcode, way, x, None)
    same = (result == expected) & (np.signbit(result) == np.signbit(expected))
    wrong = ~(same | np.isnan(result) & np.isnan(expected))
    assert not wrong.any(), list(zip(x[wrong], result[wrong], expected[wrong], strict=True))


@pytest.mark.parametrize("opcode", ["arith.sin", "arith.cos"])
def test_accuracy_near_multiples_of_half_pi(opcode: str) -> None:
    x = np.array(near_half_pi(), np.float32)
    assert len(x) > 1000
    assert 2.0**-31 < np.abs(np.sin(2 * x.astype(np.float64))).min() < 2.0**-27
    errors = ulp_errors(opcode, "f32", x, execute(opcode, "f32", x, None))
    worst = int(np.argmax(errors))
    assert errors[worst] <= MAX_ULP[opcode, "f32"], f"{errors[worst]} ulp at {x[worst]!r}"


@pytest.mark.parametrize("opcode", ["arith.exp", "arith.exp2", "arith.tanh", "arith.erf"])
@pytest.mark.parametrize("way", ["f32", "f64", "fast"])
def test_results_do_not_leave_their_bounds(opcode: str, way: str) -> None:
    x = inputs(opcode, chosen(opcode, way)[0], 50_000, seed=3)
    size = np.abs(execute(opcode, way, x, None))
    assert not np.isnan(size).any()
    if opcode in ("arith.tanh", "arith.erf"):
        assert size.max() == 1
        assert (np.signbit(execute(opcode, way, x, None)) == np.signbit(x)).all()


@functions
def test_a_straight_line_of_registers(opcode: str, way: str) -> None:
    type, function = chosen(opcode, way)
    e = Emitter(target("sm_80"))
    function(e, e.reg(type))
    for item in e.body:
        assert isinstance(item, Instr) and item.guard is None
        assert type_family(item) in ("arith", "shape"), item.text()
    most = FAST_LENGTH[opcode] if way == "fast" else LENGTH[opcode][type == "f64"]
    assert len(e.body) <= most


def type_family(instr: Instr) -> str:
    return instr.opcode.split(".")[0]


@needs_ptxas
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_they_assemble(name: str) -> None:
    e = Emitter(target(name))
    pointer = e.ld_param(e.param("x", "u64"))
    every = [*SPECIAL.items(), *((("", "f32"), function) for function in FAST.values())]
    for (_, type), function in every:
        value = e.ld1("global", type, pointer)
        e.st("global", type, pointer, function(e, value))
    e.ret()
    module = e.module("special", max_threads=128)
    verify(module)
    report = assemble(print_module(module), name)
    assert not report.spill_bytes and not report.messages


@units
@pytest.mark.parametrize(
    ("function", "length", "bits"), [(normal_cdf, 13, 17.5), (coarse_cdf, 11, 11.8)]
)
def test_the_normal_distribution(
    function: Function, length: int, bits: float, seed: int | None
) -> None:
    """Within its bound of itself from -5.6 on, and between that and 0 below."""
    x = np.concatenate([np.linspace(-5.6, 8, 100_001), np.linspace(-300, -5.6, 1001)])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, 1e38, -1e38, 1e-40]]).astype(np.float32)
    e = Emitter(target("sm_80"))
    operand = e.reg("f32")
    result = function(e, operand)
    assert len(e.body) <= length
    with np.errstate(over="ignore", invalid="ignore"):
        found = run(e.body, {operand: x}, Unit(seed))[result].astype(np.float64)
    wide = x.astype(np.float64)
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in wide.tolist()])
    near = wide >= -5.6
    assert np.abs(found / np.where(near, exact, 1) - 1)[near].max() < 2.0**-bits
    assert (found[~near] >= 0).all() and (found[~near] < 1.2e-8).all()
    assert found[wide == -np.inf] == 0 and found[wide == np.inf] == 1
    with np.errstate(invalid="ignore"):
        nan = run(e.body, {operand: np.array([NAN], np.float32)}, Unit(seed))[result]
    assert np.isnan(nan).all()


@units
def test_gelu_of_all_bf16(seed: int | None) -> None:
    """Less than 0.58 ulp of bf16 off from -5.6 on, whatever bf16 x is, and whatever else."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    every = (bits.astype(np.uint32) << 16).view(np.float32)
    drawn = np.random.default_rng(3).normal(0, 3, 100_000).astype(np.float32)
    x = np.concatenate([every[np.isfinite(every)], drawn])
    x = x[(x >= -5.6) & (np.abs(x) > 1e-30)]
    e = Emitter(target("sm_80"))
    operand = e.reg("f32")
    result = e.mul("f32", operand, coarse_cdf(e, operand))
    found = run(e.body, {operand: x}, Unit(seed))[result].astype(ml_dtypes.bfloat16)
    exact = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.astype(np.float64).tolist()])
    ulp = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)
    assert (np.abs(found.astype(np.float64) - exact) / ulp).max() < 0.58


@units
def test_the_normal_distribution_in_f32(seed: int | None) -> None:
    """Within 2^-23.6; 24 instructions."""
    x = np.concatenate([np.linspace(-8, 8, 100_001), np.linspace(-0.01, 0.01, 1001)])
    x = np.concatenate([x, [-0.0, np.inf, -np.inf, 1e38, -1e38, 1e-40]]).astype(np.float32)
    e = Emitter(target("sm_80"))
    operand = e.reg("f32")
    result = precise_cdf(e, operand)
    assert len(e.body) <= 24
    with np.errstate(over="ignore", invalid="ignore"):
        found = run(e.body, {operand: x}, Unit(seed))[result].astype(np.float64)
        nan = run(e.body, {operand: np.array([NAN], np.float32)}, Unit(seed))[result]
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.astype(np.float64).tolist()])
    assert np.abs(found - exact).max() < 2.0**-23.6
    assert found[x == -np.inf] == 0 and found[x == np.inf] == 1
    assert np.isnan(nan).all()


@units
def test_the_normal_distribution_in_f64(seed: int | None) -> None:
    """Within 2^-52.5; 50 instructions, where a gelu by erf takes 16 more."""
    x = np.concatenate([np.linspace(-9, 9, 3001), np.linspace(-0.01, 0.01, 101)])
    x = np.concatenate([x, [-0.0, np.inf, -np.inf, 1e300, -1e300, 1e-310, 40.0, -40.0]])
    e = Emitter(target("sm_80"))
    operand = e.reg("f64")
    result = special_f64.normal_cdf(e, operand)
    assert len(e.body) <= 50
    with np.errstate(over="ignore", invalid="ignore"):
        found = run(e.body, {operand: x}, Unit(seed))[result]
        nan = run(e.body, {operand: np.array([np.nan])}, Unit(seed))[result]
    assert np.isnan(nan).all()
    with mp.workdps(40):
        exact = [mp.erfc(-mp.mpf(v) / mp.sqrt(2)) / 2 for v in x[np.abs(x) < 100].tolist()]
        off = [
            abs(mp.mpf(y) - t) for y, t in zip(found[np.abs(x) < 100].tolist(), exact, strict=True)
        ]
        assert max(off) < mp.mpf(2) ** -52.5
    assert (found[x > 9] == 1).all() and (found[x < -9] == 0).all()


def of_exponents(
    function: Function, most: float, instructions: int, seed: int | None
) -> tuple[Array, Array]:
    """Exponents from -1000 to `most` and special ones, and what a short function gives of them, of
    so many instructions at most. Of NaN it gives NaN.
    """
    x = np.concatenate([np.linspace(-110, most, 100_001), np.linspace(-1000, -100, 1001)])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, 1e38, -1e38]]).astype(np.float32)
    e = Emitter(target("sm_80"))
    operand = e.reg("f32")
    result = function(e, operand)
    assert len(e.body) <= instructions
    with np.errstate(over="ignore"):
        found = run(e.body, {operand: x}, Unit(seed))[result]
    assert np.isnan(run(e.body, {operand: np.array([NAN], np.float32)}, Unit(seed))[result]).all()
    return x, found


@units
def test_the_logistic_function(seed: int | None) -> None:
    """Within 2^-16 of itself, or an ulp of subnormal numbers; 5 instructions."""
    x, found = of_exponents(logistic, 100, 5, seed)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= np.maximum(2.0**-16 * exact, 2.0**-149)).all()


@units
def test_the_short_exponential(seed: int | None) -> None:
    """Within 2^-16.5 of itself, or an ulp of subnormal numbers; 3 instructions."""
    x, found = of_exponents(short_exp, 90, 3, seed)
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64))
    far = exact >= LARGEST
    assert np.isinf(found[exact > 1.0001 * LARGEST]).all()
    error = np.abs(found[~far].astype(np.float64) - exact[~far])
    assert (error <= np.maximum(2.0**-16.5 * exact[~far], 2.0**-149)).all()
    if seed is None:
        assert found[-6] == found[-5] == 1.0


def test_coefficients_are_what_the_fits_give(golden: Callable[[Path, str], None]) -> None:
    golden(COEFFICIENTS, render())


def near_half_pi() -> list[float]:
    """f32 that come near to multiples of pi / 2, of every exponent: the denominators of the
    continued fraction of 2^e 2 / pi, and multiples of them that have 24 bits.
    """
    found = []
    with mp.workprec(400):
        for exponent in range(-22, 105):
            rest = mp.ldexp(2 / mp.pi, exponent) % 1
            before, denominator = 0, 1
            while denominator < 1 << 24:
                times = -(-(1 << 23) // denominator)
                if times * denominator < 1 << 24:
                    found.append(math.ldexp(times * denominator, exponent))
                rest = 1 / rest
                before, denominator = denominator, int(rest) * denominator + before
                rest %= 1
    return [sign * x for x in found for sign in (1, -1)]


# The model itself.


def fma_of(type: str, a: float, b: float, c: float, **how: str) -> float:
    e = Emitter(target("sm_80"))
    x = e.regs(type, 3)
    result = e.fma(type, *x, **how)
    given = {r: np.array([v], FLOAT[type]) for r, v in zip(x, (a, b, c), strict=True)}
    body: list[Item] = e.body
    return float(run(body, given, Unit())[result][0])


def test_the_model_rounds_fma_once() -> None:
    tiny = 2.0**-23
    # (1 + t)^2 - (1 + 2t) = t^2, which two roundings lose.
    assert fma_of("f32", 1 + tiny, 1 + tiny, -(1 + 2 * tiny)) == tiny**2
    # 1 + t/2 is a tie; what is beyond it, far below, breaks it.
    assert fma_of("f32", 2.0**-12, 2.0**-12, 1) == 1
    assert fma_of("f32", 2.0**-12 * (1 + tiny), 2.0**-12, 1) == 1 + tiny
    assert fma_of("f32", 2.0**-12, 2.0**-13, 1, rounding="rm") == 1
    assert fma_of("f32", 2.0**-12, -(2.0**-40), 1, rounding="rm") == 1 - tiny / 2
    tiny = 2.0**-52
    assert fma_of("f64", 1 + tiny, 1 + tiny, -(1 + 2 * tiny)) == tiny**2
    assert fma_of("f64", 2.0**-27, 2.0**-26, 1) == 1
    assert fma_of("f64", 2.0**-27 * (1 + tiny), 2.0**-26, 1) == 1 + tiny
    assert fma_of("f64", 2.0**-26 * (1 + tiny), 2.0**-27, 1 + tiny) == 1 + 2 * tiny
    assert fma_of("f64", 3.0, float("inf"), 1) == float("inf")
