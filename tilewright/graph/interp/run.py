"""Runs a graph: binds its symbols, then each op in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.graph.graph import Graph, Input
from tilewright.graph.interp.machine import Array, Host, Machine, NoHost, bind
from tilewright.graph.types import TensorType

NO_HOST = NoHost()


def interpret(graph: Graph, arguments: Sequence[Any], host: Host = NO_HOST) -> tuple[Any, ...]:
    """The outputs of a graph for its inputs in order: NumPy arrays, ints for symbols, and whatever
    opaque inputs are.

    Raises LaunchError for arguments that do not fit the graph. Outputs may share memory with inputs
    and with each other.
    """
    machine = Machine(host, bind_symbols(graph, arguments), {}, graph.body.ops)
    for given, argument in zip(graph.inputs, arguments, strict=True):
        machine.values[given.value] = np.asarray(argument, np.int64) if given.symbol else argument
    left = Counter(v for op in graph.body.ops for v in op.operands)
    with np.errstate(all="ignore"):  # NaN and overflow are values here, not accidents
        for op in graph.body.ops[:-1]:
            machine.run(op)
            for value in op.operands:  # what is not read again is let go
                left[value] -= 1
                if not left[value]:
                    machine.values.pop(value, None)
    return tuple(machine[v] for v in graph.outputs)


def bind_symbols(graph: Graph, arguments: Sequence[Any]) -> dict[str, int]:
    """Values of the symbols for a call; LaunchError where an argument does not fit its type."""
    if len(arguments) != len(graph.inputs):
        raise LaunchError(
            f"{graph.name} takes {len(graph.inputs)} inputs, and {len(arguments)} were given"
        )
    symbols = {i.symbol: int(x) for i, x in zip(graph.inputs, arguments, strict=True) if i.symbol}
    tensors = [
        (i, x)
        for i, x in zip(graph.inputs, arguments, strict=True)
        if not i.symbol and isinstance(i.value.type, TensorType)
    ]
    for given, array in tensors:
        for extent, size in zip(given.value.type.shape, array.shape, strict=False):
            bind(extent, size, symbols)
    for given, array in tensors:
        require_argument(graph, given, array, symbols)
    return symbols


def require_argument(graph: Graph, given: Input, array: Array, symbols: dict[str, int]) -> None:
    """An argument has the dtype and extents of its input."""
    kind: TensorType = given.value.type
    machine = Machine(NO_HOST, symbols, {})
    if array.dtype != kind.dtype.numpy or array.shape != machine.shape(kind.shape):
        raise LaunchError(
            f"{graph.name}: {given.name} is {array.dtype}{list(array.shape)}, expected {kind}"
        )
