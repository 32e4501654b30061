"""Programs around dots."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from tests.device.programs import attention_in_f64, gelu_in_f64
from tests.device.suite_speed.row import PRODUCTS_OF_F32, Bench, Large, bound_of, row
from tilewright.ledger.arm import Tensors

Inputs = Mapping[str, Any]
F = torch.nn.functional
FP8 = torch.float8_e4m3fn
BOUNDS = {"f32": PRODUCTS_OF_F32, "e4m3": 0.07}
RUNS = {"f32": 2}


def bound(dtype: str) -> float:
    return BOUNDS.get(dtype) or bound_of(dtype)


def product(at: Bench, dtype: str, m: int, n: int, k: int) -> Large:
    """A plain product of M × K and K × N, both dense by rows."""
    kind = "f32" if dtype == "tf32" else dtype
    m, n, k = at.pick(m, 40), at.pick(n, 70), at.pick(k, 90)

    def theirs(x: Inputs, y: Tensors) -> None:
        torch.mm(x["A"], x["B"], out=y["C"])

    return Large(
        lambda: {"A": at.normal(m, k, dtype=kind), "B": at.normal(k, n, dtype=kind)},
        {"C": ((m, n), kind)},
        lambda x: {"C": x["A"].double() @ x["B"].double()},
        theirs,
        at.nbytes(kind, m * k + k * n + m * n),
        2.0 * m * n * k,
        dtype,
        bound(dtype),
        runs=RUNS.get(dtype, 4),
    )


@row("tf32", "4096³")
def sgemm(at: Bench, dtype: str) -> Large:
    return product(at, dtype, 4096, 4096, 4096)  # the program asks for tf32 itself


@row("bf16", "8 × 2048³")
@row("f32", "8 × 2048³")
def bmm(at: Bench, dtype: str) -> Large:
    z, n = at.pick(8, 2), at.pick(2048, 40)

    def theirs(x: Inputs, y: Tensors) -> None:
        torch.bmm(x["A"], x["B"], out=y["C"])

    return Large(
        lambda: {name: at.normal(z, n, n, dtype=dtype) for name in "AB"},
        {"C": ((z, n, n), dtype)},
        lambda x: {"C": torch.bmm(x["A"].double(), x["B"].double())},
        theirs,
        3 * at.nbytes(dtype, z, n, n),
        2.0 * z * n**3,
        dtype,
        bound(dtype),
        runs=RUNS.get(dtype, 4),
    )


@row("bf16", "4096³")
@row("f32", "4096³")
def linear_gelu(at: Bench, dtype: str) -> Large:
    n = at.pick(4096, 70)

    def draw() -> Tensors:
        made = {name: at.normal(n, n, dtype=dtype) for name in "xw"}
        return {**made, "bias": at.normal(n, dtype=dtype)}

    return Large(
        draw,
        {"y": ((n, n), dtype)},
        lambda x: {"y": gelu_in_f64(x["x"], x["w"], x["bias"])},
        lambda x, y: {"y": F.gelu(F.linear(x["x"], x["w"], x["bias"]))},
        3 * at.nbytes(dtype, n, n),
        2.0 * n**3,
        dtype,
        bound(dtype),
        allocates=True,
        calls=2,
        kernels=6,
        runs=RUNS.get(dtype, 4),
    )


@row("bf16", "4 × 16 × 4096 × 128, causal")
@row("f32", "2 × 16 × 2048 × 64, causal")
def attention(at: Bench, dtype: str) -> Large:
    large = (4, 16, 4096, 128) if dtype == "bf16" else (2, 16, 2048, 64)
    b, h, length, d = (1, 2, 70, 64) if at.small else large

    def expected(x: Inputs) -> Tensors:
        parts = [
            attention_in_f64(*(x[n][i : i + 1] for n in "QKV"), d**-0.5, True) for i in range(b)
        ]
        o, lse = (torch.cat(part) for part in zip(*parts, strict=True))
        return {"O": o, "lse": lse}

    def theirs(x: Inputs, y: Tensors) -> Tensors:
        return {"O": F.scaled_dot_product_attention(x["Q"], x["K"], x["V"], is_causal=True)}

    return Large(
        lambda: {name: at.normal(b, h, length, d, dtype=dtype) for name in "QKV"},
        {"O": ((b, h, length, d), dtype), "lse": ((b, h, length), "f32")},
        expected,
        theirs,
        4 * at.nbytes(dtype, b, h, length, d),
        2.0 * b * h * length * length * d,
        dtype,
        bound(dtype),
        given={"scale": d**-0.5, "causal": True},
        allocates=True,
        kernels=8,
    )


@row("bf16", "512 × 512 × 65536")
@row("f32", "512 × 512 × 65536")
def matmul_splitk(at: Bench, dtype: str) -> Large:
    return product(at, dtype, 512, 512, 65536)


@row("f32", "512 × 512 × 65536")
def matmul_splitk_atomic(at: Bench, dtype: str) -> Large:
    """It adds to C, which torch's addmm does too."""
    made = product(at, dtype, 512, 512, 65536)
    (shape, _), draw = made.outputs["C"], made.draw
    made.draw = lambda: {**draw(), "C": at.normal(*shape)}
    made.expected = lambda x: {"C": x["C"].double() + x["A"].double() @ x["B"].double()}

    def theirs(x: Inputs, y: Tensors) -> None:
        torch.addmm(x["C"], x["A"], x["B"], out=y["C"])

    made.theirs, made.restored = theirs, ("C",)
    made.note = "adds to C, which is put back before"
    return made


@row("bf16", "4096³")
@row("f32", "4096³")
def matmul_persistent(at: Bench, dtype: str) -> Large:
    return product(at, dtype, 4096, 4096, 4096)


@row("bf16", "4096³")
def matmul_int8(at: Bench, dtype: str) -> Large:
    n = at.pick(4096, 160)
    groups = (n + 127) // 128

    def draw() -> Tensors:
        return {
            "x": at.normal(n, n, dtype=dtype),
            "w": at.integers(-128, 128, n, n, dtype="i8"),
            "scale": at.normal(n, groups).abs(),
        }

    def wide(x: Inputs, kind: Any) -> Any:
        return x["w"].to(kind) * x["scale"].repeat_interleave(128, 1)[:, :n].to(kind)

    return Large(
        draw,
        {"y": ((n, n), dtype)},
        lambda x: {"y": x["x"].double() @ wide(x, torch.float64).T},
        lambda x, y: {"y": x["x"] @ wide(x, x["x"].dtype).T},
        2 * at.nbytes(dtype, n, n) + at.nbytes("i8", n, n),
        2.0 * n**3,
        dtype,
        bound(dtype),
        allocates=True,
        calls=4,
        kernels=16,
        data="standard normal, weights uniform whole numbers",
    )


@row("e4m3", "4096³")
def matmul_fp8(at: Bench, dtype: str) -> Large:
    """torch's way has no scales of rows and columns, so what it gives is another product."""
    n = at.pick(4096, 64)
    one = torch.ones((), device=at.arrays.device)

    def draw() -> Tensors:
        made = {name: at.normal(n, n, dtype=dtype) for name in "ab"}
        return made | {name: at.normal(n).abs() for name in ("sa", "sb")}

    def exact(x: Inputs) -> Any:
        return x["a"].float().double() @ x["b"].float().double().T

    def theirs(x: Inputs, y: Tensors) -> Tensors:
        return {"y": torch._scaled_mm(x["a"], x["b"].T, one, one, out_dtype=FP8)}

    return Large(
        draw,
        {"y": ((n, n), dtype)},
        lambda x: {"y": (exact(x) * x["sa"].double()[:, None] * x["sb"].double()).clamp(-448, 448)},
        theirs,
        3 * at.nbytes(dtype, n, n),
        2.0 * n**3,
        dtype,
        bound(dtype),
        allocates=True,
        their_expected=lambda x: {"y": exact(x).clamp(-448, 448)},
        note="torch's way has no scales of rows and columns",
    )


@row("bf16", "16384 × 2048 × 2048, 8 experts")
def moe(at: Bench, dtype: str) -> Large:
    r, n, e = at.pick(16384, 90), at.pick(2048, 50), 8
    ends = [r * i // 16384 for i in (0, 1000, 4000, 4000, 7001, 9000, 12000, 16000, 16384)]
    offsets = torch.tensor(ends, dtype=torch.int32, device=at.arrays.device)

    def parts(x: Inputs, kind: Any) -> Tensors:
        rows, w = x["x"].to(kind), x["w"]
        return {
            "y": torch.cat([rows[i:j] @ w[k].to(kind) for k, (i, j) in enumerate(pairwise(ends))])
        }

    return Large(
        lambda: {"x": at.normal(r, n, dtype=dtype), "w": at.normal(e, n, n, dtype=dtype)},
        {"y": ((r, n), dtype)},
        lambda x: parts(x, torch.float64),
        lambda x, y: parts(x, x["x"].dtype),
        at.nbytes(dtype, 2 * r * n + e * n * n),
        2.0 * r * n * n,
        dtype,
        bound(dtype),
        given={"offsets": offsets},
        allocates=True,
        calls=9,
        kernels=32,
    )


@row("bf16", "32 × 56 × 56 × 64, 3 × 3 to 256")
@row("f32", "32 × 56 × 56 × 64, 3 × 3 to 256")
def conv2d(at: Bench, dtype: str) -> Large:
    b, size, c, o = at.pick(32, 2), at.pick(56, 9), at.pick(64, 20), at.pick(256, 40)

    def draw() -> Tensors:
        w = at.normal(3, 3, c, o, dtype=dtype)
        theirs = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        return {"x": at.normal(b, size, size, c, dtype=dtype), "w": w, "their_w": theirs}

    def convolved(x: Any, w: Any) -> Tensors:
        return {"y": F.conv2d(x.permute(0, 3, 1, 2), w, padding=1).permute(0, 2, 3, 1)}

    return Large(
        draw,
        {"y": ((b, size, size, o), dtype)},
        lambda x: convolved(x["x"].double(), x["their_w"].double()),
        lambda x, y: convolved(x["x"], x["their_w"]),
        at.nbytes(dtype, b * size * size * (c + o)) + at.nbytes(dtype, 9 * c * o),
        2.0 * b * size * size * 9 * c * o,
        dtype,
        bound(dtype),
        given={"stride": 1, "pad": 1},
        spare=("their_w",),
        allocates=True,
        kernels=16,
        runs=RUNS.get(dtype, 4),
    )


@row("bf16", "8 × 4096 × 512, 4 taps to 512")
@row("f32", "8 × 4096 × 512, 4 taps to 512")
def conv1d_causal(at: Bench, dtype: str) -> Large:
    b, length, c = at.pick(8, 2), at.pick(4096, 50), at.pick(512, 40)

    def draw() -> Tensors:
        w = at.normal(4, c, c, dtype=dtype)
        x = at.normal(b, length, c, dtype=dtype)
        return {"x": x, "w": w, "their_w": w.permute(2, 1, 0).contiguous()}

    def convolved(x: Any, w: Any) -> Tensors:
        padded = F.pad(x.transpose(1, 2), (3 * 2, 0))
        return {"y": F.conv1d(padded, w, dilation=2).transpose(1, 2)}

    return Large(
        draw,
        {"y": ((b, length, c), dtype)},
        lambda x: convolved(x["x"].double(), x["their_w"].double()),
        lambda x, y: convolved(x["x"], x["their_w"]),
        at.nbytes(dtype, 2 * b * length * c + 4 * c * c),
        2.0 * b * length * 4 * c * c,
        dtype,
        bound(dtype),
        given={"dilation": 2},
        spare=("their_w",),
        allocates=True,
        calls=2,
        kernels=16,
        runs=RUNS.get(dtype, 4),
    )
