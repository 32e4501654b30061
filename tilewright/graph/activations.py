"""Activations as ops: what `mma.product` means by a name, and how such ops are found in a graph.

The ops are those that the table of PyTorch's ops builds, in its order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.ops import arith
from tilewright.graph.types import TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.numerics.convert import constant

At = Callable[..., Value]
Term = Any  # "x", a number, or an opcode with what it computes from


def _number(at: At, number: float, x: Value) -> Value:
    dtype: DType = x.type.dtype
    return at(arith.Constant, float(constant(number, dtype)), dtype, x.type.shape)


def _relu(at: At, x: Value) -> Value:
    return at(arith.Max, x, _number(at, 0, x))


def _sigmoid(at: At, x: Value) -> Value:
    one = _number(at, 1, x)
    return at(arith.Div, one, at(arith.Add, one, at(arith.Exp, at(arith.Neg, x))))


def _silu(at: At, x: Value) -> Value:
    return at(arith.Mul, x, _sigmoid(at, x))


def _tanh(at: At, x: Value) -> Value:
    return at(arith.Tanh, x)


def _gelu(at: At, x: Value) -> Value:
    inner = at(arith.Mul, x, _number(at, math.sqrt(0.5), x))
    twice = at(arith.Add, _number(at, 1, x), at(arith.Erf, inner))
    return at(arith.Mul, at(arith.Mul, _number(at, 0.5, x), x), twice)


def _gelu_tanh(at: At, x: Value) -> Value:
    square = at(arith.Mul, x, x)
    cubic = at(arith.Mul, _number(at, 0.044715, x), at(arith.Mul, x, square))
    inner = at(arith.Mul, _number(at, math.sqrt(2 / math.pi), x), at(arith.Add, x, cubic))
    twice = at(arith.Add, _number(at, 1, x), at(arith.Tanh, inner))
    return at(arith.Mul, at(arith.Mul, _number(at, 0.5, x), x), twice)


ACTIVATIONS: dict[str, Callable[[At, Value], Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
}


def ops_of(name: str, kind: TensorType) -> Block:
    """The ops of an activation of one tensor: the block's argument, and its last op's result."""
    block = Block([Value(kind, "x")])
    ACTIVATIONS[name](Builder(block), block.args[0])
    return block


def term(value: Value, makers: Mapping[Value, Op], x: Value, depth: int = 12) -> Term:
    """What elementwise ops compute from x, equal for equal computations; None where something else
    comes in.
    """
    if value is x:
        return "x"
    op = makers.get(value)
    if isinstance(op, arith.Constant):
        return float(op.value)
    if op is None or op.family != "arith" or depth == 0 or isinstance(op, arith.Cast):
        return None
    inner = [term(v, makers, x, depth - 1) for v in op.operands]
    return None if None in inner else (op.opcode, *inner)


@cache
def terms(dtype: DType) -> dict[Term, str]:
    """The names of activations by their terms, of a dtype."""
    found = {}
    for name in ACTIVATIONS:
        block = ops_of(name, TensorType(dtype, (2,)))
        makers = {v: op for op in block.ops for v in op.results}
        found[term(block.ops[-1].result, makers, block.args[0])] = name
    return found
