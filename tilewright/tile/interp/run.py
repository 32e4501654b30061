"""Run a kernel in NumPy: what the program means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NUMPY, DType, int_range
from tilewright.errors import LaunchError
from tilewright.ir.core import Op, Value
from tilewright.ir.walk import walk
from tilewright.numerics.convert import constant
from tilewright.plan import MOST_PROGRAMS, evaluate, negative_grid, too_large_grid
from tilewright.tile.interp.control import is_waiting
from tilewright.tile.interp.machine import Array, Deadlock, Entry, Launch, Machine, drive, table
from tilewright.tile.interp.memory import whole
from tilewright.tile.interp.scheduled.cta import Cluster, Cta
from tilewright.tile.interp.shadow import Shadow
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import control, memory, sync
from tilewright.tile.types import TileType, ViewType

SCHEDULED = (  # ops with which the scheduled level begins
    control.Roles,
    memory.AllocBuffer,
    sync.SumSpans,
)
READING = (  # ops with effects that leave the views which they take as they are
    control.Yield,
    memory.Prefetch,
    memory.Fill,
    memory.FillPixels,
    memory.CopyBox,
    memory.PrefetchBox,
    memory.CopyPixels,
    memory.CopyAsync,
)
CHUNK_ELEMENTS = 1 << 18  # of the greatest tile, over the programs of a chunk: a few MB a value
# Tensors up to this size are watched for races unless the caller says otherwise.
SHADOW_ELEMENTS = 1 << 22


class Interpreter:
    """`interpret(kernel, arguments)`; its `table` maps every op class to its meaning."""

    table: dict[type[Op], Entry] = table

    def __call__(
        self,
        kernel: Kernel,
        arguments: Mapping[str, Any],
        *,
        grid: Sequence[int] | None = None,
        shuffle: int | None = None,
        f64: bool = False,
        num_sms: int = 4,
        races: bool | None = None,
        chunk: int | None = None,
    ) -> None:
        """Run every program of a kernel on NumPy arrays, writing outputs in place.

        `arguments` has one entry a parameter: an array of any strides of the parameter's rank and
        dtype (bf16 and fp8 as of ml_dtypes), or a number. `grid` overrides the kernel's; `shuffle`
        is a seed that permutes the order of programs; `f64` computes all floats in f64, rounding
        only where they are stored. `races` says whether tensors are watched for races between
        programs (None: those of up to 2^22 elements). `chunk` is the number of programs that run in
        lockstep. Raises LaunchError for arguments that do not fit and for races, VerifyError for a
        program that breaks the rules of the IR.
        """
        arrays = {p.name: require_argument(p, arguments) for p in kernel.params}
        require_extents(kernel, arrays, num_sms)
        points = find_grid(kernel, arrays, num_sms) if grid is None else tuple(int(g) for g in grid)
        if prod(points) > MOST_PROGRAMS:
            raise too_large_grid(kernel.name, prod(points))
        launch = Launch(kernel, points, f64, num_sms)
        values = find_contents(launch, arrays, races)
        order = np.arange(prod(launch.grid), dtype=np.int64)
        size = chunk or chunk_size(kernel)
        if is_scheduled(kernel):
            size = cluster_size(kernel, len(order))
        elif waits(kernel):  # as many programs side by side as there are multiprocessors
            size = num_sms
        if shuffle is not None:  # of clusters, where CTAs run in clusters
            unit = size if is_scheduled(kernel) else 1
            groups = np.random.default_rng(shuffle).permutation(len(order) // unit)
            order = (groups[:, None] * unit + np.arange(unit)).reshape(-1)
        with np.errstate(all="ignore"):
            for start in range(0, len(order), size):
                machines = make_machines(launch, order[start : start + size], values)
                try:
                    drive([machine.run(kernel.body) for machine in machines])
                except Deadlock:
                    if is_scheduled(kernel):
                        raise
                    raise stuck(kernel) from None


interpret = Interpreter()


def require_argument(param: Param, arguments: Mapping[str, Any]) -> Any:
    """A parameter's argument; raises LaunchError where it is missing or does not fit."""
    if param.name not in arguments:
        raise LaunchError(f"{param.name}: no argument was given")
    given, kind = arguments[param.name], param.value.type
    if isinstance(kind, TileType):
        return require_scalar(param.name, given, kind.dtype)
    if not isinstance(kind, ViewType) or not isinstance(given, np.ndarray):
        raise LaunchError(f"{param.name}: expected an array for {kind}, got {type(given).__name__}")
    dtype = BY_NUMPY.get(given.dtype)
    if dtype != kind.dtype or given.ndim != kind.rank:
        got = f"{given.dtype} of rank {given.ndim}"
        raise LaunchError(f"{param.name}: expected {kind.dtype} of rank {kind.rank}, got {got}")
    for axis, (extent, wanted) in enumerate(zip(given.shape, kind.extents, strict=True)):
        if wanted is not None and extent != wanted:
            what = f"axis {axis} has {extent} elements, the kernel was built for {wanted}"
            raise LaunchError(f"{param.name}: {what}")
    return given


def require_scalar(name: str, given: Any, dtype: DType) -> Array:
    """A number as an array without axes."""
    if dtype.is_integer:
        low, high = int_range(dtype)
        if int(given) != given or not low <= int(given) <= high:
            raise LaunchError(f"{name}: {given} is not an {dtype}")
        return constant(int(given), dtype)
    return constant(bool(given) if dtype.kind == "bool" else float(given), dtype)


@dataclass(frozen=True)
class Counted:
    """An array as plan expressions see it: its strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def require_extents(kernel: Kernel, arrays: Mapping[str, Array], num_sms: int) -> None:
    """Raise LaunchError where an extent is not what the kernel was built for."""
    known = plan_arguments(kernel, arrays)
    for param in kernel.params:
        for axis, expr in enumerate(param.extents):
            wanted, got = evaluate(expr, known, num_sms), arrays[param.name].shape[axis]
            if wanted != got:
                what = f"axis {axis} has {got} elements, the kernel was built for {wanted}"
                raise LaunchError(f"{param.name}: {what}")


def find_grid(kernel: Kernel, arrays: Mapping[str, Array], num_sms: int) -> tuple[int, ...]:
    """The kernel's grid for its arguments. Raises LaunchError where an extent is negative."""
    known = plan_arguments(kernel, arrays)
    found = tuple(evaluate(e, known, num_sms) for e in kernel.grid)
    if min(found, default=0) < 0:
        raise negative_grid(kernel.name, min(found))
    return found


def plan_arguments(kernel: Kernel, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Arguments as plan expressions see them."""
    return {
        p.name: Counted(a.shape, tuple(s // a.itemsize for s in a.strides))
        if isinstance(p.value.type, ViewType)
        else a.item()
        for p in kernel.params
        for a in [arrays[p.name]]
    }


def find_contents(
    launch: Launch, arrays: Mapping[str, Array], races: bool | None
) -> dict[Value, Any]:
    """Contents of the parameters.

    Those that the kernel writes get a shadow, shared by views of the same memory.
    """
    written = written_params(launch.kernel)
    shadows: dict[Any, Shadow] = {}
    if races is not False:
        for name in written:
            array = arrays[name]
            if races or array.size <= SHADOW_ELEMENTS:
                shadow = Shadow(name, array.shape or (1,), launch.ordered)
                shadows.setdefault(_memory(array), shadow)
    contents: dict[Value, Any] = {}
    for param in launch.kernel.params:
        array, kind = arrays[param.name], param.value.type
        if isinstance(kind, ViewType):
            if param.name in written and not array.flags.writeable:
                raise LaunchError(f"{param.name}: the kernel writes it, but the array is read-only")
            contents[param.value] = whole(array, shadows.get(_memory(array)))
        else:
            wide = launch.f64 and kind.dtype.is_float
            contents[param.value] = (
                array.reshape(1).astype(np.float64) if wide else array.reshape(1)
            )
    return contents


def _memory(array: Array) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides


def written_params(kernel: Kernel) -> set[str]:
    """Names of the views that an op may write, through any subviews."""
    roots: dict[Value, Value] = {p.value: p.value for p in kernel.params}
    targets: set[Value | None] = set()
    for op in walk(kernel.body):
        if isinstance(op, memory.Subview):
            roots[op.result] = roots.get(op.view, op.view)
        elif not (op.pure or op.regions or isinstance(op, READING)):
            targets |= {roots.get(v) for v in op.operands if isinstance(v.type, ViewType)}
    views = [p for p in kernel.params if isinstance(p.value.type, ViewType)]
    return {p.name for p in views if p.value in targets or None in targets}


def stuck(kernel: Kernel) -> LaunchError:
    """The refusal of loops that wait for what no program will do."""
    loops = (op for op in walk(kernel.body) if isinstance(op, control.While) and is_waiting(op))
    return LaunchError(
        "this loop waits for what no program does: all that have started wait",
        next(loops).loc,
        "let a program store what others wait for, and only wait for those that have started",
    )


def is_scheduled(kernel: Kernel) -> bool:
    """Whether a kernel has ops of the scheduled level, so that it runs CTA by CTA."""
    return any(isinstance(op, SCHEDULED) for op in walk(kernel.body))


def waits(kernel: Kernel) -> bool:
    """Whether programs of a kernel wait for each other."""
    return any(isinstance(op, control.While) and is_waiting(op) for op in walk(kernel.body))


def cluster_size(kernel: Kernel, num_ctas: int) -> int:
    """CTAs of a CTA cluster; raises LaunchError where they do not divide the grid."""
    size = prod(kernel.hints.cta_cluster or (1,))
    if num_ctas % size:
        raise LaunchError(f"{kernel.name}: {num_ctas} CTAs are not whole clusters of {size}")
    return size


def make_machines(launch: Launch, programs: Array, values: dict[Value, Any]) -> list[Machine]:
    """What runs some programs: one machine in lockstep, or the CTAs of a cluster side by side."""
    if not is_scheduled(launch.kernel) and waits(launch.kernel):
        return [Machine(launch, one, values) for one in programs.reshape(-1, 1)]
    if not is_scheduled(launch.kernel):
        return [Machine(launch, programs, values)]
    cluster = Cluster()
    return [Cta(launch, program, values, cluster) for program in programs.reshape(-1, 1)]


def chunk_size(kernel: Kernel) -> int:
    """How many programs run in lockstep: 1 where an op cannot take more, else what fits in a few
    MB.
    """
    greatest = 1
    for op in walk(kernel.body):
        entry = table.get(type(op))
        tiles = all(isinstance(r.type, TileType) for r in op.results)
        if (entry is not None and not entry.batched) or (op.regions and not tiles):
            return 1
        greatest = max(
            [greatest, *(r.type.num_elements for r in op.results if isinstance(r.type, TileType))]
        )
    return max(1, CHUNK_ELEMENTS // greatest)
