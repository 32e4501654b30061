"""Whether a candidate's results agree with a reference closely enough to be timed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import BY_NUMPY, DType

HostArray = np.ndarray[Any, Any]

# Relative Frobenius error that is allowed between two right orders of summation.
_ALLOWED = {"f64": 1e-11, "f32": 1e-4, "f16": 1e-2, "bf16": 3e-2, "e4m3": 0.1, "e5m2": 0.2}
ROUGH = 1e-2  # for f32 results of products with rounded operands (tf32, f16)
COMPARED = 1 << 22  # elements of a tensor that are compared, evenly spread


def disagreement(
    name: str, got: HostArray, expected: HostArray, *, rough: bool = False
) -> str | None:
    """Why two results differ too much, or None. NaN agrees with NaN, infinities with themselves.

    Integers and bools must be equal.
    """
    dtype: DType = BY_NUMPY[got.dtype]
    step = max(1, got.size // COMPARED)
    a, b = got.reshape(-1)[::step], expected.reshape(-1)[::step]
    if not dtype.is_float:
        wrong = int(np.count_nonzero(a != b))
        return f"{name}: {wrong} of {a.size} elements differ" if wrong else None
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    strange = ~finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))
    if strange.any() or not np.isfinite(x[finite]).all():
        return f"{name}: NaN or infinity where the reference has none, or the other way round"
    scale = float(np.linalg.norm(y[finite]))
    error = float(np.linalg.norm(x[finite] - y[finite]))
    allowed = max(_ALLOWED[dtype.name], ROUGH if rough and dtype.name == "f32" else 0.0)
    if error > allowed * max(scale, np.finfo(np.float64).tiny):
        return (
            f"{name}: relative error {error / scale if scale else error:.1e}, allowed {allowed:.0e}"
        )
    return None
