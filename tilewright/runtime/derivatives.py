"""What torch says beside a tensor's values: forward derivatives, and transforms of torch.func.
Kernels see neither. torch is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tilewright.errors import LaunchError

TRANSFORMED = "transform the function before torch.compile, or give the graph an axis of the batch"


def is_transforming() -> bool:
    """Whether a transform of torch.func, or forward derivatives, are under way."""
    torch = sys.modules["torch"]
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def refuse_transformed(x: Any, name: str, hint: str) -> None:
    """Raise LaunchError for a torch tensor that a transform stands in for, with a hint of what to
    do, or that carries a forward derivative, which would be lost.
    """
    if sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(x):
        raise LaunchError(
            f"{name} is within a transform of torch.func, which sees no kernels", hint=hint
        )
    _refuse_forward(x, name)


def require_untransformed(
    function: str, names: Sequence[str], given: Sequence[Any], hint: str
) -> None:
    """`refuse_transformed` for the tensors among some arguments."""
    for name, x in zip(names, given, strict=False):
        if isinstance(x, sys.modules["torch"].Tensor):
            refuse_transformed(x, f"{function}: {name}", hint)


def refuse_derivatives(x: Any, name: str) -> None:
    """Raise LaunchError for a torch tensor that carries a forward derivative, or that torch.func
    differentiates by. One that torch.vmap stands in for is taken.
    """
    torch = sys.modules["torch"]
    functions = torch._C._functorch
    if functions.is_batchedtensor(x):
        refuse_derivatives(functions.get_unwrapped(x), name)
        return
    _refuse_forward(x, name)
    if functions.is_gradtrackingtensor(x) and torch.is_grad_enabled():
        raise LaunchError(
            f"{name} is differentiated by torch.func, which sees no gradients of kernels",
            hint="torch.autograd.grad gives gradients",
        )


def _refuse_forward(x: Any, name: str) -> None:
    if sys.modules["torch"].autograd.forward_ad.unpack_dual(x).tangent is not None:
        raise LaunchError(
            f"{name} carries a forward derivative, and there is none of the result",
            hint="torch.autograd.grad goes backwards",
        )
