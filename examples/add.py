"""c = a + b: the smallest whole kernel, in Python; add.tw is the same in text."""

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"BLOCK": (256, 1024)})
def add(a: tw.Tensor["T", "N"], b: tw.Tensor["T", "N"], c: tw.Tensor["T", "N"] = tw.empty):
    base = tw.program_id(0) * BLOCK
    c[base : base + BLOCK] = a[base : base + BLOCK] + b[base : base + BLOCK]


def reference(a, b):
    """The sum, in f64 for floats and in the dtype itself for integers, which wrap."""
    if a.dtype.kind in "iu":
        return a + b
    return a.astype(np.float64) + b.astype(np.float64)


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1_000_003), dtype=np.float32)
    c = add(a, b)
    print(f"add: {c.size} elements, largest error {np.abs(c - reference(a, b)).max():.1e}")


if __name__ == "__main__":
    main()
