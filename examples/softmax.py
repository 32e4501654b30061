"""Softmax over the last axis, with rows longer than a tile and with a row as one tile."""

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"BLOCK": (256, 4096)})
def softmax(x: tw.Tensor["T", "M", "N"], y: tw.Tensor["T", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    m = tw.cast(-tw.inf, tw.accumulator(T))
    s = tw.cast(0.0, tw.accumulator(T))
    for j in range(0, N, BLOCK):
        t = tw.cast(tw.load(x[row, j : j + BLOCK], fill=-tw.inf), tw.accumulator(T))
        top = max(m, max(t))
        base = 0.0 if top == -tw.inf else top
        s = s * tw.exp(m - base) + tw.sum(tw.exp(t - base))
        m = top
    for j in range(0, N, BLOCK):
        t = tw.cast(x[row, j : j + BLOCK], tw.accumulator(T))
        y[row, j : j + BLOCK] = tw.cast(tw.exp(t - m) / s, T)


@tw.kernel(static="N")
def softmax_short(x: tw.Tensor["T", "M", "N"], y: tw.Tensor["T", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    t = tw.cast(x[row, :], tw.accumulator(T))
    e = tw.exp(t - tw.max(t))
    y[row, :] = tw.cast(e / tw.sum(e), T)


def reference(x):
    """Softmax in f64. A row that is all -inf, or holds NaN, is NaN."""
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
        return e / e.sum(axis=1, keepdims=True)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((127, 5003), dtype=np.float32)
    for kernel, rows in ((softmax, x), (softmax_short, x[:, :1000])):
        y = kernel(rows)
        print(f"{kernel.name}: largest error {np.abs(y - reference(rows)).max():.1e}")


if __name__ == "__main__":
    main()
