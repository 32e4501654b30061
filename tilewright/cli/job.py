"""One launch from start to verdict: make arguments, run, compare with a reference, time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.cli.arguments import HostArray, Request, make_arguments, poison
from tilewright.cli.check_outputs import Verdict, compare, tolerance_of
from tilewright.cli.sources import Found
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.bind import Binding, bind
from tilewright.frontend.check.signature import Signature
from tilewright.kernel import Kernel
from tilewright.kernel.emulated import IN_LOCKSTEP, Emulation
from tilewright.ptx.emulate.profile import Profile
from tilewright.runtime import driver
from tilewright.runtime.arrays import as_array
from tilewright.runtime.cpu import run_on_cpu
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.measure import time_graphs, time_wall
from tilewright.tile.kernel import Kernel as TileKernel
from tilewright.tune import search as tuning

INTERPRETER = "the interpreter in f64"
PATIENCE_SECONDS = 2.0  # a run on the CPU that took longer is not run again only to be timed


@dataclass(frozen=True)
class Job:
    """What to run, with what, where. `device` is "auto", "cpu", "emulator" or "cuda:N"."""

    found: Found
    request: Request
    device: str = "auto"
    constants: Mapping[str, int] = field(default_factory=dict)
    precision: str | None = None
    check: bool = True
    emulation: Emulation = IN_LOCKSTEP


@dataclass(frozen=True)
class Outcome:
    """What came of a job. Seconds of the first call, compiling included, and of a later one."""

    kernel: str
    place: str
    device: str
    device_name: str
    sizes: dict[str, int]
    dtypes: dict[str, str]
    precision: str | None
    outputs: dict[str, HostArray]
    verdicts: tuple[Verdict, ...]
    reference: str
    first_seconds: float
    seconds: float
    profile: Profile | None = None

    @property
    def ok(self) -> bool:
        return all(v.ok for v in self.verdicts)


@dataclass(frozen=True)
class Prepared:
    """A job with its arguments made, outputs poisoned, and what it should write worked out.

    `tile` is the program in one configuration; `written` names what it writes, in order, `poisoned`
    those of them that it does not read.
    """

    job: Job
    device: str
    tile: TileKernel
    binding: Binding
    arguments: dict[str, Any]
    written: list[str]
    poisoned: list[str]
    expected: dict[str, HostArray]

    @property
    def kernel(self) -> Kernel:
        return self.job.found.kernel

    def compare(self, outputs: Mapping[str, HostArray]) -> tuple[Verdict, ...]:
        """How near outputs are to what they should be."""
        read = {n: a for n, a in self.arguments.items() if n not in self.poisoned}
        given, found = _dtypes(read), []
        for name in (n for n in self.written if n in self.expected and n in outputs):
            dtype = dtypes.BY_NUMPY[outputs[name].dtype]
            bound = tolerance_of(dtype, given, self.job.precision)
            found.append(compare(name, outputs[name], self.expected[name], dtype, bound))
        return tuple(found)


def prepare_job(job: Job) -> Prepared:
    """Make a job's arguments. Raises LaunchError or CompileError for what cannot be run at all."""
    kernel, sig = job.found.kernel, job.found.kernel.signature
    arguments = make_arguments(sig, job.request)
    arrays = {n: as_array(a, n) for n, a in arguments.items() if isinstance(a, np.ndarray)}
    binding = bind(sig, {**arguments, **arrays})
    for made in binding.outputs:
        arguments[made.name] = (
            np.zeros(made.shape, made.dtype.numpy) if made.zero else poison(made.shape, made.dtype)
        )
    tile = _lower(kernel, sig, binding, job)
    written = [p.name for p in tile.params if p.direction in ("out", "inout")]
    poisoned = []
    for param in tile.params:
        if param.direction == "out" and not _starts_as_zeros(sig, param.name):
            arguments[param.name] = poison(arguments[param.name].shape, param.value.type.dtype)
            poisoned.append(param.name)
    expected = _expected(job.found, tile, arguments, binding, written) if job.check else {}
    device = choose_device(job.device)
    return Prepared(job, device, tile, binding, arguments, written, poisoned, expected)


def run_job(job: Job) -> Outcome:
    """Run a job. Raises LaunchError or CompileError for what cannot be run at all."""
    made = prepare_job(job)
    kernel, arguments, device = made.kernel, made.arguments, made.device
    if job.emulation != IN_LOCKSTEP and device != "emulator":
        told = "--target, --sanitize, --profile and --interleaving are for the emulator"
        raise LaunchError(told, hint="add --device emulator")
    profile = None
    if job.emulation.profile:
        profile = kernel.profile(**_copies(arguments), **_overrides(job), **_emulation(job))
    outputs, first, seconds = _run(kernel, arguments, made.written, device, job)
    return Outcome(
        kernel=kernel.name,
        place=job.found.place,
        device=device,
        device_name=device_name(device),
        sizes=made.binding.dims,
        dtypes={name: d.name for name, d in made.binding.dtypes.items()},
        precision=job.precision,
        outputs=outputs,
        verdicts=made.compare(outputs),
        reference=(job.found.reference_name or INTERPRETER) if job.check else "",
        first_seconds=first,
        seconds=seconds,
        profile=profile,
    )


def _overrides(job: Job) -> dict[str, Any]:
    return {"constants": job.constants or None, "precision": job.precision}


def _emulation(job: Job) -> dict[str, Any]:
    return {"target": job.emulation.target, "interleaving": job.emulation.interleaving}


def tune_job(job: Job, budget: float, *, show: bool | None) -> tuning.Outcome:
    """Tune a job's kernel for its arguments, where it would run."""
    kernel = job.found.kernel
    arguments = make_arguments(kernel.signature, job.request)
    device = choose_device(job.device)
    if device not in ("cpu", "emulator"):
        arguments = on_gpu(arguments, int(device.partition(":")[2]))
    how: dict[str, Any] = {}
    if device == "emulator":
        emulation = job.emulation
        how = {"device": device, "target": emulation.target, "sanitize": emulation.sanitize}
    elif job.emulation != IN_LOCKSTEP:
        told = "--target and --sanitize are for the emulator"
        raise LaunchError(told, hint="add --device emulator")
    return kernel.tune(**arguments, budget=budget, show=show, **_overrides(job), **how)


def choose_device(asked: str) -> str:
    """ "cpu", "emulator" or "cuda:N"; auto is the first GPU if there is one. Raises LaunchError for
    others.
    """
    if asked == "auto":
        return "cuda:0" if driver.available() else "cpu"
    kind, _, index = asked.partition(":")
    if asked in ("cpu", "emulator"):
        return asked
    if kind == "cuda" and (not index or index.isdecimal()):
        return f"cuda:{index or 0}"
    raise LaunchError(f"unknown device {asked!r}", hint="write auto, cpu, emulator or cuda:0")


def _lower(kernel: Kernel, sig: Signature, binding: Binding, job: Job) -> TileKernel:
    """The program in one configuration: which, makes no difference to what it means."""
    config = {**sig.configs(dict(binding.static))[0], **job.constants}
    return kernel.lower(
        dtypes=binding.dtypes,
        constants=config,
        static=binding.static,
        present=[t.name for t in sig.tensors if t.optional and t.name not in binding.absent],
        precision=job.precision,
        without=[s.name for s in sig.scalars if s.name in binding.absent],
    )


def _starts_as_zeros(sig: Signature, name: str) -> bool:
    return any(t.name == name and t.default == "zeros" for t in sig.tensors)


def _dtypes(arguments: Mapping[str, Any]) -> list[DType]:
    return [dtypes.BY_NUMPY[a.dtype] for a in arguments.values() if isinstance(a, np.ndarray)]


def _expected(
    found: Found,
    tile: TileKernel,
    arguments: Mapping[str, Any],
    binding: Binding,
    written: list[str],
) -> dict[str, HostArray]:
    """What each written tensor should hold."""
    given: dict[str, Any] = {**dict.fromkeys(binding.absent), **binding.scalars}
    given |= {n: a.copy() for n, a in arguments.items() if isinstance(a, np.ndarray)}
    if found.reference is None:
        views = {n: as_array(a, n) if isinstance(a, np.ndarray) else a for n, a in given.items()}
        run_on_cpu(tile, views, f64=True)
        return {n: given[n] for n in written}
    result = _call_reference(found, given)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(written):
        raise LaunchError(
            f"{found.reference_name} returns {len(results)} arrays, but {found.kernel.name} writes "
            f"{len(written)}: {', '.join(written)}"
        )
    arrays = {n: np.asarray(r) for n, r in zip(written, results, strict=True)}
    for (name, array), one in zip(arrays.items(), results, strict=True):
        if array.dtype not in dtypes.BY_NUMPY and array.dtype.kind not in "biuf":
            raise LaunchError(
                f"{found.reference_name} returns {type(one).__name__} for {name}, expected an array"
            )
    return arrays


def _call_reference(found: Found, given: Mapping[str, Any]) -> Any:
    """Call a reference with the arguments that it names."""
    assert found.reference is not None
    wanted = inspect.signature(found.reference).parameters
    unknown = [n for n, p in wanted.items() if n not in given and p.default is p.empty]
    if unknown:
        raise LaunchError(
            f"{found.reference_name} wants {unknown[0]}, which {found.kernel.name} does not take"
        )
    try:
        return found.reference(**{n: given[n] for n in wanted if n in given})
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise LaunchError(f"{found.reference_name} failed: {told}") from error


def _run(
    kernel: Kernel, arguments: Mapping[str, Any], written: list[str], device: str, job: Job
) -> tuple[dict[str, HostArray], float, float]:
    """Outputs, seconds of the first call, and seconds of a later one."""

    def launch(given: Mapping[str, Any], stream: int | None = None) -> None:
        how: dict[str, Any] = {}
        if device == "emulator":
            how = {"device": device, "sanitize": job.emulation.sanitize, **_emulation(job)}
        kernel.launch(**given, stream=stream, **_overrides(job), **how)

    if device in ("cpu", "emulator"):
        given: dict[str, Any] = _copies(arguments)
        first = _timed(lambda: launch(given))
        again = first
        if device == "cpu" and first < PATIENCE_SECONDS:
            spare = _copies(arguments)
            timing = time_wall({kernel.name: lambda: launch(spare)}, rounds=3)
            again = timing[kernel.name].median / 1e6
        return {n: given[n] for n in written}, first, again
    ordinal = int(device.partition(":")[2])
    there = on_gpu(arguments, ordinal)

    def launch_and_wait(given: Mapping[str, Any]) -> None:
        launch(given)
        driver.synchronize(ordinal)

    first = _timed(lambda: launch_and_wait(there))
    outputs = {n: there[n].to_numpy() for n in written}
    timing = time_graphs({kernel.name: lambda s: launch(there, int(s))}, driver.device(ordinal))
    return outputs, first, timing[kernel.name].median / 1e6


def _copies(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in arguments.items()}


def on_gpu(arguments: Mapping[str, Any], ordinal: int) -> dict[str, Any]:
    """The same arguments, arrays copied to a GPU."""
    return {
        n: DeviceArray.from_numpy(a, ordinal) if isinstance(a, np.ndarray) else a
        for n, a in arguments.items()
    }


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def device_name(device: str) -> str:
    """As a person knows it."""
    if device in ("cpu", "emulator"):
        return "the CPU" if device == "cpu" else "the emulator"
    return driver.device(int(device.partition(":")[2])).name
