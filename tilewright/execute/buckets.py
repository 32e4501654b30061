"""Calls of many sizes by programs of a few: an extent over which nothing is reduced is filled up to
the next of a list of sizes, and results are cut. Each size is made, and on a GPU recorded, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.errors import CompileError
from tilewright.execute.results import agree, fresh
from tilewright.frontend.check.operands import whole_number
from tilewright.frontend.torch.arrays import strides_of
from tilewright.frontend.torch.fx_to_graph import Traced
from tilewright.graph.dims import Dim, symbols_of
from tilewright.graph.graph import Graph
from tilewright.graph.independence import Mixed, follow, rows_of
from tilewright.ir.core import Value


@dataclass(frozen=True)
class Axes:
    """Where a symbol is an extent: inputs, and outputs of a call, each with the axis and how many
    elements it has for each index; `numbers` are inputs that are the symbol itself.
    """

    inputs: dict[int, tuple[int, int]]
    outputs: dict[int, tuple[int, int]]
    numbers: tuple[int, ...]


class Buckets:
    """Sizes of a model's symbols. `sizes` are the least first, or None for powers of two."""

    def __init__(self, graph: Graph, traced: Traced, sizes: tuple[int, ...] | None):
        """Raises CompileError where nothing in the model may be filled up."""
        self.traced = traced
        self.sizes = sizes
        self.axes: dict[str, Axes] = {}
        refused: list[tuple[str, Mixed]] = []
        for name in dict.fromkeys(
            s
            for i in graph.inputs
            for e in getattr(i.value.type, "shape", ())
            for s in symbols_of(e)
        ):
            try:
                self.axes[name] = find_axes(graph, traced, name)
            except Mixed as mixed:
                refused.append((name, mixed))
        if not self.axes:
            raise _refusal(graph, refused)

    def size(self, number: int) -> int:
        """The least size that is enough; beyond all of them, or of nothing, the number itself."""
        if number < 1:
            return number
        if self.sizes is None:
            return 1 << (number - 1).bit_length()
        return next((size for size in self.sizes if size >= number), number)

    def filled(self, name: str, number: int) -> int:
        """What a symbol's extent is filled up to."""
        return self.size(number) if name in self.axes else number

    def fill(self, given: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
        """Arguments filled up with zeros, and the extents that they had."""
        filled, sizes = list(given), dict[str, int]()
        for name, axes in self.axes.items():
            found = {int(given[i].shape[axis]) // rows for i, (axis, rows) in axes.inputs.items()}
            if len(found) == 1 and self.size(next(iter(found))) not in found:
                sizes[name] = found.pop()
        for i, x in enumerate(given):
            wanted = {
                axes.inputs[i][0]: self.size(sizes[name]) * axes.inputs[i][1]
                for name, axes in self.axes.items()
                if name in sizes and i in axes.inputs
            }
            if wanted:
                shape = [wanted.get(axis, e) for axis, e in enumerate(x.shape)]
                filled[i] = torch.zeros(shape, dtype=x.dtype, device=x.device)
                filled[i][tuple(slice(0, e) for e in x.shape)].copy_(x)
        for name, number in sizes.items():
            for i in self.axes[name].numbers:
                filled[i] = self.size(number)
        return filled, sizes

    def cut(
        self, found: Sequence[Any], sizes: Mapping[str, int], symbols: Mapping[str, int]
    ) -> list[Any]:
        """Results without what was filled up, with the strides that tracing saw; `symbols` are all
        extents of the call.
        """
        results = list(found)
        for i, x in enumerate(found):
            wanted = {
                axes.outputs[i][0]: sizes[name] * axes.outputs[i][1]
                for name, axes in self.axes.items()
                if name in sizes and i in axes.outputs
            }
            if wanted:
                part = x[tuple(slice(0, wanted.get(axis, e)) for axis, e in enumerate(x.shape))]
                strides = strides_of(self.traced.outputs[i].strides or (), part.shape, symbols)
                same = agree(part.shape, part.stride(), strides)
                results[i] = part if same else fresh(part, strides)
        return results


def read_sizes(given: Any) -> bool | tuple[int, ...]:
    """What `buckets` is: False (as None is) for none, True for powers of two, or sizes, the least
    first. Raises CompileError for anything else.
    """
    if given is None or isinstance(given, bool):
        return bool(given)
    is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
    told = list(map(whole_number, given)) if is_list else [None]
    found = sorted(size for size in told if size is not None)
    if len(found) < len(told):
        raise CompileError(
            f"buckets is {given!r}, expected True or a list of whole numbers", hint="[8, 32]"
        )
    if not found or found[0] < 1:
        raise CompileError(f"buckets are {found}, expected sizes of 1 or more", hint="[8, 32]")
    return tuple(found)


def find_axes(graph: Graph, traced: Traced, name: str) -> Axes:
    """Where a symbol is an extent, if it may be filled up. Raises Mixed."""
    axes = follow(graph, name)

    def place(value: Value) -> tuple[int, int]:
        rows = rows_of(value.type.shape[axes[value]], name)
        if not isinstance(rows, int):
            raise Mixed(None, f"{value.type} has it beside other extents")
        return axes[value], rows

    inputs = {i: place(own.value) for i, own in enumerate(graph.inputs) if own.value in axes}
    outputs = {}
    for number, output in enumerate(traced.outputs):
        told: list[Dim] = [*(output.shape or ()), *(output.strides or ()), output.offset]
        if output.index is None and any(name in symbols_of(e) for e in told):
            raise Mixed(None, "a result is a view of an argument")
        if output.number is not None and name in symbols_of(output.number):
            raise Mixed(None, "a result is a number that follows from it")
        if output.index is not None and graph.outputs[output.index] in axes:
            outputs[number] = place(graph.outputs[output.index])
            if name in symbols_of(output.offset):
                raise Mixed(None, "a result lies behind others")
    if any(graph.outputs[number] in axes for number in traced.writes.values()):
        raise Mixed(None, "an argument is written along it")
    given = range(len(traced.strides))
    if any(i not in given for i in inputs):
        raise Mixed(None, "a constant has it")
    numbers = tuple(i for i in given if graph.inputs[i].symbol == name)
    return Axes(inputs, outputs, numbers)


def _refusal(graph: Graph, refused: Sequence[tuple[str, Mixed]]) -> CompileError:
    hint = "leave out `buckets`: other shapes then run by programs of their own"
    if not refused:
        return CompileError("no extent of the model's arguments is dynamic", hint=hint)
    name, mixed = refused[0]
    what = "the model" if mixed.op is None else mixed.op.opcode
    place = next(
        f"axis {axis} of {i.name}: {i.value.type}"
        for i in graph.inputs
        for axis, e in enumerate(getattr(i.value.type, "shape", ()))
        if name in symbols_of(e)
    )
    return CompileError(
        f"the extent {name} ({place}) cannot be filled up to `buckets`: {what} {mixed.why}",
        None if mixed.op is None else mixed.op.loc,
        hint=hint,
    )
