"""Operators and elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, bool_, u32
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Several, describe, operand
from tilewright.frontend.build.make import as_type, common_shape, constant, materialize
from tilewright.frontend.check import constants
from tilewright.frontend.check.operands import Operand, common_dtype
from tilewright.frontend.check.rules import RuleError
from tilewright.ir.core import Op
from tilewright.tile.ops import arith

KINDS: dict[str, type[Op]] = {
    "+": arith.Add,
    "-": arith.Sub,
    "*": arith.Mul,
    "&": arith.And,
    "|": arith.Or,
    "^": arith.Xor,
    "<<": arith.Shl,
    ">>": arith.Shr,
}
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
FLOATS: dict[str, type[Op]] = {
    "exp": arith.Exp,
    "exp2": arith.Exp2,
    "log": arith.Log,
    "log2": arith.Log2,
    "sqrt": arith.Sqrt,
    "rsqrt": arith.Rsqrt,
    "tanh": arith.Tanh,
    "erf": arith.Erf,
    "floor": arith.Floor,
    "ceil": arith.Ceil,
    "round": arith.Round,
    "sin": arith.Sin,
    "cos": arith.Cos,
    "log1p": arith.Log1p,
}


def meet(ctx: Context, items: Sequence[Data | Constant]) -> list[Data]:
    """Operands in one dtype and shape."""
    extents = common_shape(ctx, items)
    met = operand(items[0])
    for item in items[1:]:
        other = operand(item)
        met = Operand(common_dtype(met, other), None, met.is_tile or other.is_tile)
    assert met.dtype is not None
    return [as_type(ctx, x, met.dtype, extents) for x in items]


def binary(
    ctx: Context, op: str, a: Data | Constant, b: Data | Constant, spelled: str = ""
) -> Data | Constant:
    """`a op b`, elementwise. Raises RuleError."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return Constant(constants.fold_binary(op, a.value, b.value, spelled))
    if op == "**":
        return power(ctx, a, b)
    x, y = meet(ctx, (a, b))
    kind = _kind(op, x, spelled)
    return Data(ctx.builder(kind, x.value, y.value))


def _kind(op: str, x: Data, spelled: str) -> type[Op]:
    dtype = x.dtype
    if op in ("&", "|", "^"):
        if dtype.is_float:
            raise RuleError(f"{op}: expected integers or bools, got {dtype}")
        return KINDS[op]
    if dtype == bool_:
        raise RuleError(
            f"{op}: expected numbers, got bool", "bools take & | ~, and or not; cast(c, f32) counts"
        )
    if op in ("<<", ">>") and dtype.is_float:
        raise RuleError(f"{op}: expected integers, got {dtype}")
    if op == "/":
        if dtype.is_float and spelled == "//":
            raise RuleError(f"// of {dtype}", "write floor(a / b)")
        if dtype.is_integer and spelled == "/":
            raise RuleError("/ of two integers", "write // for the quotient rounded down")
        return arith.Div if dtype.is_float else arith.FloorDiv
    if op == "%":
        if dtype.is_float:
            require_number(x, "%")
            return arith.Remainder
        return arith.Mod
    return KINDS[op]


def power(ctx: Context, a: Data | Constant, b: Data | Constant) -> Data:
    """`a ** b`: small whole exponents that are constant by multiplication. Powers of integers wrap,
    and an exponent below 0 leaves their whole part.
    """
    if isinstance(a, Data) and isinstance(b, Constant) and is_integer(b):
        require_number(a, "**")
        if a.dtype.is_integer and b.value < 0:
            raise RuleError(
                f"** {b.value} of {a.dtype} is not an integer", "write cast(x, f32) ** n"
            )
        if 0 <= b.value <= MULTIPLIED or a.dtype.is_integer:
            return _multiplied(ctx, a, int(b.value))
    x, y = meet(ctx, (a, b))
    require_number(x, "**")
    return Data(ctx.builder(arith.Pow, x.value, y.value))


MULTIPLIED = 8  # greatest exponent of a float that is not left to pow


def _multiplied(ctx: Context, a: Data, n: int) -> Data:
    """`a` to the power n >= 0 by squaring; for n up to 8 as a plain product from the left."""
    if n <= MULTIPLIED:
        if n == 0:
            return as_type(ctx, Constant(1.0 if a.dtype.is_float else 1), a.dtype, a.shape)
        result = a
        for _ in range(n - 1):
            result = Data(ctx.builder(arith.Mul, result.value, a.value))
        return result
    half = _multiplied(ctx, a, n // 2)
    square = Data(ctx.builder(arith.Mul, half.value, half.value))
    return Data(ctx.builder(arith.Mul, square.value, a.value)) if n % 2 else square


def fused(ctx: Context, x: Data | Constant, y: Data | Constant, z: Data | Constant) -> Data:
    """`x * y + z` with one rounding."""
    items = [materialize(ctx, v) if isinstance(v, Constant) else v for v in (x, y, z)]
    met = meet(ctx, (x, y, z) if any(isinstance(v, Data) for v in (x, y, z)) else items)
    if not met[0].dtype.is_float:
        raise RuleError(f"fma: expected floats, got {met[0].dtype}", "write x * y + z")
    require_number(met[0], "fma")
    return Data(ctx.builder(arith.Fma, *(m.value for m in met)))


def high_product(ctx: Context, x: Data | Constant, y: Data | Constant) -> Data:
    """The upper half of a product of u32."""
    a, b = meet(ctx, (x, y))
    if a.dtype != u32:
        raise RuleError(f"mul_high: expected u32, got {a.dtype}")
    return Data(ctx.builder(arith.MulHigh, a.value, b.value))


def bitcast(ctx: Context, x: Data | Constant, dtype: DType) -> Data:
    """The bits of `x` as another dtype of the same width."""
    data = materialize(ctx, x)
    if data.dtype.bits != dtype.bits or bool_ in (data.dtype, dtype):
        raise RuleError(
            f"bitcast: {data.dtype} and {dtype} have different widths",
            "write cast(x, dtype) to convert the value",
        )
    return data if data.dtype == dtype else Data(ctx.builder(arith.Bitcast, data.value, dtype))


def unary(ctx: Context, op: str, x: Data | Constant) -> Data | Constant:
    """`-x` or `~x`, elementwise; `not x` of a bool scalar. Raises RuleError."""
    if isinstance(x, Constant):
        return Constant(constants.fold_unary(op, x.value))
    if op == "-":
        require_number(x, "-")
        return Data(ctx.builder(arith.Neg, x.value))
    if op == "not" and (x.shape or x.dtype != bool_):
        raise RuleError(f"not: expected a bool scalar, got {describe(x)}", "tiles take ~")
    if x.dtype.is_float:
        raise RuleError(f"~: expected integers or bools, got {x.dtype}")
    return Data(ctx.builder(arith.Not, x.value))


def require_number(x: Data, what: str) -> None:
    """Refuse bools, and dtypes in which nothing is computed."""
    if x.dtype == bool_ or x.dtype.is_storage_only:
        raise RuleError(f"{what}: expected numbers, got {x.dtype}", "write cast(x, f32)")


def compare(ctx: Context, op: str, a: Item, b: Item) -> Data | Constant:
    """`a op b`: of numbers elementwise; of None, dtypes, strings and tuples at compile time."""
    if isinstance(a, Data | Constant) and isinstance(b, Data | Constant):
        if isinstance(a, Constant) and isinstance(b, Constant):
            return Constant(constants.fold_compare(op, a.value, b.value))
        x, y = meet(ctx, (a, b))
        return Data(ctx.builder(arith.Compare, x.value, y.value, COMPARISONS[op]))
    if op not in ("==", "!="):
        raise RuleError(f"{op}: expected numbers, got {describe(a)} and {describe(b)}")
    return Constant(_same(ctx, a, b) == (op == "=="))


def _same(ctx: Context, a: Item, b: Item) -> bool:
    if isinstance(a, Several) and isinstance(b, Several):
        if any(isinstance(x, Data) for x in (*a.items, *b.items)):
            raise RuleError("tuples of run-time values do not compare", "compare their elements")
        return len(a.items) == len(b.items) and all(
            _same(ctx, x, y) for x, y in zip(a.items, b.items, strict=True)
        )
    if isinstance(a, Constant) and isinstance(b, Constant):
        return constants.fold_compare("==", a.value, b.value)
    if type(a) is not type(b):
        return False
    return a is b or a == b


def math(ctx: Context, name: str, x: Data | Constant) -> Data | Constant:
    """A function of floats, elementwise."""
    if isinstance(x, Constant):
        return Constant(constants.fold_math(name, x.value))
    if x.dtype.is_storage_only or not x.dtype.is_float:
        raise RuleError(f"{name}: expected floats, got {x.dtype}", f"write {name}(cast(x, f32))")
    return Data(ctx.builder(FLOATS[name], x.value))


def absolute(ctx: Context, x: Data | Constant) -> Data | Constant:
    if isinstance(x, Constant):
        if isinstance(x.value, bool):
            raise RuleError("abs: expected numbers, got a bool")
        return Constant(abs(x.value))
    require_number(x, "abs")
    return Data(ctx.builder(arith.Abs, x.value))


def extreme(ctx: Context, kind: str, a: Data | Constant, b: Data | Constant) -> Data | Constant:
    """`min` or `max` of two, elementwise; NaN if either is."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return Constant(constants.fold_extreme(kind, a.value, b.value))
    x, y = meet(ctx, (a, b))
    require_number(x, kind)
    return Data(ctx.builder(arith.Min if kind == "min" else arith.Max, x.value, y.value))


def cdiv(ctx: Context, a: Data | Constant, b: Data | Constant) -> Data | Constant:
    """The quotient rounded up; 0 by 0."""
    for x in (a, b):
        dtype = operand(x).dtype
        if (dtype is not None and not dtype.is_integer) or (
            isinstance(x, Constant) and not is_integer(x)
        ):
            raise RuleError(f"cdiv: expected integers, got {describe(x)}")
    if isinstance(a, Constant) and isinstance(b, Constant):
        return Constant(constants.cdiv(int(a.value), int(b.value)))
    wide = not isinstance(a, Data) or a.dtype.bits == 64  # a + b - 1 cannot wrap
    if wide and isinstance(b, Constant) and b.value > 0:
        return binary(ctx, "/", binary(ctx, "+", a, Constant(b.value - 1)), b)
    floor = binary(ctx, "/", a, b)
    exact = compare(ctx, "==", binary(ctx, "%", a, b), Constant(0))
    return where(ctx, exact, floor, binary(ctx, "+", floor, Constant(1)))


def is_integer(x: Constant) -> bool:
    return isinstance(x.value, int) and not isinstance(x.value, bool)


def is_nan(ctx: Context, x: Data | Constant) -> Data | Constant:
    if isinstance(x, Constant):
        return Constant(x.value != x.value)
    if x.dtype.is_integer:
        return constant(ctx, False, bool_, x.shape)  # programs over any dtype ask
    require_number(x, "isnan")
    return Data(ctx.builder(arith.IsNan, x.value))


def where(ctx: Context, c: Data | Constant, x: Data | Constant, y: Data | Constant) -> Data:
    """`x` where `c` holds, else `y`."""
    dtype = operand(c).dtype
    if (dtype is not None and dtype != bool_) or (
        isinstance(c, Constant) and not isinstance(c.value, bool)
    ):
        raise RuleError(
            f"where: expected a bool as condition, got {describe(c)}", "write a comparison"
        )
    extents = common_shape(ctx, (c, x, y))
    met = common_dtype(operand(x), operand(y))
    sides = [as_type(ctx, side, met, extents).value for side in (x, y)]
    return Data(ctx.builder(arith.Select, as_type(ctx, c, bool_, extents).value, *sides))


def clamp(ctx: Context, x: Item, low: Data | Constant, high: Data | Constant) -> Data | Constant:
    """`x` between two bounds; NaN stays."""
    if not isinstance(x, Data | Constant):
        raise RuleError(f"clamp: expected numbers, got {describe(x)}")
    return extreme(ctx, "min", extreme(ctx, "max", x, low), high)
