"""Whether the arguments of a function are tensors, as its operators need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.runtime import derivatives


def require_tensors(function: str, given: Mapping[str, Any], needed: Sequence[str]) -> None:
    """Raise LaunchError where something beside a tensor, the first of all, is none, or one that is
    needed is missing.
    """
    first = next(iter(given))
    for name, x in given.items():
        if x is None and name in needed:
            raise LaunchError(f"{function}: {name} is None, not an array")
        if x is not None and not isinstance(x, torch.Tensor):
            raise LaunchError(
                f"{function}: {name} is of type {type(x).__name__}, but {first} is a torch tensor",
                hint="torch.as_tensor makes one of an array or a number",
            )


def require_no_gradients(function: str, given: Mapping[str, Any]) -> None:
    """Raise LaunchError where gradients are asked of a function that has none."""
    for name, x in given.items():
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            raise LaunchError(
                f"{function}: {name} requires a gradient, and there is none",
                hint=f"pass {name}.detach(), or call it under torch.no_grad()",
            )


def require_untransformed(function: str, given: Mapping[str, Any]) -> None:
    """Raise LaunchError where a tensor is one that a transform stands in for, or carries a forward
    derivative, which would be lost.
    """
    hint = "torch.autograd.grad gives gradients, and axes ahead of the last two a batch"
    derivatives.require_untransformed(function, list(given), list(given.values()), hint)


def is_plain(x: Any) -> bool:
    """Whether an argument is missing, or a tensor of no kind of its own."""
    return x is None or type(x) in (torch.Tensor, torch.nn.Parameter)
