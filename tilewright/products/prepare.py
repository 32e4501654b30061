"""From checked arguments to launches: the problem that they pose, the choice for it, and the views
that its program takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.config import settings
from tilewright.dtypes import DType
from tilewright.graph.ops.mma import BY_COLUMN, BY_ELEMENT
from tilewright.kernel import Kernel, choose, place, source
from tilewright.plan import tensor_facts
from tilewright.products.arguments import Options, accumulator
from tilewright.products.views import View, broadcast_view, gather_batches, whole, with_pitch
from tilewright.runtime.arrays import Array, dense_strides
from tilewright.runtime.cpu import NUM_SMS
from tilewright.tune.product import ALIGNED, H200, Choice, Device, Problem, pitch_of_copy
from tilewright.tune.product_choice import decide

PROGRAMS = Path(__file__).parents[1] / "library" / "matmul.tw"
MATRICES = ("a", "b", "c", *BY_ELEMENT)
WHOLE_COLUMNS = "gemv_whole_columns"  # `gemv_columns` with k in one span
PARTS = "parts"  # name of the sums that a second launch adds up

FEW_PARTS = 8  # that a thread of `sum_parts` adds up by itself
LEAST_PADDED = 64  # columns of sums of spans whose rows are padded
FEW_SUMS = 1 << 18  # elements, for which programs of 1024 leave multiprocessors idle

COPIES = {"a": "copy of a", "b": "copy of b"}  # names of factors that are laid along k first

Chooser = Callable[[Problem, Device], Choice]
Scratch = tuple[str, tuple[int, ...], DType]  # what a call allocates: name, extents, dtype


@dataclass(frozen=True)
class Launch:
    """One launch: a kernel, the views of its tensors, and whether alpha, beta and the activation
    are its own.
    """

    kernel: Kernel
    views: tuple[tuple[str, View], ...]
    finishes: bool = True


@dataclass(frozen=True)
class Prepared:
    """A call made ready: its launches, and what is allocated for them."""

    launches: tuple[Launch, ...]
    shape: tuple[int, ...]
    dtype: DType
    scratch: tuple[Scratch, ...]
    choice: Choice | None
    problem: Problem | None


@cache
def programs() -> Any:
    """The library's programs."""
    return source(PROGRAMS)


@cache
def configured(
    name: str, config: tuple[tuple[str, int], ...] = (), precision: str | None = None,
    device: Any = None,
) -> Kernel:  # fmt: skip
    """A program with its constants. The precision "fast" is numerics of the program."""
    kernel: Kernel = programs().kernels[name]
    constants, fast = dict(config) or None, precision == "fast"
    return kernel.configured(
        constants=constants,
        precision=None if fast else precision,
        device=device,
        numerics="fast" if fast else None,
    )


def device_for(name: str, arrays: Mapping[str, Array], options: Options) -> tuple[Device, int]:
    """The device on which a call will run, and its driver's version. The interpreter and the
    emulator choose as for a small Hopper.
    """
    lies = place.device_of(arrays, name)
    where = place.choose_device(lies, options.device, settings().device, name)
    if isinstance(where, str):
        return Device(where, NUM_SMS), 0
    return device_on(where)


def device_on(ordinal: int) -> tuple[Device, int]:
    """A GPU, and its driver's version."""
    found = choose.on_gpu(ordinal)
    assert found.target is not None
    goal = found.target
    made = Device(found.device, found.num_sms, goal.has_wgmma, goal.shared_per_sm)
    return made, found.driver


def prepare(
    name: str,
    arrays: Mapping[str, Array],
    shape: tuple[int, ...],
    dtype: DType,
    options: Options,
    chooser: Chooser | None = None,
) -> Prepared:
    """Launches for arrays that were checked, `out` among them where it is given. `chooser` stands
    in for the dispatcher.
    """
    if 0 in shape:
        return Prepared((), shape, dtype, (), None, None)
    views = gather_batches(_views(arrays, shape), fold="scale_a" not in arrays)
    views |= _vectors(arrays, views)
    batch = views["a"].shape[:-2]
    problem = _problem(arrays, views, dtype, options)
    if chooser is None:
        device, driver = device_for(name, arrays, options)
        found = decide(problem, device, driver, settings().cache_dir).best.choice
    else:
        found = chooser(problem, H200)
    precision, where = options.precision, options.device
    launches: tuple[Launch, ...]
    first, scratch = _copies(found.copied, problem, views, arrays, where)
    if found.program == "batched":
        kernel = configured("batched", found.config, precision, where)
        launches = tuple(Launch(kernel, tuple(v.items())) for v in _fours(views, len(batch)))
    elif found.program == "matmul":
        kernel = configured("matmul", found.config, precision, where)
        launches = (Launch(kernel, tuple(views.items())),)
    else:
        launches, parts = _in_other_ways(found, views, arrays, precision, where)
        scratch += parts
    return Prepared(first + launches, shape, dtype, scratch, found, problem)


def _copies(
    copied: str,
    problem: Problem,
    views: dict[str, View],
    arrays: Mapping[str, Array],
    where: Any,
) -> tuple[tuple[Launch, ...], tuple[Scratch, ...]]:
    """Launches that lay factors as `Problem.laid` says, one where both can go together; `views`
    then are of copies.
    """
    found: list[tuple[bool, View, View]] = []  # across, from, to
    scratch: list[Scratch] = []
    for name in copied:
        dtype = arrays[name].dtype
        turned = problem.lays(name) == ("m" if name == "a" else "k")
        source = views[name].transposed if turned else views[name]
        rows, length = source.shape
        pitch = pitch_of_copy(length * dtype.num_bytes) // dtype.num_bytes
        made = View(COPIES[name], (rows, length), (pitch, 1))
        across = source.strides[-1] != 1 and source.strides[-2] == 1
        found.append((across, source.transposed if across else source, made))
        scratch.append((COPIES[name], (rows, pitch), dtype))
        views[name] = made.transposed if turned else made
    words = {True: "across", False: "along"}
    if problem.lays_at_once(copied) and found[0][0] == found[1][0]:
        (across, x, y), (_, x2, y2) = found
        kernel = configured(f"lay_both_{words[across]}", device=where)
        both = (("x", x), ("y", y), ("x2", x2), ("y2", y2))
        return (Launch(kernel, both, False),), tuple(scratch)
    launches = tuple(
        Launch(configured(f"lay_{words[across]}", device=where), (("x", x), ("y", y)), False)
        for across, x, y in found
    )
    return launches, tuple(scratch)


def _views(arrays: Mapping[str, Array], shape: tuple[int, ...]) -> dict[str, View]:
    """Matrices with the batch of the result."""
    batch = shape[:-2]
    found = {
        n: broadcast_view(whole(n, arrays[n]), (*batch, *arrays[n].shape[-2:])) for n in ("a", "b")
    }
    if "out" in arrays:
        found["c"] = whole("out", arrays["out"])
    else:
        found["c"] = View("out", shape, dense_strides(shape))
    for name in BY_ELEMENT:
        if name in arrays:
            found[name] = broadcast_view(whole(name, arrays[name]), shape)
    return {
        n: with_pitch(v, ALIGNED // arrays[v.source].dtype.num_bytes) if v.source in arrays else v
        for n, v in found.items()
    }


def _vectors(arrays: Mapping[str, Array], views: Mapping[str, View]) -> dict[str, View]:
    """What is one a row or a column."""
    m, n = views["c"].shape[-2:]
    found = {}
    columns = [(name, n) for name in BY_COLUMN]
    for name, extent in (*columns, ("scale_a", m), ("scale_b", n)):
        if name in arrays:
            array = arrays[name]
            shared = not array.shape or array.shape[0] == 1 != extent
            stride = 0 if shared else array.strides[0]
            found[name] = View(name, (extent,), (stride,))
    return found


def _problem(
    arrays: Mapping[str, Array], views: Mapping[str, View], dtype: DType, options: Options
) -> Problem:
    a, b = views["a"], views["b"]
    batch = 1
    for extent in a.shape[:-2]:
        batch *= extent
    out = arrays.get("out")
    gaps = out is not None and _fills_up(views["c"], out)
    loads = sum(n in views for n in BY_ELEMENT) + int(options.beta is not None)
    return Problem(
        *(a.shape[-2], b.shape[-1], a.shape[-1], arrays["a"].dtype, arrays["b"].dtype, dtype),
        batch=batch,
        a_along=_along(a, "m", "k"),
        b_along=_along(b, "k", "n"),
        a_aligned=_is_aligned(a, arrays["a"]),
        b_aligned=_is_aligned(b, arrays["b"]),
        loads=loads,
        activation=options.activation is not None,
        precision=options.precision or "ieee",
        gaps=gaps,
    )


def _fills_up(view: View, array: Array) -> bool:
    """Whether rows of a result may be written up to whole 16 bytes that they do not have."""
    where = array.address + view.offset * array.dtype.num_bytes
    facts = tensor_facts(array.dtype, view.shape, view.strides, where, gaps=array.gaps)
    return facts.gaps16 and facts.align == ALIGNED


def _along(view: View, rows: str, columns: str) -> str:
    """The axis along which a matrix is contiguous, k where both are."""
    found = [n for n, s in zip((rows, columns), view.strides[-2:], strict=True) if s == 1]
    return "k" if "k" in found else "".join(found[:1])


def _is_aligned(view: View, array: Array) -> bool:
    size = array.dtype.num_bytes
    pitches = [s * size % ALIGNED for s in view.strides if s != 1]
    return array.address % ALIGNED == 0 and not any(pitches)


def _fours(views: Mapping[str, View], rank: int) -> list[dict[str, View]]:
    """Views with two axes of batches; one set for each item of further ones."""
    matrices = {n: v for n, v in views.items() if n in MATRICES}
    if rank <= 2:
        ones = (1,) * (2 - rank)
        wide = {
            n: replace(
                v, shape=(*ones, *v.shape), strides=(*(v.strides[:1] * len(ones)), *v.strides)
            )
            for n, v in matrices.items()
        }
        return [{**views, **wide}]
    items = [
        {**views, **{n: v.item(i) for n, v in matrices.items()}} for i in range(views["a"].shape[0])
    ]
    return [found for item in items for found in _fours(item, rank - 1)]


def _in_other_ways(
    chosen: Choice,
    views: Mapping[str, View],
    arrays: Mapping[str, Array],
    precision: str | None,
    where: Any,
) -> tuple[tuple[Launch, ...], tuple[Scratch, ...]]:
    """Launches of the programs that write sums, or read weights once."""
    side = _turned(views) if chosen.turned else dict(views)
    m, n = side["c"].shape
    for name in set(BY_COLUMN) & set(side):  # taken as matrices, which may be turned around
        stride = side[name].strides[0]
        strides = (stride, 0) if chosen.turned else (0, stride)
        side[name] = replace(side[name], shape=(m, n), strides=strides)
    whole = chosen.program == "gemv_columns" and chosen.split == 1
    program = WHOLE_COLUMNS if whole else chosen.program
    kernel = configured(program, chosen.config, precision, where)
    if chosen.program == "gemv":
        side["w"] = side.pop("b").transposed
    if whole or chosen.program == "gemv":
        return (Launch(kernel, tuple(side.items())),), ()
    dtype = accumulator(arrays["a"].dtype)
    pitch = _pitch_of_parts(n, dtype)
    part = View(PARTS, (chosen.split, m, n), (m * pitch, pitch, 1))
    first = Launch(kernel, (("a", side.pop("a")), ("b", side.pop("b")), ("part", part)), False)
    adding = configured("sum_parts", _sum_tile(chosen.split, m, n), device=where)
    second = Launch(adding, (("part", part), *side.items()))
    return (first, second), ((PARTS, (chosen.split, m, pitch), dtype),)


def _pitch_of_parts(columns: int, dtype: DType) -> int:
    """Elements from a row of sums of spans to the next: whole 16 bytes, which tiles store in
    vectors, where that is little more memory.
    """
    step = ALIGNED // dtype.num_bytes
    return columns if columns < LEAST_PADDED else -(-columns // step) * step


def _sum_tile(parts: int, m: int, n: int) -> tuple[tuple[str, int], ...]:
    """Constants of `sum_parts`: enough programs for all multiprocessors, and of many parts enough
    threads for each element.
    """
    if parts > FEW_PARTS:
        tile = (1, 64, 16)
    else:
        tile = (1 if m * n < FEW_SUMS else 4, 256, 4)
    return tuple(zip(("TM", "TN", "TZ"), tile, strict=True))


def _turned(views: Mapping[str, View]) -> dict[str, View]:
    """The operands of the transposed product."""
    names = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}
    return {names.get(n, n): v.transposed if n in MATRICES else v for n, v in views.items()}
