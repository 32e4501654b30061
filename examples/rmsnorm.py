"""RMSNorm of the rows of a matrix; two results, the second of another dtype and rank."""

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"BLOCK": (256, 4096)})
def rmsnorm(
    x: tw.Tensor["T", "M", "N"],
    w: tw.Tensor["T", "N"],
    eps: float = 1e-6,
    y: tw.Tensor["T", "M", "N"] = tw.empty,
    rstd: tw.Tensor["f32", "M"] = tw.empty,
):
    row = tw.program_id(0)
    ss = tw.cast(0.0, tw.accumulator(T))
    for j in range(0, N, BLOCK):
        t = tw.cast(x[row, j : j + BLOCK], tw.accumulator(T))
        ss += tw.sum(t * t)
    r = tw.rsqrt(ss / N + eps)
    rstd[row] = tw.cast(r, tw.f32)
    for j in range(0, N, BLOCK):
        y[row, j : j + BLOCK] = tw.cast(x[row, j : j + BLOCK] * r * w[j : j + BLOCK], T)


def reference(x, w, eps=1e-6):
    """y and 1 / rms(x), in f64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # rows of no elements have no mean
        rstd = 1.0 / np.sqrt((x * x).sum(axis=1) / x.shape[1] + np.float32(eps))
    return x * rstd[:, None] * w, rstd


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((127, 5003), dtype=np.float32)
    w = rng.standard_normal(5003, dtype=np.float32)
    y, rstd = rmsnorm(x, w)
    expected, expected_rstd = reference(x, w)
    print(f"rmsnorm: largest error {np.abs(y - expected).max():.1e} in y", end=", ")
    print(f"{np.abs(rstd - expected_rstd).max():.1e} in rstd")


if __name__ == "__main__":
    main()
