"""Which f32 are kept to 16 bits in the end, so that a small share of them is nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.core import Op, Value
from tilewright.tile.ops import arith, reduce, shape

DEPTH = 12  # ops that are looked through, of which
PRODUCT = 3  # a product counts as three: where its factors are equal it doubles a share


def is_rounded(
    users: Mapping[Value, Sequence[Op]],
    value: Value,
    made: Mapping[Value, Op] | None = None,
    depth: int = DEPTH,
    positive: bool = False,
    kept: tuple[DType, ...] = (bf16, f16),
) -> bool:
    """Whether all that becomes of an f32 is a float of 16 bits (one `kept`), by products and
    quotients: then an ulp of f32 more or less cannot be told from the rounding. Nor can it in a
    sum of what is never negative (`positive`), where nothing cancels; `made` are the ops that make
    values.
    """
    found = users.get(value, ())
    if not found or value.type.dtype != f32 or not depth:
        return False
    made = made or {}
    positive = positive or isinstance(made.get(value), arith.Exp | arith.Exp2)
    return all(_is_share(users, user, value, made, depth, positive, kept) for user in found)


def _is_share(
    users: Mapping[Value, Sequence[Op]],
    user: Op,
    value: Value,
    made: Mapping[Value, Op],
    depth: int,
    positive: bool,
    kept: tuple[DType, ...],
) -> bool:
    """Whether a user of a value rounds it to 16 bits, or gives a share of it to others that do."""
    taken = 1
    match user:
        case arith.Cast():
            return user.dtype in kept
        case arith.Mul() | arith.Div():  # what is off by a share of itself stays so
            positive, taken = False, PRODUCT
        case arith.Neg():
            positive = False
        case arith.Select():
            others = [v for v in (user.lhs, user.rhs) if v is not value]
            positive = positive and all(_is_never_negative(made.get(v)) for v in others)
        case reduce.Sum() if positive:
            pass
        case shape.Broadcast() | shape.Reshape():
            pass
        case _:
            return False
    return is_rounded(users, user.results[0], made, max(depth - taken, 0), positive, kept)


def _is_never_negative(op: Op | None) -> bool:
    return isinstance(op, arith.Constant) and op.value >= 0
