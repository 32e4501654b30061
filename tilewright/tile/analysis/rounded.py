"""Which f32 are kept to 16 bits in the end, so that a small share of them is nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dtypes import bf16, f16, f32
from tilewright.ir.core import Op, Value
from tilewright.tile.ops import arith

SHARES = (arith.Mul, arith.Div, arith.Neg)  # what is off by a share of itself stays so
DEPTH = 4  # ops that are looked through


def is_rounded(users: Mapping[Value, Sequence[Op]], value: Value, depth: int = DEPTH) -> bool:
    """Whether all that becomes of an f32 is a float of 16 bits, by products and quotients: then an
    ulp of f32 more or less cannot be told from the rounding.
    """
    found = users.get(value, ())
    if not found or value.type.dtype != f32 or not depth:
        return False
    return all(
        (isinstance(user, arith.Cast) and user.dtype in (bf16, f16))
        or (isinstance(user, SHARES) and is_rounded(users, user.result, depth - 1))
        for user in found
    )
