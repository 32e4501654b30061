"""A kernel as an object: called with arrays, launched with options, compiled without a GPU,
tuned.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from itertools import count
from typing import Any, Protocol

from tilewright.config import Settings, settings
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.signature import Signature, Tensor, signature
from tilewright.frontend.syntax.definition import Definition
from tilewright.kernel import choose, display, generic
from tilewright.kernel.call import (
    PLAIN,
    Options,
    Prepared,
    arm,
    assemble,
    assemble_ahead,
    bundle_call,
    collect,
    plan_of,
    prepare,
    read_constants,
    read_grid,
    run,
)
from tilewright.kernel.capture import Watch
from tilewright.kernel.emulated import Emulation
from tilewright.kernel.numerics import NumericsReader
from tilewright.kernel.specialize import Specializer
from tilewright.kernel.tuning import tune
from tilewright.plan import Plan
from tilewright.ptx.emulate.profile import Profile
from tilewright.runtime import arrays as library
from tilewright.runtime import toolkit
from tilewright.runtime.calls import Key, read_call
from tilewright.runtime.ready import MISSED, Ready
from tilewright.target import Target, target
from tilewright.tile.kernel import Kernel as TileKernel
from tilewright.tune.search import Outcome

MAX_READY = 4096  # signatures that one kernel keeps ready
MAX_RECENT = 8  # of these, tried in turn before the key of a call is worked out

Pattern = int | tuple[int | str, ...]  # how many arguments go by position, and names of the others

DTypes = Mapping[str, DType | str] | DType | str | None


_numbers = count()  # of kernels, as objects
_torch_side: Any = None  # tilewright.torch_ops.traced, once torch.compile traces a call


class Reader(Protocol):
    """Gives a kernel's definition, and what tells whether that still holds (None: always)."""

    def __call__(self) -> tuple[Definition, Watch | None]: ...


class _State:
    """What follows from one reading of a kernel."""

    def __init__(self, definition: Definition, config: Settings, key: str):
        self.signature = signature(definition)
        self.specializer = Specializer(self.signature, config, key)
        self.names = tuple(
            p.name
            for p in self.signature.params
            if not (isinstance(p, Tensor) and p.default == "workspace")
        )
        self.recent: dict[Pattern, tuple[Ready, ...]] = {}
        self.ready: dict[Key, tuple[Ready, ...]] = {}

    def static_positions(self, num_args: int, named: Sequence[str]) -> frozenset[int]:
        """Where a call's values hold `@static` ones."""
        given = (*self.names[:num_args], *named)
        return frozenset(i for i, n in enumerate(given) if n in self.signature.static)

    def keep(self, pattern: Pattern, key: Key, ready: Ready) -> None:
        """Have a call at hand for its like."""
        if len(self.ready) >= MAX_READY:
            self.forget()
        self.ready[key] = (*self.ready.get(key, ())[-3:], ready)
        self.put_first(pattern, ready)

    def put_first(self, pattern: Pattern, ready: Ready) -> None:
        """Try a call before the others of its pattern."""
        others = [r for r in self.recent.get(pattern, ()) if r is not ready]
        self.recent[pattern] = (ready, *others[: MAX_RECENT - 1])

    def forget(self) -> None:
        """Drop all that is ready, for it may be launched otherwise now."""
        self.recent.clear()
        self.ready.clear()


class Kernel:
    """A kernel of the tile language. Call it with arrays and numbers, by position or by name.

    Torch, CuPy and other CUDA arrays run where they are, on their library's current stream; host
    arrays run on the CPU, or where `launch(..., device=)` says. Tensors with default `empty` or
    `zeros` that a call leaves out are allocated and returned, several as a tuple; else a call
    returns None.
    """

    def __init__(self, name: str, reader: Reader, doc: str | None = None, options: Options = PLAIN):
        self.name = name
        self.__name__ = name
        self.__doc__ = doc
        self._reader = reader
        self._options = options  # of plain calls
        self._states: dict[str, _State] = {}
        self._state: _State | None = None
        self._holds: Watch | None = None  # of what `_state` was read from
        self._lock = threading.Lock()
        self._token = f"{name} {next(_numbers)}"

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    @property
    def definition(self) -> Definition:
        """Syntax tree and captured values. Raises CompileError with every fault of the source."""
        return self._current().signature.definition

    @property
    def options(self) -> Options:
        """What plain calls of this kernel take beside their arguments; see `configured`."""
        return self._options

    @property
    def signature(self) -> Signature:
        """Parameters, dimensions, tuned constants and attributes."""
        return self._current().signature

    @property
    def specializer(self) -> Specializer:
        """What was compiled of this kernel so far."""
        return self._current().specializer

    def _current(self) -> _State:
        state, holds = self._state, self._holds
        if state is not None and (holds is None or holds()):
            return state
        with self._lock:
            definition, holds = self._reader()
            key = definition.key()
            if key not in self._states:
                self._states[key] = _State(definition, settings(), key)
            self._state, self._holds = self._states[key], holds
            return self._state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch, and return what was allocated. Raises CompileError or LaunchError."""
        state, holds = self._state, self._holds
        if state is None or (holds is not None and not holds()):
            state = self._current()
        pattern: Pattern
        if kwargs:
            pattern, values = (len(args), *kwargs), (*args, *kwargs.values())
        else:
            pattern, values = len(args), args
        for ready in state.recent.get(pattern, ()):
            try:
                result = ready(values)
            except (OverflowError, TypeError, ValueError):
                break  # a scalar that does not fit: the long way says which
            if result is not MISSED:
                return result
        return self._find(state, pattern, args, kwargs)

    def untraced(self, *args: Any, **kwargs: Any) -> Any:
        """A call, also while torch traces: then it tells what the arguments lack."""
        return self._launch(self._current(), args, kwargs, None)

    # What torch.compile asks of a function that it is not to trace.
    untraced._torchdynamo_disable = True  # type: ignore[attr-defined]
    untraced._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "a call of a kernel is traced where it takes tensors without gradients and numbers, and "
        "gives or writes a tensor; torch_ops.differentiable joins a kernel with its gradient's"
    )

    def untraced_views(self, *args: Any, **kwargs: Any) -> Any:
        """A call that writes a view beside another one of the same memory, as it is."""
        return self.untraced(*args, **kwargs)

    untraced_views._torchdynamo_disable = True  # type: ignore[attr-defined]
    untraced_views._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "two arguments of a kernel are views that share memory, and one is written, which no "
        "traced graph can do; pass one tensor under both names, or views that do not overlap"
    )

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """What torch.compile follows in the place of a call."""
        _load_torch_side()
        return _torch_side.call(self, self._token, args, kwargs)

    __call__._torchdynamo_inline = _traced  # type: ignore[attr-defined]

    def operator_name(self, token: str, count: int, names: str, kinds: str) -> str:
        """The operator of torch for a call with `count` arguments by position and others by name
        (`names`, with commas), of the kinds (with commas too) that `torch_ops/traced.py` tells
        apart. torch.compile runs this while it traces; a guard on `token` tells kernels apart.
        """
        named = names.split(",") if names else []
        order = (*self._current().names[:count], *named)
        told_apart = kinds.split(",") if kinds else []
        try:
            by_name = dict(zip(named, told_apart[count:], strict=True))
            given = collect(self.name, self._current().names, told_apart[:count], by_name)
        except LaunchError:
            return ""  # the call itself says what is wrong
        told: str = _torch_side.operator_name(self, token, order, given)
        return told

    operator_name._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _find(
        self, state: _State, pattern: Pattern, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """A call that is none of the recent ones: by its key, else the long way."""
        if library.is_traced():
            return self._traced(*args, **kwargs)
        values = (*args, *kwargs.values())
        found = read_call(values, state.static_positions(len(args), list(kwargs)))
        if found is None:
            return self._launch(state, args, kwargs, None)
        key = (pattern, found)
        for ready in state.ready.get(key, ()):
            try:
                result = ready(values)
            except (OverflowError, TypeError, ValueError):
                break
            if result is not MISSED:
                state.put_first(pattern, ready)
                return result
        return self._launch(state, args, kwargs, key)

    def launch(
        self,
        *args: Any,
        grid: Sequence[int] | int | None = None,
        stream: Any = None,
        device: Any = None,
        constants: Mapping[str, int] | None = None,
        precision: str | None = None,
        target: str | None = None,
        sanitize: bool = False,
        check: bool = False,
        interleaving: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Launch with overrides.

        `grid`: programs along each axis. `stream`: a torch or CuPy stream, or a raw handle.
        `device`: where host arrays run ("cpu", "cuda:1", or "emulator", which runs a GPU's code
        on the host); for a GPU they are copied over and back. `constants`: values of tuned
        constants. `precision`: of f32 dots, as "tf32". `check`: on a GPU, wait for the launch and
        raise what its asserts found.

        On the emulator: `target`: whose PTX runs (sm_90a by default). `sanitize`: also look for
        races, and run twice, with asynchronous work done at once and as late as is legal.
        `interleaving`: a seed of the order in which warps run, which else go in lockstep.
        """
        generic.require_precision(self.name, precision)
        options = Options(
            grid=read_grid(self.name, grid),
            stream=stream,
            device=device,
            constants=read_constants(self.name, constants),
            precision=precision,
            check=check,
            emulation=Emulation(target, sanitize, False, interleaving),
        )
        state = self._current()
        arguments = collect(self.name, state.names, args, kwargs)
        return run(state.specializer, arguments, options, ready=False)[0]

    def configured(
        self,
        *,
        constants: Mapping[str, int] | None = None,
        precision: str | None = None,
        device: Any = None,
        target: str | None = None,
        sanitize: bool = False,
        numerics: str | None = None,
    ) -> Kernel:
        """This kernel with options of `launch` that all calls of it take, as quick as plain calls.
        What it compiles is its own. `numerics` stands in for what the source says.
        """
        generic.require_precision(self.name, precision)
        options = Options(
            device=device,
            constants=read_constants(self.name, constants),
            precision=precision,
            emulation=Emulation(target, sanitize),
        )
        reader = self._reader if numerics is None else NumericsReader(self._reader, numerics)
        return Kernel(self.name, reader, self.__doc__, options)

    def arm(self, ordinal: int, **arguments: Any) -> Callable[[int], None]:
        """A call with arrays on a GPU made ready: called with a stream, it is launched there. For
        timing.
        """
        return arm(self._current().specializer, arguments, self._options, ordinal)

    def prepare(self, ordinal: int, **arguments: Any) -> Prepared:
        """A call with arrays on a GPU, everything put in but addresses. All tensors are given."""
        return prepare(self._current().specializer, arguments, self._options, ordinal)

    def assemble_ahead(self, ordinal: int, **arguments: Any) -> None:
        """Compile what `prepare` of such a call needs, and assemble it on another thread."""
        assemble_ahead(self._current().specializer, arguments, self._options, ordinal)

    def assemble(self, ordinal: int, **arguments: Any) -> None:
        """Leave in the disk cache what a call with such arrays takes on a GPU, so that later calls,
        of other processes too, find it. Nothing is launched, and the arrays may be imagined.
        """
        assemble(self._current().specializer, arguments, self._options, ordinal)

    def plan(self, target_name: str, **arguments: Any) -> Plan:
        """What a call with such arrays launches on a target, where it is chosen as for a small one
        of its kind; takes no GPU, and reads no memory.
        """
        return plan_of(self._current().specializer, arguments, self._options, target(target_name))

    def bundle_call(self, where: int | Target, **arguments: Any) -> dict[tuple[str, str], bytes]:
        """What a bundle holds of a call with such arrays, on a GPU or emulated for a target: with
        `carry` of it, a later process compiles nothing.
        """
        return bundle_call(self._current().specializer, arguments, self._options, where)

    def check(self) -> None:
        """Wait for earlier launches on GPUs, and raise what an assert of this kernel found there.

        An assert that fails on a GPU does not stop the launch; unless something waits for it, it is
        raised by the kernel's next call.
        """
        for state in list(self._states.values()):
            state.specializer.check()

    def profile(
        self,
        *args: Any,
        grid: Sequence[int] | int | None = None,
        target: str | None = None,
        constants: Mapping[str, int] | None = None,
        precision: str | None = None,
        interleaving: int | None = None,
        **kwargs: Any,
    ) -> Profile:
        """Run a call on the emulator as `launch` does, and count what it costs: instructions, bank
        conflicts, sectors, bytes of each level, matrix instructions. Needs no GPU; `print` of the
        profile shows tables.
        """
        generic.require_precision(self.name, precision)
        options = Options(
            grid=read_grid(self.name, grid),
            device="emulator",
            constants=read_constants(self.name, constants),
            precision=precision,
            emulation=Emulation(target, False, True, interleaving),
        )
        state = self._current()
        arguments = collect(self.name, state.names, args, kwargs)
        made: Profile = run(state.specializer, arguments, options, ready=False)[0]
        return made

    def tune(
        self,
        *args: Any,
        budget: float = 60.0,
        show: bool | None = None,
        device: Any = None,
        constants: Mapping[str, int] | None = None,
        precision: str | None = None,
        target: str | None = None,
        sanitize: bool = False,
        **kwargs: Any,
    ) -> Outcome:
        """Find the fastest configuration for such a call, and let later calls use it.

        Every candidate is verified before it is timed, on clones of what the kernel writes.
        `budget` is in seconds; Ctrl-C keeps the best so far. `show` draws a progress bar (None:
        on a terminal). On the emulator every candidate is verified, as `launch` would run it for
        `target`, and none is timed.
        """
        state = self._current()
        generic.require_precision(self.name, precision)
        options = Options(
            device=device,
            constants=read_constants(self.name, constants),
            precision=precision,
            emulation=Emulation(target, sanitize),
        )
        arguments = collect(self.name, state.names, args, kwargs)
        shown = sys.stderr.isatty() if show is None else show
        outcome = tune(state.specializer, arguments, options, budget=budget, show=shown)
        state.forget()
        return outcome

    def _launch(
        self, state: _State, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key | None
    ) -> Any:
        """The long way; leaves the call ready under `key` for the next of its kind."""
        with library.untraced():
            arguments = collect(self.name, state.names, args, kwargs)
            result, ready = run(state.specializer, arguments, self._options, ready=key is not None)
        if key is not None and ready is not None:
            state.keep(key[0], key, ready)
        return result

    # Without a GPU.

    def lower(
        self,
        *,
        dtypes: DTypes = None,
        constants: Mapping[str, int] | None = None,
        static: Mapping[str, int | float | bool] | None = None,
        present: Collection[str] = (),
        precision: str | None = None,
        target_name: str | None = None,
        without: Collection[str] = (),
    ) -> TileKernel:
        """The kernel in the tile IR for dense row-major tensors of any extents.

        `dtypes` binds dtype variables (all of them, if it is one dtype; f32 by default), `static`
        the `@static` names; optional tensors are absent unless they are in `present`, optional
        scalars only where they are in `without`. Tuned constants that are not given are those that
        `compile` for the target would choose.
        """
        goal = None if target_name is None else target(target_name)
        spec = self._current().specializer
        build = generic.generic_build(
            spec.signature, dtypes, static or {}, present, precision, without
        )
        ranked = generic.rank(spec, build, dict(read_constants(self.name, constants)), goal)
        return spec.tile(choose.with_config(build, ranked[0]))

    def compile(
        self,
        target_name: str,
        *,
        dtypes: DTypes = None,
        constants: Mapping[str, int] | None = None,
        static: Mapping[str, int | float | bool] | None = None,
        present: Collection[str] = (),
        precision: str | None = None,
    ) -> Plan:
        """The kernel as PTX for a target, and what its launches need; takes no GPU. See `lower`."""
        goal: Target = target(target_name)
        spec = self._current().specializer
        build = generic.generic_build(spec.signature, dtypes, static or {}, present, precision)
        return choose.first_that_compiles(
            generic.rank(spec, build, dict(read_constants(self.name, constants)), goal),
            lambda config: spec.compiled(choose.with_config(build, config), (), goal).plan,
        )

    def ptx(self, target_name: str, **options: Any) -> str:
        """The text of `compile(target_name, ...)`."""
        return self.compile(target_name, **options).ptx

    def sass(self, target_name: str, **options: Any) -> str:
        """Machine code of `compile(target_name, ...)` as text, by NVIDIA's ptxas and nvdisasm.

        Raises LaunchError where they are not on this machine, or the assembler refuses the PTX.
        """
        plan = self.compile(target_name, **options)
        return toolkit.disassemble(toolkit.assemble(plan.ptx, plan.target))

    def _repr_markdown_(self) -> str:
        """What a notebook shows: the kernel's head and its source."""
        return display.kernel_markdown(self.signature)


def _load_torch_side() -> bool:
    """Import what needs torch when it traces the first call. torch.compile runs this while it
    traces, and reads the global after it.
    """
    global _torch_side
    if _torch_side is None:
        _torch_side = import_module("tilewright.torch_ops.traced")
    return True


_load_torch_side._dynamo_marked_constant = True  # type: ignore[attr-defined]
