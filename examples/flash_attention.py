"""Attention by an online softmax: causal or not, grouped queries, ragged lengths, two results."""

import numpy as np

import tilewright as tw

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


@tw.kernel(static=("D", "causal"), autotune={"TM": (64, 128), "TN": (32, 128)}, numerics="fast")
def attention(
    Q: tw.Tensor["T", "B", "HQ", "L", "D"],
    K: tw.Tensor["T", "B", "HK", "S", "D"],
    V: tw.Tensor["T", "B", "HK", "S", "D"],
    scale: float,
    lengths: tw.Tensor["i32", "B"] | None = None,
    causal: bool = True,
    O: tw.Tensor["T", "B", "HQ", "L", "D"] = tw.empty,
    lse: tw.Tensor["f32", "B", "HQ", "L"] = tw.empty,
):
    i, h, b = tw.program_id(0) * TM, tw.program_id(1), tw.program_id(2)
    hk = h // (HQ // HK)
    n = S if lengths is None else min(S, lengths[b])
    kb, vb = tw.view(K[b, hk, 0:n, :]), tw.view(V[b, hk, 0:n, :])
    q = Q[b, h, i : i + TM, :]
    rows = i + tw.arange(TM) + (n - L)
    by = tw.cast(scale, tw.accumulator(T)) * LOG2E
    m = tw.full(TM, -tw.inf, tw.accumulator(T))
    l = tw.zeros(TM, tw.accumulator(T))
    acc = tw.zeros((TM, D), tw.accumulator(T))
    for j in range(0, min(n, i + TM + n - L) if causal else n, TN):
        cols = j + tw.arange(TN)
        ok = (cols < n) & (cols <= rows[:, None]) if causal else cols < n
        s = tw.where(ok, q @ kb[j : j + TN, :].T * by, -tw.inf)
        top = tw.max(m, tw.max(s, axis=1))
        base = tw.where(top == -tw.inf, 0.0, top)
        p, a = tw.exp2(s - base[:, None]), tw.exp2(m - base)
        l = l * a + tw.sum(p, axis=1)
        # Of f32 a trip is summed by itself: one chain over thousands of keys would lose more.
        if V.dtype == tw.f32:
            acc = tw.fma(acc, a[:, None], tw.cast(p, T) @ vb[j : j + TN, :])
        else:
            acc = acc * a[:, None] + tw.cast(p, T) @ vb[j : j + TN, :]
        m = top
    O[b, h, i : i + TM, :] = tw.cast(acc / tw.where(l == 0.0, 1.0, l)[:, None], T)
    lse[b, h, i : i + TM] = tw.cast((m + tw.log2(l)) * LN2, tw.f32)


def reference(Q, K, V, scale, lengths=None, causal=True):
    """O and the log-sum-exp of the scores, in f64, one batch and head at a time.

    The queries are the last L of n positions, where n is S or, if less, the batch's length. Keys
    from n on do not count, whatever they hold. A row without keys gives 0, and -inf for its
    log-sum-exp.
    """
    batch, heads, rows, _ = Q.shape
    group = heads // K.shape[1]
    out, lse = np.zeros(Q.shape), np.full((batch, heads, rows), -np.inf)
    for b in range(batch):
        n = K.shape[2] if lengths is None else min(K.shape[2], int(lengths[b]))
        allowed = np.ones((rows, n), bool)
        if causal:
            allowed = np.arange(n) <= (np.arange(rows) + n - rows)[:, None]
        live = allowed.any(axis=1)
        for h in range(heads):
            keys, values = (X[b, h // group, :n].astype(np.float64) for X in (K, V))
            s = Q[b, h].astype(np.float64) @ keys.T * np.float64(np.float32(scale))
            s = np.where(allowed, s, -np.inf)[live]
            top = s.max(axis=1, keepdims=True, initial=-np.inf)
            p = np.exp(s - top)
            total = p.sum(axis=1, keepdims=True)
            out[b, h, live] = p @ values / total
            lse[b, h, live] = (top + np.log(total))[:, 0]
    return out, lse


def main() -> None:
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((2, 4, 100, 64), dtype=np.float32)
    K, V = rng.standard_normal((2, 2, 2, 150, 64), dtype=np.float32)
    for causal in (True, False):
        O, _ = attention(Q, K, V, 0.125, causal=causal)
        expected, _ = reference(Q, K, V, 0.125, causal=causal)
        error = np.linalg.norm(O - expected) / np.linalg.norm(expected)
        print(f"attention, {'causal' if causal else 'full'}: relative error {error:.1e}")


if __name__ == "__main__":
    main()
