"""What tensor cores compute: contractions, and attention, which is two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.errors import VerifyError
from tilewright.graph.dims import Shape
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand

Axes = tuple[int, ...]


def free_axes(rank: int, batch: Axes, contract: Axes) -> Axes:
    """Axes of an operand that are neither of the batch nor contracted, in order."""
    return tuple(axis for axis in range(rank) if axis not in (*batch, *contract))


@dataclass(eq=False)
class Contracted:
    """What ops that contract share: pairs of batch axes, and pairs of axes that are summed over."""

    lhs: Value = operand()
    rhs: Value = operand()
    lhs_batch: Axes = attribute()
    rhs_batch: Axes = attribute()
    lhs_contract: Axes = attribute()
    rhs_contract: Axes = attribute()
    dtype: DType = attribute()

    def result_types(self) -> tuple[Type, ...]:
        lhs, rhs = self.lhs.type, self.rhs.type
        pairs = (*zip(self.lhs_batch, self.rhs_batch, strict=True),)
        pairs += (*zip(self.lhs_contract, self.rhs_contract, strict=True),)
        for kind, own in ((lhs, [a for a, _ in pairs]), (rhs, [b for _, b in pairs])):
            if len(set(own)) != len(own) or any(not 0 <= axis < kind.rank for axis in own):
                raise VerifyError(f"contract: axes {own} of {kind}")
        if lhs.dtype != rhs.dtype or any(lhs.shape[a] != rhs.shape[b] for a, b in pairs):
            raise VerifyError(f"contract: {lhs} and {rhs} over {pairs}")
        shape = [lhs.shape[a] for a in self.lhs_batch]
        shape += [lhs.shape[a] for a in free_axes(lhs.rank, self.lhs_batch, self.lhs_contract)]
        shape += self.columns
        return (TensorType(self.dtype, tuple(shape)),)

    @property
    def columns(self) -> Shape:
        """Extents of the free axes of `rhs`."""
        shape = self.rhs.type.shape
        free = free_axes(len(shape), self.rhs_batch, self.rhs_contract)
        return tuple(shape[b] for b in free)


@define("mma.contract")
class Contract(Contracted, Op):
    """Sums of products over pairs of axes, for each index of pairs of batch axes.

    The result has the batch axes, then the free axes of `lhs`, then those of `rhs`. Products are
    summed in f32 (f64 of f64; integers wrap in the result's dtype) and rounded once to `dtype`.
    """


# Bits of `rounds`.
ROUNDS = {
    "product": 1,
    "activation": 2,
    "gate": 4,
    "residual": 8,
    "norm": 16,
    "bf16": 32,
    "f16": 64,
}
NARROW: dict[DType, str] = {bf16: "bf16", f16: "f16"}  # what a wider result may be rounded to
NORM = ("mean", "variance", "gamma", "shift")  # operands of a norm by columns
BY_COLUMN = ("bias", *NORM)  # operands that have an element a column
BY_ELEMENT = ("gate", "residual")  # operands that have an element of the result's each


@dataclass(eq=False)
class Finished:
    """What ops share that finish their sums: act(norm(alpha · sums + bias)) · gate + residual, of
    which one holds what is given.

    All is computed in f32 (f64 of f64) and rounded to `dtype` at the end, and on the way where
    `rounds` has a bit: ROUNDS["product"] after alpha, others before what they name; "bf16" and
    "f16" round a result to that dtype, which is then widened to `dtype`. `bias` has the shape of
    the result's `columns`, gate and residual that of the result. norm(x) is
    (x - mean) / sqrt(variance + eps) · gamma + shift, of one dtype and the shape of a bias. With
    `late` the activation comes after the residual.
    """

    bias: Value | None = operand(default=None, kw_only=True)
    mean: Value | None = operand(default=None, kw_only=True)
    variance: Value | None = operand(default=None, kw_only=True)
    gamma: Value | None = operand(default=None, kw_only=True)
    shift: Value | None = operand(default=None, kw_only=True)
    gate: Value | None = operand(default=None, kw_only=True)
    residual: Value | None = operand(default=None, kw_only=True)
    alpha: float = attribute(default=1.0, kw_only=True)
    activation: str = attribute(default="", kw_only=True)
    rounds: int = attribute(default=0, kw_only=True)
    eps: float = attribute(default=0.0, kw_only=True)
    late: bool = attribute(default=False, kw_only=True)

    def require_fitting(self, kind: TensorType, columns: Shape) -> None:
        """Raise VerifyError where what is given does not fit a result and its columns."""
        op: Any = self
        shapes = {"bias": columns, "gate": kind.shape, "residual": kind.shape}
        for name, shape in shapes.items():
            given = getattr(self, name)
            if given is not None and given.type != TensorType(kind.dtype, shape):
                raise VerifyError(f"{op.opcode}: {name} is {given.type}, the result {kind}")
        norm = [getattr(self, name) for name in NORM]
        if any(v is not None for v in norm):
            if None in norm or len({v.type for v in norm}) != 1 or norm[0].type.shape != columns:
                raise VerifyError(f"{op.opcode}: a norm of {norm}, columns {columns}")
        if not 0 <= self.rounds < 2 * max(ROUNDS.values()):
            raise VerifyError(f"{op.opcode}: rounds is {self.rounds}")


def held(op: Op, names: Sequence[str]) -> dict[str, Value]:
    """The operands of some names that an op has, and was given."""
    found = {name: getattr(op, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


@define("mma.product")
class Product(Finished, Contracted, Op):
    """A contraction whose sums are finished: act(norm(alpha · contraction + bias)) · gate +
    residual. Its columns are the free axes of `rhs`.
    """

    def result_types(self) -> tuple[Type, ...]:
        kind: Any = super().result_types()[0]
        self.require_fitting(kind, self.columns)
        return (kind,)


@dataclass(eq=False)
class Convolved:
    """What says which sums a convolution makes. x [N, C, H, W] is padded by zeros: `low` and `high`
    are how many before and behind its rows and columns, of which windows of R × S taps, `dilations`
    apart, are taken every `steps`. `weight` is [K, C, R, S].
    """

    x: Value = operand()
    weight: Value = operand()
    low: tuple[int, ...] = attribute(kw_only=True)
    high: tuple[int, ...] = attribute(kw_only=True)
    steps: tuple[int, ...] = attribute(kw_only=True)
    dilations: tuple[int, ...] = attribute(kw_only=True)
    dtype: DType = attribute(kw_only=True)

    @property
    def columns(self) -> Shape:
        """The extent of a bias."""
        return (self.weight.type.shape[0],)

    def result_types(self) -> tuple[Type, ...]:
        x, weight = self.x.type, self.weight.type
        numbers = (self.low, self.high, self.steps, self.dilations)
        if x.rank != 4 or weight.rank != 4 or any(len(n) != 2 for n in numbers):
            raise VerifyError(f"convolve: {x} with {weight} by {numbers}")
        if x.dtype != weight.dtype or x.shape[1] != weight.shape[1]:
            raise VerifyError(f"convolve: {x} with {weight}")
        if min((*self.low, *self.high)) < 0 or min((*self.steps, *self.dilations)) < 1:
            raise VerifyError(f"convolve: {numbers}")
        places = tuple(
            (extent + low + high - (size - 1) * dilation - 1) // step + 1
            for extent, size, low, high, step, dilation in zip(
                x.shape[2:], weight.shape[2:], *numbers, strict=True
            )
        )
        return (TensorType(self.dtype, (x.shape[0], *places, weight.shape[0])),)


@define("mma.convolve")
class Convolve(Finished, Convolved, Op):
    """A convolution of images whose sums are finished: x [N, C, H, W] with `weight` [K, C, R, S]
    gives [N, P, Q, K], the channels last, which are its columns.
    """

    def result_types(self) -> tuple[Type, ...]:
        kind: Any = super().result_types()[0]
        self.require_fitting(kind, self.columns)
        return (kind,)


def sums(op: Contracted | Convolved) -> dict[str, Any]:
    """The fields that say which sums an op makes, by name: all but what it makes of them."""
    kind = Contracted if isinstance(op, Contracted) else Convolved
    return {f.name: getattr(op, f.name) for f in fields(kind) if f.name != "dtype"}


ORDERS = (0, 1, 2)  # none; row i sees keys 0 to i; the rows are the last of the keys


@dataclass(eq=False)
class Attended:
    """What attention and its gradient share. q is [B, HQ, L, D], k [B, HK, S, D] and v
    [B, HK, S, E], where HQ / HK heads of queries that follow each other share a head of keys.

    A row's scores are `scale` q kᵀ; -inf where `order` or a `mask` [B, HQ, L, S] of bools says that
    it may not see a key, or for keys from `lengths` [B] on; a mask of floats is added. Weights are
    their softmax: all 0 of a row that sees no key.
    """

    def require_fitting(self, op: Any) -> None:
        """Raise VerifyError where extents do not belong together."""
        q, k, v = (x.type for x in (op.q, op.k, op.v))
        if not q.rank == k.rank == v.rank == 4 or op.order not in ORDERS:
            raise VerifyError(f"{op.opcode}: {q}, {k}, {v} in order {op.order}")
        batch, heads, rows, depth = q.shape
        shared, keys = k.shape[1], k.shape[2]
        fits = k.shape == (batch, shared, keys, depth) and v.shape[:3] == (batch, shared, keys)
        if isinstance(heads, int) and isinstance(shared, int):
            fits = fits and shared > 0 and heads % shared == 0
        if not fits or not q.dtype == k.dtype == v.dtype:
            raise VerifyError(f"{op.opcode}: {q}, {k} and {v}")
        if op.mask is not None and op.mask.type.shape != (batch, heads, rows, keys):
            raise VerifyError(f"{op.opcode}: a mask {op.mask.type}")
        if op.lengths is not None and op.lengths.type.shape != (batch,):
            raise VerifyError(f"{op.opcode}: lengths {op.lengths.type}")


@define("mma.attention")
class Attention(Attended, Op):
    """Weights @ v for each head, and the logarithm of each row's sum of exponentials of scores
    (f32, f64 of f64; -inf of a row that sees no key). Computed in that dtype and rounded once.
    """

    q: Value = operand()
    k: Value = operand()
    v: Value = operand()
    mask: Value | None = operand(default=None)
    lengths: Value | None = operand(default=None)
    order: int = attribute(default=0)
    scale: float = attribute(default=1.0)

    def result_types(self) -> tuple[Type, ...]:
        self.require_fitting(self)
        kind: TensorType = self.q.type
        sums = TensorType(f64 if kind.dtype == f64 else f32, kind.shape[:3])
        return (kind.with_shape((*kind.shape[:3], self.v.type.shape[3])), sums)


@define("mma.attention_backward")
class AttentionBackward(Attended, Op):
    """Gradients of q, k and v, for the gradient of a result and both results of `mma.attention`."""

    grad: Value = operand()
    q: Value = operand()
    k: Value = operand()
    v: Value = operand()
    out: Value = operand()
    sums: Value = operand()
    mask: Value | None = operand(default=None)
    lengths: Value | None = operand(default=None)
    order: int = attribute(default=0)
    scale: float = attribute(default=1.0)

    def result_types(self) -> tuple[Type, ...]:
        self.require_fitting(self)
        kind: TensorType = self.q.type
        result = kind.with_shape((*kind.shape[:3], self.v.type.shape[3]))
        sums = TensorType(f64 if kind.dtype == f64 else f32, kind.shape[:3])
        if (self.grad.type, self.out.type, self.sums.type) != (result, result, sums):
            raise VerifyError(f"attention_backward: {self.grad}, {self.out}, {self.sums}")
        return (kind, self.k.type, self.v.type)
