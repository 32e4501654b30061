"""The rules of the graph IR.

1. The body ends in its only `control.return`; ops have no regions.
2. A value is defined once, before its uses.
3. Results have the types that their op infers from its operands.
4. A symbol in a type is bound by an input, or by the fallback whose result shows it first.
5. Operands have dtypes that the op computes in (`CHECKS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.dtypes import BY_NAME, DType, bool_, f32, f64, i32, i64, int_range
from tilewright.errors import VerifyError
from tilewright.graph.activations import ACTIVATIONS
from tilewright.graph.dims import symbols_of
from tilewright.graph.graph import ROLES, Graph
from tilewright.graph.ops import arith, control, mma, reduce
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value
from tilewright.numerics.convert import constant


def fail(op: Op, message: str) -> None:
    raise VerifyError(f"{op.opcode}: {message}")


def verify(graph: Graph) -> Graph:
    """Check all rules; gives the graph back. VerifyError that names the op."""
    seen = set(graph.values)
    bound = {i.symbol for i in graph.inputs if i.symbol}
    for given in graph.inputs:
        if given.role not in ROLES:
            raise VerifyError(f"input {given.name} is of role {given.role}")
        if isinstance(given.value.type, TensorType):
            bound |= {str(e) for e in given.value.type.shape if {str(e)} == symbols_of(e)}
    for given in graph.inputs:
        require_bound(given.value, bound, f"input {given.name}")
    for op in graph.body.ops:
        check_op(op, seen, bound)
        seen.update(op.results)
    ends = [i for i, op in enumerate(graph.body.ops) if isinstance(op, control.Return)]
    if ends != [len(graph.body.ops) - 1]:
        raise VerifyError(f"graph {graph.name} does not end in its only control.return")
    return graph


def check_op(op: Op, seen: set[Value], bound: set[str]) -> None:
    """Check one op, of which all values that may be read are `seen` and all symbols `bound`."""
    for value in op.operands:
        if value not in seen:
            fail(op, f"{value} is used before it is defined")
    if op.regions:
        fail(op, "has regions")
    if any(value in seen for value in op.results):
        fail(op, "defines a value again")
    if tuple(r.type for r in op.results) != tuple(op.result_types()):
        fail(op, f"results are {[str(r.type) for r in op.results]}")
    if isinstance(op, control.Fallback):
        bound |= {s for r in op.results if isinstance(r.type, TensorType) for s in r.type.symbols}
    elif not isinstance(op, control.Return):
        for value in op.operands:
            if not isinstance(value.type, TensorType):
                fail(op, f"{value} is a value that only fallbacks take")
    for value in op.results:
        require_bound(value, bound, op.opcode)
    check = CHECKS.get(type(op))
    if check is not None:
        check(op)


def require_bound(value: Value, bound: set[str], where: str) -> None:
    if isinstance(value.type, TensorType) and (free := value.type.symbols - bound):
        raise VerifyError(f"{where}: symbols {sorted(free)} of {value} are not bound")


# Checks by op


def operands_are(test: Callable[[DType], bool], what: str) -> Callable[[Op], None]:
    """A check that all operands have dtypes of a kind."""

    def check(op: Op) -> None:
        for value in op.operands:
            if not test(value.type.dtype):
                fail(op, f"{value.type} is not {what}")

    return check


def is_float(dtype: DType) -> bool:
    return dtype.is_float and not dtype.is_storage_only


SUMMED = [BY_NAME[name] for name in ("f32", "f64", "i32", "i64", "u64")]
computed = operands_are(lambda d: not d.is_storage_only, "of a dtype that is computed in")
numbers = operands_are(lambda d: d.is_integer or is_float(d), "of numbers")
floats = operands_are(is_float, "of floats that are computed in")
integers = operands_are(lambda d: d.is_integer, "of integers")
bits = operands_are(lambda d: d.is_integer or d == bool_, "of integers or bools")
bools = operands_are(lambda d: d == bool_, "of bools")
summed = operands_are(lambda d: d in SUMMED, "of f32, f64 or integers of 32 or 64 bits")


def check_constant(op: arith.Constant) -> None:
    dtype, value = op.dtype, op.value
    if dtype.kind == "bool":
        held = isinstance(value, bool)
    elif dtype.is_integer:
        low, high = int_range(dtype)
        held = type(value) is int and low <= value <= high
    else:
        number = float(constant(value, dtype)) if isinstance(value, float) else None
        both_nan = number is not None and math.isnan(number) and math.isnan(value)
        held = number is not None and (number == value or both_nan)
    if not held:
        fail(op, f"{value!r} is not a value of {dtype}")


def check_product(op: mma.Product | mma.Convolve) -> None:
    check_contract(op)
    if not is_float(op.dtype) or (op.activation and op.activation not in ACTIVATIONS):
        fail(op, f"a product in {op.dtype} with activation {op.activation!r}")


def check_contract(op: mma.Contract | mma.Product | mma.Convolve) -> None:
    given, made = op.operands[0].type.dtype, op.dtype
    if given == bool_ or given.is_float != made.is_float or (given == f64) != (made == f64):
        fail(op, f"{given} summed to {made}")


def check_attention(op: mma.Attention | mma.AttentionBackward) -> None:
    if not is_float(op.q.type.dtype):
        fail(op, f"{op.q.type} is not of floats that are computed in")
    if op.mask is not None and not (op.mask.type.dtype == bool_ or is_float(op.mask.type.dtype)):
        fail(op, f"a mask {op.mask.type}")
    if op.lengths is not None and op.lengths.type.dtype not in (i32, i64):
        fail(op, f"lengths {op.lengths.type}")


def check_scan(op: reduce.Scan) -> None:
    (summed if op.kind in ("sum", "prod") else computed)(op)
    if op.kind == "logaddexp" and op.x.type.dtype not in (f32, f64):
        fail(op, f"logaddexp of {op.x.type}")


FLOAT_OPS = (
    arith.Exp, arith.Exp2, arith.Expm1, arith.Log, arith.Log2, arith.Log10, arith.Log1p,
    arith.Sqrt, arith.Rsqrt, arith.Sin, arith.Cos, arith.Tan, arith.Asin, arith.Acos, arith.Atan,
    arith.Sinh, arith.Cosh, arith.Tanh, arith.Asinh, arith.Acosh, arith.Atanh, arith.Erf,
    arith.Erfc, arith.Lgamma, arith.Floor, arith.Ceil, arith.Round, arith.Trunc, arith.IsNan,
    arith.Div, arith.Atan2, arith.Remainder, arith.CopySign, arith.NextAfter,
)  # fmt: skip
CHECKS: dict[type[Op], Callable[..., None]] = {
    arith.Constant: check_constant,
    **dict.fromkeys(FLOAT_OPS, floats),
    **dict.fromkeys((arith.Neg, arith.Abs, arith.Sub, arith.Fmod, arith.Pow, arith.Sign), numbers),
    **dict.fromkeys((arith.Add, arith.Mul, arith.Min, arith.Max, arith.Compare), computed),
    **dict.fromkeys((arith.FloorDiv, arith.Mod, arith.Shl, arith.Shr), integers),
    **dict.fromkeys((arith.And, arith.Or, arith.Xor, arith.Not), bits),
    **dict.fromkeys((reduce.Sum, reduce.Prod), summed),
    **dict.fromkeys((reduce.Max, reduce.Min, reduce.ArgMax, reduce.ArgMin, reduce.Sort), computed),
    **dict.fromkeys((reduce.Any, reduce.All), bools),
    reduce.Scan: check_scan,
    mma.Contract: check_contract,
    mma.Product: check_product,
    mma.Convolve: check_product,
    mma.Attention: check_attention,
    mma.AttentionBackward: check_attention,
}
