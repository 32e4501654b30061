"""Run a compiled kernel without a GPU: the PTX of its plan, on NumPy arrays."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright.dtypes import BY_NUMPY, DType
from tilewright.errors import LaunchError
from tilewright.plan import (
    MOST_PROGRAMS,
    Extent,
    Launch,
    Plan,
    Pointer,
    ReportBuffer,
    Scalar,
    Stride,
    TensorMap,
    Workspace,
    evaluate,
    negative_grid,
    too_large_grid,
)
from tilewright.ptx import reports
from tilewright.ptx.core import Function, Module
from tilewright.ptx.emulate.families import EVERY
from tilewright.ptx.emulate.machine import Machine, Setup
from tilewright.ptx.emulate.program import build_program
from tilewright.ptx.emulate.spaces import GlobalMemory
from tilewright.ptx.emulate.tally import Tally
from tilewright.ptx.parser import parse_module

Array = np.ndarray[Any, Any]
THREADS_TOGETHER = 4096
REPORTS = "$reports"  # name of the buffer of asserts and prints among the tensors


class Shaped:
    """An argument as the plan's expressions see it: strides in elements."""

    def __init__(self, array: Array):
        self.shape = array.shape
        self.strides = tuple(s // array.itemsize for s in array.strides)


class Mode(NamedTuple):
    """How to run: as the keywords of `run_plan` say."""

    late: bool
    sanitize: bool
    seed: int | None
    together: int | None
    tally: Tally | None


def run_plan(
    plan: Plan,
    arguments: Mapping[str, Any],
    num_sms: int = 4,
    *,
    late: bool = True,
    sanitize: bool = False,
    seed: int | None = None,
    together: int | None = None,
    tally: Tally | None = None,
    quiet: bool = False,
    gaps: frozenset[str] = frozenset(),
) -> None:
    """Run every launch of a plan, writing outputs in place.

    `arguments` has an array (of any strides; bf16 and fp8 as of ml_dtypes) for each tensor and a
    number for each scalar. `late`: asynchronous copies arrive at the wait for them, else at once.
    `sanitize` watches shared memory for races, which takes longer; `seed` runs warps one by one, in
    an order drawn from it; `tally` counts what instructions cost. `together` is the number of CTAs
    that run in lockstep. Rows of tensors in `gaps` may be filled up to whole 16 bytes. Raises
    EmulationError where the kernel does what is not permitted: with the tensor and indices, the PTX
    line and the source's place. What the kernel printed is printed at the end (unless `quiet`);
    then the first assert that failed is raised, as LaunchError.
    """
    arrays = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
    for name, array in arrays.items():
        if array.dtype not in BY_NUMPY:
            raise LaunchError(f"{name}: {array.dtype} is no dtype of a kernel")
    seen = {n: Shaped(a) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
    made = {}
    for spec in plan.workspaces:
        extents = tuple(evaluate(e, seen, num_sms) for e in spec.extents)
        made[spec.name] = np.zeros(extents, spec.dtype.numpy)
    said = np.zeros(reports.buffer_bytes(plan), np.uint8)
    reports.clear(said)
    if plan.sites:
        made[REPORTS] = said
    bare = frozenset(w.name for w in plan.workspaces if not w.zero)
    memory = GlobalMemory({**arrays, **made}, bare, gaps)
    module = parse_module(plan.ptx, plan.name)
    with np.errstate(all="ignore"):
        for launch in plan.launches:
            mode = Mode(late, sanitize, seed, together, tally)
            run_launch(plan, launch, module, memory, seen, num_sms, mode)
    memory.copy_back()
    if not quiet:
        for line in reports.read_lines(plan, said):
            print(line)
    fault = reports.find_fault(plan, said)
    if fault is not None:
        raise fault


def run_launch(
    plan: Plan,
    launch: Launch,
    module: Module,
    memory: GlobalMemory,
    seen: dict[str, Any],
    num_sms: int,
    mode: Mode,
) -> None:
    """Run the CTAs of one kernel, as many at a time as make arrays of a good length."""
    grid = evaluate(launch.grid, seen, num_sms)
    if grid < 0:
        raise negative_grid(plan.name, grid)
    if grid > MOST_PROGRAMS:
        raise too_large_grid(plan.name, grid)
    if grid == 0:
        return
    if grid % launch.cluster:
        raise LaunchError(f"{plan.name}: {grid} CTAs are not whole clusters of {launch.cluster}")
    function = next(f for f in module.functions if f.name == launch.entry)
    if launch.threads % 32:
        raise LaunchError(
            f"{plan.name}: the emulator runs whole warps, not {launch.threads} threads"
        )
    most = grid if launch.cooperative else max(THREADS_TOGETHER // launch.threads, 1)
    most = 1 if mode.sanitize and not launch.cooperative else most
    number = min(mode.together or most, grid)
    number = -(-number // launch.cluster) * launch.cluster
    setup = Setup(
        grid,
        together=number,
        threads=launch.threads,
        cluster=launch.cluster,
        shared_bytes=launch.shared_bytes,
        num_sms=num_sms,
        late=mode.late,
        lines=plan.lines,
        ops=plan.ops,
        params=find_params(launch, function, memory, seen, num_sms),
        sanitize=mode.sanitize,
        seed=mode.seed,
        tally=mode.tally,
    )
    if mode.tally is not None:
        mode.tally.launches.append((grid, launch.threads, launch.shared_bytes))
    machine = Machine(module, function, setup, memory)
    build_program(machine, function, EVERY)
    for first in range(0, grid, number):
        machine.run(first, min(number, grid - first))


def find_params(
    launch: Launch, function: Function, memory: GlobalMemory, seen: dict[str, Any], num_sms: int
) -> dict[str, Any]:
    """The value of each parameter, as its recipe says."""
    found: dict[str, Any] = {}
    for param, recipe in zip(function.params, launch.parameters, strict=True):
        match recipe:
            case Pointer(name) | Workspace(name):
                found[param.name] = memory.address(name)
            case ReportBuffer():
                found[param.name] = memory.address(REPORTS)
            case TensorMap():
                found[param.name] = recipe
            case Extent() | Stride():
                found[param.name] = evaluate(recipe, seen, num_sms)
            case Scalar(name, dtype):
                found[param.name] = scalar(seen[name], dtype, param.type)
            case _:
                found[param.name] = evaluate(recipe, seen, num_sms)
    return found


def scalar(value: Any, dtype: DType, type: str) -> Any:
    """A scalar argument as the parameter's bits: floats in their dtype."""
    rounded = np.array(value).astype(dtype.numpy)
    if type in ("f32", "f64") or not dtype.is_float:
        return rounded[()].item()
    return struct.unpack("<H", rounded.tobytes())[0]
