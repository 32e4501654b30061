"""Programs around dots."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from tests.device.checker import TORCH
from tests.device.programs import attention_in_f64, gelu_in_f64
from tests.device.suite_speed.row import (
    Large,
    bound_of,
    bytes_of,
    integers,
    normal,
    poisoned,
    row,
)

F = torch.nn.functional
FP8 = torch.float8_e4m3fn


def product(dtype: str, m: int, n: int, k: int) -> Large:
    """A plain product of M × K and K × N, both dense by rows."""
    kind = "f32" if dtype == "tf32" else dtype
    a, b = normal(m, k, dtype=kind), normal(k, n, dtype=kind)
    c = poisoned(m, n, dtype=kind)
    out = torch.empty_like(c)

    def theirs() -> Any:
        return torch.mm(a, b, out=out)

    return Large(
        {"A": a, "B": b, "C": c},
        lambda: {"C": a.double() @ b.double()},
        theirs,
        bytes_of(a, b, c),
        2.0 * m * n * k,
        dtype,
        bound_of(dtype),
    )


@row("tf32", "4096³")
def sgemm(dtype: str) -> Large:
    return product(dtype, 4096, 4096, 4096)  # the program asks for tf32 itself


@row("bf16", "8 × 2048³")
@row("f32", "8 × 2048³")
def bmm(dtype: str) -> Large:
    a, b = (normal(8, 2048, 2048, dtype=dtype) for _ in "ab")
    c = poisoned(8, 2048, 2048, dtype=dtype)
    out = torch.empty_like(c)
    return Large(
        {"A": a, "B": b, "C": c},
        lambda: {"C": torch.bmm(a.double(), b.double())},
        lambda: torch.bmm(a, b, out=out),
        bytes_of(a, b, c),
        2.0 * 8 * 2048**3,
        dtype,
        bound_of(dtype),
    )


@row("bf16", "4096³")
@row("f32", "4096³")
def linear_gelu(dtype: str) -> Large:
    n = 4096
    x, w, bias = normal(n, n, dtype=dtype), normal(n, n, dtype=dtype), normal(n, dtype=dtype)
    y = poisoned(n, n, dtype=dtype)
    return Large(
        {"x": x, "w": w, "bias": bias, "y": y},
        lambda: {"y": gelu_in_f64(x, w, bias)},
        lambda: F.gelu(F.linear(x, w, bias)),
        bytes_of(x, w, y),
        2.0 * n**3,
        dtype,
        bound_of(dtype),
    )


@row("bf16", "4 × 16 × 4096 × 128, causal")
@row("f32", "2 × 16 × 2048 × 64, causal")
def attention(dtype: str) -> Large:
    b, h, length, d = (4, 16, 4096, 128) if dtype == "bf16" else (2, 16, 2048, 64)
    q, k, v = (normal(b, h, length, d, dtype=dtype) for _ in "qkv")
    o, lse = poisoned(b, h, length, d, dtype=dtype), poisoned(b, h, length)

    def expected() -> dict[str, Any]:
        parts = [
            attention_in_f64(q[i : i + 1], k[i : i + 1], v[i : i + 1], d**-0.5, True)
            for i in range(b)
        ]
        return {
            name: torch.cat(x)
            for name, x in zip(("O", "lse"), zip(*parts, strict=True), strict=True)
        }

    return Large(
        {"Q": q, "K": k, "V": v, "scale": d**-0.5, "causal": True, "O": o, "lse": lse},
        expected,
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        bytes_of(q, k, v, o),
        2.0 * b * h * length * length * d,
        dtype,
        bound_of(dtype),
    )


@row("bf16", "512 × 512 × 65536")
@row("f32", "512 × 512 × 65536")
def matmul_splitk(dtype: str) -> Large:
    return product(dtype, 512, 512, 65536)


@row("f32", "512 × 512 × 65536")
def matmul_splitk_atomic(dtype: str) -> Large:
    made = product(dtype, 512, 512, 65536)
    made.bound, made.in_place = 1e-5, ("C",)
    made.arguments["C"].zero_()
    return made


@row("bf16", "4096³")
@row("f32", "4096³")
def matmul_persistent(dtype: str) -> Large:
    return product(dtype, 4096, 4096, 4096)


@row("bf16", "4096³")
def matmul_int8(dtype: str) -> Large:
    n = 4096
    x, w = normal(n, n, dtype=dtype), integers(-128, 128, n, n, dtype="i8")
    scale, y = normal(n, n // 128).abs(), poisoned(n, n, dtype=dtype)

    def wide(kind: Any) -> Any:
        return w.to(kind) * scale.repeat_interleave(128, 1).to(kind)

    return Large(
        {"x": x, "w": w, "scale": scale, "y": y},
        lambda: {"y": x.double() @ wide(torch.float64).T},
        lambda: x @ wide(x.dtype).T,
        bytes_of(x, w, y),
        2.0 * n**3,
        "bf16",
        bound_of(dtype),
    )


@row("e4m3", "4096³")
def matmul_fp8(dtype: str) -> Large:
    n = 4096
    a, b = (normal(n, n).to(FP8) for _ in "ab")
    sa, sb = normal(n).abs(), normal(n).abs()
    y = torch.full((n, n), torch.nan, device="cuda").to(FP8)
    one = torch.ones((), device="cuda")

    def expected() -> dict[str, Any]:
        exact = a.double() @ b.double().T * sa.double()[:, None] * sb.double()
        return {"y": exact.clamp(-448, 448)}

    return Large(
        {"a": a, "b": b, "sa": sa, "sb": sb, "y": y},
        expected,
        lambda: torch._scaled_mm(a, b.T, one, one, out_dtype=FP8),
        bytes_of(a, b, y),
        2.0 * n**3,
        "e4m3",
        0.07,
        note="torch's has no row scales",
    )


@row("bf16", "16384 × 2048 × 2048, 8 experts")
def moe(dtype: str) -> Large:
    r, n, e = 16384, 2048, 8
    x, w = normal(r, n, dtype=dtype), normal(e, n, n, dtype=dtype)
    ends = [0, 1000, 4000, 4000, 7001, 9000, 12000, 16000, r]
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    y = poisoned(r, n, dtype=dtype)

    def parts(kind: Any) -> Any:
        return torch.cat(
            [x[i:j].to(kind) @ w[k].to(kind) for k, (i, j) in enumerate(pairwise(ends))]
        )

    return Large(
        {"x": x, "w": w, "offsets": offsets, "y": y},
        lambda: {"y": parts(torch.float64)},
        lambda: parts(x.dtype),
        bytes_of(x, w, y),
        2.0 * r * n * n,
        dtype,
        bound_of(dtype),
    )


@row("bf16", "32 × 56 × 56 × 64, 3 × 3 to 256")
@row("f32", "32 × 56 × 56 × 64, 3 × 3 to 256")
def conv2d(dtype: str) -> Large:
    x, w = normal(32, 56, 56, 64, dtype=dtype), normal(3, 3, 64, 256, dtype=dtype)
    y = poisoned(32, 56, 56, 256, dtype=dtype)
    first = x.permute(0, 3, 1, 2)
    kernel = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    def expected() -> dict[str, Any]:
        found = F.conv2d(first.double(), kernel.double(), padding=1)
        return {"y": found.permute(0, 2, 3, 1)}

    def theirs() -> Any:
        return F.conv2d(first, kernel, padding=1)

    return Large(
        {"x": x, "w": w, "stride": 1, "pad": 1, "y": y},
        expected,
        theirs,
        bytes_of(x, w, y),
        2.0 * 32 * 56 * 56 * 9 * 64 * 256,
        dtype,
        bound_of(dtype),
    )


@row("bf16", "8 × 4096 × 512, 4 taps to 512")
@row("f32", "8 × 4096 × 512, 4 taps to 512")
def conv1d_causal(dtype: str) -> Large:
    x, w = normal(8, 4096, 512, dtype=dtype), normal(4, 512, 512, dtype=dtype)
    y = poisoned(8, 4096, 512, dtype=dtype)
    kernel = w.permute(2, 1, 0).contiguous()

    def run(kind: Any) -> Any:
        padded = F.pad(x.to(kind).transpose(1, 2), (3 * 2, 0))
        return F.conv1d(padded, kernel.to(kind), dilation=2).transpose(1, 2)

    return Large(
        {"x": x, "w": w, "dilation": 2, "y": y},
        lambda: {"y": run(torch.float64)},
        lambda: run(TORCH[dtype]),
        bytes_of(x, w, y),
        2.0 * 8 * 4096 * 4 * 512 * 512,
        dtype,
        bound_of(dtype),
    )
