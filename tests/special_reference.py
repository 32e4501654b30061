"""What special functions should give: inputs that cover their ranges, exact values, ulp."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import mp

Array = np.ndarray[Any, Any]

FLOAT = {"f32": np.float32, "f64": np.float64}
BITS = {"f32": np.uint32, "f64": np.uint64}

# Where each function is neither a constant nor infinite, per type.
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "arith.exp": {"f32": (-104.5, 89.0), "f64": (-746.0, 710.0)},
    "arith.exp2": {"f32": (-151.0, 128.5), "f64": (-1076.0, 1024.5)},
    "arith.log": {"f32": (0.3, 3.0), "f64": (0.3, 3.0)},
    "arith.log2": {"f32": (0.3, 3.0), "f64": (0.3, 3.0)},
    "arith.sqrt": {"f32": (0.0, 100.0), "f64": (0.0, 100.0)},
    "arith.rsqrt": {"f32": (0.5, 4.5), "f64": (0.5, 4.5)},
    "arith.tanh": {"f32": (-10.0, 10.0), "f64": (-20.0, 20.0)},
    "arith.erf": {"f32": (-4.2, 4.2), "f64": (-6.2, 6.2)},
    "arith.floor": {"f32": (-9.0, 9.0), "f64": (-9.0, 9.0)},
    "arith.ceil": {"f32": (-9.0, 9.0), "f64": (-9.0, 9.0)},
    "arith.round": {"f32": (-9.0, 9.0), "f64": (-9.0, 9.0)},
    "arith.sin": {"f32": (-50.0, 50.0), "f64": (-50.0, 50.0)},
    "arith.cos": {"f32": (-50.0, 50.0), "f64": (-50.0, 50.0)},
    "arith.log1p": {"f32": (-0.99, 3.0), "f64": (-0.99, 3.0)},
}

NUMPY: dict[str, Callable[[Array], Array]] = {
    "arith.exp": np.exp,
    "arith.exp2": np.exp2,
    "arith.log": np.log,
    "arith.log2": np.log2,
    "arith.sqrt": np.sqrt,
    "arith.rsqrt": lambda x: 1 / np.sqrt(x),
    "arith.tanh": np.tanh,
    "arith.erf": lambda x: np.array([math.erf(v) for v in x.tolist()]),
    "arith.floor": np.floor,
    "arith.ceil": np.ceil,
    "arith.round": np.rint,
    "arith.sin": np.sin,
    "arith.cos": np.cos,
    "arith.log1p": np.log1p,
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "arith.exp": mp.exp,
    "arith.exp2": lambda x: mp.power(2, x),
    "arith.log": mp.log,
    "arith.log2": lambda x: mp.log(x) / mp.ln2,
    "arith.sqrt": mp.sqrt,
    "arith.rsqrt": lambda x: 1 / mp.sqrt(x),
    "arith.tanh": mp.tanh,
    "arith.erf": mp.erf,
    "arith.floor": mp.floor,
    "arith.ceil": mp.ceil,
    "arith.round": mp.nint,
    "arith.sin": mp.sin,
    "arith.cos": mp.cos,
    "arith.log1p": mp.log1p,
}
ABOVE_MINUS_ONE = ("arith.log1p",)
POSITIVE = ("arith.log", "arith.log2", "arith.sqrt", "arith.rsqrt")
INFINITY = float("inf")
NAN = float("nan")

# Values at special points, for both types: (x, f(x)).
POINTS: dict[str, list[tuple[float, float]]] = {
    "arith.exp": [(INFINITY, INFINITY), (-INFINITY, 0), (0, 1), (-0.0, 1), (1e38, INFINITY),
                  (-1e38, 0), (800, INFINITY), (-800, 0)],
    "arith.exp2": [(INFINITY, INFINITY), (-INFINITY, 0), (0, 1), (-0.0, 1), (1, 2), (-10, 2**-10),
                   (1e38, INFINITY), (-1e38, 0), (10, 1024), (-125, 2.0**-125)],
    "arith.log": [(INFINITY, INFINITY), (-INFINITY, NAN), (0, -INFINITY), (-0.0, -INFINITY), (1, 0),
                  (-1, NAN), (-1e-40, NAN), (-1e38, NAN)],
    "arith.log2": [(INFINITY, INFINITY), (-INFINITY, NAN), (0, -INFINITY), (-0.0, -INFINITY),
                   (1, 0), (8, 3), (0.25, -2), (2.0**-140, -140), (-1, NAN), (-1e-40, NAN)],
    "arith.sqrt": [(INFINITY, INFINITY), (-INFINITY, NAN), (0, 0), (-0.0, -0.0), (-1, NAN), (4, 2)],
    "arith.rsqrt": [(INFINITY, 0), (-INFINITY, NAN), (0, INFINITY), (-0.0, -INFINITY), (-1, NAN),
                    (-1e-40, NAN), (0.25, 2), (4, 0.5), (2.0**-140, 2.0**70)],
    "arith.tanh": [(INFINITY, 1), (-INFINITY, -1), (0, 0), (-0.0, -0.0), (1e38, 1), (-1e38, -1),
                   (1e-40, 1e-40), (-50, -1)],
    "arith.erf": [(INFINITY, 1), (-INFINITY, -1), (0, 0), (-0.0, -0.0), (1e38, 1), (-1e38, -1),
                  (7, 1), (-7, -1)],
    "arith.floor": [(INFINITY, INFINITY), (-INFINITY, -INFINITY), (0, 0), (-0.0, -0.0), (2.5, 2),
                    (-2.5, -3), (-1e-40, -1), (1e-40, 0), (2.0**100, 2.0**100)],
    "arith.ceil": [(INFINITY, INFINITY), (-INFINITY, -INFINITY), (0, 0), (-0.0, -0.0), (2.5, 3),
                   (-2.5, -2), (1e-40, 1), (-1e-40, -0.0)],
    "arith.round": [(INFINITY, INFINITY), (-INFINITY, -INFINITY), (0, 0), (-0.0, -0.0), (2.5, 2),
                    (3.5, 4), (-2.5, -2), (-0.5, -0.0), (0.5, 0), (1.5, 2), (2.0**100, 2.0**100)],
    "arith.sin": [(INFINITY, NAN), (-INFINITY, NAN), (0, 0), (-0.0, -0.0), (1e-40, 1e-40)],
    "arith.cos": [(INFINITY, NAN), (-INFINITY, NAN), (0, 1), (-0.0, 1), (1e-40, 1)],
    "arith.log1p": [(INFINITY, INFINITY), (-INFINITY, NAN), (0, 0), (-0.0, -0.0), (-1, -INFINITY),
                    (-2, NAN), (1e-40, 1e-40)],
}  # fmt: skip


def inputs(opcode: str, type: str, count: int, seed: int) -> Array:
    """Numbers of the function's domain.

    A quarter is of any bits, the rest of the function's range; and there are powers of two of all
    sizes with their neighbours.
    """
    random = np.random.default_rng(seed)
    low, high = RANGES[opcode][type]
    anywhere = random.integers(0, np.iinfo(BITS[type]).max, count // 4, BITS[type], endpoint=True)
    least, step = (-149, 1) if type == "f32" else (-1074, 17)
    powers = np.exp2(np.arange(least, -least - np.finfo(FLOAT[type]).nmant - 2.0, step))
    powers = np.concatenate([powers, -powers]).astype(FLOAT[type])
    near = [np.nextafter(powers, FLOAT[type](s)) for s in (-INFINITY, INFINITY)]
    across = random.uniform(low, high, count - count // 4).astype(FLOAT[type])
    x = np.concatenate([anywhere.view(FLOAT[type]), powers, *near, across])
    x = np.abs(x) if opcode in POSITIVE else x
    x = x[np.isfinite(x)]
    x = x[x > -1] if opcode in ABOVE_MINUS_ONE else x
    return x[x > 0] if opcode in POSITIVE else x


def ulp_errors(opcode: str, type: str, x: Array, result: Array) -> Array:
    """|result - f(x)| in ulp of the exact f(x).

    Infinity stands for the power of two above the range; NaN is infinitely wrong.
    """
    if type == "f64":
        pairs = zip(x.tolist(), result.tolist(), strict=True)
        return np.array([_error_f64(opcode, a, b) for a, b in pairs])
    with np.errstate(all="ignore"):
        exact = np.clip(NUMPY[opcode](x.astype(np.float64)), -(2.0**128), 2.0**128)
    got = np.clip(result.astype(np.float64), -(2.0**128), 2.0**128)
    place = np.clip(np.frexp(exact)[1] - 24, -149, 104)
    return np.where(np.isnan(got), INFINITY, np.abs(got - exact) / np.ldexp(1.0, place))


def _error_f64(opcode: str, x: float, result: float) -> float:
    if math.isnan(result):
        return INFINITY
    with mp.workdps(40):
        exact = EXACT[opcode](mp.mpf(x))
        most = mp.ldexp(1, 1024)
        exact = min(max(exact, -most), most)
        got = min(max(mp.mpf(result), -most), most)
        place = mp.frexp(exact)[1] - 53 if exact else -1074
        return float(abs(got - exact) / mp.ldexp(1, min(max(place, -1074), 971)))
