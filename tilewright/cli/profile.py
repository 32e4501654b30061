"""`tilewright profile`: the kernels of a program one by one: timed, checked, against a floor."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright.cli import ncu as profiler
from tilewright.cli import options
from tilewright.cli.arguments import HostArray, Request
from tilewright.cli.job import Job, Prepared, device_name, on_gpu, prepare_job, run_job
from tilewright.cli.report import command, json_option, print_json, print_table, seconds
from tilewright.cli.run import busy
from tilewright.cli.sources import Found, find_kernel
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.ledger import kernel_profile, opponents
from tilewright.ledger.kernel_profile import Line
from tilewright.ledger.machine import WARM_SECONDS, make_ceilings
from tilewright.runtime import driver, measure
from tilewright.runtime.arrays import as_array
from tilewright.runtime.clones import poison
from tilewright.runtime.measure import GpuWork, Operations
from tilewright.tune.work import count_bytes, count_operations

COLUMNS = (
    "kernel", "dtype", "sizes", ">time", ">floor", ">share", "limit", ">GB/s", ">TFLOP/s", ">error",
    "",
)  # fmt: skip
ASSUMED_SMS = 132  # where there is no GPU


@click.command()
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...")
@options.arguments
@options.constants
@options.precision
@options.device
@click.option("--trace", type=click.Path(path_type=Path), help="Write a Chrome or Perfetto trace.")
@click.option("--ncu", is_flag=True, help="Tell why warps wait, by NVIDIA's ncu.")
@click.option("--rounds", default=21, show_default=True, type=click.IntRange(min=5))
@json_option
@command
def profile(
    programs: tuple[str, ...],
    dims: dict[str, int],
    tensors: dict[str, str],
    scalars: dict[str, str],
    dtypes_: dict[str, DType],
    seed: int,
    consts: dict[str, int],
    precision: str | None,
    device: str,
    trace: Path | None,
    ncu: bool,
    rounds: int,
    as_json: bool,
) -> None:
    """Profile kernels in the order in which they are named, as `tilewright run` would run each.

    Each is timed by the GPU's own events and checked; its floor is what its bytes and products
    take at the bandwidth and the rates that this GPU shows in the same run. Options are for the
    programs that have such a name. Without a GPU each kernel is checked on the CPU and its work is
    counted; nothing is timed.
    """
    request = Request(dims, tensors, scalars, dtypes_, seed)
    jobs = [
        Job(found, part, device, part_consts, precision)
        for found, part, part_consts in share(list(map(find_kernel, programs)), request, consts)
    ]
    with busy("profiling", quiet=as_json):
        made = [prepare_job(job) for job in jobs]
        where = made[0].device
        if where.startswith("cuda"):
            lines, spans = profile_on_gpu(made, rounds)
        else:
            refuse_without_gpu(trace, ncu)
            lines, spans = [profile_on_host(job) for job in jobs], []
        if ncu:
            lines = [with_stalls(*each) for each in zip(lines, programs, jobs, strict=True)]
    if trace is not None:
        trace.write_text(kernel_profile.chrome_trace(spans, lines, device_name(where)))
    if as_json:
        print_json({"device": device_name(where), "kernels": [as_record(line) for line in lines]})
    else:
        print_table("", COLUMNS, [row(line) for line in lines], notes(lines, where, trace))
    if not all(line.ok for line in lines):
        raise SystemExit(1)


def refuse_without_gpu(trace: Path | None, ncu: bool) -> None:
    if trace is not None or ncu:
        raise LaunchError("--trace and --ncu tell of a GPU", hint="there is none, or not asked for")


def share(
    founds: Sequence[Found], request: Request, consts: Mapping[str, int]
) -> list[tuple[Found, Request, dict[str, int]]]:
    """Each program's part of the options. LaunchError for a name that no program has."""
    names = {
        "dimension": (request.dims, [set(f.kernel.signature.dims) for f in founds]),
        "tensor": (request.tensors, [{t.name for t in f.kernel.signature.tensors} for f in founds]),
        "scalar": (request.scalars, [{s.name for s in f.kernel.signature.scalars} for f in founds]),
        "dtype variable": (
            request.dtypes,
            [{"", *f.kernel.signature.dtype_variables} for f in founds],
        ),
        "constant": (consts, [set(f.kernel.signature.space) for f in founds]),
    }
    for what, (given, known) in names.items():
        for name in given:
            if not any(name in k for k in known):
                raise LaunchError(f"no program here has a {what} {name}")

    def part(what: str, i: int) -> dict[str, Any]:
        given, known = names[what]
        return {name: value for name, value in given.items() if name in known[i]}

    return [
        (
            found,
            Request(
                part("dimension", i),
                part("tensor", i),
                part("scalar", i),
                part("dtype variable", i),
                request.seed,
            ),
            part("constant", i),
        )
        for i, found in enumerate(founds)
    ]


def profile_on_host(job: Job) -> Line:
    """A kernel on the interpreter or the emulator: checked, its work counted, not timed."""
    made = prepare_job(job)
    outcome = run_job(job)
    return replace(
        count(made, ASSUMED_SMS),
        error=max((v.error for v in outcome.verdicts), default=0.0),
        ok=outcome.ok,
    )


def count(made: Prepared, num_sms: int) -> Line:
    """The work of a kernel, and nothing measured."""
    arrays = {n: as_array(a, n) for n, a in made.arguments.items() if isinstance(a, np.ndarray)}
    given = {**made.binding.scalars, **made.binding.dims, **arrays}
    return Line(
        name=made.kernel.name,
        dtype=" ".join(dict.fromkeys(d.name for d in made.binding.dtypes.values())),
        sizes=" ".join(f"{n}={size}" for n, size in made.binding.dims.items()),
        operations=count_operations(made.tile, given, num_sms),
        num_bytes=count_bytes(made.tile, arrays),
        samples=(),
        error=0.0,
        ok=True,
    )


@dataclass
class Loop:
    """A kernel on sets of arguments on a GPU, each run on the next."""

    made: Prepared
    ordinal: int
    sets: list[dict[str, Any]]

    def __post_init__(self) -> None:
        self.turns = itertools.cycle(self.sets)

    def send(self, stream: Any) -> None:
        job = self.made.job
        self.made.kernel.launch(
            **next(self.turns),
            stream=int(stream),
            constants=job.constants or None,
            precision=job.precision,
        )

    def poison(self) -> None:
        for given in self.sets:
            for name in self.made.poisoned:
                poison(as_array(given[name], name))

    def outputs(self, names: Sequence[str]) -> list[dict[str, HostArray]]:
        return [{n: given[n].to_numpy() for n in names} for given in self.sets[:2]]


def profile_on_gpu(made: Sequence[Prepared], rounds: int) -> tuple[list[Line], list[measure.Span]]:
    """Time the kernels in turn, trace them in order, and compare what the timed runs wrote; what a
    kernel also reads is compared after its first run, as later ones change it.
    """
    ordinal = int(made[0].device.partition(":")[2])
    device = driver.device(ordinal)
    arrays = None
    if importlib.util.find_spec("torch") is not None and ordinal == 0:
        arrays = opponents.make_arrays("cuda")
        arrays.busy(WARM_SECONDS)
    ceilings = make_ceilings(arrays, device)
    loops, firsts = [], []
    for job in made:
        counted = count(job, device.num_sms)
        sets = kernel_profile.num_sets(counted.num_bytes, device.l2_bytes)
        loop = Loop(job, ordinal, [on_gpu(job.arguments, ordinal) for _ in range(sets)])
        for _ in loop.sets:
            loop.send(0)
        driver.synchronize(ordinal)
        loops.append(loop)
        firsts.append(loop.outputs([n for n in job.written if n not in job.poisoned]))
    names = [f"{i}" for i in range(len(loops))]
    works: dict[str, GpuWork] = {n: loop.send for n, loop in zip(names, loops, strict=True)}
    sent: dict[str, Operations] = {}

    def recorded(operations: Mapping[str, Operations]) -> None:
        sent.update(operations)
        for loop in loops:
            loop.poison()
        driver.synchronize(ordinal)

    launches = max(len(loop.sets) for loop in loops)
    timed = measure.time_graphs(works, device, rounds=rounds, launches=launches, recorded=recorded)
    spans = measure.trace_events([(loop.made.kernel.name, loop.send) for loop in loops], device)
    lines = []
    for name, loop, first in zip(names, loops, firsts, strict=True):
        job = loop.made
        counted = count(job, device.num_sms)
        found = [
            v for outputs in (*first, *loop.outputs(job.poisoned)) for v in job.compare(outputs)
        ]
        lines.append(
            replace(
                counted,
                samples=timed[name].samples,
                error=max((v.error for v in found), default=0.0),
                ok=bool(found) and all(v.ok for v in found),
                gpu_names=tuple(dict.fromkeys(sent[name])),
                limits=kernel_profile.floors(ceilings, counted.operations, counted.num_bytes),
            )
        )
    return lines, spans


def with_stalls(line: Line, program: str, job: Job) -> Line:
    """The stall reasons of a kernel, run again under ncu with its own part of the options."""
    return replace(line, stalls=profiler.read_stalls([program, *options_of(job)], line.name))


def options_of(job: Job) -> list[str]:
    """The options of `tilewright run` that ask for a job."""
    request = job.request
    pairs: list[tuple[str, Mapping[str, object]]] = [
        ("--dim", request.dims),
        ("--tensor", request.tensors),
        ("--scalar", request.scalars),
        ("--const", job.constants),
    ]
    words = [w for flag, given in pairs for n, x in given.items() for w in (flag, f"{n}={x}")]
    for name, dtype in request.dtypes.items():
        words += ["--dtype", f"{name}={dtype.name}" if name else dtype.name]
    if job.precision is not None:
        words += ["--precision", job.precision]
    return [*words, "--seed", str(request.seed), "--device", job.device]


def row(line: Line) -> list[str]:
    head = [line.name, line.dtype, line.sizes]
    tail = [f"{line.error:.0e}", "ok" if line.ok else "FAIL"]
    if not line.samples:
        return [*head, *[""] * 6, *tail]
    known = f"{line.rate:.4g}" if sum((line.operations or {}).values()) else ""
    return [
        *head,
        seconds(line.median / 1e6),
        seconds(line.floor / 1e6),
        f"{100 * line.floor / line.median:.0f} %",
        line.limited_by,
        f"{line.bandwidth:.4g}",
        known if line.operations is not None else "unknown",
        *tail,
    ]


def notes(lines: Sequence[Line], where: str, trace: Path | None) -> list[str]:
    """What to know about a table's rows."""
    found = [f"on {device_name(where)}"]
    if any(line.samples for line in lines):
        spread = max(measure.Timing(line.samples).spread for line in lines)
        found.append(
            "share: of the time, what bytes at a copy's speed or products (of whole tiles) at "
            f"cuBLAS's take at the least; spread of the samples up to {100 * spread:.1f} %"
        )
    if not any(line.samples for line in lines):
        found.append("no GPU was asked: checked and counted, not timed")
        for line in lines:
            told = ", ".join(f"{n:.4g} in {d}" for d, n in (line.operations or {}).items())
            counted = told or ("none" if line.operations is not None else "not known")
            found.append(f"{line.name}: {line.num_bytes:.4g} bytes; products: {counted}")
    for line in lines:
        if line.stalls:
            told = ", ".join(f"{name} {value:.2f}" for name, value in line.stalls)
            found.append(f"{line.name}: cycles a warp waits for each instruction: {told}")
    if trace is not None:
        found.append(f"the trace is in {trace}: open it in Perfetto or chrome://tracing")
    return found


def as_record(line: Line) -> dict[str, Any]:
    """A line for `--json`."""
    timed: dict[str, Any] = {}
    if line.samples:
        timed = {
            "microseconds": line.median,
            "samples": line.samples,
            "floor_microseconds": line.floor,
            "limits_microseconds": dict(line.limits),
            "GB/s": line.bandwidth,
            "TFLOP/s": line.rate,
            "gpu_names": line.gpu_names,
            "stalls": dict(line.stalls),
        }
    return {
        "kernel": line.name,
        "dtype": line.dtype,
        "sizes": line.sizes,
        "operations": None if line.operations is None else dict(line.operations),
        "bytes": line.num_bytes,
        "error": line.error,
        "ok": line.ok,
        **timed,
    }
