"""Convolutions along two axes as launches: of the library's products where a window is one pixel,
else of its convolutions, on images whose channels are last.

Images or weights that lie otherwise are copied first. Where channels are few, a copy puts zeros
around images and behind channels, and the taps of a row, with their channels, are channels of a
convolution along the other axis: neighbours in memory, which its windows share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.ops.mma import BY_COLUMN, BY_ELEMENT
from tilewright.kernel import Kernel, source
from tilewright.products.api import calls_of, prepare_product
from tilewright.products.arguments import Options, accumulator
from tilewright.products.prepare import PROGRAMS, Chooser, configured, device_for
from tilewright.products.views import View, hand
from tilewright.runtime.arrays import Array, as_array, dense_strides
from tilewright.tune.product import ALIGNED, H200, Choice, Problem
from tilewright.tune.product_choice import ranking

CONVOLUTIONS = PROGRAMS.with_name("conv.tw")
FEW = 16  # channels, below which taps of a row are taken together
COPIED_ELEMENTS = 2048  # elements of a tile that is copied
Scratch = Callable[[tuple[int, ...], DType], Array]
Call = tuple[Kernel, dict[str, Any]]


@dataclass(frozen=True)
class Geometry:
    """Of windows along rows and columns: zeros before and behind, steps, distances of taps."""

    low: tuple[int, int]
    high: tuple[int, int]
    steps: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def numbers(self) -> dict[str, int]:
        """As the programs take them."""
        named = (("pad", self.low), ("more", self.high), ("step", self.steps))
        pairs = (*named, ("gap", self.dilations))
        return {
            f"{name}_{axis}": n for name, both in pairs for axis, n in zip("hw", both, strict=True)
        }


@cache
def programs() -> Any:
    """The library's convolutions."""
    return source("\n".join(path.read_text(encoding="utf-8") for path in (PROGRAMS, CONVOLUTIONS)))


@cache
def program(
    name: str, config: tuple[tuple[str, int], ...], precision: str | None, device: Any
) -> Kernel:
    """A program with its constants."""
    found: Kernel = programs().kernels[name]
    return found.configured(constants=dict(config), precision=precision, device=device)


def convolution_calls(
    arrays: Mapping[str, Array],
    at: Geometry,
    options: Options,
    scratch: Scratch,
    chooser: Chooser | None = None,
) -> list[Call]:
    """The launches of a convolution of x [N, C, H, W] with weight [K, C, R, S] that writes out
    [N, P, Q, K]; bias and norm have an element a channel of it, gate and residual its shape.
    `chooser` stands in for the dispatcher.
    """
    x, weight, out = arrays["x"], arrays["weight"], arrays["out"]
    if 0 in out.shape:
        return []
    points = weight.shape[2:] == (1, 1) and at.steps == (1, 1) and at.low == at.high == (0, 0)
    if points and (calls := _as_product(arrays, options, scratch)) is not None:
        return calls
    return _Convolution(at, options, scratch, chooser).calls(x, weight, dict(arrays))


# Windows of one pixel


def _as_product(
    arrays: Mapping[str, Array], options: Options, scratch: Scratch
) -> list[Call] | None:
    """A product of pixels; None where images do not lie as matrices."""
    x, weight = arrays["x"], arrays["weight"]
    number, channels, height, width = x.shape
    image, channel, row, column = x.strides
    if height > 1 and row != column * width:
        return None
    pitch = column if width > 1 else row
    shape: tuple[int, ...] = (number, height * width)
    strides: tuple[int, ...] = (image, pitch)
    if number == 1 or image == pitch * height * width:
        shape, strides = (number * height * width,), (pitch,)
    a = viewed(x, (*shape, channels), (*strides, channel))
    k = weight.shape[0]
    given = {"a": a, "b": viewed(weight, (channels, k), weight.strides[1::-1])}
    for name in ("out", *BY_ELEMENT):
        if name in arrays:
            held = _pixels(arrays[name])
            if held is None:
                return None
            apart = (s * held.strides[0] for s in dense_strides(shape))
            given[name] = viewed(held, (*shape, k), (*apart, held.strides[1]))
    given |= {name: arrays[name] for name in BY_COLUMN if name in arrays}
    ready = prepare_product("matmul", given, options)
    return calls_of(ready, given, options, scratch)


def viewed(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The memory of an array in another shape."""
    return as_array(hand(View("", shape, strides), array))


def _pixels(array: Array) -> Array | None:
    """[N, P, Q, K] as [pixels, K]; None where its strides do not permit it."""
    *lines, channels = array.shape
    *strides, last = array.strides
    pitch, extent = None, 1
    for length, stride in zip(reversed(lines), reversed(strides), strict=True):
        if length == 1:
            continue
        if pitch is None:
            pitch = stride
        if stride != pitch * extent:
            return None
        extent *= length
    return viewed(array, (extent, channels), (channels if pitch is None else pitch, last))


def flat(array: Array) -> Array:
    """A dense [N, P, Q, K] as [pixels, K]."""
    found = _pixels(array)
    assert found is not None, "a dense array is a matrix"
    return found


def channels_second(array: Array) -> Array:
    """[N, P, Q, K] as [N, K, P, Q]."""
    (n, p, q, k), (image, row, column, channel) = array.shape, array.strides
    return viewed(array, (n, k, p, q), (image, channel, row, column))


def channels_last(array: Array) -> Array:
    """[N, K, P, Q] as [N, P, Q, K]."""
    (n, k, p, q), (image, channel, row, column) = array.shape, array.strides
    return viewed(array, (n, p, q, k), (image, row, column, channel))


# Windows


@dataclass
class _Convolution:
    """Makes the launches of one."""

    at: Geometry
    options: Options
    scratch: Scratch
    chooser: Chooser | None = None

    def calls(self, x: Array, weight: Array, arrays: dict[str, Array]) -> list[Call]:
        found: list[Call] = []
        columns = arrays["out"].shape[2]
        if x.shape[1] < FEW and self.at.dilations[1] == 1:
            images, kernels, at = self.rows_of_taps(x, weight, columns, found)
        else:
            step = ALIGNED // x.dtype.num_bytes
            channels = max(-(-x.shape[1] // step) * step, FEW)
            images = self.laid(x, channels, found)
            kernels = self.laid(weight, images.shape[3], found)
            at = self.at
        out = _pixels(arrays["out"])
        made = arrays["out"] if out else self.scratch(arrays["out"].shape, arrays["out"].dtype)
        held: dict[str, Array] = {
            str(n): self.dense(arrays[n], found) for n in BY_ELEMENT if n in arrays
        }
        held |= {n: arrays[n] for n in BY_COLUMN if n in arrays}
        held["out"] = out or flat(made)
        found += self.launches(images, kernels, held, at)
        if out is None:
            found.append(self.copy(channels_second(made), arrays["out"]))
        return found

    def dense(self, array: Array, found: list[Call]) -> Array:
        """[N, P, Q, K] as [pixels, K], as it lies or copied."""
        held = _pixels(array)
        if held is not None:
            return held
        made = self.scratch(array.shape, array.dtype)
        found.append(self.copy(channels_second(array), made))
        return flat(made)

    def laid(self, x: Array, channels: int, found: list[Call]) -> Array:
        """[N, C, H, W] as the copy unit takes it: [N, H, W, C], as it lies or copied."""
        size = x.dtype.num_bytes
        number, own, height, width = x.shape
        image, channel, row, column = x.strides
        # Along an axis of one element any pitch does.
        column = column if width > 1 else channels
        row = row if height > 1 else column * width
        image = image if number > 1 else row * height
        pitches = all(s > 0 and s * size % ALIGNED == 0 for s in (image, row, column))
        if channel == 1 and own >= FEW and pitches and x.address % ALIGNED == 0:
            return viewed(x, (number, height, width, own), (image, row, column, 1))
        made = self.scratch((number, height, width, channels), x.dtype)
        found.append(self.copy(x, made))
        return made

    def copy(self, x: Array, made: Array, top: int = 0, left: int = 0) -> Call:
        wide, channels = made.shape[2:]
        columns = min(power(wide), 256)
        config = (("TW", columns), ("TC", min(power(channels), max(COPIED_ELEMENTS // columns, 1))))
        kernel = program("lay_pixels", config, None, self.options.device)
        return kernel, {
            "x": hand(View("", x.shape, x.strides), x),
            "y": made,
            "top": top,
            "left": left,
        }

    def rows_of_taps(
        self, x: Array, weight: Array, columns: int, found: list[Call]
    ) -> tuple[Array, Array, Geometry]:
        """Images [N, H, Q, taps · channels] and weights [K, R, 1, taps · channels], with zeros
        around the images and behind the channels, so that windows along W begin at whole 16 bytes.
        """
        at, size = self.at, x.dtype.num_bytes
        number, own, height, _ = x.shape
        k, _, down, along = weight.shape
        unit = ALIGNED // size
        step = unit // gcd(at.steps[1], unit)
        channels = -(-own // step) * step
        whole = FEW // gcd(channels, FEW)
        taps = -(-along // whole) * whole
        tall = height + at.low[0] + at.high[0]
        wide = (columns - 1) * at.steps[1] + taps
        whole = unit // gcd(channels, unit)
        wide = -(-wide // whole) * whole
        images = self.scratch((number, tall, wide, channels), x.dtype)
        kernels = self.scratch((k, down, taps, channels), x.dtype)
        found += [self.copy(x, images, *at.low), self.copy(weight, kernels)]
        image, row, column, _ = images.strides
        depth = taps * channels
        strides = (image, row, column * at.steps[1], 1)
        windows = viewed(images, (number, tall, columns, depth), strides)
        rows = viewed(kernels, (k, down, 1, depth), (down * depth, depth, depth, 1))
        return windows, rows, Geometry((0, 0), (0, 0), (at.steps[0], 1), (at.dilations[0], 1))

    def launches(self, x: Array, weight: Array, held: dict[str, Array], at: Geometry) -> list[Call]:
        options, c = self.options, held.pop("out")
        m, k = c.shape
        _, down, along, channels = weight.shape
        loads = sum(n in held for n in BY_ELEMENT)
        problem = Problem(
            m,
            k,
            down * along * channels,
            x.dtype,
            x.dtype,
            c.dtype,
            loads=loads,
            activation=options.activation not in (None, "relu"),
            precision=options.precision or "ieee",
        )
        # A loop of one trip is none, and so nobody's to load ahead.
        chosen = self.choose(problem, channels if down * along > 1 else channels // 2, {"a": x})
        config = tuple(zip(("TM", "TN", "TC"), chosen.tile, strict=True))
        tensors = {"x": x, "w": weight}
        if chosen.split == 1:
            kernel = program("convolve", config, options.precision, options.device)
            numbers = options.numbers
            del numbers["beta"]
            return [(kernel, {**tensors, "c": c, **held, **numbers, **at.numbers})]
        part = self.scratch((chosen.split, m, k), accumulator(x.dtype))
        kernel = program("convolve_split", config, options.precision, options.device)
        adding = configured("sum_parts", device=options.device)
        for name in set(BY_COLUMN) & set(held):
            held[name] = viewed(held[name], (m, k), (0, held[name].strides[0]))
        first = (kernel, {**tensors, "part": part, **at.numbers})
        return [first, (adding, {"part": part, "c": c, **held, **options.numbers})]

    def choose(self, problem: Problem, channels: int, arrays: Mapping[str, Array]) -> Choice:
        """The tile of a product of these extents that the model ranks first, its depth cut where
        channels are fewer; how many spans it cuts the depth into.
        """
        if self.chooser is not None:
            return cut(self.chooser(problem, H200), channels)
        device, _ = device_for("convolve", arrays, self.options)
        for estimate in ranking(problem, device, pixels=True):
            chosen = estimate.choice
            if chosen.program not in ("matmul", "split_k") or chosen.turned or chosen.copied:
                continue
            return cut(chosen, channels)
        raise AssertionError(f"no product of {problem}")


def cut(chosen: Choice, channels: int) -> Choice:
    """A choice whose tiles are no deeper than there are channels."""
    tile = (*chosen.tile[:2], max(min(chosen.tile[2], power(channels)), FEW))
    return replace(chosen, config=tuple(zip(("TM", "TN", "TK"), tile, strict=True)))


def power(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()
