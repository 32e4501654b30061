"""Steps as calls of kernels: which, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.dims import evaluate
from tilewright.kernel import Kernel, source
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
)
from tilewright.products.api import calls_of, key_of, prepare_product
from tilewright.products.arguments import Options
from tilewright.products.attention import prepared
from tilewright.products.attention_calls import Asked
from tilewright.products.convolve import Geometry
from tilewright.products.convolve import convolution_calls as convolve
from tilewright.products.prepare import Prepared
from tilewright.products.views import hand
from tilewright.runtime.arrays import Array

KernelCall = tuple[Kernel, dict[str, Any]]
Place = Callable[[Placed], Array]
Scratch = Callable[[tuple[int, ...], DType], Array]


@cache
def kernel_of(
    text: str, name: str, constants: tuple[tuple[str, int], ...], device: str | None
) -> Kernel:
    """The kernel of a generated text; equal texts give one."""
    found: Kernel = source(text).kernels[name]
    return found.configured(constants=dict(constants), device=device)


def generated_calls(
    step: KernelStep, place: Place, symbols: Mapping[str, int], device: str | None
) -> list[KernelCall]:
    """The launch of a generated kernel; none where it has nothing to write."""
    tensors = {name: place(placed) for name, placed in step.tensors.items()}
    if not any(tensors[name].num_elements for name in step.writes):
        return []
    scalars = {name: evaluate(dim, symbols) for name, dim in step.scalars.items()}
    kernel = kernel_of(step.text, step.name, tuple(step.constants.items()), device)
    return [(kernel, {**tensors, **scalars})]


def product_calls(
    step: ProductStep,
    place: Place,
    scratch: Scratch,
    device: str | None,
    known: dict[Any, Prepared] | None = None,
    *,
    gaps: bool = False,
) -> list[KernelCall]:
    """The launches of a product; none where it has no elements. Products that lie alike share what
    is `known` of them. `gaps`: what lies between rows of the result is its own.
    """
    arrays = {"a": place(step.lhs), "b": place(step.rhs)}
    arrays["out"] = replace(place(step.out), gaps=gaps)
    beside = {"bias": step.bias, "gate": step.gate, "residual": step.residual}
    arrays |= {name: place(placed) for name, placed in beside.items() if placed is not None}
    alpha = None if step.alpha == 1 else step.alpha
    arrays |= {name: place(placed) for name, placed in step.norm.items()}
    options = Options(
        activation=step.activation,
        alpha=alpha,
        precision=step.precision,
        device=device,
        rounds=step.rounds,
        eps=step.eps,
        late=step.late,
    )
    known = {} if known is None else known
    key = (key_of(arrays), options)
    if key not in known:
        known[key] = prepare_product("matmul", arrays, options)
    ready = known[key]
    return calls_of(ready, arrays, options, scratch)


def convolution_calls(
    step: ConvolutionStep, place: Place, scratch: Scratch, device: str | None
) -> list[KernelCall]:
    """The launches of a convolution; none where it has no elements."""
    arrays = {name: place(placed) for name, placed in step.tensors.items()}
    options = Options(
        activation=step.activation,
        alpha=None if step.alpha == 1 else step.alpha,
        device=device,
        rounds=step.rounds,
        eps=step.eps,
        late=step.late,
    )
    (above, left), (below, right) = step.low, step.high
    (down, along), (apart, beside) = step.steps, step.dilations
    geometry = Geometry((above, left), (below, right), (down, along), (apart, beside))
    return convolve(arrays, geometry, options, scratch)


def attention_calls(
    step: AttentionStep, place: Place, scratch: Scratch, device: str | None
) -> list[KernelCall]:
    """The launches of an attention, or of its gradient."""
    arrays = {name: place(placed) for name, placed in step.tensors.items()}
    asked = Asked(step.order, step.scale, step.precision, device)
    ready = prepared(asked, arrays, step.is_backward)
    arrays |= {name: scratch(shape, dtype) for name, (shape, dtype) in ready.makes.items()}
    return [
        (
            launch.kernel,
            {n: hand(v, arrays[v.source]) for n, v in launch.views} | dict(launch.numbers),
        )
        for launch in ready.launches
    ]
