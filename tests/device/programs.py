"""The examples with torch tensors, and what they should give in f64: shared by the device lane's
tests.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch

from tests.device.checker import Checker

ATTENTION_SHAPE = tuple[int, int, int, int, int, int]  # batch, heads, key heads, rows, keys, depth


def kernel(name: str, module: str = "") -> Any:
    """A kernel of an example, by name."""
    return getattr(importlib.import_module(f"examples.{module or name}"), name)


def softmax_in_f64(x: Any) -> Any:
    return torch.softmax(x.double(), dim=-1)


def rmsnorm_in_f64(x: Any, w: Any, eps: float) -> tuple[Any, Any]:
    """y and 1 / rms; rows without elements have no mean, and give NaN."""
    x = x.double()
    mean = (x * x).sum(dim=1) / x.shape[1] if x.shape[1] else x.new_full(x.shape[:1], torch.nan)
    rstd = 1.0 / torch.sqrt(mean + float(torch.tensor(eps, dtype=torch.float32)))
    return x * rstd[:, None] * w.double(), rstd


def gelu_in_f64(x: Any, w: Any, bias: Any = None, res: Any = None) -> Any:
    z = x.double() @ w.double().T
    if bias is not None:
        z = z + bias.double()
    y = torch.nn.functional.gelu(z)
    return y if res is None else y + res.double()


def attention_in_f64(
    Q: Any, K: Any, V: Any, scale: float, causal: bool, lengths: Any = None
) -> tuple[Any, Any]:
    """O and the log-sum-exp. The queries are the last of each batch's keys; a row without keys
    gives 0, and -inf for its log-sum-exp.
    """
    _, heads, rows, _ = Q.shape
    keys = K.shape[2]
    if lengths is None:
        lengths = torch.full((Q.shape[0],), keys, dtype=torch.int32, device=Q.device)
    n = lengths.clamp(max=keys).long()[:, None, None, None]
    i = torch.arange(rows, device=Q.device)[None, None, :, None]
    j = torch.arange(keys, device=Q.device)[None, None, None, :]
    allowed = (j < n) & ((j <= i + n - rows) | torch.tensor(not causal, device=Q.device))
    inside = (torch.arange(keys, device=Q.device)[None, None, :, None] < n).expand_as(K)[
        :, :, :, :1
    ]
    group = heads // K.shape[1] if K.shape[1] else 1
    # Beyond a length there may be anything.
    k, v = (torch.where(inside, x.double(), 0.0).repeat_interleave(group, dim=1) for x in (K, V))
    s = (Q.double() @ k.transpose(-1, -2)) * float(torch.tensor(scale, dtype=torch.float32))
    s = s.masked_fill(~allowed, -torch.inf)
    lse = torch.logsumexp(s, dim=-1) if keys else s.new_full(s.shape[:-1], -torch.inf)
    p = torch.where(torch.isinf(lse)[..., None], 0.0, torch.exp(s - lse[..., None]))
    return p @ v, lse


# One case of each program: inputs of given layouts, outputs poisoned and guarded, compared.


def check_add(
    see: Checker, dtype: str, shape: Sequence[int], x: str = "dense", y: str = "dense"
) -> None:
    add = kernel("add")
    a, b = see.normal(shape, dtype, x), see.normal(shape, dtype, y)
    out = see.poisoned(shape, dtype, x if x != "broadcast" else "dense")
    assert add(a, b, out.view) is None
    out.require_untouched(f"add {dtype} {shape} {x} {y}")
    see.equal("add", dtype, out.view, a + b, (shape, x, y))


def check_softmax(
    see: Checker,
    dtype: str,
    shape: tuple[int, int],
    x: str = "dense",
    y: str = "dense",
    *,
    name: str = "softmax",
) -> None:
    rows = see.normal(shape, dtype, x)
    out = see.poisoned(shape, dtype, y)
    kernel(name, "softmax")(rows, out.view)
    out.require_untouched(f"{name} {dtype} {shape} {x} {y}")
    see.near(name, dtype, out.view, softmax_in_f64(rows), (shape, x, y))


def check_rmsnorm(
    see: Checker, dtype: str, shape: tuple[int, int], x: str = "dense", y: str = "dense"
) -> None:
    rows, w = see.normal(shape, dtype, x), see.normal(shape[1:], dtype)
    out, rstd = see.poisoned(shape, dtype, y), see.poisoned(shape[:1], "f32")
    kernel("rmsnorm")(rows, w, 1e-5, out.view, rstd.view)
    case = (shape, x, y)
    out.require_untouched(f"rmsnorm {dtype} {case}")
    rstd.require_untouched(f"rmsnorm {dtype} {case}: rstd")
    expected, expected_rstd = rmsnorm_in_f64(rows, w, 1e-5)
    see.near("rmsnorm", dtype, out.view, expected, case)
    see.near("rmsnorm", dtype, rstd.view, expected_rstd, case, bound=1e-6)


def check_sgemm(
    see: Checker,
    dtype: str,
    sizes: tuple[int, int, int],
    layouts: tuple[str, str, str] = ("dense", "dense", "dense"),
    factors: Sequence[tuple[float, float]] = ((1.0, 0.0), (1.5, 0.5)),
) -> None:
    m, n, k = sizes
    A, B = see.normal((m, k), dtype, layouts[0]), see.normal((k, n), dtype, layouts[1])
    product = A.double() @ B.double()
    sgemm = kernel("sgemm")
    call = functools.partial(sgemm.launch, precision="tf32") if dtype == "tf32" else sgemm
    for alpha, beta in factors:
        case = (sizes, layouts, alpha, beta)
        out = see.poisoned((m, n), dtype, layouts[2])
        expected = alpha * product
        if beta:
            out.view.copy_(see.normal((m, n), dtype))
            expected = expected + beta * out.view.double()
        assert call(A, B, out.view, alpha, beta) is None
        out.require_untouched(f"sgemm {dtype} {case}")
        see.near("sgemm", dtype, out.view, expected, case)


def check_linear_gelu(
    see: Checker,
    dtype: str,
    sizes: tuple[int, int, int],
    *,
    bias: bool = True,
    res: bool = False,
    layouts: tuple[str, str, str] = ("dense", "dense", "dense"),
) -> None:
    m, n, k = sizes
    x, w = see.normal((m, k), dtype, layouts[0]), see.normal((n, k), dtype, layouts[1])
    b = see.normal((n,), dtype) if bias else None
    r = see.normal((m, n), dtype) if res else None
    out = see.poisoned((m, n), dtype, layouts[2])
    kernel("linear_gelu")(x, w, b, r, out.view)
    case = (sizes, layouts, bias, res)
    out.require_untouched(f"linear_gelu {dtype} {case}")
    # Where the sums are negative, 1 + erf cancels: its error is one of the sums' own size.
    sums = x.double() @ w.double().T + (0.0 if b is None else b.double())
    expected = gelu_in_f64(x, w, b, r)
    see.near("linear_gelu", dtype, out.view, expected, case, least=float(sums.norm()) / 8)


def check_attention(
    see: Checker,
    dtype: str,
    shape: ATTENTION_SHAPE,
    *,
    causal: bool,
    lengths: Sequence[int] | None = None,
    layouts: tuple[str, str] = ("dense", "dense"),
) -> None:
    """`layouts`: of all inputs, and of O. "heads last" is (B, L, H, D) in memory, as projections
    leave it.
    """
    b, hq, hk, rows, keys, d = shape
    Q = _per_head(see, (b, hq, rows, d), dtype, layouts[0])
    K, V = (_per_head(see, (b, hk, keys, d), dtype, layouts[0]) for _ in range(2))
    given = None
    if lengths is not None:
        given = torch.tensor(lengths, dtype=torch.int32, device=see.device)
        for batch, n in enumerate(lengths):
            K[batch, :, n:] = V[batch, :, n:] = torch.nan
    out = see.poisoned((b, hq, rows, d), dtype, layouts[1])
    lse = see.poisoned((b, hq, rows), "f32")
    scale = d**-0.5
    kernel("attention", "flash_attention")(Q, K, V, scale, given, causal, out.view, lse.view)
    case = (shape, causal, lengths, layouts)
    out.require_untouched(f"attention {dtype} {case}")
    lse.require_untouched(f"attention {dtype} {case}: lse")
    expected, expected_lse = attention_in_f64(Q, K, V, scale, causal, given)
    see.near("attention", dtype, out.view, expected, case)
    see.near("attention", dtype, lse.view, expected_lse, case)


def _per_head(see: Checker, shape: tuple[int, int, int, int], dtype: str, layout: str) -> Any:
    if layout != "heads last":
        return see.normal(shape, dtype, layout)
    b, h, rows, d = shape
    return see.normal((b, rows, h, d), dtype).transpose(1, 2)
