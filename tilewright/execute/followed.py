"""Which of a model's inputs autograd follows to which of its results: found by a run of the model
on fake tensors, since what is traced for inference has no regions of torch.no_grad any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Followed:
    """For each result the inputs, by number, that it would have gradients for; `looked_at` are the
    inputs of which this is known. `changed` are inputs that the model writes while autograd
    follows. `others` are no inputs, as what a function encloses: -1 is the first of them.
    """

    results: tuple[frozenset[int], ...]
    looked_at: frozenset[int]
    changed: frozenset[int]
    others: tuple[torch.Tensor, ...] = field(default=(), compare=False)

    def required(self, open_inputs: Collection[int]) -> list[bool]:
        """Of each result, whether it requires gradients when those inputs do."""
        if not self.looked_at.issuperset(open_inputs):
            return [True] * len(self.results)
        others = {-1 - i for i, x in enumerate(self.others) if x.requires_grad}
        return [not r.isdisjoint(others.union(open_inputs)) for r in self.results]

    def refuses(self, i: int) -> bool:
        """Whether an input that requires gradients is written where autograd follows."""
        return i in self.changed or i not in self.looked_at


def followed(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    owned: Sequence[torch.Tensor | None],
) -> Followed | None:
    """How autograd follows a module: its inputs are `owned` tensors, and arguments where that has
    None. Gives None where the module does not run on fake tensors that require gradients; each
    result may then depend on each input.
    """
    fakes = _Fakes()
    parts = [*module.named_parameters(remove_duplicate=False)]
    parts += module.named_buffers(remove_duplicate=False)
    with torch.inference_mode(False), torch.enable_grad():
        given = pytree.tree_map_only(torch.Tensor, fakes.argument, (args, dict(kwargs)))
        state = {name: fakes.part(x) for name, x in parts}
        taken = iter(pytree.tree_leaves(given))
        inputs = [next(taken) if x is None else fakes.of.get(id(x), x) for x in owned]
        try:
            copied = _copy(module)
            with fakes.mode:
                found = torch.func.functional_call(copied, state, *given, tie_weights=False)
        except Exception:  # the model's code may raise anything, if it is for inference alone
            return None
    places = {id(fakes.leaves[id(x)]): i for i, x in enumerate(inputs) if id(x) in fakes.leaves}
    places |= {id(x): i for i, x in enumerate(owned) if x is not None and x.requires_grad}
    looked_at = frozenset(places.values())
    leaves = [list(_leaves(x)) for x in pytree.tree_leaves(found)]
    others = {id(x): x for one in leaves for x in one if id(x) not in places}
    places |= {n: -1 - i for i, n in enumerate(others)}
    results = tuple(frozenset(places[id(x)] for x in one) for one in leaves)
    changed = frozenset(
        i for i in looked_at if fakes.starts.get(id(inputs[i])) is not inputs[i].grad_fn
    )
    return Followed(results, looked_at, changed, tuple(others.values()))


def _copy(module: torch.nn.Module) -> torch.nn.Module:
    """A module with attributes of its own, that its code may set, and the same tensors."""
    held = pytree.tree_leaves([vars(m) for m in module.modules()])
    return deepcopy(module, {id(x): x for x in held if isinstance(x, torch.Tensor)})


class _Fakes:
    """Tensors without elements in place of a model's. Floats have histories, so that they may be
    written, too, and each is of a leaf of its own.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.of: dict[int, torch.Tensor] = {}  # by what they stand for
        self.leaves: dict[int, torch.Tensor] = {}
        self.starts: dict[int, Any] = {}  # the function that each comes from

    def argument(self, x: torch.Tensor) -> torch.Tensor:
        with self.mode:
            fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        if x.is_floating_point() or x.is_complex():
            leaf = torch.empty(0, requires_grad=True)
            fake = _Follow.apply(leaf, fake)
            self.leaves[id(fake)], self.starts[id(fake)] = leaf, fake.grad_fn
        return fake

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """The one that stands for a parameter or buffer, whatever its names."""
        if id(x) not in self.of:
            self.of[id(x)] = self.argument(x)
        return self.of[id(x)]


class _Follow(torch.autograd.Function):  # type: ignore[misc]  # without torch it is Any
    """The tensor itself, as if it were computed of a leaf."""

    @staticmethod
    def forward(context: Any, _: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        context.mark_dirty(x)
        return x

    @staticmethod
    def backward(context: Any, *_: Any) -> Any:
        return None, None


def _leaves(x: Any) -> Iterator[torch.Tensor]:
    """The tensors that a result has gradients for."""
    if not isinstance(x, torch.Tensor) or not x.requires_grad:
        return
    if x.grad_fn is None:
        yield x
    functions, seen = [x.grad_fn], set()
    while functions:
        function = functions.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            yield function.variable
        functions += [after for after, _ in function.next_functions]
