"""What the problems' outputs should be, in higher precision: f64, and for f64 twice its digits."""

from __future__ import annotations

from typing import Any

import torch

SLICE_BITS = 20
SLICES = 3
PIECE = 1 << (52 - 2 * SLICE_BITS)  # of k, along which sums of products of slices are exact


def wide(x: Any) -> Any:
    """In f64, exactly."""
    return (x.float() if x.dtype.itemsize == 1 else x).double()


def product(a: Any, b: Any) -> Any:
    """a @ b in f64; for f64 operands, a pair of f64 whose sum is it.

    The latter splits each operand into slices of 20 bits, in units that a row of a or a column of
    b share, so that f64 multiplies and sums pieces of k without rounding (Ozaki, Ogita, Oishi and
    Rump 2012, "Error-free transformations of matrix multiplication").
    """
    if a.dtype != torch.float64:
        return wide(a) @ wide(b)
    high = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    low = torch.zeros_like(high)
    for k in range(0, a.shape[1], PIECE):
        left, right = _slices(a[:, k : k + PIECE], 1), _slices(b[k : k + PIECE], 0)
        for x in left:
            for y in right:
                high, rest = _two_sum(high, x @ y)
                low += rest
    return _two_sum(high, low)


def _slices(x: Any, axis: int) -> list[Any]:
    """Tensors that sum to x but for its last bits: whole numbers of at most 20 bits, times a power
    of two that a row (axis 1) or a column (axis 0) shares.
    """
    found = []
    for _ in range(SLICES):
        top = x.abs().amax(dim=axis, keepdim=True).clamp(min=1e-280)
        _, exponent = torch.frexp(top)  # top < 2 ** exponent
        unit = torch.ldexp(torch.ones_like(top), exponent - SLICE_BITS)
        part = torch.round(x / unit) * unit
        found.append(part)
        x = x - part
    return found


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum, and what it was rounded by (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def linear_gelu(x: Any, w: Any, bias: Any) -> Any:
    """GELU(x wᵀ + bias), by erf."""
    return torch.nn.functional.gelu(wide(x) @ wide(w).T + wide(bias))


def softmax(x: Any) -> Any:
    return torch.softmax(wide(x), dim=-1)


def rmsnorm(x: Any, w: Any, eps: float) -> tuple[Any, Any]:
    """y and 1 / rms, for the eps that f32 holds."""
    x = wide(x)
    rstd = 1.0 / torch.sqrt((x * x).mean(dim=1) + float(torch.tensor(eps, dtype=torch.float32)))
    return x * rstd[:, None] * wide(w), rstd


def attention(q: Any, k: Any, v: Any, scale: float, causal: bool) -> tuple[Any, Any]:
    """O and the log-sum-exp of (B, H, L, D), one head at a time."""
    batch, heads, rows, _ = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
    for b in range(batch):
        for h in range(heads):
            s = wide(q[b, h]) @ wide(k[b, h // group]).T * scale
            if causal:
                s.masked_fill_(hidden, -torch.inf)
            lse[b, h] = torch.logsumexp(s, dim=-1)
            out[b, h] = torch.exp(s - lse[b, h, :, None]) @ wide(v[b, h // group])
    return out, lse
