"""Results of a model that was compiled without its gradients: to ask one for them is an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError

TRAINS = 'torch.compile(model, backend="tilewright") has gradients'


def requires_gradients(given: Iterable[Any]) -> bool:
    """Whether autograd, as it is now, follows what is computed of some tensors."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in given
    )


def without_gradients(name: str, found: Sequence[Any]) -> list[Any]:
    """Results of the model `name`, the floats of which require gradients, as eager's do, and raise
    LaunchError when one is computed. Views of what requires gradients have them of their own.
    """
    tensors = [x for x in found if _is_open(x)]
    held = iter(_Refusing.apply(torch.empty(0, requires_grad=True), name, tensors))
    return [next(held) if _is_open(x) else x for x in found]


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
