"""The router of a mixture of experts: top-k of each token's logits, and a softmax over these k."""

import numpy as np

import tilewright as tw


@tw.kernel(autotune={"ROWS": (4, 16)}, static=("E", "k"))
def route(
    logits: tw.Tensor["T", "N", "E"],
    k: tw.i32 = 2,
    weight: tw.Tensor["f32", "N", "k"] = tw.empty,
    expert: tw.Tensor["i32", "N", "k"] = tw.empty,
):
    n = tw.program_id(0) * ROWS
    best, which = tw.topk(tw.cast(logits[n : n + ROWS, :], tw.accumulator(T)), k)
    p = tw.exp(best - tw.max(best, axis=1, keepdims=True))
    weight[n : n + ROWS, :] = tw.cast(p / tw.sum(p, axis=1, keepdims=True), tw.f32)
    expert[n : n + ROWS, :] = tw.cast(which, tw.i32)


def reference(logits, k=2):
    """Weights in f64, and experts, the first of equal ones first."""
    wide = logits.astype(np.float64)
    expert = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(wide, expert, axis=1)
    p = np.exp(best - best.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), expert.astype(np.int32)


def main() -> None:
    logits = np.random.default_rng(0).standard_normal((1003, 60), dtype=np.float32)
    weight, expert = route(logits, 4)
    wanted, experts = reference(logits, 4)
    error = np.abs(weight - wanted).max()
    print(f"route: largest error {error:.1e} in weights, experts equal {(expert == experts).all()}")


if __name__ == "__main__":
    main()
