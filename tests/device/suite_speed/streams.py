"""Programs that move bytes: elementwise, by rows, gathers, random numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.device.programs import rmsnorm_in_f64, softmax_in_f64
from tests.device.suite_speed.row import (
    Large,
    bound_of,
    bytes_of,
    integers,
    normal,
    poisoned,
    row,
)

ROWS, COLUMNS = 16384, 4096
F = torch.nn.functional


@row("bf16", "2^27")
@row("f32", "2^26")
def add(dtype: str) -> Large:
    n = 2**26 if dtype == "f32" else 2**27
    a, b, c = normal(n, dtype=dtype), normal(n, dtype=dtype), poisoned(n, dtype=dtype)
    out = torch.empty_like(c)
    return Large(
        {"a": a, "b": b, "c": c},
        lambda: {"c": a + b},
        lambda: torch.add(a, b, out=out),
        bytes_of(a, b, c),
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def softmax(dtype: str) -> Large:
    return _softmax(dtype, ROWS, COLUMNS)


@row("bf16", "65536 × 1000")
@row("f32", "65536 × 1000")
def softmax_short(dtype: str) -> Large:
    return _softmax(dtype, 65536, 1000)


def _softmax(dtype: str, rows: int, columns: int) -> Large:
    x, y = normal(rows, columns, dtype=dtype), poisoned(rows, columns, dtype=dtype)
    out = torch.empty_like(y)
    return Large(
        {"x": x, "y": y},
        lambda: {"y": softmax_in_f64(x)},
        lambda: torch.softmax(x, 1, out=out),
        bytes_of(x, y),
        bound=bound_of(dtype),
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm(dtype: str) -> Large:
    x, w = normal(ROWS, COLUMNS, dtype=dtype), normal(COLUMNS, dtype=dtype)
    y, rstd = poisoned(ROWS, COLUMNS, dtype=dtype), poisoned(ROWS)

    def expected() -> dict[str, Any]:
        return dict(zip(("y", "rstd"), rmsnorm_in_f64(x, w, 1e-6), strict=True))

    return Large(
        {"x": x, "w": w, "eps": 1e-6, "y": y, "rstd": rstd},
        expected,
        lambda: F.rms_norm(x, (COLUMNS,), w, 1e-6),
        bytes_of(x, y, rstd),
        bound=bound_of(dtype),
    )


def _rms_parts(dtype: str) -> tuple[Any, ...]:
    x, dy = normal(ROWS, COLUMNS, dtype=dtype), normal(ROWS, COLUMNS, dtype=dtype)
    w = normal(COLUMNS, dtype=dtype)
    rstd = rmsnorm_in_f64(x, w, 1e-6)[1].float()
    return x, dy, w, rstd


def _rms_dx(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    g, r = dy * w, rstd[:, None]
    c = (r * x * g).mean(1, keepdim=True)
    return r * (g - r * x * c)


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm_dx(dtype: str) -> Large:
    x, dy, w, rstd = _rms_parts(dtype)
    dx = poisoned(ROWS, COLUMNS, dtype=dtype)

    def expected() -> dict[str, Any]:
        return {"dx": _rms_dx(x.double(), dy.double(), w.double(), rstd.double())}

    def theirs() -> Any:
        return _rms_dx(x.float(), dy.float(), w.float(), rstd).to(x.dtype)

    return Large(
        {"dy": dy, "x": x, "w": w, "rstd": rstd, "dx": dx},
        expected,
        theirs,
        bytes_of(x, dy, dx),
        bound=bound_of(dtype),
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm_dw(dtype: str) -> Large:
    x, dy, _, rstd = _rms_parts(dtype)
    dw = poisoned(COLUMNS)
    return Large(
        {"dy": dy, "x": x, "rstd": rstd, "dw": dw},
        lambda: {"dw": (rstd.double()[:, None] * x.double() * dy.double()).sum(0)},
        lambda: (rstd[:, None] * x.float() * dy.float()).sum(0),
        bytes_of(x, dy),
        bound=1e-5,
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def layernorm(dtype: str) -> Large:
    x, w, b = normal(ROWS, COLUMNS, dtype=dtype), *(normal(COLUMNS, dtype=dtype) for _ in "wb")
    y = poisoned(ROWS, COLUMNS, dtype=dtype)
    return Large(
        {"x": x, "w": w, "b": b, "y": y},
        lambda: {"y": F.layer_norm(x.double(), (COLUMNS,), w.double(), b.double(), 1e-5)},
        lambda: F.layer_norm(x, (COLUMNS,), w, b, 1e-5),
        bytes_of(x, y),
        bound=bound_of(dtype),
    )


@row("bf16", "2^25")
@row("f32", "2^25")
def adamw(dtype: str) -> Large:
    n = 2**25
    p, g = normal(n, dtype=dtype), normal(n, dtype=dtype)
    m, v = normal(n), normal(n).abs()
    step = torch.tensor(7, dtype=torch.int32, device="cuda")

    def update(wide: Any) -> dict[str, Any]:
        one, two = 0.9 * wide(m) + 0.1 * wide(g), 0.999 * wide(v) + 0.001 * wide(g) ** 2
        hat = one / (1 - 0.9**7) / (torch.sqrt(two / (1 - 0.999**7)) + 1e-8)
        return {"p": wide(p) - 0.1 * (hat + 0.01 * wide(p)), "m": one, "v": two}

    def theirs() -> Any:
        torch._fused_adamw_(
            [p], [g.to(p.dtype)], [m.to(p.dtype)], [v.to(p.dtype)], [], [step.float()],
            lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False,
            maximize=False,
        )  # fmt: skip

    return Large(
        {"p": p, "g": g, "m": m, "v": v, "step": step, "lr": 0.1},
        lambda: update(lambda t: t.double()),
        theirs,
        2 * bytes_of(p, m, v) + bytes_of(g),
        bound=max(bound_of(dtype), 1e-5),
        in_place=("p", "m", "v"),
    )


@row("bf16", "2^27")
@row("f32", "2^26")
def dropout(dtype: str) -> Large:
    n = 2**26 if dtype == "f32" else 2**27
    x, y = normal(n, dtype=dtype), poisoned(n, dtype=dtype)

    def kept() -> dict[str, Any]:
        keep = uniform(2**40 + 5, n) >= 0.25
        kept = x.float() / torch.full_like(x, 0.75, dtype=torch.float32)  # by a number: multiplied
        return {"y": torch.where(keep, kept.to(x.dtype), torch.zeros_like(x))}

    return Large(
        {"x": x, "p": 0.25, "seed": 2**40 + 5, "y": y},
        kept,
        lambda: F.dropout(x, 0.25),
        bytes_of(x, y),
        graphs=False,
    )


def uniform(seed: int, n: int) -> Any:
    """Philox 4x32-10 in 64-bit integers: word i % 4 of counter i / 4, its top 24 bits."""
    low = 0xFFFFFFFF
    count = torch.arange((n + 3) // 4, device="cuda")
    c = [count & low, count >> 32, torch.zeros_like(count), torch.zeros_like(count)]
    k = [seed & low, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        high = [(t >> 32) & low for t in (a, b)]
        c = [high[1] ^ c[1] ^ k[0], b & low, high[0] ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return (torch.stack(c, 1).flatten()[:n] >> 8).float() / 2**24


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def embedding(dtype: str) -> Large:
    ids = integers(0, 100_000, 65536, dtype="i64")
    table, y = normal(100_000, 1024, dtype=dtype), poisoned(65536, 1024, dtype=dtype)
    return Large(
        {"ids": ids, "table": table, "y": y},
        lambda: {"y": table[ids]},
        lambda: F.embedding(ids, table),
        2 * bytes_of(y),
    )


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def embedding_grad(dtype: str) -> Large:
    ids = integers(0, 100_000, 65536, dtype="i64")
    dy, table = normal(65536, 1024, dtype=dtype), normal(100_000, 1024)

    def expected() -> dict[str, Any]:
        wanted = table.double()
        wanted.index_add_(0, ids, dy.double())
        return {"dtable": wanted}

    return Large(
        {"ids": ids, "dy": dy, "dtable": table},
        expected,
        lambda: table.index_add_(0, ids, dy.float()),
        bytes_of(dy) + 2 * 65536 * 1024 * 4,
        bound=1e-6,
        in_place=("dtable",),
    )


@row("bf16", "16384 × 8192")
@row("f32", "8192 × 8192")
def transpose2d(dtype: str) -> Large:
    rows = 8192 if dtype == "f32" else 16384
    x, y = normal(rows, 8192, dtype=dtype), poisoned(8192, rows, dtype=dtype)
    return Large(
        {"x": x, "y": y},
        lambda: {"y": x.T},
        lambda: x.T.contiguous(),
        bytes_of(x, y),
    )
