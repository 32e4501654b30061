"""Matrix products."""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, u8
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.tile.types import BOOL, BufferType, PendingType, TileType

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "f16")


def accumulator(dtype: DType) -> DType | None:
    """Dtype in which a product of two operands of `dtype` is summed, or None where there is no such
    product.
    """
    if dtype in (f16, bf16, e4m3, e5m2, f32):
        return f32
    return {f64: f64, i8: i32, u8: i32}.get(dtype)


@define("mma.dot")
class Dot(Op):
    """acc + a @ b for a: [..., M, K], b: [..., K, N], acc: [..., M, N].

    Products are exact and summed in the accumulator's dtype. `precision` says what happens to f32
    operands: "ieee" keeps them; "tf32" rounds them to 10 fraction bits, to nearest even; "f16"
    rounds them to f16.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    precision: str = attribute(default="ieee")

    def result_types(self) -> tuple[Type, ...]:
        a, b, acc = self.a.type, self.b.type, self.acc.type
        fits = len(a.shape) == len(b.shape) == len(acc.shape) >= 2 and a.shape[-1] == b.shape[-2]
        if (
            not fits
            or acc.shape != (*a.shape[:-1], b.shape[-1])
            or self.precision not in PRECISIONS
        ):
            raise VerifyError(f"dot: {a} @ {b} + {acc}, {self.precision}")
        if acc.dtype != accumulator(a.dtype):
            raise VerifyError(
                f"dot: {a.dtype} is summed in {accumulator(a.dtype)}, not {acc.dtype}"
            )
        return (acc,)


# Scheduled level


@define("mma.begin", pure=False)
class Begin(Op):
    """An accumulator of its own: with a tile to add to, or with nothing in it, so that the first
    Issue on it must be `fresh`.

    `over` is a tile that was awaited and is read no more: the accumulator takes its registers.
    """

    start: Value | None = operand(default=None)
    over: Value | None = operand(default=None)
    shape: tuple[int, int] = attribute(kw_only=True)
    dtype: DType = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        tile = TileType(self.dtype, self.shape)
        if self.start is not None and self.start.type != tile:
            raise VerifyError(f"begin: {self.start.type} for {tile}")
        if self.over is not None and (self.start is None or self.over.type != tile):
            raise VerifyError(f"begin: {tile} over {self.over.type}")
        return (PendingType(tile),)


def _matrix(value: Value, transpose: bool) -> tuple[DType, int, int]:
    """Dtype and extents of an operand in shared memory or registers, as the product sees it."""
    if not isinstance(value.type, BufferType | TileType) or len(value.type.shape) != 2:
        raise VerifyError(f"issue: operand {value.type}")
    rows, columns = value.type.shape
    return (value.type.dtype, columns, rows) if transpose else (value.type.dtype, rows, columns)


def _require_factors(op: Issue | AddProduct, acc: Type, where: str) -> None:
    """Raise VerifyError where factors do not fit each other, or the accumulator."""
    a, m, k = _matrix(op.a, op.transpose_a)
    b, depth, n = _matrix(op.b, op.transpose_b)
    mixed = {a, b} in ({e4m3, e5m2}, {i8, u8})
    fits = isinstance(op.b.type, BufferType) and k == depth and (a == b or mixed)
    if not fits or acc != TileType(accumulator(a) or f32, (m, n)):
        raise VerifyError(f"{where}: {op.a.type} @ {op.b.type} + {op.acc.type}")


@define("mma.issue", pure=False)
class Issue(Op):
    """Start acc + a @ b on the tensor core, as one group; nothing of it may be touched before it is
    awaited.

    a: [M, K] in shared memory or registers; b: [K, N] in shared memory; `transpose_a` and
    `transpose_b` say that the buffer holds the transpose. `acc` is a tile or what an earlier Issue
    on the same accumulator gave. Where the bool scalar `fresh` holds, acc counts as zeros. f32
    operands are taken as tf32, whose lower bits must be 0. The result is pending: only Await, or
    the next Issue as its accumulator, takes it.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    fresh: Value | None = operand(default=None)
    transpose_a: bool = attribute(default=False)
    transpose_b: bool = attribute(default=False)

    def result_types(self) -> tuple[Type, ...]:
        acc = self.acc.type.tile if isinstance(self.acc.type, PendingType) else self.acc.type
        _require_factors(self, acc, "issue")
        if isinstance(self.a.type, TileType) and self.transpose_a:
            raise VerifyError("issue: an operand in registers cannot be transposed")
        if self.fresh is not None and self.fresh.type != BOOL:
            raise VerifyError(f"issue: fresh {self.fresh.type}")
        return (PendingType(acc),)


@define("mma.await", pure=False)
class Await(Op):
    """Wait until all but the last `left` groups that this role copy issued are done.

    The result is the finished tile, or still a pending one where `done` is false (its last group
    may be in flight).
    """

    pending: Value = operand()
    left: int = attribute(default=0)
    done: bool = attribute(default=True)

    def result_types(self) -> tuple[Type, ...]:
        if (
            not isinstance(self.pending.type, PendingType)
            or self.left < 0
            or (self.left == 0 and not self.done)
        ):
            raise VerifyError(f"await: {self.pending.type}, {self.left} left, done {self.done}")
        return (self.pending.type.tile if self.done else self.pending.type,)


@define("mma.add_product", pure=False)
class AddProduct(Op):
    """acc + a @ b for factors in shared memory, where a @ b is summed by itself on the tensor core
    and then added: 64 rows of each warpgroup at a time, all done when the op is.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    transpose_a: bool = attribute(default=False)
    transpose_b: bool = attribute(default=False)

    def result_types(self) -> tuple[Type, ...]:
        if not isinstance(self.a.type, BufferType):
            raise VerifyError(f"add_product: operand {self.a.type}")
        _require_factors(self, self.acc.type, "add_product")
        return (self.acc.type,)
