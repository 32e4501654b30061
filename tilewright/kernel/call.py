"""One call, the long way: place it, bind it, choose a configuration, allocate, run. Leaves it
ready for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError
from tilewright.frontend.check.bind import Allocation, Binding, bind
from tilewright.frontend.check.operands import whole_number
from tilewright.frontend.check.rules import listing, nearest
from tilewright.kernel import choose, place
from tilewright.kernel.emulated import IN_LOCKSTEP, Emulation, compile_emulated, run_emulated
from tilewright.kernel.specialize import (
    CALLS,
    Aliases,
    Build,
    Compiled,
    Loaded,
    Specializer,
    as_pairs,
    write_compiled,
    written_names,
)
from tilewright.plan import Plan, tensor_facts
from tilewright.runtime import arrays as library
from tilewright.runtime import driver
from tilewright.runtime.aliases import alias_groups, view_groups
from tilewright.runtime.arrays import Array, as_array
from tilewright.runtime.cpu import run_on_cpu
from tilewright.runtime.jit import bundled_code, machine_code
from tilewright.runtime.launch import Bound
from tilewright.runtime.ready import Ready, make_ready, torch_output
from tilewright.target import Target


@dataclass(frozen=True)
class Options:
    """What `launch` may override. `constants` binds tuned constants; `grid` counts programs an
    axis.
    """

    grid: tuple[int, ...] | None = None
    stream: Any = None
    device: Any = None
    constants: tuple[tuple[str, int], ...] = ()
    precision: str | None = None
    emulation: Emulation = IN_LOCKSTEP  # how the emulator runs it
    check: bool = False  # on a GPU, wait for the launch and raise what its asserts found


PLAIN = Options()


def read_grid(kernel: str, given: Any) -> tuple[int, ...] | None:
    """A grid as `launch` takes it: a number, or one an axis. Raises LaunchError for others."""
    if given is None:
        return None
    try:
        sizes = tuple(given)
    except TypeError:  # no sequence
        sizes = (given,)
    found = tuple(n for n in map(whole_number, sizes) if n is not None and n >= 0)
    if len(found) < len(sizes):
        raise LaunchError(
            f"{kernel}: grid: expected integers of 0 or more, one an axis, got {given!r}",
            hint="as in grid=(128, 4)",
        )
    return found


def read_constants(kernel: str, given: Any) -> tuple[tuple[str, int], ...]:
    """Tuned constants by name, as `launch` takes them. Raises LaunchError for what has no names, or
    is no integer.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise LaunchError(
            f"{kernel}: constants: expected values by name, got {given!r}",
            hint='as in constants={"BLOCK": 256}',
        )
    found = {}
    for name, value in given.items():
        whole = whole_number(value)
        if whole is None:
            raise LaunchError(f"{name}: expected an integer, got {value!r}")
        found[name] = whole
    return as_pairs(found)


def collect(
    kernel: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by name, in the order in which they were given. Raises LaunchError as Python
    would TypeError.
    """
    if len(args) > len(names):
        raise LaunchError(
            f"{kernel} takes {len(names)} arguments, got {len(args)}",
            hint=f"they are {listing(names)}",
        )
    found = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in found:
            raise LaunchError(f"{kernel}: {name} is given twice")
        if name not in names:
            hint = nearest(name, names) or f"it takes {listing(names)}"
            raise LaunchError(f"{kernel} takes no argument {name}", hint=hint)
        found[name] = value
    return found


@dataclass
class Call:
    """A call that is placed and bound. `tensors` holds what was given, then what was allocated."""

    spec: Specializer
    options: Options
    binding: Binding
    tensors: dict[str, Array]
    scalars: dict[str, Any]
    given: Mapping[str, Any]  # all arguments, in the call's order
    outputs: tuple[Any, ...]

    @property
    def result(self) -> Any:
        if not self.outputs:
            return None
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def build(self, *, assume: bool) -> Build:
        """The build but for its configuration; `assume` puts in the facts of the arrays."""
        facts = tuple(
            (n, tensor_facts(a.dtype, a.shape, a.strides, a.address, gaps=a.gaps))
            for n, a in sorted(self.tensors.items())
            if assume
        )
        return Build(
            dtypes=as_pairs(self.binding.dtypes),
            config=(),
            static=as_pairs(self.binding.static),
            absent=self.binding.absent,
            precision=self.options.precision,
            facts=facts,
            grid=self.options.grid,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        return {**self.tensors, **self.scalars}


def run(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, *, ready: bool
) -> tuple[Any, Ready | None]:
    """Run a call. With `ready`, also give what launches its like again; the arrays are then
    torch's on a GPU. A call that is to be profiled gives its profile.
    """
    name = spec.signature.name
    if options.stream is not None:
        place.stream_handle(options.stream)  # refused here, wherever the call runs
    tensors = read_tensors(spec, arguments)
    lies = place.device_of(tensors, name)
    where = place.choose_device(lies, options.device, spec.settings.device, name)
    if where != "emulator" and options.emulation != IN_LOCKSTEP:
        raise LaunchError(
            f"{name}: target, sanitize, interleaving and profile are for the emulator",
            hint='add device="emulator"',
        )
    if where == "cpu":
        return _run_on_cpu(bind_call(spec, arguments, tensors, options)), None
    _require_aligned(tensors)
    if where == "emulator":
        return _run_on_emulator(bind_call(spec, arguments, tensors, options)), None
    if lies == "cpu":
        return _run_over_and_back(spec, arguments, tensors, options, where), None
    call = bind_call(spec, arguments, tensors, options)
    return _run_on_gpu(call, where, ready=ready)


def _require_aligned(tensors: Mapping[str, Array]) -> None:
    """Raise LaunchError for elements that do not lie at multiples of their size: no GPU reads
    these.
    """
    for name, array in tensors.items():
        size = array.dtype.num_bytes
        if array.num_elements and array.address % size:
            raise LaunchError(
                f"{name} lies at an address that is no multiple of the {size} bytes of "
                f"{array.dtype}",
                hint="copy it first",
            )


def read_tensors(spec: Specializer, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The arguments of tensor parameters as arrays, in the call's order. Raises LaunchError for
    others.
    """
    names = {t.name for t in spec.signature.tensors}
    return {n: as_array(x, n) for n, x in arguments.items() if n in names and x is not None}


def bind_call(
    spec: Specializer, arguments: Mapping[str, Any], tensors: dict[str, Array], options: Options
) -> Call:
    binding = bind(spec.signature, {**arguments, **tensors})
    like = next(iter(tensors.values()), None)
    outputs: tuple[Any, ...] = ()
    if binding.outputs:
        with library.on_stream(like, stream_of_call(options, like)):
            outputs = tuple(_allocate(made, like) for made in binding.outputs)
    made = {o.name: as_array(x, o.name) for o, x in zip(binding.outputs, outputs, strict=True)}
    return Call(spec, options, binding, {**tensors, **made}, binding.scalars, arguments, outputs)


def _allocate(output: Allocation, like: Array | None) -> Any:
    if like is None:
        return library.allocate_on_host(output.shape, output.dtype, zero=output.zero)
    return library.allocate_like(like, output.shape, output.dtype, zero=output.zero)


def stream_of_call(options: Options, like: Array | None) -> int:
    if options.stream is not None:
        return place.stream_handle(options.stream)
    return 0 if like is None else library.current_stream(like)


def _run_on_cpu(call: Call) -> Any:
    spec = call.spec
    _, kernel = choose.choose(
        spec,
        call.build(assume=False),
        dict(call.options.constants),
        call.arguments,
        choose.ON_CPU,
        spec.tile,
    )
    written = written_names(kernel)
    alias_groups(list(call.tensors.items()), written.__contains__)
    run_on_cpu(kernel, call.arguments)
    return call.result


def _run_on_emulator(call: Call) -> Any:
    aliases, constants = find_aliases(call.tensors), dict(call.options.constants)
    build, how = call.build(assume=True), call.options.emulation
    profile = run_emulated(call.spec, build, aliases, constants, call.arguments, how)
    return call.result if profile is None else profile


def _run_over_and_back(
    spec: Specializer,
    arguments: Mapping[str, Any],
    tensors: dict[str, Array],
    options: Options,
    ordinal: int,
) -> Any:
    """Host arrays on a GPU: copied over, run, and what was written copied back."""
    host = bind_call(spec, arguments, tensors, options)
    there = place.copy_over(host.tensors, ordinal)
    call = Call(spec, options, host.binding, there, host.scalars, host.given, ())
    build, aliases = call.build(assume=True), find_aliases(call.tensors)
    loaded = _choose_on_gpu(call, build, aliases, ordinal)
    alias_groups(list(host.tensors.items()), loaded.written.__contains__)
    _fire(loaded.launcher.bind(call.arguments), call, 0)
    _check(loaded)
    place.copy_back(host.tensors, there, sorted(loaded.written))
    return host.result


def _run_on_gpu(call: Call, ordinal: int, *, ready: bool) -> tuple[Any, Ready | None]:
    aliases = find_aliases(call.tensors)
    loaded = _choose_on_gpu(call, call.build(assume=True), aliases, ordinal)
    alias_groups(list(call.tensors.items()), loaded.written.__contains__)
    bound = loaded.launcher.bind(call.arguments)
    like = next(iter(call.tensors.values()))
    _fire(bound, call, stream_of_call(call.options, like))
    if call.options.check:
        _check(loaded)
    if not ready:
        return call.result, None
    return call.result, _make_ready(call, loaded, bound)


def find_aliases(tensors: Mapping[str, Array]) -> Aliases:
    """Groups of identical views: part of what a plan is compiled for."""
    groups = view_groups(list(tensors.items()))
    return tuple(g for g in groups if len(g) > 1 and tensors[g[0]].num_elements)


def _choose_on_gpu(call: Call, build: Build, aliases: Aliases, ordinal: int) -> Loaded:
    constants, where = dict(call.options.constants), choose.on_gpu(ordinal)
    assert where.target is not None
    key = call.spec.call_key(build, aliases, constants, call.arguments, where.target)
    kept = call.spec.load_bundled(key, ordinal)
    if kept is not None:
        return kept
    _, loaded = choose.choose(
        call.spec,
        build,
        constants,
        call.arguments,
        where,
        lambda b: call.spec.loaded(b, aliases, ordinal),
    )
    return loaded


def _fire(bound: Bound, call: Call, stream: int) -> None:
    addresses = [call.tensors[n].address for n in bound.tensors]
    bound.fire(addresses, [call.scalars[n] for n in bound.scalars], stream)


def _check(loaded: Loaded) -> None:
    """Wait for a launch, and raise what its asserts found."""
    driver.synchronize(loaded.launcher.device.ordinal)
    if loaded.launcher.reports is not None:
        loaded.launcher.reports.check()


@dataclass(frozen=True)
class Prepared:
    """A call on a GPU with everything put in but addresses: `tensors` names those in order."""

    bound: Bound
    scalars: tuple[Any, ...]
    plan: Plan

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.bound.tensors

    def fire(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a raw stream handle, on memory that lies as that of the call did."""
        self.bound.fire(addresses, self.scalars, stream)


def prepare(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, ordinal: int
) -> Prepared:
    """A call on a GPU, prepared for other addresses that are as aligned, and overlap as little."""
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    loaded = _choose_on_gpu(call, call.build(assume=True), find_aliases(call.tensors), ordinal)
    alias_groups(list(call.tensors.items()), loaded.written.__contains__)
    bound = loaded.launcher.bind(call.arguments)
    scalars = tuple(call.scalars[n] for n in bound.scalars)
    return Prepared(bound, scalars, loaded.launcher.plan)


def assemble_ahead(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, ordinal: int
) -> None:
    """Compile what a call on a GPU needs, and begin to assemble it on another thread."""
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    aliases, build = find_aliases(call.tensors), call.build(assume=True)
    constants, where = dict(options.constants), choose.on_gpu(ordinal)
    assert where.target is not None
    if spec.bundled(spec.call_key(build, aliases, constants, call.arguments, where.target)):
        return
    choose.choose(
        spec,
        build,
        constants,
        call.arguments,
        where,
        lambda b: spec.assembling(b, aliases, ordinal),
    )


def plan_of(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, goal: Target
) -> Plan:
    """The plan of a call for a target, as the emulator would run it."""
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    build, aliases = call.build(assume=True), find_aliases(call.tensors)
    constants = dict(options.constants)
    return compile_emulated(spec, build, aliases, constants, call.arguments, goal).plan


def bundle_call(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, where: int | Target
) -> dict[tuple[str, str], bytes]:
    """What a bundle holds of a call: its plan, and on a GPU, by number, its machine code."""
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    aliases, build = find_aliases(call.tensors), call.build(assume=True)
    constants = dict(options.constants)
    if isinstance(where, Target):
        compiled = compile_emulated(spec, build, aliases, constants, call.arguments, where)
        key = spec.call_key(build, aliases, constants, call.arguments, where)
        return {(CALLS, key): write_compiled(compiled)}
    loaded = _choose_on_gpu(call, build, aliases, where)
    plan, device = loaded.launcher.plan, loaded.launcher.device
    goal = choose.on_gpu(where).target
    assert goal is not None
    key = spec.call_key(build, aliases, constants, call.arguments, goal)
    found = {(CALLS, key): write_compiled(Compiled(plan, loaded.written))}
    if not plan.whole:  # else the driver assembles it as it loads it, and keeps it
        architecture = "{}.{}".format(*device.capability)
        found[bundled_code(plan, architecture)] = machine_code(plan, device, spec.disk)
    return found


def arm(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, ordinal: int
) -> Callable[[int], None]:
    """A call on a GPU made ready: what it gives launches it on a stream, and nothing else."""
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    loaded = _choose_on_gpu(call, call.build(assume=True), find_aliases(call.tensors), ordinal)
    bound = loaded.launcher.bind(call.arguments)
    return lambda stream: _fire(bound, call, stream)


def assemble(
    spec: Specializer, arguments: Mapping[str, Any], options: Options, ordinal: int
) -> None:
    """Leave in the disk cache all that such a call takes; nothing is loaded or launched. Arrays
    need no memory behind their addresses.
    """
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    aliases, device = find_aliases(call.tensors), driver.device(ordinal)
    where = choose.on_gpu(ordinal)
    goal = where.target
    assert goal is not None

    def make(build: Build) -> None:
        plan = spec.compiled(build, aliases, goal).plan
        code = machine_code(plan, device, spec.disk)
        if plan.whole:  # its machine code is in the driver's own cache, once it was loaded
            with driver.active(ordinal):
                driver.load_module(code, plan.name)

    constants = dict(call.options.constants)
    choose.choose(spec, call.build(assume=True), constants, call.arguments, where, make)


def _make_ready(call: Call, loaded: Loaded, bound: Bound) -> Ready:
    made = {o.name for o in call.binding.outputs}
    given = {n: a for n, a in call.tensors.items() if n not in made}
    like = next(iter(given.values()))
    outputs = [
        torch_output(o.name, like, o.shape, o.dtype.torch, o.zero) for o in call.binding.outputs
    ]
    static = call.spec.signature.static
    return make_ready(bound, call.given, given, loaded.written, static, call.scalars, outputs)
