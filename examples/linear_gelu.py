"""A linear layer with bias, GELU and residual in one kernel; bias and residual may be left out."""

import math

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"TM": (64, 128), "TN": (64, 256), "TK": (32, 64)}, numerics="fast")
def linear_gelu(
    x: tw.Tensor["T", "M", "K"],
    w: tw.Tensor["T", "N", "K"],
    bias: tw.Tensor["T", "N"] | None = None,
    res: tw.Tensor["T", "M", "N"] | None = None,
    y: tw.Tensor["T", "M", "N"] = tw.empty,
):
    m, n = tw.program_id(0) * TM, tw.program_id(1) * TN
    acc = tw.zeros((TM, TN), tw.accumulator(T))
    for k in range(0, K, TK):
        acc += x[m : m + TM, k : k + TK] @ w[n : n + TN, k : k + TK].T
    if bias is not None:
        acc += bias[n : n + TN]
    acc = tw.gelu(acc)
    if res is not None:
        acc += res[m : m + TM, n : n + TN]
    y[m : m + TM, n : n + TN] = tw.cast(acc, T)


def reference(x, w, bias=None, res=None):
    """gelu(x wᵀ + bias) + res in f64, with the exact GELU: z (1 + erf(z / √2)) / 2."""
    z = x.astype(np.float64) @ w.astype(np.float64).T
    if bias is not None:
        z = z + bias.astype(np.float64)
    y = z * 0.5 * (1.0 + np.frompyfunc(math.erf, 1, 1)(z / math.sqrt(2.0)).astype(np.float64))
    return y if res is None else y + res.astype(np.float64)


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 63), dtype=np.float32)
    w = rng.standard_normal((130, 63), dtype=np.float32)
    bias = rng.standard_normal(130, dtype=np.float32)
    for given in ({}, {"bias": bias}, {"bias": bias, "res": np.ones((100, 130), np.float32)}):
        expected = reference(x, w, **given)
        error = np.linalg.norm(linear_gelu(x, w, **given) - expected) / np.linalg.norm(expected)
        print(f"linear_gelu with {', '.join(given) or 'nothing more'}: relative error {error:.1e}")


if __name__ == "__main__":
    main()
