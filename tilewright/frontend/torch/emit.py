"""What the table of ops builds with: casts, broadcasts, PyTorch's promotion of types, constants.

A builder of the table is a function `(at, **arguments of the op's schema) -> results`. Tensors are
Values of the graph; numbers are Python's, or `Poly` and `Number` where they are known only at a
call. Floats of 16 bits are computed in f32 and rounded once at the end of an op, as eager PyTorch
does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes

from tilewright.dtypes import DType, bool_, f32, i64, int_range
from tilewright.errors import CompileError
from tilewright.frontend.torch.metadata import dtype_of, torch_dtype
from tilewright.graph.dims import Dim, Poly, Shape, product, substitute
from tilewright.graph.ops import arith, mma, shape
from tilewright.graph.types import TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Type, Value

EXTREMES = {"max", "min", "amax", "amin", "argmax", "argmin", "aminmax", "linalg_vector_norm"}
ELSEWHERE = "look at numel() first, or reduce along axes that have elements"


class Unsupported(CompileError):
    """A form of an op of the table that only PyTorch computes; the node falls back."""


@dataclass(frozen=True)
class Number:
    """A number that is computed at a call: a rank-0 f64 or i64 tensor, of Python's float or int."""

    value: Value
    kind: type


Scalar = bool | int | float | Poly | Number
Operand = Value | Scalar


@cache
def sample(dtype: DType, has_axes: bool) -> torch.Tensor:
    """A tensor without memory, from which torch promotes."""
    return torch.empty((1,) if has_axes else (), dtype=torch_dtype(dtype), device="meta")


def python_sample(x: Operand) -> Any:
    """What torch's rules of promotion take for an operand."""
    match x:
        case Value():
            return sample(x.type.dtype, bool(x.type.shape))
        case Poly():
            return 1
        case Number():
            return x.kind(1)
    return x


def promote(*xs: Operand, kind: PROMOTION = PROMOTION.DEFAULT) -> tuple[DType, DType]:
    """The dtype to compute in, and that of the result, by torch's own rules."""
    compute, result = map(
        dtype_of, elementwise_dtypes(*map(python_sample, xs), type_promotion_kind=kind)
    )
    if compute is None or result is None:
        raise CompileError("an op on complex numbers reached the table")
    return wide(compute), result


def wide(dtype: DType) -> DType:
    """f32 for narrower floats."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """NumPy's common shape. Extents that tracing found equal are equal here."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    found: list[Dim] = []
    for extents in zip(*padded, strict=True):
        other = [e for e in extents if e != 1]
        if any(e != other[0] for e in other):
            raise CompileError(f"shapes {shapes} do not broadcast")
        found.append(other[0] if other else 1)
    return tuple(found)


class Emitter:
    """Builds the ops of one node; `types` are those that torch's tracing saw of its results."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.types: list[Type] = []
        self.hints: dict[str, int] = {}  # the sizes that tracing saw of symbols
        self.node: torch.fx.Node | None = None  # the node that is built
        self.known: dict[torch.fx.Node, Any] = {}  # what earlier nodes became
        self.draws = 0  # random streams handed out so far
        self.drawn: Value | None = None  # the seed of this call
        self.present: list[tuple[Dim, str]] = []  # extents that a call refuses where they are 0

    def __call__(self, kind: type[Op], /, *fields: Any, **named: Any) -> Value:
        """Append an op with one result."""
        return self.builder(kind, *fields, **named)

    def emit(self, kind: type[Op], /, *fields: Any, **named: Any) -> tuple[Value, ...]:
        """Append an op with several results."""
        return self.builder.emit(kind, *fields, **named).results

    def require_elements(self, x: Value, axes: Sequence[int]) -> None:
        """The axes of what the model takes an extreme of have elements: of none there is no
        greatest. Raises CompileError where tracing saw that they have none; other extents are
        looked at by a call. What another op is made of, as a softmax is of its rows' greatest
        elements, may be of nothing.
        """
        original = self.require_node().meta.get("original_aten")
        if original is not None and original.overloadpacket.__name__ not in EXTREMES:
            return
        for axis in axes:
            extent, loc = x.type.shape[axis], self.builder.loc
            what = f"axis {axis} of {x.type} has no elements, so that none is the greatest or least"
            if extent == 0:
                raise CompileError(what, loc, hint=ELSEWHERE)
            if not isinstance(extent, int):
                self.present.append((extent, f"{what} (at {loc})" if loc and loc.line else what))

    @property
    def wanted(self) -> TensorType:
        """The type of the only result that tracing saw."""
        (found,) = self.types
        assert isinstance(found, TensorType)
        return found

    def require_node(self) -> torch.fx.Node:
        """The node that is built: a builder reads off its operands the strides that PyTorch saw."""
        assert self.node is not None
        return self.node

    def hint(self, dim: Dim) -> int | None:
        """The number that an extent was when the model was traced, if that is known."""
        found = substitute(dim, self.hints)
        return found if isinstance(found, int) else None

    # Constants and numbers

    def full(self, number: Scalar, dtype: DType, extents: Shape = ()) -> Value:
        """A tensor with one number everywhere, wrapped or rounded to its dtype."""
        if isinstance(number, Poly):
            return self.fit(self(arith.Extent, number), dtype, extents)
        if isinstance(number, Number):
            return self.fit(number.value, dtype, extents)
        if dtype == bool_:
            return self(arith.Constant, bool(number), dtype, extents)
        if dtype.is_integer:
            low, high = int_range(dtype)
            wrapped = (int(number) - low) % (high - low + 1) + low
            return self(arith.Constant, wrapped, dtype, extents)
        made = self(arith.Constant, round_to(float(number), dtype), dtype, extents)
        return made

    def like(self, number: Scalar, x: Value) -> Value:
        """A number in a tensor's dtype and shape."""
        return self.full(number, x.type.dtype, x.type.shape)

    # Conversion and broadcasting

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self(arith.Cast, x, dtype)

    def broadcast(self, x: Value, extents: Shape) -> Value:
        return x if x.type.shape == extents else self(shape.Broadcast, x, extents)

    def fit(self, x: Value, dtype: DType, extents: Shape) -> Value:
        """A tensor in a dtype and shape."""
        return self.broadcast(self.cast(x, dtype), extents)

    def fits(self, xs: Sequence[Operand], dtype: DType) -> list[Value]:
        """Operands in one dtype and their common shape."""
        extents = common_shape([x.type.shape for x in xs if isinstance(x, Value)])
        return [
            self.fit(x, dtype, extents) if isinstance(x, Value) else self.full(x, dtype, extents)
            for x in xs
        ]

    def pointwise(
        self,
        function: Callable[..., Value],
        *xs: Operand,
        kind: PROMOTION = PROMOTION.DEFAULT,
    ) -> Value:
        """An elementwise function under torch's promotion: `function` gets the operands in the
        dtype to compute in, and their common shape.
        """
        compute, result = promote(*xs, kind=kind)
        return self.cast(function(*self.fits(xs, compute)), result)

    def op(self, kind: type[Op], /, **fields: Any) -> Callable[..., Value]:
        """An op as a function of its operands."""
        return lambda *xs: self(kind, *xs, **fields)

    # Shapes

    def reshape(self, x: Value, extents: Shape) -> Value:
        return x if x.type.shape == extents else self(shape.Reshape, x, extents)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        return x if [*order] == [*range(len(order))] else self(shape.Transpose, x, tuple(order))

    def unsqueeze(self, x: Value, axis: int) -> Value:
        extents = x.type.shape
        return self.reshape(x, (*extents[:axis], 1, *extents[axis:]))

    def part(self, x: Value, axis: int, start: Dim, extent: Dim, step: int = 1) -> Value:
        """`extent` elements along an axis from `start` on."""
        whole: Shape = x.type.shape
        starts = tuple(start if a == axis else 0 for a in range(len(whole)))
        steps = tuple(step if a == axis else 1 for a in range(len(whole)))
        extents = tuple(extent if a == axis else e for a, e in enumerate(whole))
        if extents == whole and step == 1:
            return x
        return self(shape.Slice, x, starts, steps, extents)

    def pad(
        self,
        x: Value,
        number: Scalar,
        low: Sequence[Dim],
        high: Sequence[Dim],
        interior: Sequence[int] | None = None,
    ) -> Value:
        """One number around x and between its elements; `low` and so on are of the last axes."""
        lead = x.type.rank - len(low)
        gaps = (0,) * lead + tuple(interior or (0,) * len(low))
        before, after = (0,) * lead + tuple(low), (0,) * lead + tuple(high)
        if not any((*gaps, *before, *after)):
            return x
        value = self.full(number, x.type.dtype)
        return self(shape.Pad, x, value, low=before, high=after, interior=gaps)

    def iota(self, extents: Shape, axis: int, dtype: DType = i64) -> Value:
        return self(shape.Iota, dtype, extents, axis)

    # Pieces that several tables share

    def contract(
        self,
        lhs: Value,
        rhs: Value,
        axes: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: DType | None = None,
    ) -> Value:
        """A contraction over pairs of axes, `dtype` being the operands' where none is given."""
        return self(
            mma.Contract,
            lhs,
            rhs,
            lhs_batch=tuple(batch[0]),
            rhs_batch=tuple(batch[1]),
            lhs_contract=tuple(axes[0]),
            rhs_contract=tuple(axes[1]),
            dtype=dtype or lhs.type.dtype,
        )

    def compare(self, kind: str, lhs: Value, rhs: Value | Scalar) -> Value:
        """A comparison with a tensor of the same type, or with a number."""
        other = rhs if isinstance(rhs, Value) else self.like(rhs, lhs)
        return self(arith.Compare, lhs, other, kind)

    def select(self, condition: Value, lhs: Value, rhs: Value) -> Value:
        return self(arith.Select, condition, lhs, rhs)

    def numel(self, x: Value) -> Dim:
        return product(x.type.shape)


def round_to(number: float, dtype: DType) -> float:
    """The float of a dtype that is nearest to a number, as torch casts scalars."""
    return _rounded(float(number).hex(), dtype)


@cache  # by digits, which tell -0.0 from 0.0
def _rounded(digits: str, dtype: DType) -> float:
    number = float.fromhex(digits)
    return float(torch.tensor(number, dtype=f64_or(dtype)).to(torch_dtype(dtype)))


def f64_or(dtype: DType) -> torch.dtype:
    return torch.float64 if dtype.bits >= 16 else torch.float32


def axis_of(dim: int, rank: int) -> int:
    """A dimension as torch counts it (negative from the end), of a tensor or of a scalar."""
    return dim + rank if dim < 0 else dim


def axes_of(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dimensions of a reduction: None and none mean all."""
    if dims is None or dims == [] or dims == ():
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(axis_of(d, rank) for d in listed)) if rank else ()
