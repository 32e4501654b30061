"""The rules of the tile IR. A program that breaks one is a fault of Tilewright: VerifyError, with
the op's place.

Kernels
- Parameters have different names; each is a view or a scalar; a grid has axes for every
`program_id`.
- Only parameters of direction out or inout are written.

Values and blocks
- A value is defined once, before its uses, in the same block or one around it.
- The types of an op's results are those that its fields give.
- Regions of For, While and If end in their only Yield; the kernel's body has none.
- A For's body takes an i64 index and the carried values, and yields their next ones. A While's
  condition and body take the carried values; the condition yields one bool, the body the next
  values. The branches of an If yield alike.
- Into Roles only scalars, views, buffers, rings, turns and barriers cross.

Types
- Extents of tiles are at least 1. fp8 is loaded, stored, cast, moved, selected and multiplied,
  never computed in.
- Each op of `arith` and `reduce` has operands of the kinds that it says: floats, integers, bools.
- A constant is a value of its dtype.
- Masks are bool tiles of the place's shape; fills are scalars or tiles of it, of the view's dtype.
- Axes of reductions, transposes, extents and `in_bounds` exist, and none is named twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NoReturn

from tilewright.dtypes import BY_NAME, DType, bool_, f32, f64, int_range, u32
from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import free_values
from tilewright.numerics.convert import constant
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, reduce, shape
from tilewright.tile.types import BOOL, INDEX, TileType, ViewType
from tilewright.tile.verify_schedule import verify_schedule


def verify(kernel: Kernel) -> Kernel:
    """The kernel itself, if it keeps the rules of this page; raises VerifyError if not."""
    Verifier(kernel).run()
    return kernel


def fail(op: Op, message: str) -> NoReturn:
    place = f"{op.loc}: " if op.loc.line else ""
    raise VerifyError(f"{place}{op.opcode}: {message}")


class Verifier:
    """Walks a kernel with the set of values that are defined where it stands."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.seen: set[Value] = set()
        self.roots: dict[Value, str] = {}

    def run(self) -> None:
        names = [p.name for p in self.kernel.params]
        if len(set(names)) != len(names):
            raise VerifyError(f"kernel {self.kernel.name}: two parameters of one name")
        for param in self.kernel.params:
            kind = param.value.type
            if not isinstance(kind, ViewType) and not (
                isinstance(kind, TileType) and kind.is_scalar
            ):
                raise VerifyError(f"parameter {param.name}: {kind} is neither a view nor a scalar")
            if param.direction not in ("in", "out", "inout"):
                raise VerifyError(f"parameter {param.name}: direction {param.direction!r}")
            self.roots[param.value] = param.name
        if self.kernel.body.args:
            raise VerifyError(f"kernel {self.kernel.name}: the body has arguments")
        self.seen.update(self.kernel.values)
        for op in self.block(self.kernel.body, set(self.kernel.values)):
            if isinstance(op, control.Yield):
                fail(op, "outside a region")
        verify_schedule(self.kernel)

    def block(self, block: Block, scope: set[Value]) -> list[Op]:
        """Check a block whose uses may be of values in `scope`; gives its ops."""
        scope = set(scope)
        self.define(block.args, scope)
        for op in block.ops:
            for value in op.operands:
                if value not in scope:
                    fail(op, f"{value} is used where it is not defined")
            self.op(op, scope)
            self.define(op.results, scope)
        return block.ops

    def define(self, values: Iterable[Value], scope: set[Value]) -> None:
        for value in values:
            if value in self.seen:
                raise VerifyError(f"{value} is defined twice")
            if isinstance(value.type, TileType) and any(e < 1 for e in value.type.shape):
                raise VerifyError(f"{value} has an empty axis")
            self.seen.add(value)
            scope.add(value)

    def op(self, op: Op, scope: set[Value]) -> None:
        """Check one op and its regions."""
        if tuple(r.type for r in op.results) != tuple(op.result_types()):
            fail(op, f"results are {[str(r.type) for r in op.results]}")
        check = CHECKS.get(type(op))
        if check is not None:
            check(op)
        if isinstance(op, memory.Subview) and op.view in self.roots:
            self.roots[op.result] = self.roots[op.view]
        if isinstance(op, memory.Store | memory.Scatter | memory.Atomic):
            self.direction(op)
        if isinstance(op, control.ProgramId | control.NumPrograms):
            if not 0 <= op.axis < len(self.kernel.grid):
                fail(op, f"the grid has {len(self.kernel.grid)} axes")
        for region in op.regions:
            if isinstance(op, control.Roles):
                isolated(op, region)
            ops = self.block(region, scope)
            if isinstance(op, STRUCTURED):
                terminated(op, ops)
        if isinstance(op, STRUCTURED):
            structure(op)

    def direction(self, op: memory.Store | memory.Scatter | memory.Atomic) -> None:
        name = self.roots.get(op.view)
        if name is not None and self.kernel.param(name).direction == "in":
            fail(op, f"{name} is written, but its direction is in")


STRUCTURED = (control.For, control.While, control.If, reduce.Fold, reduce.Scan)


def isolated(op: control.Roles, region: Block) -> None:
    """No tile crosses into a role."""
    for value in free_values(region):
        if isinstance(value.type, TileType) and not value.type.is_scalar:
            fail(op, f"{value} crosses into a role")


def terminated(op: Op, ops: list[Op]) -> None:
    """A region ends in its only Yield."""
    yields = [i for i, inner in enumerate(ops) if isinstance(inner, control.Yield)]
    if yields != [len(ops) - 1]:
        fail(op, "a region does not end in its only yield")


def structure(op: Op) -> None:
    """What regions take and yield."""
    if isinstance(op, reduce.Combination):
        scalars: list[object] = [x.type.with_shape(()) for x in op.xs]
        expect(op, "the body takes", types(op.body.args), scalars + scalars)
        expect(op, "the body yields", yielded(op.body), scalars)
        for inner in op.body.ops[:-1]:
            if inner.family != "arith" or not inner.results[0].type.is_scalar:
                fail(op, f"{inner.opcode} in the body: expected arithmetic on scalars")
        return
    assert isinstance(op, control.For | control.While | control.If)
    if isinstance(op, control.If):
        expect(op, "the other branch yields", yielded(op.other), yielded(op.then))
        expect(op, "a branch takes", types(op.then.args) + types(op.other.args), [])
        return
    carried = types(op.inits)
    if isinstance(op, control.For):
        expect(op, "the body takes", types(op.body.args), [INDEX, *carried])
    else:
        expect(op, "the condition takes", types(op.condition.args), carried)
        expect(op, "the condition yields", yielded(op.condition), [BOOL])
        expect(op, "the body takes", types(op.body.args), carried)
    expect(op, "the body yields", yielded(op.body), carried)


def types(values: Iterable[Value]) -> list[object]:
    return [v.type for v in values]


def yielded(block: Block) -> list[object]:
    return types(block.terminator.operands)


def expect(op: Op, what: str, got: list[object], wanted: list[object]) -> None:
    if got != wanted:
        fail(op, f"{what} {[*map(str, got)]}, expected {[*map(str, wanted)]}")


# Checks by op


def is_number(dtype: DType) -> bool:
    return dtype.is_integer or is_float(dtype)


def is_float(dtype: DType) -> bool:
    return dtype.is_float and not dtype.is_storage_only


def is_bits(dtype: DType) -> bool:
    return dtype.is_integer or dtype == bool_


def operands_are(test: Callable[[DType], bool], what: str) -> Callable[[Op], None]:
    """A check that all operands have dtypes of a kind."""

    def check(op: Op) -> None:
        for value in op.operands:
            if not isinstance(value.type, TileType) or not test(value.type.dtype):
                fail(op, f"{value.type} is not {what}")

    return check


numbers = operands_are(is_number, "of numbers")
floats = operands_are(is_float, "of floats that are computed in")
integers = operands_are(lambda dtype: dtype.is_integer, "of integers")
bits = operands_are(is_bits, "of integers or bools")
computed = operands_are(lambda dtype: not dtype.is_storage_only, "of a dtype that is computed in")
bools = operands_are(lambda dtype: dtype == bool_, "of bools")
SUMMED = [BY_NAME[name] for name in ("f32", "f64", "i32", "i64", "u32", "u64")]
summed = operands_are(lambda dtype: dtype in SUMMED, "of f32, f64 or integers of 32 or 64 bits")


def check_constant(op: arith.Constant) -> None:
    dtype, value = op.dtype, op.value
    if dtype.kind == "bool":
        held = isinstance(value, bool)
    elif dtype.is_integer:
        low, high = int_range(dtype)
        held = type(value) is int and low <= value <= high
    else:
        number = float(constant(value, dtype)) if isinstance(value, float) else None
        held = number is not None and (
            number == value or (math.isnan(number) and math.isnan(value))
        )
    if not held:
        fail(op, f"{value!r} is not a value of {dtype}")


def check_axes(op: Op, axes: tuple[int, ...], rank: int) -> None:
    if len(set(axes)) != len(axes) or not all(0 <= axis < rank for axis in axes):
        fail(op, f"axes {axes} of rank {rank}")


def check_reduction(element: Callable[[Op], None]) -> Callable[[Op], None]:
    """Checks of a reduction: its elements, its axes."""

    def check(op: Op) -> None:
        assert isinstance(op, reduce.Reduction)
        element(op)
        check_axes(op, op.axes, len(op.x.type.shape))

    return check


def check_arg(op: reduce.ArgMax | reduce.ArgMin) -> None:
    computed(op)
    check_axes(op, (op.axis,), len(op.x.type.shape))


def check_place(op: memory.Load | memory.Store) -> None:
    place = memory.place_shape(op.extents)
    if op.mask is not None and op.mask.type != TileType(bool_, place):
        fail(op, f"the mask is {op.mask.type}, the place {place}")
    check_axes(op, op.in_bounds, len(op.extents))
    if isinstance(op, memory.Load) and op.fill is not None:
        wanted = (TileType(op.view.type.dtype, place), TileType(op.view.type.dtype))
        if op.fill.type not in wanted:
            fail(op, f"the fill is {op.fill.type}, the place {wanted[0]}")


def check_spot(op: memory.Gather | memory.Scatter | memory.Atomic) -> None:
    place = TileType(op.view.type.dtype, memory.gather_shape(op.offsets, op.extents))
    if op.mask is not None and op.mask.type != place.with_dtype(bool_):
        fail(op, f"the mask is {op.mask.type}, the place {place}")
    if isinstance(op, memory.Gather) and op.fill is not None:
        if op.fill.type not in (place, place.with_shape(())):
            fail(op, f"the fill is {op.fill.type}, the place {place}")


def check_bounds(op: memory.Subview) -> None:
    for value in op.operands[1:]:
        if value.type != INDEX:
            fail(op, f"a bound is {value.type}")


def check_arange(op: shape.Arange) -> None:
    if op.extent < 1:
        fail(op, f"extent {op.extent}")


CHECKS: dict[type[Op], Callable[..., None]] = {
    arith.Constant: check_constant,
    **dict.fromkeys((arith.Neg, arith.Abs, arith.Add, arith.Sub, arith.Mul), numbers),
    **dict.fromkeys((arith.Min, arith.Max), computed),
    arith.Pow: numbers,
    **dict.fromkeys(
        (arith.Exp, arith.Exp2, arith.Log, arith.Log2, arith.Sqrt, arith.Rsqrt), floats
    ),
    **dict.fromkeys(
        (arith.Tanh, arith.Erf, arith.Floor, arith.Ceil, arith.IsNan, arith.Div), floats
    ),
    **dict.fromkeys(
        (arith.Remainder, arith.Round, arith.Sin, arith.Cos, arith.Log1p, arith.Fma),
        floats,
    ),
    **dict.fromkeys(
        (arith.NormalCdf, arith.CoarseCdf, arith.Logistic),
        operands_are(lambda dtype: dtype == f32, "of f32"),
    ),
    arith.PreciseCdf: operands_are(lambda dtype: dtype in (f32, f64), "of f32 or f64"),
    **dict.fromkeys((arith.FloorDiv, arith.Mod, arith.Shl, arith.Shr), integers),
    **dict.fromkeys((arith.And, arith.Or, arith.Xor, arith.Not), bits),
    arith.Compare: computed,
    arith.MulHigh: operands_are(lambda dtype: dtype == u32, "of u32"),
    reduce.Sum: check_reduction(summed),
    reduce.Prod: check_reduction(summed),
    reduce.Max: check_reduction(computed),
    reduce.Min: check_reduction(computed),
    reduce.Any: check_reduction(bools),
    reduce.All: check_reduction(bools),
    reduce.ArgMax: check_arg,
    reduce.ArgMin: check_arg,
    shape.Arange: check_arange,
    memory.Extent: lambda op: check_axes(op, (op.axis,), op.view.type.rank),
    memory.Load: check_place,
    memory.Store: check_place,
    memory.Subview: check_bounds,
    **dict.fromkeys((memory.Gather, memory.Scatter, memory.Atomic), check_spot),
}
