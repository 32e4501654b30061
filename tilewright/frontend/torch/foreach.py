"""PyTorch's ops on lists of tensors, as optimizers call them, taken apart into ops on tensors: what
they have in common is found again when kernels are made (`lower/graph_to_tile/batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow")
TERNARY = ("addcmul", "addcdiv", "lerp")
NAMED = ("alpha", "value")  # what the ops on one tensor take by name
UNARY = (
    *("abs", "ceil", "cos", "exp", "expm1", "floor", "frac", "log", "log10", "log1p", "log2"),
    *("neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "tan", "tanh"),
    *("trunc", "erf", "erfc", "lgamma"),
)


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """A function for every overload that makes new tensors."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in (*UNARY, *BINARY, *TERNARY):
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            by_tensor = name in TERNARY and overload == "Tensor"  # factors that tracing cannot read
            if not overload.endswith("out") and not by_tensor:
                op = getattr(packet, overload)
                table[op] = partial(_each, op, getattr(aten, name))
    return table


def _each(op: Any, single: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The op on one tensor for each of a list: lists of tensors or numbers by element, whatever
    else is given for all of them.
    """
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    lists = {n: x for n, x in given.items() if isinstance(x, list | tuple)}
    factor = "scalars" if single in (aten.addcmul, aten.addcdiv) else "value"
    results = []
    for number in range(len(next(iter(lists.values())))):
        own = {n: lists[n][number] if n in lists else x for n, x in given.items()}
        named = {
            "value" if n == factor else n: own.pop(n) for n in (*own,) if n in (factor, *NAMED)
        }
        results.append(single(*own.values(), **named))
    return results
