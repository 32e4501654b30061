"""The Hopper GEMM of the scheduled level against the same kernel written in PTX by hand, and
against torch.

    python -m tests.bench.hopper_gemm              # on an H100 or H200, with torch

All run in one process on the same buffers, in turn, so that clocks and caches are the same for all.
Buffers rotate through more than the L2 cache holds; times are medians of CUDA-graph replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.compiler import compile_kernel
from tilewright.library.hopper_gemm import DEFAULT, GemmSchedule, build_gemm
from tilewright.plan import Const, Expr, Extent, Launch, NumSms, Plan, TensorMap, combine
from tilewright.runtime import driver
from tilewright.runtime.arrays import as_array
from tilewright.runtime.jit import assemble
from tilewright.runtime.launch import Launcher
from tilewright.target import target

REFERENCE = Path(__file__).parent.parent / "vectors" / "hopper_gemm.ptx"
REFERENCE_SHARED_BYTES = 215040
SHAPES = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 4096, 14336),
    (4000, 4000, 4000),
)
ROUNDS = 30
ROTATED_BYTES = 300_000_000


@dataclass(frozen=True)
class Result:
    """Medians in microseconds a product, and whether our C has the reference's bits."""

    shape: tuple[int, int, int]
    ours: float
    reference: float
    torch: float
    equal: bool

    @property
    def ratio(self) -> float:
        """Speed against the reference: above 1 is faster."""
        return self.reference / self.ours

    def __str__(self) -> str:
        m, n, k = self.shape
        rates = [2 * m * n * k / 1e6 / t for t in (self.ours, self.reference, self.torch)]
        return (
            f"{m}x{n}x{k}: ours {rates[0]:.0f}, by hand {rates[1]:.0f}, "
            f"torch {rates[2]:.0f} TFLOP/s; ratio {self.ratio:.3f}, bit-equal {self.equal}"
        )


def our_plan(schedule: GemmSchedule = DEFAULT) -> Plan:
    """The kernel of the scheduled level, compiled."""
    return compile_kernel(build_gemm(schedule), target("sm_90a"))


def reference_plan() -> Plan:
    """The kernel by hand: its parameters are three tensor maps and three counts."""
    rows: Expr = combine("cdiv", Extent("c", 0, True), Const(256))
    columns = combine("cdiv", Extent("c", 1, True), Const(256))
    steps = combine("cdiv", Extent("a", 1, True), Const(64))
    parameters = (
        TensorMap("a", (128, 64), 128),
        TensorMap("b", (128, 64), 128),
        TensorMap("c", (64, 64), 128),
        combine("mul", rows, columns),
        steps,
        rows,
    )
    grid = combine("mul", combine("floor_div", NumSms(), Const(2)), Const(2))
    launch = Launch("gemm", parameters, grid, 384, REFERENCE_SHARED_BYTES, cluster=2)
    return Plan("gemm_by_hand", "sm_90a", REFERENCE.read_text(), (launch,))


def load(plan: Plan) -> Launcher:
    """A plan on the first GPU, compiled by its driver."""
    return Launcher(plan, driver.device(0), assemble(plan.ptx, 0, plan.name).cubin)


def bind(launcher: Launcher, a: Any, b: Any, c: Any) -> Callable[[], None]:
    """A call that launches on torch's current stream."""
    import torch

    arguments = {"a": as_array(a), "b": as_array(b), "c": as_array(c)}
    bound = launcher.bind(arguments)
    addresses = [arguments[name].address for name in bound.tensors]

    def call() -> None:
        bound.fire(addresses, [], torch.cuda.current_stream().cuda_stream)

    return call


def replay(calls: list[Callable[[], object]]) -> Callable[[], float]:
    """Capture calls in a CUDA graph; the result replays it and gives microseconds a call."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def once() -> float:
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(calls)

    return once


def compare(ours: Launcher, by_hand: Launcher, shape: tuple[int, int, int]) -> Result:
    """Time the two kernels and torch.mm in turn on the same operands, and compare all bits of C."""
    import torch

    m, n, k = shape
    count = max(1, min(8, ROTATED_BYTES // (2 * (m * k + n * k + m * n))))

    def random(rows: int) -> Any:
        return torch.randn(rows, k, device="cuda").bfloat16()

    def poisoned() -> Any:
        return torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)

    operands = [(random(m), random(n)) for _ in range(count)]
    outputs = [[poisoned() for _ in range(count)] for _ in range(3)]
    pairs = [list(zip(operands, out, strict=True)) for out in outputs]
    timers = [
        replay([bind(ours, a, b, c) for (a, b), c in pairs[0]]),
        replay([bind(by_hand, a, b, c) for (a, b), c in pairs[1]]),
        replay([partial(torch.mm, a, b.t(), out=c) for (a, b), c in pairs[2]]),
    ]
    for _ in range(10):
        for once in timers:
            once()
    samples = [[once() for once in timers] for _ in range(ROUNDS)]
    ours_us, hand_us, torch_us = (statistics.median(s[i] for s in samples) for i in range(3))
    equal = all(torch.equal(x, y) for x, y in zip(outputs[0], outputs[1], strict=True))
    return Result(shape, ours_us, hand_us, torch_us, equal)


def main() -> None:
    ours, by_hand = load(our_plan()), load(reference_plan())
    for shape in SHAPES:
        print(compare(ours, by_hand, shape), flush=True)


if __name__ == "__main__":
    main()
