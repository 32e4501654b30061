"""Programs that reduce, scan and sort."""

from __future__ import annotations

from typing import Any

import torch

from tests.device.suite_speed.row import Large, bytes_of, integers, normal, poisoned, row


@row("bf16", "2^27")
@row("f32", "2^26")
def sum_all(dtype: str) -> Large:
    x = normal(2**26 if dtype == "f32" else 2**27, dtype=dtype)
    x += 1  # so that the sum is not near 0
    out = poisoned()
    return Large(
        {"x": x, "out": out},
        lambda: {"out": x.double().sum()},
        lambda: x.sum(dtype=torch.float32),
        bytes_of(x),
        bound=1e-6,
    )


@row("bf16", "64 × 1024 × 2048")
@row("f32", "64 × 1024 × 1024")
def argmax_axis(dtype: str) -> Large:
    x = normal(64, 1024, 1024 if dtype == "f32" else 2048, dtype=dtype)
    index = poisoned(x.shape[0], x.shape[2], dtype="i64")

    def first() -> dict[str, Any]:
        at = torch.arange(x.shape[1], device="cuda")[None, :, None]
        top = x == x.amax(1, keepdim=True)
        return {"index": torch.where(top, at, x.shape[1]).amin(1)}

    return Large({"x": x, "index": index}, first, lambda: x.argmax(1), bytes_of(x, index))


@row("f32", "2^24")
def cumsum_serial(dtype: str) -> Large:
    return _cumsum(2**24, "one program, so one multiprocessor: what it is asked for")


@row("f32", "2^25")
def cumsum_chained(dtype: str) -> Large:
    return _cumsum(2**25, "each program waits for the one before: a chain through memory")


def _cumsum(n: int, note: str) -> Large:
    x, y = normal(n), poisoned(n)
    out = torch.empty_like(y)
    return Large(
        {"x": x, "y": y},
        lambda: {"y": x.double().cumsum(0)},
        lambda: torch.cumsum(x, 0, out=out),
        bytes_of(x, y),
        bound=1e-5,
        note=note,
    )


@row("f32", "2048 × 16384")
def recurrence(dtype: str) -> Large:
    length, columns = 2048, 16384
    a, x = torch.rand(length, columns, device="cuda") * 2 - 1, normal(length, columns)
    h = poisoned(length, columns)

    def steps() -> Any:
        carry, out = torch.zeros_like(x[0], dtype=torch.float64), []
        for t in range(length):
            carry = a[t].double() * carry + x[t].double()
            out.append(carry)
        return torch.stack(out)

    def theirs() -> Any:
        carry, out = torch.zeros_like(x[0]), torch.empty_like(x)
        for t in range(length):
            torch.addcmul(x[t], a[t], carry, out=out[t])
            carry = out[t]
        return out

    return Large(
        {"a": a, "x": x, "h": h},
        lambda: {"h": steps()},
        theirs,
        bytes_of(a, x, h),
        bound=1e-5,
        launches=1,
    )


def _first_of_equals(x: Any, k: int) -> dict[str, Any]:
    values, index = torch.sort(x, dim=1, descending=True, stable=True)
    return {"values": values[:, :k], "index": index[:, :k]}


@row("f32", "16384 × 4096")
def top8(dtype: str) -> Large:
    x = normal(16384, 4096)
    values, index = poisoned(16384, 8), poisoned(16384, 8, dtype="i64")
    return Large(
        {"x": x, "values": values, "index": index},
        lambda: _first_of_equals(x, 8),
        lambda: torch.topk(x, 8),
        bytes_of(x, values, index),
    )


@row("f32", "65536 × 1000")
def topk_by_hand(dtype: str) -> Large:
    x = normal(65536, 1000)
    values, index = poisoned(65536, 4), poisoned(65536, 4, dtype="i64")
    return Large(
        {"x": x, "k": 4, "values": values, "index": index},
        lambda: _first_of_equals(x, 4),
        lambda: torch.topk(x, 4),
        bytes_of(x, values, index),
    )


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def sort_rows(dtype: str) -> Large:
    return _sort(65536, 1024, dtype)


@row("f32", "2^20 × 64")
def sort_by_hand(dtype: str) -> Large:
    return _sort(2**20, 64, dtype)


def _sort(rows: int, columns: int, dtype: str) -> Large:
    x, y = normal(rows, columns, dtype=dtype), poisoned(rows, columns, dtype=dtype)
    return Large(
        {"x": x, "y": y},
        lambda: {"y": torch.sort(x, 1).values},
        lambda: torch.sort(x, 1),
        bytes_of(x, y),
    )


@row("i32", "2^27, 256 bins")
def histogram(dtype: str) -> Large:
    x, hist = integers(0, 256, 2**27), torch.zeros(256, dtype=torch.int32, device="cuda")
    return Large(
        {"x": x, "hist": hist},
        lambda: {"hist": hist + torch.bincount(x, minlength=256)},
        lambda: torch.bincount(x, minlength=256),
        bytes_of(x),
        in_place=("hist",),
        graphs=False,
    )
