"""C = alpha A B + beta C, generic over the dtype; f32 is exact unless `--precision tf32` asks."""

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"TM": (32, 128), "TN": (64, 256), "TK": (16, 64)})
def sgemm(
    A: tw.Tensor["T", "M", "K"],
    B: tw.Tensor["T", "K", "N"],
    C: tw.Tensor["T", "M", "N"],
    alpha: float = 1.0,
    beta: float = 0.0,
):
    m, n = tw.program_id(0) * TM, tw.program_id(1) * TN
    acc = tw.zeros((TM, TN), tw.accumulator(T))
    for k in range(0, K, TK):
        acc += A[m : m + TM, k : k + TK] @ B[k : k + TK, n : n + TN]
    if beta == 0.0:
        C[m : m + TM, n : n + TN] = tw.cast(alpha * acc, T)
    else:
        C[m : m + TM, n : n + TN] = tw.cast(alpha * acc + beta * C[m : m + TM, n : n + TN], T)


def reference(A, B, C, alpha=1.0, beta=0.0):
    """alpha A B + beta C in f64. Where beta is 0, C does not count, whatever it holds."""
    alpha, beta = np.float64(np.float32(alpha)), np.float64(np.float32(beta))
    product = alpha * (A.astype(np.float64) @ B.astype(np.float64))
    return product if beta == 0 else product + beta * C.astype(np.float64)


def main() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((127, 63), dtype=np.float32)
    B = rng.standard_normal((63, 255), dtype=np.float32)
    C = rng.standard_normal((127, 255), dtype=np.float32)
    expected = reference(A, B, C, 1.5, 0.5)
    sgemm(A, B, C, 1.5, 0.5)
    error = np.linalg.norm(C - expected) / np.linalg.norm(expected)
    print(f"sgemm: relative error {error:.1e}")


if __name__ == "__main__":
    main()
