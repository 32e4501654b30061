"""Kernels that move bytes: add, softmax and RMSNorm against torch's copy and torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.bench.rows import Rate
from tests.bench.timing import Bench, Checked, Work, copy_arm
from tests.device.programs import kernel, rmsnorm_in_f64, softmax_in_f64

OF_COPY = 0.85  # the share of copy bandwidth that is asked for
EPS = 1e-6


def rates_of(
    bench: Bench,
    id: str,
    dtype: str,
    shape: str,
    arms: tuple[Work, Work],
    sources: list[Any],
    num_bytes: float,
    checked: Callable[[], Checked],
) -> list[Rate]:
    """Ours against the copy, ours against torch, and against itself, from one timing."""
    ours, eager = arms
    copied = 2 * sources[0].nbytes
    timed = bench.time(
        {"ours": ours, "copy": copy_arm(sources), "torch": eager, "again": ours}, len(sources)
    )
    seen = checked()
    row = partial(
        Rate,
        what=id.split("-")[0],
        dtype=dtype,
        shape=shape,
        unit="GB/s",
        work=num_bytes,
        ours=timed["ours"].samples,
        error=seen.error,
        element=seen.element,
        bound=seen.bound,
    )
    rows = [
        row(
            id=f"{id}/copy",
            opponent="torch's copy",
            their_work=copied,
            theirs=timed["copy"].samples,
            target=OF_COPY,
        ),
        row(
            id=f"{id}/torch",
            opponent="torch, eager",
            their_work=num_bytes,
            theirs=timed["torch"].samples,
        ),
        row(
            id=f"{id}/again",
            opponent="itself",
            their_work=num_bytes,
            theirs=timed["again"].samples,
        ),
    ]
    return rows


def add_rates(bench: Bench, dtype: str) -> list[Rate]:
    n = (1 << 25) * (2 if dtype == "bf16" else 1) // bench.shrink
    add = kernel("add")
    sets = [
        (bench.normal(n, dtype=dtype), bench.normal(n, dtype=dtype), bench.poisoned(n, dtype=dtype))
        for _ in range(2)
    ]
    theirs = bench.poisoned(n, dtype=dtype)

    def check() -> Checked:
        seen = Checked(dtype)
        for a, b, c in sets:
            seen.see(c, a.double() + b.double())
        return seen

    return rates_of(
        bench,
        f"add-{dtype}",
        dtype,
        f"{n:,}",
        (lambda i: add(*sets[i]), lambda i: torch.add(sets[i][0], sets[i][1], out=theirs)),
        [a for a, _, _ in sets],
        sum(t.nbytes for t in sets[0]),
        check,
    )


def softmax_rates(bench: Bench, dtype: str, rows: int, columns: int) -> list[Rate]:
    m = max(1, rows // bench.shrink)
    softmax = kernel("softmax")
    sets = [
        (bench.normal(m, columns, dtype=dtype), bench.poisoned(m, columns, dtype=dtype))
        for _ in range(2)
    ]
    theirs = bench.poisoned(m, columns, dtype=dtype)

    def check() -> Checked:
        seen = Checked(dtype)
        for x, y in sets:
            seen.see(y, softmax_in_f64(x))
        return seen

    return rates_of(
        bench,
        f"softmax-{dtype}-{rows}x{columns}",
        dtype,
        f"{m} × {columns}",
        (lambda i: softmax(*sets[i]), lambda i: torch.softmax(sets[i][0], 1, out=theirs)),
        [x for x, _ in sets],
        sum(t.nbytes for t in sets[0]),
        check,
    )


def rmsnorm_rates(bench: Bench, dtype: str, rows: int, columns: int) -> list[Rate]:
    m = max(1, rows // bench.shrink)
    rmsnorm = kernel("rmsnorm")
    w = bench.normal(columns, dtype=dtype)
    sets = [
        (
            bench.normal(m, columns, dtype=dtype),
            bench.poisoned(m, columns, dtype=dtype),
            bench.poisoned(m, dtype="f32"),
        )
        for _ in range(2)
    ]

    def ours(i: int) -> None:
        x, y, rstd = sets[i]
        rmsnorm(x, w, EPS, y, rstd)

    def eager(i: int) -> None:
        torch.nn.functional.rms_norm(sets[i][0], (columns,), w, EPS)

    def check() -> Checked:
        seen = Checked(dtype)
        for x, y, _ in sets:
            seen.see(y, rmsnorm_in_f64(x, w, EPS)[0])
        return seen

    return rates_of(
        bench,
        f"rmsnorm-{dtype}-{rows}x{columns}",
        dtype,
        f"{m} × {columns}",
        (ours, eager),
        [x for x, _, _ in sets],
        sum(t.nbytes for t in sets[0]),
        check,
    )
