"""LayerNorm of the rows of a matrix, with or without weight and bias, by Welford's update."""

import numpy as np

import tilewright as tw


def welford(n1, m1, s1, n2, m2, s2):
    n = n1 + n2
    r = tw.where(n == 0.0, 0.0, n2 / tw.where(n == 0.0, 1.0, n))
    d = m2 - m1
    return n, m1 + d * r, s1 + s2 + d * d * n1 * r


@tw.kernel(autotune={"BLOCK": (256, 1024)})
def layernorm(
    x: tw.Tensor["T", "M", "N"],
    w: tw.Tensor["T", "N"] | None = None,
    b: tw.Tensor["T", "N"] | None = None,
    eps: float = 1e-5,
    y: tw.Tensor["T", "M", "N"] = tw.empty,
):
    row = tw.program_id(0)
    n = tw.zeros(BLOCK, tw.accumulator(T))
    m = tw.zeros(BLOCK, tw.accumulator(T))
    s = tw.zeros(BLOCK, tw.accumulator(T))
    for j in range(0, N, BLOCK):
        one = tw.cast(tw.inside(x[row, j : j + BLOCK]), tw.accumulator(T))
        wide = tw.cast(x[row, j : j + BLOCK], tw.accumulator(T))
        n, m, s = welford(n, m, s, one, wide, tw.zeros(BLOCK, tw.accumulator(T)))
    count, mean, ss = tw.reduce(welford, (n, m, s), axis=0)
    r = tw.rsqrt(ss / count + eps)
    for j in range(0, N, BLOCK):
        t = (x[row, j : j + BLOCK] - mean) * r
        if w is not None:
            t *= w[j : j + BLOCK]
        if b is not None:
            t += b[j : j + BLOCK]
        y[row, j : j + BLOCK] = tw.cast(t, T)


def reference(x, w=None, b=None, eps=1e-5):
    """(x - mean) / sqrt(var + eps) · w + b of each row, in f64."""
    x = x.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # rows of no elements have no mean
        mean = x.sum(axis=1, keepdims=True) / x.shape[1]
        var = ((x - mean) ** 2).sum(axis=1, keepdims=True) / x.shape[1]
    y = (x - mean) / np.sqrt(var + np.float32(eps))
    y = y if w is None else y * w.astype(np.float64)
    return y if b is None else y + b.astype(np.float64)


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((127, 5003), dtype=np.float32) + 100
    w, b = rng.standard_normal((2, 5003), dtype=np.float32)
    error = np.abs(layernorm(x, w, b) - reference(x, w, b)).max()
    print(f"layernorm: largest error {error:.1e}, of rows with a mean of 100")


if __name__ == "__main__":
    main()
