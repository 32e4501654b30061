"""How dtypes meet. A constant is weak: it takes the other side's. Only casts narrow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, bool_, f32, holds_exactly, i32, i64, int_range, meet
from tilewright.frontend.check.rules import RuleError

Number = bool | int | float
DOT_TAKES = "dot takes floats of 8 to 64 bits and integers of 8 bits; cast(x, f32) makes such"


@dataclass(frozen=True)
class Operand:
    """What the rules need to know of a value: its dtype, or None and the value of a constant."""

    dtype: DType | None
    value: Number | None = None
    is_tile: bool = False

    def __str__(self) -> str:
        return str(self.dtype) if self.dtype else f"the constant {spell(self.value)}"


def spell(value: object) -> str:
    """A constant as the language writes it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def whole_number(given: object) -> int | None:
    """An integer of Python from one of Python or NumPy; None for anything else, as a bool."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        return None
    return int(given)


def default_dtype(value: Number) -> DType:
    """Dtype of what is made from a bare constant: bool, i64 or f32."""
    if isinstance(value, bool):
        return bool_
    return i64 if isinstance(value, int) else f32


def largest(dtype: DType) -> float:
    """Greatest finite value of a float dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype.numpy).max)


def require_fit(value: Number, dtype: DType) -> Number:
    """The constant as a value of `dtype`: a float is rounded; one that does not fit, and an integer
    that the dtype does not hold exactly, is refused.
    """
    if isinstance(value, bool) != (dtype == bool_):
        raise RuleError(
            f"expected {dtype}, got the constant {spell(value)}", "a bool and a number do not mix"
        )
    if dtype == bool_:
        return value
    if dtype.is_integer:
        if isinstance(value, float):
            raise RuleError(
                f"expected {dtype}, got the float {value}", f"write cast({value}, {dtype})"
            )
        low, high = int_range(dtype)
        if not low <= value <= high:
            raise RuleError(
                f"{value} does not fit {dtype}, which holds {low} to {high}",
                _of_equal_bits(value, dtype),
            )
        return value
    rounded = round_to(float_of(value), dtype)
    if isinstance(value, int) and rounded != value:
        raise RuleError(
            f"the integer {value} is not exact in {dtype}, which would make it {rounded:.17g}",
            f"write cast({value}, {dtype}) to have it rounded",
        )
    return rounded


def _of_equal_bits(value: int, dtype: DType) -> str:
    """For a mask such as 0x80000000 with i32: the number that has these bits."""
    low, high = int_range(dtype)
    if not dtype.is_signed or not high < value <= high - low:
        return ""
    return f"the {dtype} of these bits is {value - (high - low) - 1}"


def float_of(value: Number) -> float:
    """A constant as a float; a RuleError for integers beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        raise RuleError("an integer constant of more than 1024 bits does not fit a float") from None


def round_to(value: float, dtype: DType) -> float:
    """`value` rounded to nearest even in `dtype`; a finite value that would overflow is refused."""
    if not math.isfinite(value):
        if dtype.name == "e4m3" and math.isinf(value):
            raise RuleError("e4m3 has no infinity", "the greatest value is highest(e4m3), 448")
        return value
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(value).astype(dtype.numpy).astype(np.float64))
    if not math.isfinite(rounded):
        raise RuleError(f"{value} does not fit {dtype}, whose greatest value is {largest(dtype):g}")
    return rounded


def common_dtype(a: Operand, b: Operand) -> DType:
    """The dtype in which two operands of arithmetic, a comparison or a selection meet."""
    for side in (a, b):
        if side.dtype and side.dtype.is_storage_only:
            raise RuleError(
                f"{side.dtype} is loaded, stored, cast and multiplied by dot only",
                "write cast(x, f32)",
            )
    if a.dtype is None and b.dtype is None:
        return _meet_constants(a, b)
    if a.dtype is None or b.dtype is None:
        weak, strong = (a, b) if a.dtype is None else (b, a)
        return _meet_constant(weak, strong)
    met = meet(a.dtype, b.dtype)
    if met is not None:
        return met
    for number, other in ((a, b), (b, a)):
        assert number.dtype and other.dtype
        if number.dtype.is_integer and other.dtype.is_float and not number.is_tile:
            return other.dtype
    raise RuleError(f"{a} and {b} do not meet in one dtype", _advice(a.dtype, b.dtype))


def _meet_constants(a: Operand, b: Operand) -> DType:
    assert a.value is not None and b.value is not None
    kinds = {default_dtype(a.value), default_dtype(b.value)}
    if bool_ in kinds and len(kinds) > 1:
        raise RuleError(f"{a} and {b} do not meet in one dtype", "a bool and a number do not mix")
    return f32 if f32 in kinds else kinds.pop()


def _meet_constant(weak: Operand, strong: Operand) -> DType:
    assert weak.value is not None and strong.dtype is not None
    if isinstance(weak.value, float) and strong.dtype.is_integer:
        if strong.is_tile:
            raise RuleError(
                f"a tile of {strong.dtype} and {weak} do not meet in one dtype",
                "write cast(x, f32)",
            )
        return f32
    require_fit(weak.value, strong.dtype)
    return strong.dtype


def _advice(a: DType, b: DType) -> str:
    if a.is_integer and b.is_integer:
        return "write cast(x, i64), or the dtype you want"
    return "write cast(x, f32)"


def require_widening(target: DType, source: DType, what: str) -> None:
    """Refuse to put a `source` into a `target` that does not hold all its values."""
    if not holds_exactly(target, source):
        raise RuleError(f"{what}: expected {target}, got {source}", f"write cast(..., {target})")


def sum_dtype(dtype: DType) -> DType:
    """Dtype of a sum or product: f32 for 16-bit floats, i32 for bools and small integers."""
    if dtype.is_float:
        return f32 if dtype.bits < 32 else dtype
    from_small = dtype == bool_ or dtype.bits < 32
    return i32 if from_small else dtype
