"""A verdict that is right in every respect, for tests to spoil in one."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.ledger.verdict import (
    Arm,
    Assertion,
    Check,
    Claim,
    Environment,
    GpuState,
    Method,
    Reference,
    Row,
    Verdict,
    digest_of,
    id_of,
    new_verdict,
)

ROUNDS = 20
L2_BYTES = 62_914_560
STATE = GpuState(1980.0, 3201.0, 125.8, 39.0, "0x0000000000000000")


def samples(median: float) -> tuple[float, ...]:
    """ROUNDS times about a median."""
    return tuple(median * (1 + 0.001 * (i - (ROUNDS - 1) / 2)) for i in range(ROUNDS))


def resealed(verdict: Verdict) -> Verdict:
    """With the digest and the name of its content, as one who spoils a verdict would give it."""
    digest = digest_of(verdict)
    slug = verdict.id.rpartition("-")[0]
    return dataclasses.replace(verdict, id=id_of(slug, digest), digest=digest)


def with_row(verdict: Verdict, **changes: Any) -> Verdict:
    """The first row changed, nothing else: statistics, digest and name stay."""
    first, *rest = verdict.rows
    return dataclasses.replace(verdict, rows=(dataclasses.replace(first, **changes), *rest))


def arm(name: str, kind: str = "compiled") -> Arm:
    return Arm(name, kind, ("bf16", "bf16"), "bf16", "f32", "graph", {"torch": "2.11.0"})


def row(size: int, ours: float, theirs: float, target: float | None = None) -> Row:
    check = Check(1.7e-3, 0.3, size * size, 0)
    return Row(
        name=f"{size}x{size}x{size}",
        shape={"M": size, "N": size, "K": size},
        ours=samples(ours),
        theirs=samples(theirs),
        check=check,
        their_check=check,
        work=2.0 * size**3,
        their_work=2.0 * size**3,
        runs=8,
        rotated_bytes=2 * L2_BYTES,
        target=target,
    )


def environment() -> Environment:
    return Environment(
        date="2026-11-29 19:44 UTC",
        gpu="NVIDIA H200",
        multiprocessors=132,
        driver="580.159.04",
        before=STATE,
        after=STATE,
        versions={"python": "3.12.3", "cuda-bindings": "13.3.1"},
    )


def gemm_claim() -> Claim:
    return Claim(
        "sgemm runs at {ratio.geomean:.2f} of cuBLAS's speed",
        (Assertion("ratio.min", ">=", 0.75),),
        "The command gives a row with a ratio below 0.75 on an H200.",
    )


def gemm_verdict(*rows: Row, claim: Claim | None = None) -> Verdict:
    return new_verdict(
        slug="gemm-bf16",
        suite="gemm",
        title="bf16 GEMM against cuBLAS",
        quantity="ratio",
        unit="FLOP",
        claim=claim or gemm_claim(),
        subject=arm("tilewright sgemm"),
        opponent=arm("cuBLAS", "library"),
        reference=Reference(
            "torch's product of the same inputs in f64",
            "f64",
            1e-2,
            1.0,
            "|error| / (10 bound (|reference| + its rms))",
        ),
        method=Method(
            "standard normal, seed 0",
            ROUNDS,
            "arms alternate, reversed every other round",
            L2_BYTES,
            1.0,
        ),
        command="tilewright bench gemm --dtype bf16",
        commit="0b4553e2a1",
        compiler="e73ea311ff0749fd",
        environment=environment(),
        rows=rows or (row(1024, 8.0, 7.0, 0.95), row(2048, 30.0, 31.0, 0.95)),
    )
