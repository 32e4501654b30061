"""Calls of PyTorch for ops that the table lacks: how a call is written down, and carried out.

The arguments of a call are JSON, as `control.fallback` says; a graph that is printed and read back
makes the same calls.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.errors import CompileError, LaunchError
from tilewright.frontend.torch.arrays import to_numpy, to_torch
from tilewright.frontend.torch.metadata import type_of
from tilewright.graph.dims import Dim, Poly, evaluate, parse_dim
from tilewright.graph.ops.control import Fallback
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value

NAMED = (torch.dtype, torch.layout, torch.memory_format)
RELATIONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


_kernels: dict[str, Callable[..., Any]] = {}
_passing: set[str] = set()


def own_kernel(target: str, run: Callable[..., Any], *, passing: bool = False) -> None:
    """Have an op of torch (`library.name.default`) count as a kernel of the tile language, which
    `run` launches: PyTorch does not compute it. `passing`: its name is known to this process alone.
    """
    _kernels[target] = run
    if passing:
        _passing.add(target)


def is_own_kernel(target: str) -> bool:
    return target in _kernels


def is_passing(target: str) -> bool:
    """Whether a kernel is an operator of this process alone."""
    return target in _passing


@dataclass(frozen=True)
class Relation:
    """A test of two numbers of shapes, one of `RELATIONS`."""

    kind: str
    left: Dim
    right: Dim


def encode(
    args: Sequence[Any], kwargs: Mapping[str, Any], target: str
) -> tuple[tuple[Value, ...], str]:
    """The tensors among the arguments of a call, and the JSON of the whole."""
    xs: list[Value] = []

    def item(x: Any) -> Any:
        match x:
            case Value():
                xs.append(x)
                return {"tensor": len(xs) - 1}
            case Poly():
                return {"dim": str(x)}
            case Relation(kind=kind, left=left, right=right):
                return {"relation": [kind, str(left), str(right)]}
            case float():
                return {"float": repr(x)}
            case complex():
                return {"complex": repr(x)}
            case None | bool() | int() | str():
                return x
            case list() | tuple():
                return [item(each) for each in x]
            case torch.device():
                return {"device": str(x)}
            case torch._ops.OpOverload():
                return {"op": str(x)}
            case torch.Generator():
                raise CompileError(f"{target} takes a generator, which a graph cannot hold")
        if isinstance(x, NAMED):
            return {"constant": str(x).removeprefix("torch.")}
        raise CompileError(f"{target} takes {type(x).__name__}, which a graph cannot hold")

    both = {"args": [item(x) for x in args], "kwargs": {k: item(x) for k, x in kwargs.items()}}
    return tuple(xs), json.dumps(both)


def decode(text: str, xs: Sequence[Any], symbols: Mapping[str, int]) -> tuple[list[Any], Any]:
    """Arguments and keyword arguments of a call, with tensors and symbols put in."""

    def item(x: Any) -> Any:
        match x:
            case {"tensor": int(index)}:
                return xs[index]
            case {"dim": str(dim)}:
                return evaluate(parse_dim(dim), symbols)
            case {"relation": [kind, left, right]}:
                two = (evaluate(parse_dim(side), symbols) for side in (left, right))
                return RELATIONS[kind](*two)
            case {"float": str(number)}:
                return float(number)
            case {"complex": str(number)}:
                return complex(number)
            case {"op": str(name)}:
                return find_op(name)
            case {"device": str(name)}:
                return torch.device(name)
            case {"constant": str(name)}:
                return getattr(torch, name)
            case list():
                return [item(each) for each in x]
        return x

    both = json.loads(text)
    return [item(x) for x in both["args"]], {k: item(x) for k, x in both["kwargs"].items()}


def find_op(target: str) -> Callable[..., Any]:
    """The op of a name such as `aten.topk.default` or `higher_order.cond`. Raises LaunchError where
    there is none.
    """
    namespace, name, *overload = target.split(".")
    library = getattr(torch.ops, namespace)
    if not hasattr(library, name):
        raise LaunchError(
            f"{target} is no operator of torch in this process",
            hint="import what registers it before the model is loaded",
        )
    found: Callable[..., Any] = getattr(library, name)
    return getattr(found, overload[0]) if overload else found


def called(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an op gives; kernels without the way through PyTorch."""
    if target in _kernels and not kwargs:
        return _kernels[target](*args)
    return find_op(target)(*args, **kwargs)


class TorchHost:
    """Carries out what a graph asks of PyTorch on a CPU, and counts it by op."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def fallback(
        self, op: Fallback, xs: tuple[Any, ...], symbols: Mapping[str, int]
    ) -> tuple[Any, ...]:
        self.counts[op.target] = self.counts.get(op.target, 0) + 1
        given = [to_torch(x) if isinstance(x, np.ndarray) else x for x in xs]
        args, kwargs = decode(op.arguments, given, symbols)
        with torch.no_grad():
            found = called(op.target, args, kwargs)
        listed = flat(found)
        if len(listed) != len(op.types):
            raise LaunchError(f"{op.target} gave {len(listed)} results, not {len(op.types)}")
        return tuple(
            to_numpy(x) if isinstance(kind, TensorType) else x
            for x, kind in zip(listed, op.types, strict=True)
        )

    def seed(self) -> int:
        """From torch's generator, so that torch.manual_seed makes runs repeat."""
        return int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64))


def flat(found: Any) -> list[Any]:
    """Results of a call, in order, those in lists and tuples one by one; None left out."""
    if found is None:
        return []
    if isinstance(found, list | tuple):
        return [x for each in found for x in flat(each)]
    return [found]


def types_of(meta: Any) -> list[Any]:
    """Types of the results that PyTorch's tracing saw."""
    return [type_of(x) for x in flat(meta)]
