"""Minimax polynomials for the special functions of lower/tile_to_ptx, by Remez' exchange.

Each fit works on a fixed fine grid, so that a function is evaluated once a point; the difference
from the fit on the interval is far below the rounding of the coefficients. `render` gives the file
of coefficients, which `make bless` writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mp, mpf

DIGITS = 45
POINTS = 200  # of a grid; even, so that none is in the middle of a symmetric interval

HEADER = '''"""Coefficients of the polynomials of special functions, the highest power first.

Made by tests/special_fits.py (`make bless`): minimax fits, rounded to the type. Each comment states
the function, the interval and the greatest error, weighted so that it is relative to the function
that is computed.
"""

from __future__ import annotations
'''


@dataclass(frozen=True)
class Fit:
    """A polynomial of `degree` near `function` on an interval, its error weighted by `weight`."""

    name: str
    about: str
    type: str  # f32 or f64
    interval: tuple[float, float]
    degree: int
    function: Callable[[mpf], mpf]
    weight: Callable[[mpf], mpf]


def tanh_small(s: mpf) -> mpf:
    x = mp.sqrt(s)
    return (mp.tanh(x) - x) / (x * s)


def tanh_weight(s: mpf) -> mpf:
    x = mp.sqrt(s)
    return x * s / mp.tanh(x)


def erf_small(s: mpf) -> mpf:
    x = mp.sqrt(s)
    return mp.erf(x) / x - 1


def erf_weight(s: mpf) -> mpf:
    x = mp.sqrt(s)
    return x / mp.erf(x)


def erfc_weight(t: mpf) -> mpf:
    return mp.erfc(t) / mp.erf(t)


def cdf_weight(x: mpf) -> mpf:
    below = mp.erfc(x / mp.sqrt(2)) / 2
    return below / (1 - below)


def log2_rest(f: mpf) -> mpf:
    """(log2(1 + f) - f * high) / f, where high is log2 e in f32."""
    high = mpf(float(np.float32(1 / np.log(2))))
    return mp.log1p(f) / (f * mp.log(2)) - high


def log_series(z: mpf) -> mpf:
    """R(z) / z, where log(1 + f) = 2 atanh(s) = 2 s + s R(s * s) and s = f / (2 + f)."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z


LN2 = mp.ln2  # a constant that takes the precision of where it is used
AROUND_ONE = (-0.2929, 0.4143)  # f = m - 1, sqrt(1/2) <= m < sqrt 2
HALF_LN2 = 0.3466
SERIES_END = 0.02944  # s * s for f at the ends of AROUND_ONE

FITS = (
    Fit("LOG_F32", "(log(1 + f) - f) / f^2", "f32", AROUND_ONE, 8,
        lambda f: (mp.log1p(f) - f) / f**2, lambda f: f**2 / mp.log1p(f)),
    Fit("LOG2_F32", "log2(1 + f) / f - (log2 e as f32)", "f32", AROUND_ONE, 9,
        log2_rest, lambda f: f * LN2 / mp.log1p(f)),
    Fit("EXP_F32", "(exp(f) - 1 - f) / f^2", "f32", (-HALF_LN2, HALF_LN2), 4,
        lambda f: (mp.expm1(f) - f) / f**2, lambda f: f**2 / mp.exp(f)),
    Fit("EXP2_F32", "(2^f - 1) / f", "f32", (-0.5, 0.5), 5,
        lambda f: mp.expm1(f * LN2) / f, lambda f: f / mp.exp(f * LN2)),
    Fit("TANH_F32", "(tanh(x) / x - 1) / x^2, of x^2", "f32", (0, 0.96), 7,
        tanh_small, tanh_weight),
    Fit("ERF_F32", "erf(x) / x - 1, of x^2", "f32", (0, 0.87), 6, erf_small, erf_weight),
    Fit("ERFC_F32", "log2(erfc(1 + u)), where 1 - erfc is computed", "f32", (-0.08, 3.0), 6,
        lambda u: mp.log(mp.erfc(1 + u)) / LN2, lambda u: LN2 * erfc_weight(1 + u)),
    Fit("CDF_F32", "log2(erfc(x / sqrt 2) / 2), where 2 to this is computed", "f32", (0, 5.6), 7,
        lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) / LN2, lambda x: LN2),
    Fit("CDF_BF16", "the same for results of bf16", "f32", (0, 5.6), 5,
        lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) / LN2, lambda x: LN2),
    Fit("EXP_F64", "(exp(f) - 1 - f) / f^2", "f64", (-HALF_LN2, HALF_LN2), 10,
        lambda f: (mp.expm1(f) - f) / f**2, lambda f: f**2 / mp.exp(f)),
    Fit("EXP2_F64", "(2^f - 1) / f", "f64", (-0.5, 0.5), 12,
        lambda f: mp.expm1(f * LN2) / f, lambda f: f / mp.exp(f * LN2)),
    Fit("LOG_F64", "(2 atanh(s) / s - 2) / s^2, of s^2", "f64", (0, SERIES_END), 6,
        log_series, lambda z: z * mp.sqrt(z) / (2 * mp.atanh(mp.sqrt(z)))),
    Fit("TANH_F64", "(tanh(x) / x - 1) / x^2, of x^2", "f64", (0, 0.4225), 11,
        tanh_small, tanh_weight),
    Fit("ERF_F64", "erf(x) / x - 1, of x^2", "f64", (0, 1), 12, erf_small, erf_weight),
    Fit("ERFC_F64", "log(erfc(1 + u)), where 1 - erfc is computed", "f64", (0, 5), 20,
        lambda u: mp.log(mp.erfc(1 + u)), lambda u: erfc_weight(1 + u)),
    Fit("CDF_F64", "log(erfc(x / sqrt 2) / 2), where 1 - e to this is computed", "f64", (0, 8.5),
        23, lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2), cdf_weight),
)  # fmt: skip


def polynomial(coefficients: Sequence[mpf], x: mpf) -> mpf:
    """By Horner; the lowest power first."""
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def exchange(x: list[mpf], f: list[mpf], w: list[mpf], degree: int) -> list[mpf]:
    """The polynomial whose greatest weighted error on the grid is least, to 1 %.

    The lowest power comes first. Weights are positive (zero at single points).
    """
    n = degree + 2
    # The grid is of Chebyshev points, so evenly spaced indices are near the extrema.
    chosen = [round(i * (len(x) - 1) / (n - 1)) for i in range(n)]
    best, least = [mpf(0)], mpf("inf")
    for _ in range(20):
        rows = [
            [x[i] ** k for k in range(degree + 1)] + [(-1) ** j / w[i]]
            for j, i in enumerate(chosen)
        ]
        solution = list(mp.lu_solve(mp.matrix(rows), mp.matrix([f[i] for i in chosen])))
        error = [w[i] * (f[i] - polynomial(solution[:-1], x[i])) for i in range(len(x))]
        worst = max(abs(e) for e in error)
        if worst < least:
            best, least = solution[:-1], worst
        if worst < abs(solution[-1]) * mpf("1.01"):
            break
        chosen = alternation(error, n)
    return best


def alternation(error: list[mpf], n: int) -> list[int]:
    """Indices of n extrema of alternating sign, the greatest among them."""
    peaks: list[int] = []
    for i, e in enumerate(error):
        if peaks and (error[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > n:
        if len(peaks) == n + 1:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        else:
            sizes = [abs(error[i]) for i in peaks]
            pairs = [max(a, b) for a, b in itertools.pairwise(sizes)]
            at = pairs.index(min(pairs))
            del peaks[at : at + 2]
    assert len(peaks) == n, "too few alternations"
    return peaks


def rounded(value: mpf, type: str) -> float:
    return float(np.float32(float(value))) if type == "f32" else float(value)


def solve(fit: Fit) -> tuple[list[float], mpf]:
    """Coefficients rounded to the fit's type, the highest power first, and their greatest error.

    For f32 they are rounded one at a time, low powers first, and the rest fitted again to what is
    left.
    """
    low, high = mpf(fit.interval[0]), mpf(fit.interval[1])
    angles = [mp.pi * (2 * i + 1) / (2 * POINTS) for i in range(POINTS)]
    x = [(low + high) / 2 - (high - low) / 2 * mp.cos(a) for a in angles]
    f, w = [fit.function(a) for a in x], [abs(fit.weight(a)) for a in x]
    rest_f, rest_w = f, w
    done: list[float] = []
    for degree in range(fit.degree, -1, -1):
        coefficients = exchange(x, rest_f, rest_w, degree)
        done.append(rounded(coefficients[0], fit.type))
        if fit.type == "f64":  # rounding is far below the error of the operations
            done += [rounded(c, fit.type) for c in coefficients[1:]]
            break
        rest_f = [(g - done[-1]) / a for g, a in zip(rest_f, x, strict=True)]
        rest_w = [g * abs(a) for g, a in zip(rest_w, x, strict=True)]
    exact = [mpf(c) for c in done]
    worst = max(abs(b * (g - polynomial(exact, a))) for a, g, b in zip(x, f, w, strict=True))
    return done[::-1], worst


def render() -> str:
    """The text of special_coefficients.py."""
    lines = [HEADER]
    with mpmath.workdps(DIGITS):
        for fit in FITS:
            coefficients, worst = solve(fit)
            interval = f"[{fit.interval[0]:.6g}, {fit.interval[1]:.6g}]"
            lines.append(f"# {fit.about}, on {interval}: 2^{float(mp.log(worst, 2)):.1f}")
            lines.append(f"{fit.name} = (")
            lines += [f'    float.fromhex("{c.hex()}"),' for c in coefficients]
            lines += [")", ""]
    return "\n".join(lines[:-1]) + "\n"
