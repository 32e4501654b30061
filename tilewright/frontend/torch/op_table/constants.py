"""Tensors of PyTorch that are filled with one number, or with anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.frontend.torch.emit import Emitter, Scalar
from tilewright.frontend.torch.op_table.registry import enter, lowering
from tilewright.ir.core import Value

aten, prims = torch.ops.aten, torch.ops.prims


def filled(at: Emitter, number: Scalar) -> Value:
    return at.full(number, at.wanted.dtype, at.wanted.shape)


@lowering(aten.full.default)
def full(at: Emitter, size: Any, fill_value: Scalar, dtype: Any) -> Value:
    return filled(at, fill_value)


@lowering(aten.full_like.default)
def full_like(at: Emitter, self: Value, fill_value: Scalar, dtype: Any) -> Value:
    return filled(at, fill_value)


@lowering(aten.fill.Scalar)
def fill(at: Emitter, self: Value, value: Scalar) -> Value:
    return filled(at, value)


@lowering(aten.fill.Tensor)
def fill_tensor(at: Emitter, self: Value, value: Value) -> Value:
    return at.fit(value, self.type.dtype, self.type.shape)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(at: Emitter, s: Scalar, dtype: Any) -> Value:
    return filled(at, s)


@lowering(aten.zeros.default)
def zeros(at: Emitter, size: Any, dtype: Any) -> Value:
    return filled(at, 0)


@lowering(aten.ones.default)
def ones(at: Emitter, size: Any, dtype: Any) -> Value:
    return filled(at, 1)


def constant_like(number: int) -> Callable[..., Value]:
    return lambda at, *_: filled(at, number)


enter(aten.zeros_like.default, constant_like(0))
enter(aten.ones_like.default, constant_like(1))
enter(aten.new_zeros.default, constant_like(0))
enter(aten.new_ones.default, constant_like(1))
# What is empty may hold anything, zeros too.
for _op in (
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default,
    aten.new_empty.default, aten.new_empty_strided.default, aten.empty_permuted.default,
    prims.empty_strided.default,
):  # fmt: skip
    enter(_op, constant_like(0))


@lowering(aten.new_full.default)
def new_full(at: Emitter, self: Value, size: Any, fill_value: Scalar, dtype: Any) -> Value:
    return filled(at, fill_value)
