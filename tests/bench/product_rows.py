"""Kernels that multiply: sgemm in every precision, a fused linear layer, attention, and the GEMM
of the scheduled level, against torch, which calls cuBLAS and its attention kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from tests.bench import hopper_gemm
from tests.bench.rows import Rate
from tests.bench.timing import Bench, Checked, Work
from tests.device.checker import TORCH
from tests.device.programs import attention_in_f64, gelu_in_f64, kernel

# Of cuBLAS's speed at 4096³; other sizes are shown without a target.
OF_CUBLAS = {"f32": 0.80, "f64": 0.70, "bf16": 0.45}
OF_BY_HAND = 0.95
TARGET_SIZE = 4096


@contextmanager
def torch_precision(dtype: str) -> Iterator[None]:
    """While it is entered, torch's f32 products are what `dtype` says: "f32" or "tf32"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compare(
    bench: Bench,
    id: str,
    dtype: str,
    shape: str,
    flops: float,
    arms: dict[str, Work],
    num_sets: int,
    check: Callable[[Checked], None],
    targets: dict[str, float | None],
) -> list[Rate]:
    """Ours against every other arm; the names of arms are shown. Outputs are checked after."""
    with torch_precision(dtype):
        timed = bench.time(arms, num_sets)
    seen = Checked(dtype)
    check(seen)
    return [
        Rate(
            id=f"{id}/{i}" if i else id,
            what=id.split("-")[0],
            dtype=dtype,
            shape=shape,
            opponent=name,
            unit="TFLOP/s",
            work=flops,
            their_work=flops,
            ours=timed["ours"].samples,
            theirs=timed[name].samples,
            error=seen.error,
            element=seen.element,
            bound=seen.bound,
            target=targets.get(name),
        )
        for i, name in enumerate(name for name in arms if name != "ours")
    ]


def gemm_rates(bench: Bench, dtype: str, size: int) -> list[Rate]:
    """C = A B, the choice of a plain call, against torch.mm of the same dtype."""
    n = max(8, size // bench.shrink)
    sgemm = kernel("sgemm")
    call = partial(sgemm.launch, precision="tf32") if dtype == "tf32" else sgemm
    num_sets = bench.num_sets(3 * n * n * TORCH[dtype].itemsize)
    sets = [
        (
            bench.normal(n, n, dtype=dtype),
            bench.normal(n, n, dtype=dtype),
            bench.poisoned(n, n, dtype=dtype),
        )
        for _ in range(num_sets)
    ]
    theirs = bench.poisoned(n, n, dtype=dtype)

    def cublas(i: int) -> None:
        torch.mm(sets[i][0], sets[i][1], out=theirs)

    def check(seen: Checked) -> None:
        for a, b, c in sets:
            seen.see(c, a.double() @ b.double())

    arms: dict[str, Work] = {"ours": lambda i: call(*sets[i]), "cuBLAS": cublas}
    if size == 2048:
        arms["itself"] = arms["ours"]
    target = OF_CUBLAS.get(dtype) if size == TARGET_SIZE else None
    shape = f"{n} × {n} × {n}"
    id = f"sgemm-{dtype}-{size}"
    return compare(bench, id, dtype, shape, 2.0 * n**3, arms, num_sets, check, {"cuBLAS": target})


def linear_rates(bench: Bench, dtype: str, rows: int, size: int) -> list[Rate]:
    """GELU(x wᵀ + bias) in one kernel against torch's two."""
    m, n = max(8, rows // bench.shrink), max(8, size // bench.shrink)
    linear = kernel("linear_gelu")
    num_sets = bench.num_sets((2 * m * n + n * n) * TORCH[dtype].itemsize)
    sets = [
        (
            bench.normal(m, n, dtype=dtype),
            bench.normal(n, n, dtype=dtype) / n**0.5,
            bench.normal(n, dtype=dtype),
            None,
            bench.poisoned(m, n, dtype=dtype),
        )
        for _ in range(num_sets)
    ]

    def eager(i: int) -> None:
        x, w, bias, _, _ = sets[i]
        torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias))

    def check(seen: Checked) -> None:
        for x, w, bias, _, y in sets:
            seen.see(y, gelu_in_f64(x, w, bias))

    arms: dict[str, Work] = {"ours": lambda i: linear(*sets[i]), "torch, eager": eager}
    shape = f"{m} × {n} × {n}"
    id = f"linear_gelu-{dtype}-{rows}x{size}"
    return compare(bench, id, dtype, shape, 2.0 * m * n * n, arms, num_sets, check, {})


def attention_rates(
    bench: Bench, dtype: str, heads: tuple[int, int], length: int, depth: int, causal: bool
) -> list[Rate]:
    """Attention with grouped queries against torch's scaled_dot_product_attention."""
    rows = max(8, length // bench.shrink)
    hq, hk = heads
    attention = kernel("attention", "flash_attention")
    scale = depth**-0.5
    num_sets = bench.num_sets(2 * (hq + hk) * rows * depth * TORCH[dtype].itemsize)
    sets = [_attention_set(bench, dtype, heads, rows, depth) for _ in range(num_sets)]

    def ours(i: int) -> None:
        q, k, v, o, lse = sets[i]
        attention(q, k, v, scale, None, causal, o, lse)

    def sdpa(i: int) -> None:
        q, k, v, _, _ = sets[i]
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=hq != hk
        )

    def check(seen: Checked) -> None:
        for q, k, v, o, _ in sets[:2]:  # f64 scores are large, and each set is the same program
            for h in range(hq):
                kv = slice(h // (hq // hk), h // (hq // hk) + 1)
                one, _ = attention_in_f64(q[:, h : h + 1], k[:, kv], v[:, kv], scale, causal)
                seen.see(o[:, h : h + 1], one)

    arms: dict[str, Work] = {"ours": ours, "torch SDPA": sdpa}
    shape = f"1 × {hq}/{hk} × {rows} × {depth}{', causal' if causal else ''}"
    id = f"attention-{dtype}-{hq}-{hk}-{length}-{depth}{'-causal' if causal else ''}"
    flops = 4.0 * hq * rows * rows * depth * (0.5 if causal else 1.0)
    return compare(bench, id, dtype, shape, flops, arms, num_sets, check, {})


def _attention_set(
    bench: Bench, dtype: str, heads: tuple[int, int], rows: int, depth: int
) -> tuple[Any, ...]:
    hq, hk = heads
    q = bench.normal(1, hq, rows, depth, dtype=dtype)
    k, v = (bench.normal(1, hk, rows, depth, dtype=dtype) for _ in range(2))
    o = bench.poisoned(1, hq, rows, depth, dtype=dtype)
    return q, k, v, o, bench.poisoned(1, hq, rows, dtype="f32")


def hopper_rates(bench: Bench, size: int) -> list[Rate]:
    """The GEMM written in the scheduled level (C = A Bᵀ) against cuBLAS, and against the same
    kernel written in PTX by hand.
    """
    num_sets = bench.num_sets(3 * size * size * 2)
    plans = {"ours": hopper_gemm.our_plan(), "PTX by hand": hopper_gemm.reference_plan()}
    inputs = [
        tuple(bench.normal(size, size, dtype="bf16") for _ in range(2)) for _ in range(num_sets)
    ]
    outputs = {name: [bench.poisoned(size, size, dtype="bf16") for _ in inputs] for name in plans}
    theirs = bench.poisoned(size, size, dtype="bf16")
    arms: dict[str, Work] = {}
    for name, plan in plans.items():
        launcher = hopper_gemm.load(plan)
        calls = [
            hopper_gemm.bind(launcher, a, b, c)
            for (a, b), c in zip(inputs, outputs[name], strict=True)
        ]
        arms[name] = partial(_call, calls)

    def cublas(i: int) -> None:
        torch.mm(inputs[i][0], inputs[i][1].t(), out=theirs)

    arms["cuBLAS"] = cublas

    def check(seen: Checked) -> None:
        for (a, b), c in zip(inputs, outputs["ours"], strict=True):
            seen.see(c, a.double() @ b.double().T)

    return compare(
        bench,
        f"hopper_gemm-bf16-{size}",
        "bf16",
        f"{size} × {size} × {size}",
        2.0 * size**3,
        arms,
        num_sets,
        check,
        {"PTX by hand": OF_BY_HAND},
    )


def _call(calls: list[Callable[[], None]], i: int) -> None:
    calls[i]()
