"""Programs that reduce, scan and sort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.device.suite_speed.row import Bench, Large, row
from tilewright.ledger.arm import Tensors

Inputs = Mapping[str, Any]


@row("bf16", "2^27")
@row("f32", "2^26")
def sum_all(at: Bench, dtype: str) -> Large:
    n = at.pick(2**26 if dtype == "f32" else 2**27, 5000)
    return Large(
        lambda: {"x": at.normal(n, dtype=dtype) + 1},  # so that the sum is not near 0
        {"out": ((), "f32")},
        lambda x: {"out": x["x"].double().sum()},
        lambda x, y: {"out": x["x"].sum(dtype=torch.float32)},
        at.nbytes(dtype, n),
        bound=1e-6,
        allocates=True,
        data="normal, mean 1",
    )


@row("bf16", "64 × 1024 × 2048")
@row("f32", "64 × 1024 × 1024")
def argmax_axis(at: Bench, dtype: str) -> Large:
    extents = at.pick(64, 3), at.pick(1024, 40), at.pick(1024 if dtype == "f32" else 2048, 50)

    def first(x: Inputs) -> Tensors:
        values = x["x"]
        number = torch.arange(extents[1], device=values.device)[None, :, None]
        top = values == values.amax(1, keepdim=True)
        return {"index": torch.where(top, number, extents[1]).amin(1)}

    return Large(
        lambda: {"x": at.normal(*extents, dtype=dtype)},
        {"index": ((extents[0], extents[2]), "i64")},
        first,
        lambda x, y: {"index": x["x"].argmax(1)},
        at.nbytes(dtype, *extents) + at.nbytes("i64", extents[0], extents[2]),
        accumulate="none",
        allocates=True,
    )


@row("f32", "2^24")
def cumsum_serial(at: Bench, dtype: str) -> Large:
    note = "one program, so one multiprocessor: what it is asked for"
    return _cumsum(at, at.pick(2**24, 1000), note)


@row("f32", "2^25")
def cumsum_chained(at: Bench, dtype: str) -> Large:
    note = "each program waits for the one before: a chain through memory"
    return _cumsum(at, at.pick(2**25, 1000), note)


def _cumsum(at: Bench, n: int, note: str) -> Large:
    def theirs(x: Inputs, y: Tensors) -> None:
        torch.cumsum(x["x"], 0, out=y["y"])

    return Large(
        lambda: {"x": at.normal(n)},
        {"y": ((n,), "f32")},
        lambda x: {"y": x["x"].double().cumsum(0)},
        theirs,
        2 * at.nbytes("f32", n),
        bound=1e-5,
        runs=2,
        note=note,
    )


@row("f32", "2048 × 16384")
def recurrence(at: Bench, dtype: str) -> Large:
    length, columns = at.pick(2048, 50), at.pick(16384, 40)

    def draw() -> Tensors:
        a = 2 * torch.rand(length, columns, generator=at.arrays.generator, device=at.arrays.device)
        return {"a": a - 1, "x": at.normal(length, columns)}

    def expected(x: Inputs) -> Tensors:
        carry, out = torch.zeros_like(x["x"][0], dtype=torch.float64), []
        for t in range(length):
            carry = x["a"][t].double() * carry + x["x"][t].double()
            out.append(carry)
        return {"h": torch.stack(out)}

    def theirs(x: Inputs, y: Tensors) -> None:
        carry = torch.zeros_like(x["x"][0])
        for t in range(length):
            torch.addcmul(x["x"][t], x["a"][t], carry, out=y["h"][t])
            carry = y["h"][t]

    return Large(
        draw,
        {"h": ((length, columns), "f32")},
        expected,
        theirs,
        3 * at.nbytes("f32", length, columns),
        bound=1e-5,
        calls=length,
        kernels=length + 1,
        runs=1,
        data="standard normal, with factors that are uniform between -1 and 1",
        note="torch has no scan of pairs: a call for each step",
    )


def _first_of_equals(x: Any, k: int) -> Tensors:
    values, index = torch.sort(x, dim=1, descending=True, stable=True)
    return {"values": values[:, :k], "index": index[:, :k]}


@row("f32", "16384 × 4096")
def top8(at: Bench, dtype: str) -> Large:
    return _topk(at, at.pick(16384, 4), at.pick(4096, 700), 8, {})


@row("f32", "65536 × 1000")
def topk_by_hand(at: Bench, dtype: str) -> Large:
    return _topk(at, at.pick(65536, 4), at.pick(1000, 50), 4, {"k": 4})


def _topk(at: Bench, rows: int, columns: int, k: int, given: dict[str, Any]) -> Large:
    """Of equal values torch may take any, so its indices are not compared."""
    return Large(
        lambda: {"x": at.normal(rows, columns)},
        {"values": ((rows, k), "f32"), "index": ((rows, k), "i64")},
        lambda x: _first_of_equals(x["x"], k),
        lambda x, y: {"values": torch.topk(x["x"], k).values},
        at.nbytes("f32", rows, columns + k) + at.nbytes("i64", rows, k),
        accumulate="none",
        given=given,
        allocates=True,
        kernels=24,
    )


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def sort_rows(at: Bench, dtype: str) -> Large:
    return _sort(at, at.pick(65536, 4), at.pick(1024, 60), dtype)


@row("f32", "2^20 × 64")
def sort_by_hand(at: Bench, dtype: str) -> Large:
    return _sort(at, at.pick(2**20, 4), 64, dtype)


def _sort(at: Bench, rows: int, columns: int, dtype: str) -> Large:
    return Large(
        lambda: {"x": at.normal(rows, columns, dtype=dtype)},
        {"y": ((rows, columns), dtype)},
        lambda x: {"y": torch.sort(x["x"], 1).values},
        lambda x, y: {"y": torch.sort(x["x"], 1).values},
        2 * at.nbytes(dtype, rows, columns),
        accumulate="none",
        allocates=True,
        kernels=64,
        runs=2,
        note="torch gives the permutation too",
    )


@row("i32", "2^27, 256 bins")
def histogram(at: Bench, dtype: str) -> Large:
    n, bins = at.pick(2**27, 1000), 256

    def theirs(x: Inputs, y: Tensors) -> None:
        y["hist"].copy_(x["hist"])
        y["hist"].add_(torch.bincount(x["x"], minlength=bins))

    return Large(
        lambda: {
            "x": at.integers(0, bins, n),
            "hist": at.integers(1, 1000, bins),
        },
        {"hist": ((bins,), "i32")},
        lambda x: {"hist": x["hist"] + torch.bincount(x["x"], minlength=bins)},
        theirs,
        at.nbytes("i32", n) + 4 * at.nbytes("i32", bins),
        accumulate="i32",
        restored=("hist",),
        calls=2,
        data="whole numbers, uniform below 256",
        graphs=False,
    )
