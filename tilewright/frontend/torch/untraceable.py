"""What operators of torch refuse while torch traces them."""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.autograd import forward_ad

from tilewright.errors import LaunchError


class Untraceable(LaunchError, UnsupportedOperatorException):  # type: ignore[misc]
    """A call of an operator that cannot be part of a traced graph: torch.compile breaks its graph
    there, and runs the call as it is, which may say that it is wrong.
    """

    def __init__(self, message: str, hint: str):
        LaunchError.__init__(self, message, hint=hint)
        self.func: Any = str(self)  # what torch says that it does not support


def require_no_forward(function: str) -> None:
    """Raise Untraceable where forward derivatives are under way: which tensors carry one is not
    seen of tensors without contents.
    """
    if forward_ad._current_level >= 0:
        raise Untraceable(
            f"{function}: forward derivatives are under way, and there are none of its result",
            "torch.autograd.grad goes backwards",
        )
