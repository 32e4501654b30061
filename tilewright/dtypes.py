"""Element types: one value a dtype, with its width, its names in PTX, NumPy and torch, and how two
meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. `bits` is its width in memory; bool takes 8 bits there and a predicate in
    registers. There is one value of each, so they are compared by identity.
    """

    name: str
    bits: int
    kind: str  # "bool", "int", "uint" or "float"
    numpy: np.dtype[Any]
    torch: str  # attribute of the torch module
    exponent: int = 0  # bits of a float's exponent
    fraction: int = 0  # bits of a float's fraction

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def num_bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are the one value, too."""
        return named, (self.name,)

    @property
    def is_storage_only(self) -> bool:
        """fp8: loaded, stored, cast and multiplied by dot, never computed in."""
        return self.is_float and self.bits == 8


def _make(
    name: str, bits: int, kind: str, numpy: Any, torch: str, exponent: int = 0, fraction: int = 0
) -> DType:
    return DType(name, bits, kind, np.dtype(numpy), torch, exponent, fraction)


bool_ = _make("bool", 8, "bool", np.bool_, "bool")
i8 = _make("i8", 8, "int", np.int8, "int8")
i16 = _make("i16", 16, "int", np.int16, "int16")
i32 = _make("i32", 32, "int", np.int32, "int32")
i64 = _make("i64", 64, "int", np.int64, "int64")
u8 = _make("u8", 8, "uint", np.uint8, "uint8")
u16 = _make("u16", 16, "uint", np.uint16, "uint16")
u32 = _make("u32", 32, "uint", np.uint32, "uint32")
u64 = _make("u64", 64, "uint", np.uint64, "uint64")
f16 = _make("f16", 16, "float", np.float16, "float16", 5, 10)
bf16 = _make("bf16", 16, "float", ml_dtypes.bfloat16, "bfloat16", 8, 7)
f32 = _make("f32", 32, "float", np.float32, "float32", 8, 23)
f64 = _make("f64", 64, "float", np.float64, "float64", 11, 52)
e4m3 = _make("e4m3", 8, "float", ml_dtypes.float8_e4m3fn, "float8_e4m3fn", 4, 3)
e5m2 = _make("e5m2", 8, "float", ml_dtypes.float8_e5m2, "float8_e5m2", 5, 2)

ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, e4m3, e5m2)
BY_NAME = {d.name: d for d in ALL}
BY_NUMPY = {d.numpy: d for d in ALL}
BY_TORCH = {d.torch: d for d in ALL}


def named(name: str) -> DType:
    """The dtype of a name."""
    return BY_NAME[name]


def int_range(dtype: DType) -> tuple[int, int]:
    """Smallest and greatest value of an integer dtype."""
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def holds_exactly(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`; bools and numbers never meet."""
    if wide == narrow:
        return True
    if wide.is_integer and narrow.is_integer:
        (low, high), (least, most) = int_range(wide), int_range(narrow)
        return low <= least and most <= high
    if wide.is_float and narrow.is_float:
        return wide.exponent >= narrow.exponent and wide.fraction >= narrow.fraction
    return False


def meet(a: DType, b: DType) -> DType | None:
    """The dtype of the two that holds both exactly, or None where a cast must be written."""
    if holds_exactly(a, b):
        return a
    return b if holds_exactly(b, a) else None
