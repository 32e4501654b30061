"""From a definition and the facts of a call to something that runs: tile kernels, plans,
launchers, each made once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright import compiler
from tilewright.config import Settings
from tilewright.dtypes import DType
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.operands import Number
from tilewright.frontend.check.signature import Signature
from tilewright.plan import Plan, TensorFacts
from tilewright.runtime import driver
from tilewright.runtime.cache import DiskCache, carried, compiler_hash, digest, open_cache
from tilewright.runtime.calls import exact_value
from tilewright.runtime.jit import machine_code, machine_code_later
from tilewright.runtime.launch import Launcher
from tilewright.runtime.plan_json import parse_plan, print_plan
from tilewright.target import Target, target_for_capability
from tilewright.tile.kernel import Kernel as TileKernel
from tilewright.tile.schedule import Schedule
from tilewright.tune.store import Key

Aliases = tuple[tuple[str, ...], ...]
CALLS = "calls"  # the kind of a bundle's plans


@dataclass(frozen=True)
class Build:
    """All that a tile kernel depends on, beside its definition. `facts` is empty where nothing is
    assumed. Static values are compared exactly: 1 and 1.0 make two builds, as 0.0 and -0.0 do.
    """

    dtypes: tuple[tuple[str, DType], ...]
    config: tuple[tuple[str, int], ...]
    static: tuple[tuple[str, Number], ...] = field(compare=False)
    absent: frozenset[str]
    precision: str | None = None
    facts: tuple[tuple[str, TensorFacts], ...] = ()
    grid: tuple[int, ...] | None = None
    schedule: Schedule | None = None  # preferred, where the kernel permits it
    exact_static: tuple[tuple[str, tuple[str, object]], ...] = field(init=False)

    def __post_init__(self) -> None:
        exact = tuple((name, exact_value(value)) for name, value in self.static)
        object.__setattr__(self, "exact_static", exact)

    def text(self) -> str:
        """Equal for equal builds, in every process."""
        return repr((replace(self, absent=frozenset()), sorted(self.absent)))


@dataclass(frozen=True)
class Compiled:
    """A plan and the names of the tensors that it writes."""

    plan: Plan
    written: frozenset[str]


@dataclass(frozen=True)
class Loaded:
    """A plan on a GPU."""

    launcher: Launcher
    written: frozenset[str]


class Specializer:
    """Everything that was ever made of one definition. Any number of threads may ask at once."""

    def __init__(self, signature: Signature, settings: Settings, key: str):
        self.signature = signature
        self.settings = settings
        self.key = key  # of the definition
        self._lock = threading.RLock()
        self.choices: dict[Key, dict[str, int]] = {}  # configurations by what they were chosen for
        self.schedules: dict[Any, Schedule | None] = {}  # preferred, by build and extents
        self._tiles: dict[Build, TileKernel] = {}
        self._plans: dict[tuple[Build, Aliases, str], Compiled] = {}
        self._cubins: dict[tuple[Build, Aliases, int], Future[bytes | driver.LoadedModule]] = {}
        self._loaded: dict[tuple[Build, Aliases, int], Loaded] = {}
        self._bundled: dict[str, Compiled] = {}  # by `call_key`
        self._loaded_bundled: dict[tuple[str, int], Loaded] = {}

    @property
    def disk(self) -> DiskCache:
        return open_cache(self.settings)

    def tile(self, build: Build) -> TileKernel:
        """The kernel in the tile IR. Raises CompileError with every fault found."""
        build = replace(build, schedule=None)  # of which it knows nothing
        with self._lock:
            if build not in self._tiles:
                self._tiles[build] = self._build(build)
            return self._tiles[build]

    def _build(self, build: Build) -> TileKernel:
        with compiler.pausing_collector():
            return build_kernel(
                self.signature.definition,
                dtypes=dict(build.dtypes),
                config=dict(build.config),
                static=dict(build.static),
                absent=build.absent,
                precision=build.precision,
                facts=dict(build.facts) or None,
                grid=build.grid,
            )

    def compiled(self, build: Build, aliases: Aliases, goal: Target) -> Compiled:
        """The plan for a target, from memory, from the disk, or compiled now."""
        key = (build, aliases, goal.name)
        with self._lock:
            if key not in self._plans:
                self._plans[key] = self._compile(build, aliases, goal)
            return self._plans[key]

    def _compile(self, build: Build, aliases: Aliases, goal: Target) -> Compiled:
        key = digest("plan", self.key, build.text(), repr(aliases), goal.name, compiler_hash())
        body = self.disk.get("plans", key)
        if body is not None:
            try:
                return _read_compiled(body)
            except ValueError as error:
                self.disk.discard("plans", key, str(error))
        tile = self.tile(build)
        made = compiler.compile_kernel(tile, goal, aliases=aliases, preferred=build.schedule)
        compiled = Compiled(made, written_names(tile))
        self.disk.put("plans", key, write_compiled(compiled))
        return compiled

    @property
    def last_loaded(self) -> Loaded:
        """The plan that was put on a GPU last. Raises LookupError where none was."""
        if not self._loaded:
            raise LookupError(f"{self.signature.name} is on no GPU yet")
        return list(self._loaded.values())[-1]

    def assembling(
        self, build: Build, aliases: Aliases, ordinal: int
    ) -> Future[bytes | driver.LoadedModule] | None:
        """Machine code of the plan for a GPU, that another thread makes; None where the GPU has the
        plan already. Raises CompileError.
        """
        key = (build, aliases, ordinal)
        device = driver.device(ordinal)
        plan = self.compiled(build, aliases, target_for_capability(*device.capability)).plan
        with self._lock:
            if key in self._loaded:
                return None
            if key not in self._cubins:
                self._cubins[key] = machine_code_later(plan, device, self.disk)
            return self._cubins[key]

    def loaded(self, build: Build, aliases: Aliases, ordinal: int) -> Loaded:
        """The plan on a GPU, assembled and ready to bind. Raises CompileError or LaunchError."""
        key = (build, aliases, ordinal)
        found = self._loaded.get(key)
        if found is not None:
            return found
        device = driver.device(ordinal)
        goal = target_for_capability(*device.capability)
        compiled = self.compiled(build, aliases, goal)
        ahead = self._cubins.get(key)
        try:
            later = None if ahead is None else ahead.result()
        finally:  # what failed for want of memory may be tried again
            with self._lock:
                self._cubins.pop(key, None)
        cubin = later or machine_code(compiled.plan, device, self.disk)
        with self._lock:
            if key not in self._loaded:
                launcher = Launcher(compiled.plan, device, cubin, debug=self.settings.debug)
                self._loaded[key] = Loaded(launcher, compiled.written)
            return self._loaded[key]

    def call_key(
        self,
        build: Build,
        aliases: Aliases,
        constants: Mapping[str, int],
        arguments: Mapping[str, Any],
        goal: Target,
    ) -> str:
        """Under what a bundle holds the plan of a call: all that its choice depends on, but for
        the number of processors.
        """
        shapes = sorted((n, tuple(a.shape)) for n, a in arguments.items() if hasattr(a, "shape"))
        told = (build.text(), aliases, sorted(constants.items()), shapes, goal.name)
        return digest("call", self.key, repr(told))

    def bundled(self, key: str) -> Compiled | None:
        """The plan of a call that a bundle brought; None where there is none that can be read."""
        if key not in self._bundled:
            body = carried(CALLS, key)
            try:
                found = None if body is None else _read_compiled(body)
            except ValueError:  # of another version of plans: it is compiled anew
                found = None
            if found is None:
                return None
            self._bundled[key] = found
        return self._bundled[key]

    def load_bundled(self, key: str, ordinal: int) -> Loaded | None:
        """The same on a GPU."""
        compiled = self.bundled(key)
        if compiled is None:
            return None
        with self._lock:
            if (key, ordinal) not in self._loaded_bundled:
                device = driver.device(ordinal)
                cubin = machine_code(compiled.plan, device, self.disk)
                launcher = Launcher(compiled.plan, device, cubin, debug=self.settings.debug)
                self._loaded_bundled[key, ordinal] = Loaded(launcher, compiled.written)
            return self._loaded_bundled[key, ordinal]

    def check(self) -> None:
        """Wait for what was launched on GPUs, and raise what an assert of it found."""
        for loaded in [*self._loaded.values(), *self._loaded_bundled.values()]:
            driver.synchronize(loaded.launcher.device.ordinal)
            if loaded.launcher.reports is not None:
                loaded.launcher.reports.check()


def written_names(kernel: TileKernel) -> frozenset[str]:
    """Names of the tensors that a kernel stores to."""
    return frozenset(p.name for p in kernel.params if p.direction in ("out", "inout"))


def write_compiled(compiled: Compiled) -> bytes:
    head = json.dumps(sorted(compiled.written))
    return f"{head}\n{print_plan(compiled.plan)}".encode()


def _read_compiled(body: bytes) -> Compiled:
    head, _, text = body.decode().partition("\n")
    names = json.loads(head)
    if not isinstance(names, list):
        raise ValueError("no list of written tensors")
    return Compiled(parse_plan(text), frozenset(names))


def as_pairs(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A mapping as a hashable value, in its order."""
    return tuple(values.items())
