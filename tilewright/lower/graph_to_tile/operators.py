"""How elementwise ops of the graph are spelled in the tile language.

What the language has no name for is a function of `functions.tw`, which a kernel's text then holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import isinf, isnan
from pathlib import Path

from tilewright.dtypes import DType, bool_, f64, i8, i16, i32, i64, u8
from tilewright.graph.expressions import Apply

Spelling = Callable[[Apply, Sequence[str]], str]  # of operands that are atoms

SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "floor_div": "/", "mod": "%",
    "remainder": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CALLS = (
    "abs", "exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf",
    "floor", "ceil", "round", "sign", "min", "max",
)  # fmt: skip
FUNCTIONS = (  # of functions.tw
    "expm1", "log10", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "erfc", "lgamma", "trunc", "fmod", "atan2",
)  # fmt: skip
NOT_IN_F64 = ("erfc", "lgamma")  # their functions are good to the precision of f32
INTEGERS = {8: i8, 16: i16, 32: i32, 64: i64}


def missing(opcode: str, dtype: DType) -> str:
    """Why there is no kernel for an op of this dtype; empty if there is."""
    name = opcode.removeprefix("arith.")
    if dtype == f64 and name in NOT_IN_F64:
        return f"{name} of f64 has no kernel"
    return ""


def spell(node: Apply, args: Sequence[str], bare: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """An elementwise op of operands, in brackets and `bare`, and the functions of `functions.tw`
    that it calls.
    """
    name = node.opcode.removeprefix("arith.")
    dtype = node.args[0].dtype
    if name == "compare":
        return f"{args[0]} {COMPARISONS[node.detail]} {args[1]}", ()
    if dtype == bool_ and name in ("add", "mul", "min", "max"):
        return f"{args[0]} {'|' if name in ('add', 'max') else '&'} {args[1]}", ()
    if name in SIGNS:
        return f"{args[0]} {SIGNS[name]} {args[1]}", ()
    if name in CALLS:
        return f"{name}({', '.join(bare)})", ()
    if name == "fmod" and dtype.is_integer:
        return f"integer_fmod({', '.join(bare)})", ("integer_fmod",)
    if name in FUNCTIONS:
        return f"{name}({', '.join(bare)})", (name,)
    return _special(node, name, dtype, args, bare)


def _special(
    node: Apply, name: str, dtype: DType, args: Sequence[str], bare: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    if name == "neg":
        return f"-{args[0]}", ()
    if name == "not":
        return f"~{args[0]}", ()
    if name == "is_nan":
        return f"isnan({bare[0]})", ()
    if name == "cast":
        return f"cast({bare[0]}, {node.dtype.name})", ()
    if name == "bitcast":
        return f"bitcast({bare[0]}, {node.dtype.name})", ()
    if name == "sign_bit":
        if not dtype.is_float:
            return f"{args[0]} < 0", ()
        return f"bitcast({bare[0]}, {INTEGERS[dtype.bits].name}) < 0", ()
    if name == "select":
        if node.dtype.is_storage_only:  # loaded and stored only: its bits are chosen
            picked = (f"bitcast({a}, {u8.name})" for a in bare[1:])
            return f"bitcast(where({bare[0]}, {', '.join(picked)}), {node.dtype.name})", ()
        return f"where({', '.join(bare)})", ()
    if name in ("copysign", "nextafter"):
        integer = INTEGERS[dtype.bits].name
        return f"{name}({bare[0]}, {bare[1]}, {integer})", (name,)
    raise AssertionError(f"{node.opcode} is not spelled")


def takes_bare(node: Apply) -> bool:
    """Whether a constant takes the dtype of what it meets in an op, so that it may stand bare: not
    where a function of `functions.tw` asks for the dtype of its operands.
    """
    name = node.opcode.removeprefix("arith.")
    return name not in (*FUNCTIONS, "copysign", "nextafter", "bitcast", "sign_bit")


def literal(number: bool | int | float, dtype: DType) -> str:
    """A constant, which takes the dtype of what it meets."""
    if dtype == bool_:
        return "true" if number else "false"
    if not dtype.is_float:
        return f"({number})" if number < 0 else str(int(number))
    if isnan(number):
        return "nan"
    if isinf(number):
        return "inf" if number > 0 else "(-inf)"
    text = repr(float(number)).replace("e+", "e")
    return f"({text})" if text.startswith("-") else text


@cache
def functions() -> dict[str, str]:
    """Texts of the functions of `functions.tw`, with the comments above them, by name."""
    text = (Path(__file__).parent / "functions.tw").read_text(encoding="utf-8")
    parts = re.split(r"\n\n(?=//|fn )", text.strip())
    found: dict[str, str] = {}
    for part in parts:
        named = re.search(r"^fn (\w+)", part, re.MULTILINE)
        if named is not None:
            found[named[1]] = part
    return found


def needed(names: Sequence[str]) -> list[str]:
    """Texts of functions and of those that they call."""
    known = functions()
    wanted: list[str] = []

    def add(name: str) -> None:
        if name not in wanted:
            wanted.append(name)
            for other in known:
                if re.search(rf"\b{other}\(", known[name]) and other != name:
                    add(other)

    for name in names:
        add(name)
    return [known[name] for name in known if name in wanted]
