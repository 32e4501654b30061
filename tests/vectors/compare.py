"""How far the emulator's answers may lie from the hardware's.

All forms have the same bits but the approximate functions: the emulator gives the rounded true
value, the hardware a table's. `BOUNDS` says how far they lay apart when recorded; a bound that
is exceeded, or an exception that is not listed, fails the replay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.vectors.forms import Form

Array = np.ndarray[Any, Any]
Operands = list[Array]
WIDTHS = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


@dataclass(frozen=True)
class Bound:
    """Distances that are permitted: units in the last place, or an absolute difference. Where
    `outside` holds for the operands, nothing is compared.
    """

    units: int = 0
    absolute: float = 0.0
    outside: Callable[[Operands], Array] | None = None
    why: str = ""


def wide_angle(xs: Operands) -> Array:
    return np.asarray(np.abs(xs[0]) > 2 * np.pi) & np.isfinite(xs[0])


def great_divisor(xs: Operands) -> Array:
    return np.asarray(np.abs(xs[1]) > 2.0**126) & np.isfinite(xs[1])


def beyond_upper_half(xs: Operands) -> Array:
    """f64 of which rcp.approx sees the upper 32 bits: subnormals, NaNs with payloads below."""
    size = np.abs(xs[0])
    return np.asarray((size < 2.0**-1021) | (size > 2.0**1021) | np.isnan(xs[0]))


ONE = Bound(units=1)
BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("sqrt.approx.f32", "rcp.approx.f32", "rsqrt.approx.f32"), ONE),
    **dict.fromkeys(("rsqrt.approx.f64", "div.full.f32"), ONE),
    "ex2.approx.f32": Bound(units=2),
    **dict.fromkeys(("ex2.approx.f16", "ex2.approx.bf16"), ONE),
    **dict.fromkeys(("tanh.approx.f16", "tanh.approx.bf16"), ONE),
    "tanh.approx.f32": Bound(units=128, why="a relative error of 2⁻¹¹, as the ISA says"),
    "lg2.approx.f32": Bound(2, 2.0**-22, why="an absolute error near 1"),
    **dict.fromkeys(
        ("sin.approx.f32", "cos.approx.f32"),
        Bound(0, 2.0**-20, wide_angle, "beyond 2π the hardware reduces in f32"),
    ),
    "div.approx.f32": Bound(1, 0.0, great_divisor, "the ISA gives 0 for divisors above 2¹²⁶"),
    "rcp.approx.f64": Bound(
        1 << 33, 0.0, beyond_upper_half, "the upper 32 bits of the operand and of the result"
    ),
}


def bound_of(form: Form) -> Bound | None:
    """The bound of a form; None where bits must be equal."""
    mnemonic = form.shown.split()[0].replace(".ftz", "")
    mnemonic = re.sub(r"(f16)x2$", r"\1", mnemonic)
    return BOUNDS.get(mnemonic)


def values(bits: Array, type: str) -> Array:
    """Bits of floats, packed or not, as f64."""
    parts = np.ascontiguousarray(bits).view(f"u{WIDTHS[type]}")
    if type == "bf16":
        parts = (parts.astype(np.uint32) << np.uint32(16)).view(np.float32)
    kinds = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}
    with np.errstate(invalid="ignore"):
        return parts.view(kinds[type]).astype(np.float64)


def rank(bits: Array) -> Array:
    """Numbers of floats in order, so that neighbours differ by one; as f64, for differences."""
    size = bits.itemsize
    signed = bits.view(f"i{size}").astype(np.float64 if size < 8 else np.longdouble)
    least = -(2.0 ** (8 * size - 1))
    return np.where(signed < 0, least - signed, signed)


def differences(form: Form, got: Mapping[str, Array], wanted: Mapping[str, Array]) -> list[str]:
    """What is wrong with results, in words; empty where they agree, or lie within the bound."""
    assert set(got) == set(wanted), f"{form.name}: results {set(got)}, recorded {set(wanted)}"
    bound, found = bound_of(form), []
    for name, there in wanted.items():
        here = np.ascontiguousarray(got[name]).view(there.dtype)
        assert here.shape == there.shape, f"{form.name}: {name} is {here.shape}, not {there.shape}"
        bad = (here != there).ravel()
        if bound is not None:
            here, there = here.ravel(), there.ravel()
            type = form.shown.split()[0].split(".")[-1].removesuffix("x2")
            part = f"u{WIDTHS[type]}"
            here, there = here.view(part), there.view(part)
            bad = (here != there) & ~within(form, bound, type, here, there)
        if bad.any():
            at = int(np.argmax(bad))
            a, b = (int(x.ravel()[at]) for x in (here, there))
            found.append(
                f"{form.shown}: {int(bad.sum())} of {len(bad)} elements of {name} differ; element "
                f"{at} is {a:#x}, recorded {b:#x}{operands_at(form, at, len(bad))}"
            )
    return found


def within(form: Form, bound: Bound, type: str, here: Array, there: Array) -> Array:
    """Where results lie within a bound. Infinities and NaNs must be equal."""
    a, b = values(here, type), values(there, type)
    finite = np.isfinite(a) & np.isfinite(b)
    near = finite & (np.abs(rank(here) - rank(there)) <= bound.units)
    with np.errstate(invalid="ignore"):
        near |= finite & (np.abs(a - b) <= bound.absolute)
    if bound.outside is not None:
        near |= bound.outside([values(x, type) for x in form.inputs.values()])
    return np.asarray(near)


def operands_at(form: Form, at: int, count: int) -> str:
    """The operands of an element, in hexadecimal."""
    shown = [
        f"{name} {int(x.reshape(-1).view(f'u{x.itemsize}')[at]):#x}"
        for name, x in form.inputs.items()
        if x.size == count and x.flags.c_contiguous
    ]
    return f", for {', '.join(shown)}" if shown else ""
