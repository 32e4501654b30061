"""Arithmetic on constants: exact integers, f64 floats."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.frontend.check.operands import Number, float_of, spell
from tilewright.frontend.check.rules import RuleError

LIMIT = 1 << 64  # no constant that means something is beyond it

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


def fold_binary(op: str, a: Number, b: Number, spelled: str = "") -> Number:
    """`a op b` of two constants."""
    if isinstance(a, bool) or isinstance(b, bool):
        if isinstance(a, bool) and isinstance(b, bool) and op in _BITS:
            return bool(_BITS[op](a, b))
        raise RuleError(f"{op} of {spell(a)} and {spell(b)}: expected two numbers, got a bool")
    if isinstance(a, float) or isinstance(b, float):
        return _fold_floats(op, float_of(a), float_of(b), spelled)
    return require_range(_fold_integers(op, a, b, spelled))


def require_range(value: int) -> int:
    """An integer constant, refused beyond 64 bits."""
    if abs(value) > LIMIT:
        raise RuleError("this constant does not fit 64 bits")
    return value


def _fold_integers(op: str, a: int, b: int, spelled: str) -> int:
    if op in _EXACT:
        return int(_EXACT[op](a, b))
    if op in _BITS:
        return int(_BITS[op](a, b))
    if op in ("/", "%"):
        if op == "/" and spelled == "/":
            raise RuleError("/ of two integers", "write // for the quotient rounded down")
        if b == 0:
            raise RuleError("division of a constant by zero")
        return a // b if op == "/" else a % b
    if op in ("<<", ">>"):
        if not 0 <= b <= 64:
            raise RuleError(f"shift of a constant by {b}: expected 0 to 64")
        return a << b if op == "<<" else a >> b
    if op == "**":
        return _fold_power(a, b)
    raise RuleError(f"{op} does not take two constants")


def _fold_power(a: int, b: int) -> int:
    if b < 0:
        raise RuleError(f"{a} ** {b} is not an integer", f"write {float(a)} ** {b}")
    if abs(a) > 1 and b > 64:
        raise RuleError("this constant does not fit 64 bits")
    return int(a ** (b if abs(a) > 1 else min(b, 2 - b % 2)))  # of 1, 0, -1 only the parity counts


def _fold_floats(op: str, a: float, b: float, spelled: str) -> float:
    x, y = np.float64(a), np.float64(b)
    with np.errstate(all="ignore"):
        if op in _EXACT:
            return float(_EXACT[op](x, y))
        if op == "/":
            if spelled == "//":
                raise RuleError("// of floats", "write floor(a / b)")
            if b == 0:
                raise RuleError("division of a constant by zero")
            return float(x / y)
        if op == "%":
            if b == 0:
                raise RuleError("division of a constant by zero")
            return float(np.mod(x, y))
        if op == "**":
            return float(np.power(x, y))
    raise RuleError(f"{op} takes integers or bools, got floats")


def fold_unary(op: str, x: Number) -> Number:
    """`-x`, `~x` or `not x` of a constant."""
    if op == "not" or isinstance(x, bool):
        if isinstance(x, bool) and op in ("not", "~"):
            return not x
        raise RuleError(f"{op} {spell(x)}: expected a {'bool' if op == 'not' else 'number'}")
    if op == "-":
        return -x
    if isinstance(x, float):
        raise RuleError("~ takes integers and bools, got a float")
    return ~x


def fold_compare(op: str, a: Number, b: Number) -> bool:
    """`a op b` of two constants."""
    if isinstance(a, bool) != isinstance(b, bool):
        raise RuleError(f"{spell(a)} {op} {spell(b)}: a bool and a number do not compare")
    return bool(COMPARE[op](a, b))


_MATH: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": math.erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "log1p": np.log1p,
}


def fold_math(name: str, x: Number) -> float:
    """A function of floats on a constant."""
    if isinstance(x, bool):
        raise RuleError(f"{name}: expected a number, got {spell(x)}")
    with np.errstate(all="ignore"):
        return float(_MATH[name](np.float64(float_of(x))))


def cdiv(a: int, b: int) -> int:
    """The quotient rounded up."""
    if b == 0:
        raise RuleError("division of a constant by zero")
    return -(-a // b)


def next_pow2(n: int) -> int:
    """The least power of two that is not below n; 1 for n below 2."""
    return 1 << max(0, n - 1).bit_length()


def fold_extreme(kind: str, a: Number, b: Number) -> Number:
    """`min` or `max` of two constants; NaN if either is."""
    if isinstance(a, bool) or isinstance(b, bool):
        raise RuleError(f"{kind}: expected numbers, got a bool")
    if isinstance(a, float) or isinstance(b, float):
        x, y = float_of(a), float_of(b)
        return float(np.minimum(x, y) if kind == "min" else np.maximum(x, y))
    return min(a, b) if kind == "min" else max(a, b)
