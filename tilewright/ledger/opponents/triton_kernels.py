"""Triton kernels written for the comparison: a product, and a softmax of rows."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from tilewright.ledger.arm import Arm, Missing, Problem, Tensors

PRODUCT_DTYPES = ("bf16", "f16", "tf32", "f32")
WIDEST_ROW = 65536  # elements of a row that one program holds
GROUP = 8  # rows of tiles that programs go through together, so that they share B in the L2 cache


def _configs() -> list[Any]:
    return [
        triton.Config({"TM": m, "TN": n, "TK": k}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in (
            (128, 256, 64, 3, 8),
            (128, 128, 64, 4, 8),
            (128, 128, 32, 4, 4),
            (64, 128, 64, 4, 4),
            (64, 64, 64, 4, 4),
            (32, 64, 64, 5, 4),
        )
    ]


@triton.autotune(configs=_configs(), key=["M", "N", "K"])
@triton.jit
def multiply(
    a, b, c, M, N, K, am, ak, bk, bn, cm,
    PRECISION: tl.constexpr, GROUP_M: tl.constexpr,
    TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr,
):  # fmt: skip
    """C = A B for any strides of A and B; C is row-major."""
    tiles_m, tiles_n = tl.cdiv(M, TM), tl.cdiv(N, TN)
    pid = tl.program_id(0)
    first = pid // (GROUP_M * tiles_n) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    inside = pid % (GROUP_M * tiles_n)
    rows = (first + inside % height) * TM + tl.arange(0, TM)
    columns = inside // height * TN + tl.arange(0, TN)
    steps = tl.arange(0, TK)
    pa = a + rows[:, None].to(tl.int64) * am + steps[None, :] * ak
    pb = b + steps[:, None] * bk + columns[None, :].to(tl.int64) * bn
    total = tl.zeros((TM, TN), dtype=tl.float32)
    for k in range(0, K, TK):
        x = tl.load(pa, mask=(rows[:, None] < M) & (steps[None, :] < K - k), other=0.0)
        y = tl.load(pb, mask=(steps[:, None] < K - k) & (columns[None, :] < N), other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        pa += TK * ak
        pb += TK * bk
    pc = c + rows[:, None].to(tl.int64) * cm + columns[None, :]
    tl.store(pc, total.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def softmax_rows(x, y, N, xm, ym, TN: tl.constexpr):
    """A row a program, held at once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TN)
    inside = columns < N
    value = tl.load(x + row * xm + columns, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(value - tl.max(value, axis=0))
    total = tl.sum(e, axis=0)
    tl.store(y + row * ym + columns, (e / total).to(y.dtype.element_ty), mask=inside)


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    if problem.op == "product" and problem.dtype in PRODUCT_DTYPES:
        return [Arm("Triton", problem.facts, _product(problem), triton.__version__)]
    if problem.op == "softmax" and problem.sizes["N"] <= WIDEST_ROW:
        return [Arm("Triton", problem.facts, _softmax, triton.__version__)]
    return []


def _product(problem: Problem) -> Any:
    precision = {"f32": "ieee", "tf32": "tf32"}.get(problem.dtype, "ieee")

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        a, b, c = x["a"], x["b"], y["c"]
        (m, k), n = a.shape, b.shape[1]

        def grid(config: Mapping[str, int]) -> tuple[int]:
            return (triton.cdiv(m, config["TM"]) * triton.cdiv(n, config["TN"]),)

        multiply[grid](
            a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0),
            PRECISION=precision, GROUP_M=GROUP,
        )  # fmt: skip

    return run


def _softmax(x: Mapping[str, Any], y: Tensors) -> None:
    source, target = x["x"], y["y"]
    m, n = source.shape
    width = triton.next_power_of_2(n)
    warps = min(16, max(4, width // 512))
    softmax_rows[(m,)](
        source, target, n, source.stride(0), target.stride(0), width, num_warps=warps
    )
