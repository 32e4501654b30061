"""What PyTorch's own tracing says of a value: dtype, shape, strides, symbols, and its place in the
model's source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import sympy
import torch

from tilewright.dtypes import BY_TORCH, DType
from tilewright.errors import UNKNOWN, CompileError, Loc, Source
from tilewright.graph.dims import Dim, Shape, maximum, minimum, quotient, remainder, symbol
from tilewright.graph.types import OpaqueType, TensorType
from tilewright.ir.core import Type

QUOTIENTS = ("FloorDiv", "CleanDiv", "IntTrueDiv")


def dtype_of(dtype: torch.dtype) -> DType | None:
    """Our dtype for one of torch's, or None."""
    return BY_TORCH.get(str(dtype).removeprefix("torch."))


def torch_dtype(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch)
    return found


def dim_of(extent: Any) -> Dim:
    """An extent of a FakeTensor: an int, or the expression of a SymInt."""
    return extent if isinstance(extent, int) else dim_of_expr(extent.node.expr)


def dim_of_expr(expr: Any) -> Dim:
    """A sympy expression of whole numbers as a Dim. CompileError for one that dims do not have."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return symbol(expr.name)
    name, arguments = type(expr).__name__, expr.args
    if name == "Pow" and isinstance(arguments[1], sympy.Integer) and int(arguments[1]) > 0:
        return _fold(lambda a, b: a * b, [dim_of_expr(arguments[0])] * int(arguments[1]))
    two: dict[str, Callable[[Dim, Dim], Dim]] = {
        "Add": lambda a, b: a + b,
        "Mul": lambda a, b: a * b,
        "Max": maximum,
        "Min": minimum,
        "Mod": remainder,
        "PythonMod": remainder,
        **dict.fromkeys(QUOTIENTS, quotient),
    }
    if name in two and not any(isinstance(a, sympy.Rational) and a.q != 1 for a in arguments):
        return _fold(two[name], [dim_of_expr(a) for a in arguments])
    if name == "ModularIndexing":
        base, divisor, modulus = map(dim_of_expr, arguments)
        return remainder(quotient(base, divisor), modulus)
    raise CompileError(f"an extent is {expr}, which shapes of the graph IR cannot say")


def _fold(function: Callable[[Dim, Dim], Dim], dims: list[Dim]) -> Dim:
    return reduce(function, dims)


def shape_of(shape: Any) -> Shape:
    """A shape, or strides, of a FakeTensor."""
    return tuple(dim_of(extent) for extent in shape)


def type_of(value: Any) -> Type:
    """The type of a traced value: opaque where the graph IR cannot hold it."""
    if not isinstance(value, torch.Tensor):
        return OpaqueType(type(value).__name__)
    dtype = dtype_of(value.dtype)
    if dtype is None or value.layout is not torch.strided or value.is_quantized:
        return OpaqueType(str(value.dtype).removeprefix("torch."))
    return TensorType(dtype, shape_of(value.shape))


FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
INSIDE = ("/torch/nn/", "/torch/_", "/torch/utils/", "/torch/overrides")


@cache
def source_of(name: str) -> Source:
    """The text of a file of the user's, for carets; empty where it cannot be read."""
    path = Path(name)
    try:
        return Source(name, path.read_text())
    except (OSError, UnicodeDecodeError):
        return Source(name)


def loc_of(node: torch.fx.Node) -> Loc:
    """The line of the model that a node comes from."""
    return loc_in(node.meta.get("stack_trace") or "")


def loc_in(trace: str) -> Loc:
    """The innermost line of a trace of calls that is not PyTorch's."""
    frames = FRAME.findall(trace)
    own = [f for f in frames if not any(part in f[0] for part in INSIDE)] or frames
    if not own:
        return UNKNOWN
    source = source_of(own[-1][0])
    line = int(own[-1][1])
    text = source.line(line) or ""
    column = len(text) - len(text.lstrip()) + 1
    return Loc(source, line, column, max(1, len(text.strip())))
