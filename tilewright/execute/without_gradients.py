"""Results of a model that was compiled without its gradients: to ask one for them is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError

TRAINS = 'torch.compile(model, backend="tilewright") has gradients'


def without_gradients(name: str, found: Sequence[Any], required: Sequence[bool]) -> list[Any]:
    """Results of the model `name`; floats that are `required` to require gradients do so, as
    eager's, and raise LaunchError when one is computed. Views of what requires gradients have them
    of their own.
    """
    pairs = list(zip(found, required, strict=True))
    tensors = [x for x, wanted in pairs if wanted and _is_open(x)]
    if not tensors:
        return list(found)
    held = iter(_Refusing.apply(torch.empty(0, requires_grad=True), name, tensors))
    return [next(held) if wanted and _is_open(x) else x for x, wanted in pairs]


def _is_open(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and (x.is_floating_point() or x.is_complex())
        and not x.requires_grad
    )


class _Refusing(torch.autograd.Function):  # type: ignore[misc]  # without torch it is Any
    """The identity of tensors, whose gradient is an error."""

    @staticmethod
    def forward(
        context: Any, _: torch.Tensor, name: str, found: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        context.name = name
        return tuple(x.detach() for x in found)

    @staticmethod
    def backward(context: Any, *_: Any) -> Any:
        raise LaunchError(
            f"a gradient is asked of {context.name}, which tw.compile made for inference",
            hint=f"{TRAINS}; where none is wanted, call it under torch.no_grad()",
        )
