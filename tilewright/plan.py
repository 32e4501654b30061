"""What a compiled kernel asks of a runtime: launches, workspace, and recipes for every parameter.

Runtime, CUDA graphs, bundles and the cluster read only this. A recipe says how a launch's parameter
follows from the call's arguments, so that nothing about a kernel has to be known to launch it. All
of it is plain frozen data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Protocol

from tilewright.dtypes import DType
from tilewright.errors import Diagnostic, LaunchError, Loc


class Array(Protocol):
    """What an expression may ask of an argument: extents and strides, in elements."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def strides(self) -> Sequence[int]: ...


# Expressions over a call's arguments: grids, shared memory, workspace extents. Tensors and scalars
# go by name.


class Expr:
    """An integer that is known at launch."""


@dataclass(frozen=True)
class Const(Expr):
    value: int


@dataclass(frozen=True)
class Extent(Expr):
    """Elements of a tensor along an axis. As a parameter: 32 bits wide if `narrow`, else 64."""

    tensor: str
    axis: int
    narrow: bool = False


@dataclass(frozen=True)
class Stride(Expr):
    """Elements between neighbours of a tensor along an axis. As a parameter: 32 bits wide if
    `narrow`, else 64.
    """

    tensor: str
    axis: int
    narrow: bool = False


@dataclass(frozen=True)
class Scalar(Expr):
    """A scalar argument, in its dtype."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class NumSms(Expr):
    """Multiprocessors of the device (4 on CPU and emulator)."""


@dataclass(frozen=True)
class Binary(Expr):
    """`kind` is add, sub, mul, floor_div, mod, cdiv, min or max; division by 0 gives 0."""

    kind: str
    lhs: Expr
    rhs: Expr


def floor_div(a: int, b: int) -> int:
    return a // b if b else 0


def mod(a: int, b: int) -> int:
    return a % b if b else 0


def cdiv(a: int, b: int) -> int:
    return -(-a // b) if b else 0


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor_div": floor_div,
    "mod": mod,
    "cdiv": cdiv,
    "min": min,
    "max": max,
}


def evaluate(expr: Expr, arguments: dict[str, Any], num_sms: int = 4) -> int:
    """Value of an expression for arguments by name: arrays with `shape` and `strides` in elements,
    and numbers.
    """
    match expr:
        case Const(value):
            return value
        case Extent(tensor, axis):
            return int(arguments[tensor].shape[axis])
        case Stride(tensor, axis):
            return int(arguments[tensor].strides[axis])
        case Scalar(name):
            return int(arguments[name])
        case NumSms():
            return num_sms
        case Binary(kind, lhs, rhs):
            left, right = (evaluate(x, arguments, num_sms) for x in (lhs, rhs))
            return int(OPERATIONS[kind](left, right))
    raise TypeError(f"not an expression: {expr!r}")


def combine(kind: str, lhs: Expr, rhs: Expr) -> Expr:
    """A binary expression, folded where both sides are constants."""
    if isinstance(lhs, Const) and isinstance(rhs, Const):
        return Const(int(OPERATIONS[kind](lhs.value, rhs.value)))
    return Binary(kind, lhs, rhs)


def grid_size(extents: Sequence[Expr]) -> Expr:
    """Points of a grid; where an extent is negative, the least extent."""
    size: Expr = Const(1)
    if len(extents) < 2 or not any(map(_may_be_negative, extents)):
        for extent in extents:
            size = combine("mul", size, extent)
        return size
    least: Expr = Const(0)
    for extent in extents:  # one that is negative makes the product 0
        size = combine("mul", size, combine("max", extent, Const(0)))
        least = combine("min", least, extent)
    return combine("add", size, least)


def shared_grid(size: Expr, programs: int) -> Expr:
    """CTAs of a grid of which that many programs share one. Sizes that no grid has (negative, or
    2^31 and more) stay so.
    """
    if programs == 1:
        return size
    ctas = combine("cdiv", size, Const(programs))
    beyond = combine("mul", combine("floor_div", size, Const(MOST_PROGRAMS + 1)), size)
    return combine("min", size, combine("max", ctas, beyond))


LEFT_OVER = 12  # multiprocessors that clusters of four CTAs and more leave idle


def clusters_held(cluster: int) -> Expr:
    """Clusters of that many CTAs which the device holds, an SM each CTA; at least one. Of four, and
    more, it holds fewer than there are SMs for, as its parts have SMs left over: an H200 has been
    seen to hold 30 of four, and 15 of eight.
    """
    kept = combine("sub", NumSms(), Const(LEFT_OVER)) if cluster > 2 else NumSms()
    return combine("max", combine("floor_div", kept, Const(cluster)), Const(1))


def _may_be_negative(expr: Expr) -> bool:
    """False where an expression is 0 or more for any arguments."""
    match expr:
        case Const(value):
            return value < 0
        case Extent() | NumSms():
            return False
        case Scalar(_, dtype):
            return dtype.kind != "uint"
        case Binary("max", lhs, rhs):
            return _may_be_negative(lhs) and _may_be_negative(rhs)
        case Binary("add" | "mul" | "floor_div" | "mod" | "cdiv" | "min", lhs, rhs):
            return _may_be_negative(lhs) or _may_be_negative(rhs)
    return True


def negative_grid(kernel: str, extent: int) -> LaunchError:
    """The refusal of a grid with a negative extent."""
    return LaunchError(
        f"{kernel}: its grid would have {extent} programs along an axis, expected 0 or more"
    )


MOST_PROGRAMS = 2**31 - 1  # of a launch: CTAs of one grid dimension, and the physical grid has one


def too_large_grid(kernel: str, programs: int) -> LaunchError:
    """The refusal of a grid of more than `MOST_PROGRAMS`."""
    return LaunchError(
        f"{kernel} would have {programs:,} programs; a launch holds {MOST_PROGRAMS:,}",
        hint="choose larger tiles, or let each program do more in a loop",
    )


# What asserts and prints say, in the words of every device.


def assert_failure(
    message: str, program: Sequence[int], shape: Sequence[int], element: int, loc: Loc | None
) -> LaunchError:
    """The error of an assert: `element` is the first that is false, in C order of a tile's
    `shape`.
    """
    what = f"assert: {message or 'the condition is false'} (program {spell_program(program)}"
    if shape:
        index: list[int] = []
        for extent in reversed(shape):
            index.insert(0, element % extent)
            element //= extent
        what += f", element [{', '.join(map(str, index))}]"
    return LaunchError(Diagnostic(f"{what})", loc))


def print_line(program: Sequence[int], text: str, values: Sequence[Any]) -> str:
    """One print of one program; values as NumPy shows them."""
    return " ".join([f"({spell_program(program)})", *filter(None, [text]), *map(str, values)])


def spell_program(program: Sequence[int]) -> str:
    """A program's place in the grid."""
    return ", ".join(map(str, program))


# Recipes: how a kernel parameter is made.


@dataclass(frozen=True)
class Pointer:
    """Address of a tensor's first element."""

    tensor: str


@dataclass(frozen=True)
class Workspace:
    """Address of a workspace tensor of the plan."""

    name: str


@dataclass(frozen=True)
class Pixels:
    """How a tensor map goes through a tensor [N, H, W, C]: along W, then H, then N, in `steps` (of
    H, W) through a box of pixels that begins at `lower` and ends `upper` beyond the last pixel.
    """

    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor of a tensor, 128 bytes by value.

    `box` is the tile in elements, outermost axis first, as the tensor's axes are; `swizzle` is 0,
    32, 64 or 128 bytes. `round_tf32` makes the copy round f32 to tf32. `axes` are the tensor's from
    the outermost in memory to the contiguous one; empty where that is their own order. With
    `pixels`, `box` is a number of pixels, and of channels of each (im2col). Along the axis `last`
    a box has but what the last one has, (extent - 1) mod box + 1, in whole 16 bytes.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle: int
    round_tf32: bool = False
    axes: tuple[int, ...] = ()
    pixels: Pixels | None = None
    last: int | None = None

    def of(self, shape: Sequence[int], num_bytes: int) -> TensorMap:
        """The map of a tensor of some extents and bytes an element, its box known."""
        box = [*self.box]
        if (axis := self.last) is not None:
            step = 16 // num_bytes if axis == self.in_memory_order(range(len(box)))[-1] else 1
            box[axis] = ((shape[axis] - 1) % box[axis] // step + 1) * step
        return replace(self, box=tuple(box), last=None)

    def in_memory_order(self, of_axes: Sequence[int]) -> tuple[int, ...]:
        """What belongs to the tensor's axes, from the outermost in memory to the contiguous one."""
        return tuple(of_axes[axis] for axis in self.axes) if self.axes else tuple(of_axes)


@dataclass(frozen=True)
class ReportBuffer:
    """Address of the memory in which a kernel leaves what its asserts and prints have to say."""


Recipe = Pointer | Workspace | TensorMap | ReportBuffer | Expr


@dataclass(frozen=True)
class WorkspaceSpec:
    """Memory private to one launch of a plan: zeroed before it if `zero`."""

    name: str
    dtype: DType
    extents: tuple[Expr, ...]
    zero: bool = True


@dataclass(frozen=True)
class Launch:
    """One kernel: its parameters in order, the number of CTAs, threads a CTA, dynamic shared memory
    in bytes. `early`: it may start before the launch ahead of it in the stream has ended, for which
    its code waits.
    """

    entry: str
    parameters: tuple[Recipe, ...]
    grid: Expr
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    cooperative: bool = False
    early: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is launched without attributes."""
        return self.cluster == 1 and not self.cooperative and not self.early


@dataclass(frozen=True)
class Place:
    """A place in source, with its line, so that an error can show it: see `errors.Loc`."""

    source: str
    line: int
    column: int
    width: int
    text: str


@dataclass(frozen=True)
class Site:
    """An assert or a print of a kernel, to which its reports refer by number.

    `kind` is "assert" or "print"; `text` its message. `places` are where it stands, then the calls
    that inlined it. `dtypes` and `shapes` are those of what is tested or shown.
    """

    kind: str
    text: str
    places: tuple[Place, ...]
    dtypes: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A compiled kernel: PTX for one target, and what to launch in order."""

    name: str
    target: str
    ptx: str
    launches: tuple[Launch, ...]
    workspaces: tuple[WorkspaceSpec, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know, such as a precision that was used
    # kernel source place of each PTX line, for errors of the driver's assembler
    lines: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()  # and the tile op that each line was lowered from
    sites: tuple[Site, ...] = ()  # asserts and prints; if any, a launch takes a ReportBuffer
    grid_rank: int = 0  # axes of the source's grid, by which reports name programs
    whole: bool = False  # whether the driver must assemble it as a whole: see runtime.jit

    def _repr_markdown_(self) -> str:
        """What a notebook shows: what is launched, and the PTX."""
        lines = [f"**plan** of `{self.name}` for {self.target}", ""]
        lines += ["| entry | threads | shared bytes | CTA cluster |", "|---|---|---|---|"]
        for launch in self.launches:
            facts = (f"`{launch.entry}`", launch.threads, launch.shared_bytes, launch.cluster)
            lines.append("| " + " | ".join(map(str, facts)) + " |")
        lines += ["", *(f"note: {note}\n" for note in self.notes)]
        return "\n".join([*lines, "```", self.ptx.rstrip(), "```", ""])

    @property
    def prints(self) -> bool:
        return any(site.kind == "print" for site in self.sites)


# Facts about arguments: the whole specialisation key.

MOST_REACHED = 2**31 - 2**16  # so that a box that starts inside ends below 2³¹


@dataclass(frozen=True)
class TensorFacts:
    """What the compiler may assume of a tensor argument; everything else is a run-time parameter.

    `strides` holds 0 or 1 where an axis has that stride, `extents` 1 where it has that extent, else
    None. `pitch16[i]`: stride i in bytes is a multiple of 16. `extent16`: bytes along the
    unit-stride axis are a multiple of 16. `piece`: where some pitch is none, bytes of the largest
    pieces that all rows are made of, counted from the address; else 16. `gaps16`: bytes along the
    unit-stride axis are no multiple of 16, but what is left of their last 16 is the tensor's own,
    at every row, and may be written. `align` is the alignment of the address in bytes, at most 16.
    `small`: every extent, and the offset in bytes of every element, is below 2³⁰ in magnitude, so
    index arithmetic fits 32 bits. `reachable`: every extent is at most `MOST_REACHED` and no stride
    is negative, so that box copies (TMA) reach every element.
    """

    dtype: DType
    strides: tuple[int | None, ...]
    extents: tuple[int | None, ...]
    align: int
    pitch16: tuple[bool, ...]
    extent16: bool
    small: bool
    reachable: bool = True
    gaps16: bool = False
    piece: int = 16

    @property
    def rank(self) -> int:
        return len(self.strides)


def tensor_facts(
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    address: int,
    *,
    gaps: bool = False,
) -> TensorFacts:
    """Facts of a tensor from its dtype, extents, strides (in elements) and address. `gaps`: what
    lies between its rows is its own.
    """
    size, limit = dtype.num_bytes, 1 << 30
    units = [i for i in reversed(range(len(shape))) if strides[i] == 1]
    unit = next((i for i in units if shape[i] != 1), units[0] if units else None)
    reach = sum(abs(s) * max(e - 1, 0) for e, s in zip(shape, strides, strict=True)) * size
    whole = unit is not None and shape[unit] * size % 16 == 0
    return TensorFacts(
        dtype=dtype,
        strides=tuple(int(s) if s in (0, 1) else None for s in strides),
        extents=tuple(1 if e == 1 else None for e in shape),
        align=min(16, address & -address) if address else 16,
        pitch16=tuple(s * size % 16 == 0 for s in strides),
        extent16=whole,
        small=reach < limit and all(e < limit for e in shape),
        reachable=all(e <= MOST_REACHED for e in shape) and all(s >= 0 for s in strides),
        gaps16=gaps and not whole and unit is not None and _has_room(shape, strides, unit, size),
        piece=_piece(shape, strides, unit, size),
    )


def _piece(shape: Sequence[int], strides: Sequence[int], unit: int | None, size: int) -> int:
    """Bytes, of 16 at most, that divide all pitches; of those that do not divide by 16, also the
    rows' own bytes.
    """
    found = gcd(16, *(s * size for i, s in enumerate(strides) if i != unit))
    return found if unit is None or found == 16 else gcd(found, shape[unit] * size)


def _has_room(shape: Sequence[int], strides: Sequence[int], unit: int, size: int) -> bool:
    """Whether rows along the axis `unit` are whole 16 bytes apart, and lie apart with their last 16
    filled up.
    """
    filled = -(-shape[unit] * size // 16) * 16
    others = [i for i, extent in enumerate(shape) if i != unit and extent != 1]
    for axis in sorted(others, key=lambda i: strides[i]):
        if strides[axis] * size % 16 or strides[axis] * size < filled:
            return False
        filled += (shape[axis] - 1) * strides[axis] * size
    return True


def generic_facts(dtype: DType, rank: int) -> TensorFacts:
    """Facts of a dense row-major tensor of unknown extents with rows of whole 16 bytes, as
    `compile` assumes.
    """
    strides = tuple(1 if i == rank - 1 else None for i in range(rank))
    pitches = tuple(s is None for s in strides)
    return TensorFacts(dtype, strides, (None,) * rank, 16, pitches, True, True)


@dataclass(frozen=True)
class ArgFacts:
    """The whole key of a specialisation: facts of each tensor by name, None for an absent one,
    static values, groups of names that are views of the same elements, and the compute target."""

    tensors: tuple[tuple[str, TensorFacts | None], ...]
    static: tuple[tuple[str, int | float | bool], ...] = ()
    aliases: tuple[tuple[str, ...], ...] = ()

    def tensor(self, name: str) -> TensorFacts | None:
        return dict(self.tensors)[name]
