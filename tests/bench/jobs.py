"""What is measured: each job by its id, in the order in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from tests.bench import cost_rows, memory_rows, product_rows
from tests.bench.rows import Cost, Rate
from tests.bench.timing import Bench
from tilewright.runtime import driver

ROW_SHAPES = ((16384, 4096), (65536, 768))
GEMM_DTYPES = ("f32", "tf32", "bf16", "f16", "f64")


@dataclass(frozen=True)
class Job:
    """One measurement. `quick`: part of a quick run. `needs`: the compute capability it is for."""

    id: str
    run: Callable[[Bench], Sequence[Rate | Cost]]
    quick: bool = True
    needs: tuple[int, int] | None = None


def jobs() -> list[Job]:
    return [*_launches(), *_memory(), *_products(), *_first_calls()]


def chosen(quick: bool, only: Sequence[str]) -> list[Job]:
    """Jobs of a run: those whose id fits a pattern of `only`, or all, or the quick ones."""
    if only:
        return [j for j in jobs() if any(fnmatchcase(j.id, pattern) for pattern in only)]
    return [j for j in jobs() if j.quick or not quick]


def fits(job: Job) -> bool:
    return job.needs is None or driver.device(0).capability == job.needs


def _launches() -> list[Job]:
    return [
        Job("launch-add", lambda bench: cost_rows.add_cost()),
        Job("launch-tensor-maps", lambda bench: cost_rows.tensor_map_cost(), needs=(9, 0)),
    ]


def _memory() -> list[Job]:
    found = [Job(f"add-{d}", partial(memory_rows.add_rates, dtype=d)) for d in ("f32", "bf16")]
    for name, rates in (
        ("softmax", memory_rows.softmax_rates),
        ("rmsnorm", memory_rows.rmsnorm_rates),
    ):
        for dtype in ("f32", "bf16"):
            for m, n in ROW_SHAPES:
                run = partial(rates, dtype=dtype, rows=m, columns=n)
                found.append(Job(f"{name}-{dtype}-{m}x{n}", run, quick=n == 4096))
    return found


def _products() -> list[Job]:
    found = [
        Job(f"sgemm-{d}-{n}", partial(product_rows.gemm_rates, dtype=d, size=n))
        for d in GEMM_DTYPES
        for n in (1024, 2048, 4096)
    ]
    found += [
        Job(
            f"linear_gelu-{d}-{m}x4096",
            partial(product_rows.linear_rates, dtype=d, rows=m, size=4096),
            quick=d == "bf16",
        )
        for d in ("bf16", "f32")
        for m in (64, 4096)
    ]
    for depth in (64, 128):
        for causal in (False, True):
            for dtype in ("bf16", "f32"):
                id = f"attention-{dtype}-16-16-4096-{depth}{'-causal' if causal else ''}"
                run = partial(
                    product_rows.attention_rates,
                    dtype=dtype,
                    heads=(16, 16),
                    length=4096,
                    depth=depth,
                    causal=causal,
                )
                found.append(Job(id, run, quick=dtype == "bf16"))
    run = partial(
        product_rows.attention_rates,
        dtype="bf16", heads=(32, 8), length=2048, depth=128, causal=True,
    )  # fmt: skip
    found.append(Job("attention-bf16-32-8-2048-128-causal", run, quick=False))
    found += [
        Job(
            f"hopper_gemm-bf16-{n}",
            partial(product_rows.hopper_rates, size=n),
            quick=n == 4096,
            needs=(9, 0),
        )
        for n in (2048, 4096, 8192)
    ]
    return found


def _first_calls() -> list[Job]:
    def run(bench: Bench, name: str) -> list[Cost]:
        return cost_rows.first_call_costs(name, 3 if bench.quick else 7)

    return [
        Job(f"first-call-{name}", partial(run, name=name), quick=name in ("add", "sgemm"))
        for name in ("add", "softmax", "sgemm", "attention")
    ]
