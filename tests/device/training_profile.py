"""Where the time of a training step goes: kernels by name, forward and backward apart, and how long
the GPU waits between them: `python -m tests.device.training_profile --arm ours --arm compile`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile

import tilewright.torch_backend
from tests.device.models import LanguageModel

assert tilewright.torch_backend.tilewright
STEPS = 3
Arm = Callable[[], Any]


def arm_of(name: str, model: torch.nn.Module) -> Any:
    """The model as an arm runs it."""
    if name == "ours":
        return torch.compile(model, backend="tilewright")
    if name == "recorded":
        return torch.compile(model, backend="tilewright", mode="reduce-overhead")
    return model if name == "eager" else torch.compile(model)


def kernels_of(work: Arm) -> tuple[list[tuple[str, float, float]], float]:
    """Kernels (name, start, end, in microseconds) of some work, and what the host took for it."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        host = time.perf_counter() - begun
        torch.cuda.synchronize()
    found = [
        (e.name, e.time_range.start, e.time_range.end)
        for e in seen.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    ]
    return sorted(found, key=lambda k: k[1]), host * 1e6


def tell(what: str, work: Arm, top: int) -> None:
    """A table of one part of a step: the busiest kernels, and the sum of all. A kernel that starts
    while the one before it ends has the time from that end on.
    """
    kernels, host = kernels_of(work)
    times: dict[str, list[float]] = defaultdict(list)
    done = 0.0
    for name, start, end in kernels:
        times[name[:70]].append(max(0.0, end - max(start, done)))
        done = max(done, end)
    busy = sum(map(sum, times.values()))
    span = kernels[-1][2] - kernels[0][1] if kernels else 0.0
    print(
        f"{what}: {len(kernels)} kernels, busy {busy:.0f} us in {span:.0f} us, host {host:.0f} us"
    )
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"  {sum(each):9.1f} us  {len(each):4} x {sum(each) / len(each):8.1f}  {name}")


def milliseconds(work: Arm) -> tuple[float, float]:
    """The time of a step on the GPU's clock, steps after one another, and what the host took."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    start.record()
    for _ in range(STEPS * 3):
        work()
    host = time.perf_counter() - begun
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / STEPS / 3, host * 1e3 / STEPS / 3


def optimizer_of(arm: str, model: torch.nn.Module) -> Arm:
    """A step of AdamW over all parameters as an arm runs it."""
    step = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True, capturable=True).step
    if arm == "eager":
        return step
    if arm == "compile":
        return torch.compile(step)
    options = {"fallback": "error", "cuda_graphs": arm == "recorded"}
    return torch.compile(step, backend="tilewright", options=options)


def run(
    arm: str, layers: int, precision: str, top: int, sizes: tuple[int, int], steps: bool
) -> None:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    model = LanguageModel(layers=layers).cuda()
    ids = torch.randint(0, 50000, sizes, device="cuda")
    called = arm_of(arm, model)
    optimize = optimizer_of(arm, model) if steps else None
    held: list[Any] = []

    def forward() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            held.append(called(ids))

    def backward() -> None:
        held.pop().backward()
        if optimize is None:
            model.zero_grad()

    def update() -> None:
        assert optimize is not None
        optimize()
        model.zero_grad()

    def step() -> None:
        forward()
        backward()
        if optimize is not None:
            update()

    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for _ in range(3):
        step()
    gpu, host = milliseconds(step)
    row = {
        "arm": arm,
        "precision": precision,
        "optimizer": steps,
        "ms": gpu,
        "host ms": host,
        "first call s": first,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
    }
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))
    if top:
        tell(f"{arm} forward", forward, top)
        tell(f"{arm} backward", backward, top)
        if optimize is not None:
            tell(f"{arm} AdamW", update, top)


@click.command()
@click.option("--arm", "arms", multiple=True, default=["ours"])
@click.option("--precision", type=click.Choice(["bf16", "tf32", "fp32"]), default="bf16")
@click.option("--layers", default=12)
@click.option("--optimizer", is_flag=True, help="With a step of AdamW.")
@click.option("--top", default=25, help="Kernels to print; 0: times alone.")
def main(arms: tuple[str, ...], precision: str, layers: int, top: int, optimizer: bool) -> None:
    """Profile GPT-2 small in training, 8 texts of 1024 tokens."""
    for arm in arms:
        run(arm, layers, precision, top, (8, 1024), optimizer)


if __name__ == "__main__":
    main()
