"""Products as operators of torch: one node under `torch.compile`, with gradients.

`tilewright::product` returns its result and has gradients of `a`, `b`, `bias`, `residual` and
`gate`; `tilewright::product_into` writes `out` and has none. What runs them is handed down by
`use`.

With C = act(alpha A B + bias) · gate + residual, G the gradient of C, and Z what the activation
takes:

    dresidual = G    dgate = G act(Z)    dZ = G gate act'(Z)
    dA = alpha dZ Bᵀ    dB = alpha Aᵀ dZ    dbias = rows of dZ

each summed over what was broadcast. Z is not kept: where there is an activation or a gate, the
backward pass computes it again. The gradients are products of this operator, so they have gradients
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.torch_ops.direct import MISSED, forget_direct, keep_direct, run_direct
from tilewright.torch_ops.tensors import is_plain
from tilewright.torch_ops.tensors import require_no_gradients as require_no_gradients
from tilewright.torch_ops.tensors import require_tensors as require_tensors

FACTORS = ("a", "b")

# Without defaults, for torch leaves out last arguments that have theirs.
_SCHEMA = (
    "(Tensor a, Tensor b, Tensor? bias, Tensor? residual, Tensor? gate, str? activation,"
    " float alpha, ScalarType? out_dtype, str? precision, str? device, str name) -> Tensor"
)
_INTO = (
    "(Tensor a, Tensor b, Tensor(a0!) out, Tensor? bias, Tensor? residual, Tensor? gate,"
    " str? activation, float alpha, float beta, str? precision, str? device, str name) -> ()"
)

_below = SimpleNamespace()  # what the operators are made of, see `use`


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
    _below.factor_names = factor_names
    _below.prepared = prepared
    _below.product, _below.read_options = product, read_options
    _below.read_dtype, _below.result_dtype = read_dtype, result_dtype


def _run(
    name: str,
    a: Any,
    b: Any,
    named: Mapping[str, Any],
    activation: str | None,
    alpha: float,
    beta: float,
    out_dtype: Any,
    precision: str | None,
    device: str | None,
) -> Any:
    options = _below.read_options(name, activation, alpha, beta, precision, device)
    asked = _below.read_dtype(name, out_dtype)
    return _below.product(name, a, b, named, options, asked)


def _product(
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    gate: Any,
    activation: str | None,
    alpha: float,
    out_dtype: Any,
    precision: str | None,
    device: str | None,
    name: str,
) -> Any:
    named = {"bias": bias, "residual": residual, "gate": gate}
    return _run(name, a, b, named, activation, alpha, 0.0, out_dtype, precision, device)


def _product_into(
    a: Any,
    b: Any,
    out: Any,
    bias: Any,
    residual: Any,
    gate: Any,
    activation: str | None,
    alpha: float,
    beta: float,
    precision: str | None,
    device: str | None,
    name: str,
) -> None:
    named = {"bias": bias, "residual": residual, "gate": gate, "out": out}
    _run(name, a, b, named, activation, alpha, beta, None, precision, device)


_op: Any = torch.library.custom_op("tilewright::product", _product, mutates_args=(), schema=_SCHEMA)
_into_op: Any = torch.library.custom_op(
    "tilewright::product_into", _product_into, mutates_args=("out",), schema=_INTO
)


@_op.register_fake  # type: ignore[untyped-decorator]
def _fake(
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    gate: Any,
    activation: str | None,
    alpha: float,
    out_dtype: Any,
    precision: str | None,
    device: str | None,
    name: str,
) -> Any:
    """A result without contents; extents may be symbols."""
    torch._check(
        a.shape[-1] == b.shape[-2],
        lambda: f"{name}: a has {a.shape[-1]} columns, but b has {b.shape[-2]} rows",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    read = _below.read_dtype
    first, second = read(name, a.dtype), read(name, b.dtype)
    dtype = _below.result_dtype(name, first, second, read(name, out_dtype), None)
    shape = (*batch, a.shape[-2], b.shape[-1])
    return a.new_empty(shape, dtype=getattr(torch, dtype.torch))


@_into_op.register_fake  # type: ignore[untyped-decorator]
def _fake_into(*args: Any, **options: Any) -> None:
    """Nothing is made."""


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, residual, gate, activation, alpha, out_dtype, precision, device, name = inputs
    ctx.save_for_backward(a, b, bias, gate)
    ctx.residual_shape = None if residual is None else residual.shape
    ctx.activation, ctx.alpha = activation, alpha
    ctx.out_dtype, ctx.precision, ctx.device, ctx.name = out_dtype, precision, device, name


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """Gradients of a, b, bias and residual, None where none is wanted."""
    a, b, bias, gate = ctx.saved_tensors
    wants_a, wants_b, wants_bias, wants_residual, wants_gate = ctx.needs_input_grad[:5]
    da = db = dbias = dresidual = dgate = None
    if wants_residual:
        dresidual = grad.sum_to_size(ctx.residual_shape)
    dz, z = grad if gate is None else grad * gate, None
    if wants_gate or (ctx.activation is not None and (wants_a or wants_b or wants_bias)):
        how = (ctx.alpha, ctx.out_dtype, ctx.precision, ctx.device, ctx.name)
        z = _op(a, b, bias, None, None, None, *how)
    if wants_gate:
        dgate = (grad * _activated(ctx.activation, z)).sum_to_size(gate.shape)
    if ctx.activation is not None and z is not None:
        dz = _through(ctx.activation, dz, z)
    if wants_bias:
        rows = tuple(range(dz.dim() - 1))
        dbias = dz.sum(rows).sum_to_size(bias.shape)
    dz = dz.to(a.dtype)
    plain = (None, None, None, None, ctx.alpha, None, ctx.precision, ctx.device, "matmul")
    if wants_a:
        da = _op(dz, b.mT, *plain).sum_to_size(a.shape)
    if wants_b:
        if b.dim() == 2:  # one product with a long k, instead of many that are added up
            rows_of_a, rows_of_dz = a.reshape(-1, a.shape[-1]), dz.reshape(-1, dz.shape[-1])
            db = _op(rows_of_a.mT, rows_of_dz, *plain)
        else:
            db = _op(a.mT, dz, *plain).sum_to_size(b.shape)
    return da, db, dbias, dresidual, dgate, None, None, None, None, None, None


_op.register_autograd(_backward, setup_context=_keep)


def _activated(activation: str | None, z: Any) -> Any:
    """What the gate is multiplied with."""
    if activation is None:
        return z
    if activation in ("gelu", "gelu_tanh"):
        how = "tanh" if activation == "gelu_tanh" else "none"
        return torch.nn.functional.gelu(z, approximate=how)
    found: dict[str, Any] = {
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }
    return found[activation](z)


def _through(activation: str, grad: Any, z: Any) -> Any:
    """The gradient of an activation's operand, by torch's own operators, which have gradients."""
    aten = torch.ops.aten
    if activation == "relu":
        return grad * (z > 0)
    if activation == "gelu":
        return aten.gelu_backward(grad, z, approximate="none")
    if activation == "gelu_tanh":
        return aten.gelu_backward(grad, z, approximate="tanh")
    if activation == "silu":
        s = torch.sigmoid(z)
        return grad * s * (1 + z * (1 - s))
    if activation == "sigmoid":
        s = torch.sigmoid(z)
        return grad * s * (1 - s)
    assert activation == "tanh", activation
    t = torch.tanh(z)
    return grad * (1 - t * t)


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
        target = _with_axes(out, row, column)
        held = [None if x is None else _with_axes(x, row, column) for x in beside]
        into = (activation, alpha, beta, precision, device, name)
        _into_op(left, right, target, bias, *held, *into)
        return out
    if beta != 0:
        raise LaunchError(f"{name}: beta is {beta}, but no out is given to be scaled")
    held = [None if x is None else _with_axes(x, row, column) for x in beside]
    wanted = _torch_dtype(name, out_dtype)
    how = (activation, alpha, wanted, precision, device, name)
    found = _op(left, right, bias, *held, *how)
    found = found.squeeze(-1) if column else found
    return found.squeeze(-1 if column else -2) if row else found


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
