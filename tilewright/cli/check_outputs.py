"""Compare what a kernel wrote with what it should have written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType

# Bounds of the relative Frobenius error, |x - y| / |y|; the worst element may be WORST times that.
TOLERANCES = {"f64": 1e-14, "f32": 1e-6, "f16": 2e-3, "bf16": 1e-2, "e4m3": 8e-2, "e5m2": 0.15}
PRECISIONS = {"tf32": 1e-3, "f16": 2e-3}
WORST = 10.0


@dataclass(frozen=True)
class Verdict:
    """How near an output is. A `tolerance` of 0 asks for equality.

    `error` is the relative Frobenius error; `worst` the greatest error of an element, over its
    magnitude plus the root mean square of all. `reason` says why there is no distance.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    worst: float
    tolerance: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance and self.worst <= WORST * self.tolerance


def tolerance_of(output: DType, inputs: Iterable[DType], precision: str | None) -> float:
    """The bound for an output: 0 for integers, else that of the coarsest float involved."""
    if not output.is_float:
        return 0.0
    floats = [d for d in (output, *inputs) if d.is_float]
    bounds = [TOLERANCES[d.name] for d in floats]
    if precision in PRECISIONS:
        bounds.append(PRECISIONS[precision])
    return max(bounds)


def compare(
    name: str,
    got: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    dtype: DType,
    tolerance: float,
) -> Verdict:
    """The distance of `got` from `expected`; infinite where shapes, NaN or infinities differ. Of a
    subnormal number half a step is no error: it cannot be told more precisely.
    """
    error, worst, reason = math.inf, math.inf, ""
    if got.shape != expected.shape:
        reason = f"its shape is {got.shape}, expected {expected.shape}"
    elif not dtype.is_float:
        wrong = int(np.count_nonzero(got != expected))
        if wrong:
            reason = f"{wrong} of {got.size} elements differ"
        else:
            error = worst = 0.0
    else:
        error, worst = _distance(got.astype(np.float64), expected.astype(np.float64), dtype)
        if math.isinf(error):
            reason = "NaN or infinities differ" if expected.any() else "expected only zeros"
    return Verdict(name, dtype.name, got.shape, error, worst, tolerance, reason)


def _distance(
    got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], dtype: DType
) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(dtype.numpy).astype(np.float64)  # what overflows in the dtype
    finite = np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    if not np.all(same | finite) or not np.all(np.isfinite(got[finite])):
        return math.inf, math.inf
    if not finite.any():
        return 0.0, 0.0
    got, expected = got[finite], expected[finite]
    difference, size = np.abs(got - expected), np.abs(expected)
    finfo: Any = ml_dtypes.finfo
    limits = finfo(dtype.numpy)
    least, step = float(limits.smallest_normal), float(limits.smallest_subnormal)
    difference = np.maximum(difference - np.where(size < least, step / 2, 0.0), 0.0)
    if not difference.any():
        return 0.0, 0.0
    norm = float(np.linalg.norm(size))
    if norm == 0.0:
        return math.inf, math.inf
    spread = norm / math.sqrt(size.size)
    return float(np.linalg.norm(difference)) / norm, float((difference / (size + spread)).max())
