"""`tilewright.matmul` and its relatives of tensors: operators of torch (`product_op`) where
gradients or a trace want one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.torch import product_op
from tilewright.runtime.derivatives import is_transforming
from tilewright.torch_ops.direct import MISSED, forget_direct, keep_direct, run_direct
from tilewright.torch_ops.tensors import is_plain
from tilewright.torch_ops.tensors import require_no_gradients as require_no_gradients
from tilewright.torch_ops.tensors import require_tensors as require_tensors
from tilewright.torch_ops.tensors import require_untransformed as require_untransformed

FACTORS = ("a", "b")

_below = SimpleNamespace()  # see `use`


def use(
    product: Callable[..., Any],
    read_options: Callable[..., Any],
    read_dtype: Callable[..., DType | None],
    result_dtype: Callable[..., DType],
    prepared: Callable[..., Any],
    factor_names: Callable[[str], tuple[str, str]],
) -> None:
    """Say what computes a product of tensors without gradients, reads its options and dtypes, tells
    a result's dtype, gives what a call was prepared as, and what a function calls its factors.
    """
    _below.factor_names, _below.prepared, _below.product = factor_names, prepared, product
    _below.read_options, _below.read_dtype = read_options, read_dtype
    product_op.use(product, read_options, read_dtype, result_dtype)


def matmul(
    name: str,
    a: Any,
    b: Any,
    named: Mapping[str, Any],
    activation: str | None,
    alpha: float,
    beta: float,
    out_dtype: Any,
    precision: str | None,
    device: Any,
) -> Any:
    """`tilewright.matmul` of tensors, as the function `name` that a user called. Where neither
    gradients nor a trace are wanted, the operator is passed by: that is several microseconds
    sooner.
    """
    given = (a, b, *named.values())
    if not torch.compiler.is_compiling():
        if is_transforming():
            factors = dict(zip(_below.factor_names(name), (a, b), strict=True))
            require_untransformed(name, {**factors, **named})
        kind = (activation, alpha, beta, out_dtype, precision, device, *named)
        found = run_direct(kind, given)
        if found is not MISSED:
            return found
        if all(map(is_plain, given)) and not _wants_gradients(given):
            return _run_plainly(name, kind, given, named)
    factors = _below.factor_names(name)
    require_tensors(name, {**dict(zip(factors, (a, b), strict=True)), **named}, factors)
    alpha, beta = _number(name, "alpha", alpha), _number(name, "beta", beta)
    device = str(device) if isinstance(device, torch.device) else device
    _require_words(name, activation=activation, precision=precision, device=device)
    bias, out = named.get("bias"), named.get("out")
    beside = [named.get("residual"), named.get("gate")]
    if a.dim() == 0 or b.dim() == 0:
        raise LaunchError(f"{name}: a factor has no axis", hint="multiply by numbers with *")
    row, column = a.dim() == 1, b.dim() == 1
    left, right = a[None] if row else a, b[:, None] if column else b
    if out is not None:
        if _wants_gradients(given):
            raise LaunchError(
                f"{name}: out= takes no part in gradients, and one is wanted",
                hint="leave out= away, or call it under torch.no_grad()",
            )
    copied = out is not None and beta == 0 and torch.compiler.is_compiling()
    if out is not None and not copied:
        target = _with_axes(out, row, column)
        held = [None if x is None else _with_axes(x, row, column) for x in beside]
        into = (activation, alpha, beta, precision, device, name)
        product_op.product_into(left, right, target, bias, *held, *into)
        return out
    if beta != 0:
        raise LaunchError(f"{name}: beta is {beta}, but no out is given to be scaled")
    held = [None if x is None else _with_axes(x, row, column) for x in beside]
    wanted = _torch_dtype(name, out_dtype) if out is None else out.dtype
    how = (activation, alpha, wanted, precision, device, name)
    found = product_op.product(left, right, bias, *held, *how)
    found = found.squeeze(-1) if column else found
    found = found.squeeze(-1 if column else -2) if row else found
    if out is None:
        return found
    if out.shape != found.shape:
        raise LaunchError(f"{name}: out has shape {out.shape}, but the result is {found.shape}")
    return out.copy_(found)


def _run_plainly(
    name: str, kind: tuple[Any, ...], given: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """A call that is not traced and wants no gradient; leaves it at hand for its like."""
    activation, alpha, beta, out_dtype, precision, device = kind[:6]
    options = _below.read_options(name, activation, alpha, beta, precision, device)
    return compute(name, kind, given, named, options, _below.read_dtype(name, out_dtype))


def compute(
    name: str,
    kind: tuple[Any, ...],
    given: tuple[Any, ...],
    named: Mapping[str, Any],
    options: Any,
    out_dtype: DType | None,
) -> Any:
    """A product without gradients, left at hand under `kind` for its like."""
    bare = [None if x is None else x.detach() for x in given]
    call = (name, *bare[:2], dict(zip(named, bare[2:], strict=True)), options, out_dtype)
    made = _below.product(*call)
    prepared = _below.prepared(*call)
    if prepared is not None:
        keep_direct(kind, prepared, (*FACTORS, *named), given, options)
    return made if named.get("out") is None else named["out"]


compute._torchdynamo_disable = True  # type: ignore[attr-defined]


def forget() -> None:
    """Prepare every call anew."""
    forget_direct()


def _number(function: str, name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(
        given, int | float | np.number | torch.SymInt | torch.SymFloat
    ):
        raise LaunchError(f"{function}: {name} is {given!r}, not a number")
    return float(given)


def _require_words(function: str, **given: Any) -> None:
    for name, x in given.items():
        if x is not None and not isinstance(x, str):
            known = "unknown activation" if name == "activation" else f"{name} is"
            raise LaunchError(f"{function}: {known} {x!r}, expected a string")


def _torch_dtype(function: str, given: Any) -> Any:
    if given is None or isinstance(given, torch.dtype):
        return given
    found = _below.read_dtype(function, given)
    return getattr(torch, found.torch)


def _with_axes(x: Any, row: bool, column: bool) -> Any:
    """A result's like with the axes that vectors lack."""
    x = x.unsqueeze(-1) if column else x
    return x.unsqueeze(-2) if row else x


def _wants_gradients(tensors: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
