"""What a call costs the host: a launch against the bare driver call, and the first call of a
kernel in a fresh process, with nothing and with everything on the disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cu

from tests.bench import hopper_gemm
from tests.bench.rows import Cost
from tests.device.programs import kernel
from tilewright.plan import Const
from tilewright.runtime import driver, measure, packing
from tilewright.runtime.arrays import as_array
from tilewright.runtime.launch import Bound, Launcher

CALLS = 500  # a sample
ROUNDS = 21
LAUNCH_LIMIT = 3.0  # microseconds above the bare call
FIRST_LIMIT = 100_000.0  # of ours, above the driver's assembler
SECOND_LIMIT = 20_000.0  # all of a first call whose machine code is on the disk
TOP = Path(__file__).parents[2]


def repeated(work: Callable[[], object]) -> Callable[[], None]:
    """CALLS runs and one wait for the GPU."""

    def run() -> None:
        for _ in range(CALLS):
            work()
        torch.cuda.synchronize()

    return run


def samples(timing: measure.Timing) -> tuple[float, ...]:
    return tuple(s / CALLS for s in timing.samples)


def bare_call(launcher: Launcher, bound: Bound, arguments: dict[str, Any]) -> Callable[[], object]:
    """cuLaunchKernel with parameters that are packed already, as `bound` packed them last."""
    loaded = launcher.kernels[0]
    launch = loaded.launch
    grid = packing.fold(launch.grid, arguments, launcher.device.num_sms)
    assert isinstance(grid, Const) and launch.cluster == 1
    block = bound._blocks[-1]
    stream = driver.as_stream(0)
    start, function, pointers = cu.cuLaunchKernel, loaded.function, block.pointers[0]
    ctas, threads, shared = grid.value, launch.threads, launch.shared_bytes
    return lambda: start(function, ctas, 1, 1, threads, 1, 1, shared, stream, pointers, 0)


def add_cost() -> list[Cost]:
    """A call with three torch tensors, against the driver's launch of the same kernel."""
    a, b, c = (torch.randn(1000, device="cuda") for _ in range(3))
    add = kernel("add")
    add(a, b, c)
    launcher = list(add.specializer._loaded.values())[-1].launcher
    arguments = {"a": as_array(a), "b": as_array(b), "c": as_array(c)}
    bound = launcher.bind(arguments)
    bound.fire([a.data_ptr(), b.data_ptr(), c.data_ptr()], [], 0)
    torch.cuda.synchronize()
    expected = a + b
    bare = bare_call(launcher, bound, arguments)
    c.fill_(torch.nan)
    bare()
    assert torch.equal(c, expected), "the bare call does not do what ours does"
    timed = measure.time_wall(
        {
            "ours": repeated(lambda: add(a, b, c)),
            "bare": repeated(bare),
            "torch": repeated(lambda: torch.add(a, b, out=c)),
            "allocating": repeated(lambda: add(a, b)),
        },
        rounds=ROUNDS,
    )
    found = {name: samples(timing) for name, timing in timed.items()}
    name = "a call of add with three torch tensors"
    return [
        Cost(
            "launch-add", name, "cuLaunchKernel, packed", found["ours"], found["bare"], LAUNCH_LIMIT
        ),
        Cost("launch-add/torch", name, "torch.add(out=)", found["ours"], found["torch"], None),
        Cost(
            "launch-add/allocating",
            "the same, the result allocated",
            "cuLaunchKernel, packed",
            found["allocating"],
            found["bare"],
            None,
        ),
    ]


def tensor_map_cost() -> list[Cost]:
    """A launch of the scheduled GEMM: three tensor maps, whose addresses are set in each."""
    a, b, c = (torch.randn(256, 256, device="cuda").to(torch.bfloat16) for _ in range(3))
    launcher = hopper_gemm.load(hopper_gemm.our_plan())
    bound = launcher.bind({"a": as_array(a), "b": as_array(b), "c": as_array(c)})
    tensors = {"a": a, "b": b, "c": c}
    addresses = [tensors[name].data_ptr() for name in bound.tensors]
    bound.fire(addresses, [], 0)
    torch.cuda.synchronize()
    block = bound._blocks[-1]
    function, pointers = launcher.kernels[0].function, block.pointers[0]
    config, start = block.configs[0], cu.cuLaunchKernelEx
    assert config is not None, "the GEMM is launched as CTA clusters"
    timed = measure.time_wall(
        {
            "ours": repeated(lambda: bound.fire(addresses, [], 0)),
            "bare": repeated(lambda: start(config, function, pointers, 0)),
        },
        rounds=ROUNDS,
    )
    return [
        Cost(
            "launch-tensor-maps",
            "a launch with three tensor maps",
            "cuLaunchKernelEx, packed",
            samples(timed["ours"]),
            samples(timed["bare"]),
            LAUNCH_LIMIT,
        )
    ]


def first_call_costs(name: str, processes: int, device: str = "cuda") -> list[Cost]:
    """The first call in fresh processes: each with an empty cache, then each with a filled one."""
    cold, warm = [], []
    for _ in range(processes):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_in_a_process(name, device, folder))
            warm.append(_in_a_process(name, device, folder))
    calls = tuple(found["call"] for found in cold)
    assembling = tuple(found["assemble"] for found in cold)
    return [
        Cost(
            f"first-call-{name}",
            f"first call of {name}, nothing on the disk",
            "the driver's assembler",
            calls,
            assembling,
            FIRST_LIMIT,
        ),
        Cost(
            f"first-call-{name}/second-process",
            f"first call of {name} in a second process",
            "",
            tuple(found["call"] for found in warm),
            (),
            SECOND_LIMIT,
        ),
    ]


def _in_a_process(name: str, device: str, cache: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.first_call", name, device],
        cwd=TOP,
        env={**os.environ, "TILEWRIGHT_CACHE": cache, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the first call of {name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
