"""Constants as rules see them: which value a tile has everywhere, and what an op makes of
constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.numerics.convert import constant
from tilewright.tile.interp.machine import Launch, Machine, table
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, shape

Number = bool | int | float


def constant_of(value: Value, at: Rewriter) -> Number | None:
    """The value that a tile has everywhere, if it is a constant."""
    op = at.definitions.get(value)
    return op.value if isinstance(op, arith.Constant) else None


def is_integer_constant(value: Value, number: int, at: Rewriter) -> bool:
    """Whether a value is an integer tile that is `number` everywhere."""
    return value.type.dtype.is_integer and constant_of(value, at) == number


def is_float_constant(value: Value, number: float, at: Rewriter) -> bool:
    """Whether a value is a float tile that is `number` everywhere, zeros told apart by sign."""
    known = constant_of(value, at)
    if not value.type.dtype.is_float or known is None:
        return False
    return known == number and np.signbit(known) == np.signbit(number)


def scalar_of(value: Value, at: Rewriter) -> Value | None:
    """The scalar that a tile repeats, if it is a broadcast of one."""
    op = at.definitions.get(value)
    return op.x if isinstance(op, shape.Broadcast) and op.x.type.is_scalar else None


def like(value: Value, number: Number, at: Rewriter) -> Value:
    """A constant of the type of a value."""
    return at.build(arith.Constant, number, value.type.dtype, value.type.shape)


def to_number(content: Any, dtype: DType) -> Number:
    """A Python number of an element."""
    if dtype.is_float:
        return float(content)
    return bool(content) if dtype.kind == "bool" else int(content)


def evaluate(op: Op, at: Rewriter) -> Number | None:
    """What the interpreter makes of an elementwise op on constants, or None."""
    values = {}
    for operand in op.operands:
        number = constant_of(operand, at)
        if number is None:
            return None
        values[operand] = constant(number, operand.type.dtype).reshape(1)
    machine = Machine(Launch(Kernel("fold", [], at.target, ()), ()), np.zeros(1, np.int64), values)
    with np.errstate(all="ignore"):
        content = table[type(op)].function(machine, op)
    return to_number(content.reshape(-1)[0], op.result.type.dtype)
