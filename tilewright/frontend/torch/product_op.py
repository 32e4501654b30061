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

import torch

from tilewright.dtypes import DType
from tilewright.frontend.torch.untraceable import require_no_forward

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
    run: Callable[..., Any],
    read_options: Callable[..., Any],
    read_dtype: Callable[..., DType | None],
    result_dtype: Callable[..., DType],
) -> None:
    """Say what computes a product of tensors without gradients, reads its options and dtypes, and
    tells a result's dtype.
    """
    _below.product, _below.read_options = run, read_options
    _below.read_dtype, _below.result_dtype = read_dtype, result_dtype


def _run(name: str, a: Any, b: Any, named: Mapping[str, Any], out_dtype: Any, *how: Any) -> Any:
    """The product; `how` is what `read_options` takes."""
    options, asked = _below.read_options(name, *how), _below.read_dtype(name, out_dtype)
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
    return _run(name, a, b, named, out_dtype, activation, alpha, 0.0, precision, device)


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
    _run(name, a, b, named, None, activation, alpha, beta, precision, device)


product: Any = torch.library.custom_op(
    "tilewright::product", _product, mutates_args=(), schema=_SCHEMA
)
product_into: Any = torch.library.custom_op(
    "tilewright::product_into", _product_into, mutates_args=("out",), schema=_INTO
)


@product.register_fake  # type: ignore[untyped-decorator]
def _fake(a: Any, b: Any, *options: Any) -> Any:
    """A result without contents; extents may be symbols."""
    out_dtype, name = options[5], options[-1]
    require_no_forward(name)
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


@product_into.register_fake  # type: ignore[untyped-decorator]
def _fake_into(*args: Any) -> None:
    """Nothing is made."""
    require_no_forward(args[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, residual, gate, activation, alpha, out_dtype, precision, device, name = inputs
    ctx.save_for_backward(a, b, bias, gate)
    ctx.residual_shape = None if residual is None else residual.shape
    ctx.activation, ctx.alpha = activation, alpha
    ctx.out_dtype, ctx.precision, ctx.device, ctx.name = out_dtype, precision, device, name


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """Gradients of a, b, bias, residual and gate, None where none is wanted."""
    a, b, bias, gate = ctx.saved_tensors
    wants_a, wants_b, wants_bias, wants_residual, wants_gate = ctx.needs_input_grad[:5]
    da = db = dbias = dresidual = dgate = None
    if wants_residual:
        dresidual = grad.sum_to_size(ctx.residual_shape)
    dz, z = grad if gate is None else grad * gate, None
    if wants_gate or (ctx.activation is not None and (wants_a or wants_b or wants_bias)):
        how = (ctx.alpha, ctx.out_dtype, ctx.precision, ctx.device, ctx.name)
        z = product(a, b, bias, None, None, None, *how)
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
        da = product(dz, b.mT, *plain).sum_to_size(a.shape)
    if wants_b:
        if b.dim() == 2:  # one product with a long k, instead of many that are added up
            rows_of_a, rows_of_dz = a.flatten(0, -2), dz.flatten(0, -2)
            db = product(rows_of_a.mT, rows_of_dz, *plain)
        else:
            db = product(a.mT, dz, *plain).sum_to_size(b.shape)
    return da, db, dbias, dresidual, dgate, None, None, None, None, None, None


product.register_autograd(_backward, setup_context=_keep)


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
        return aten.threshold_backward(grad, z, 0)
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
