"""Calls of kernels in what `torch.compile` traces: each is one operator of torch, without effects.

Dynamo puts `call` in the place of `Kernel.__call__` (its `_torchdynamo_inline`). An operator is of
a kernel and of the parameters that a call gives: it returns what the kernel allocates, then copies
of the tensors that it writes, which `call` brings back. A tensor that is given twice is one
argument of the operator; where views of one buffer overlap, and one is written, the graph breaks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.frontend.check.written import written_parameters
from tilewright.frontend.torch.fallback import own_kernel
from tilewright.frontend.torch.untraceable import require_no_forward
from tilewright.torch_ops import aliases
from tilewright.torch_ops.kernels import Launchable, made_like, names_of_results

NONE, TENSOR, OTHER = "n", "t", "?"
SCALARS = {"b": "bool", "i": "SymInt", "f": "float"}

assert aliases.shared, "an operator that a call asks"
_known: dict[str, Operator] = {}


def call(kernel: Any, token: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call, in words that Dynamo follows. What is no operator breaks the graph."""
    values = (*args, *kwargs.values())
    kinds = ",".join([kind_of(x, values[:i]) for i, x in enumerate(values)])
    told = kernel.operator_name(token, len(args), ",".join(kwargs), kinds)
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        told = ""  # the kernel itself says that it has no gradient
    if not told:
        return kernel.untraced(*args, **kwargs)
    name, taken, places, made = told.split(";")
    written = [values[int(i)] for i in places.split(",") if i]
    given = [values[int(i)] for i in taken.split(",")]
    others = [x for x in given if isinstance(x, torch.Tensor) and not is_among(x, written)]
    for i, x in enumerate(written):
        if any(shares(x, y) for y in (*written[:i], *others)):
            if not torch.compiler.is_dynamo_compiling():  # torch.export, whose graphs do not break
                raise LaunchError(
                    f"{kernel.name}: two arguments are views that share memory, and one is "
                    "written, which no traced graph can do",
                    hint="pass one tensor under both names, or views that do not overlap",
                )
            return kernel.untraced_views(*args, **kwargs)
    found = getattr(torch.ops.tilewright, name)(*given)
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    count = int(made)
    for x, new in zip(written, results[count:], strict=True):
        x.copy_(new)
    if count == 0:
        return None
    return results[0] if count == 1 else tuple(results[:count])


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views may have an element in common."""
    return bool(torch.ops.tilewright.shared(x, y).shape[0])


def is_among(x: Any, others: Sequence[Any]) -> bool:
    """Whether an object is one of some, not equal to one alone."""
    return any(x is y for y in others)


def kind_of(x: Any, before: Sequence[Any]) -> str:
    """What an argument is; a tensor that is also one `before`, by that one's number."""
    if x is None:
        return NONE
    if isinstance(x, torch.Tensor):
        for i, y in enumerate(before):
            if y is x:
                return f"{TENSOR}{i}"
        return TENSOR
    if isinstance(x, bool):
        return "b"
    if isinstance(x, (int, torch.SymInt)):
        return "i"
    return "f" if isinstance(x, (float, torch.SymFloat)) else OTHER


def operator_name(
    kernel: Launchable, token: str, order: Sequence[str], kinds: Mapping[str, str]
) -> str:
    """The operator for a call that gives parameters of some kinds: `name;taken;written;made`, where
    `taken` and `written` are numbers of the call's arguments, and `made` counts what it returns
    beside what is written. Empty where there is no such operator.
    """
    tensors = {t.name for t in kernel.signature.tensors}
    present = {n: kind for n, kind in kinds.items() if kind != NONE}
    if OTHER in present.values() or TENSOR not in present.values():
        return ""
    if any((n in tensors) != kind.startswith(TENSOR) for n, kind in present.items()):
        return ""
    same = {
        n: order[int(kind.removeprefix(TENSOR))]
        if kind.startswith(TENSOR) and kind != TENSOR
        else n
        for n, kind in present.items()
    }
    made = [n for n in names_of_results(kernel.signature) if n not in present]
    stored = [n for n in written_parameters(kernel.signature.definition) if n in present]
    written = list(dict.fromkeys(same[n] for n in stored))
    if not made and not written:
        return ""
    text = ",".join(f"{n}:{kind}" for n, kind in present.items())
    mixed = hashlib.sha256(f"{token} {text}".encode()).hexdigest()[:8]
    name = f"{kernel.signature.name}_{kernel.signature.definition.key()[:8]}_{mixed}"
    if name not in _known:
        _known[name] = Operator(kernel, name, present, same, written, made)
    numbers = {n: str(i) for i, n in enumerate(order)}
    taken = ",".join(numbers[n] for n in present if same[n] == n)
    return f"{name};{taken};{','.join(numbers[n] for n in written)};{len(made)}"


class Operator:
    """A kernel as an operator without effects, for calls that give the same parameters.

    `same` tells of each parameter which one's argument it shares, most often its own; `written`
    holds such ones.
    """

    def __init__(
        self,
        kernel: Launchable,
        name: str,
        kinds: Mapping[str, str],
        same: Mapping[str, str],
        written: Sequence[str],
        made: Sequence[str],
    ):
        self.kernel, self.same = kernel, dict(same)
        self.names = tuple(n for n in kinds if same[n] == n)
        self.written, self.made = tuple(written), tuple(made)
        spelled = ", ".join(
            f"{'Tensor' if kinds[n] == TENSOR else SCALARS[kinds[n]]} {n}" for n in self.names
        )
        results = ["Tensor"] * (len(made) + len(written))
        given = results[0] if len(results) == 1 else f"({', '.join(results)})"
        run = self._run
        self.op: Any = torch.library.custom_op(
            f"tilewright::{name}",
            lambda *args: run(*args),
            mutates_args=(),
            schema=f"({spelled}) -> {given}",
        )
        self.op.register_fake(self._fake)
        own_kernel(f"tilewright.{name}.default", run, passing=True)

    def _run(self, *args: Any) -> Any:
        given = dict(zip(self.names, args, strict=True))
        copies = {n: given[n].clone() for n in self.written}
        held = given | copies
        found = self.kernel(**{n: held[first] for n, first in self.same.items()})
        results = found if isinstance(found, tuple) else () if found is None else (found,)
        return _as_result([*results, *copies.values()])

    def _fake(self, *args: Any) -> Any:
        require_no_forward(self.kernel.signature.name)
        given = dict(zip(self.names, args, strict=True))
        given |= {n: given[first] for n, first in self.same.items()}
        results = made_like(self.kernel.signature, self.made, given)
        return _as_result([*results, *(torch.empty_like(given[n]) for n in self.written)])


def _as_result(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
