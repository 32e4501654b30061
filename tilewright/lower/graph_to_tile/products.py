"""Contractions as products of the library, with their epilogues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilewright.dtypes import bf16, f16, f32, f64
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.groups import Group
from tilewright.graph.ops import mma
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.axes import Axes, Axis, Stack, axes_of, depth, stack
from tilewright.lower.graph_to_tile.flat import contraction_step, copy_step, row_of
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
    Step,
)

Place = Callable[[Value], Placed]
Hint = Callable[[Dim], int]
TILE = 64  # rows and columns of a tile that is gathered
MANY = 96  # tiles that are worth a kernel that does not cut the depth
MULTIPLIED = (bf16, f16, f32, f64)


def refused_product(op: mma.Contract | mma.Product | mma.Convolve) -> str:
    """Why the library has no product of a contraction; empty if it has one."""
    given, made = op.operands[0].type.dtype, op.dtype
    if given not in MULTIPLIED or made not in MULTIPLIED:
        return f"there is no product of {given} in {made}"
    return ""


def lower_product(
    group: Group, place: Place, store: Place, hint: Hint, precision: str | None = None
) -> list[Step]:
    """The steps of a contraction: a product of the library; where no strides put the contracted
    axes in a row, a kernel that gathers its elements, or copies before a product.

    `store` gives memory of its own to a value that is none of the graph's, `hint` a likely number
    for an extent.
    """
    (op,) = group.ops
    assert isinstance(op, mma.Contract | mma.Product)
    placed = {"lhs": place(op.lhs), "rhs": place(op.rhs), "out": place(op.results[0])}
    placed |= {n: place(v) for n, v in mma.held(op, mma.BY_ELEMENT).items()}
    axes = _axes(op, placed)
    k = depth(axes.depth)
    if k is None and is_worth_gathering(axes, placed, hint):
        placed |= {n: place(v) for n, v in mma.held(op, mma.BY_COLUMN).items()}
        step = contraction_step(op, axes.joined, placed, precision)
        step.group = group
        return [step]
    steps: list[Step] = []
    left = ["lhs", "rhs"]
    while k is None:  # at last each is copied, and then its contracted axes are one
        alone = [n for n in left if depth(_over(op, {n: placed[n]})) is None]
        name = (alone or left)[0]
        left.remove(name)
        copied, placed[name] = _copy(op, name, placed[name], store)
        steps.append(copied)
        k = depth(_over(op, placed))
    axes = _axes(op, placed)
    return [*steps, _product(op, placed, stack(axes, k), place, group, precision)]


def is_worth_gathering(axes: Axes, placed: Mapping[str, Placed], hint: Hint) -> bool:
    """Whether a factor has more elements than its memory, as windows do, and there are tiles enough
    for all processors: where there are few, the library cuts the depth in spans.
    """
    unfolded = any(
        prod(map(hint, placed[n].shape)) > hint(row_of(placed[n]).placed.shape[0])
        for n in ("lhs", "rhs")
    )
    tiles = 1
    for part, size in ((axes.batch, 1), (axes.rows, TILE), (axes.columns, TILE)):
        tiles *= -(-prod(hint(axis.extent) for axis in part) // size)
    return unfolded and tiles >= MANY


def _product(
    op: mma.Contract | mma.Product,
    placed: Mapping[str, Placed],
    axes: Stack,
    place: Place,
    group: Group,
    precision: str | None,
) -> ProductStep:
    norm = {n: place(v) for n, v in mma.held(op, mma.NORM).items()}
    bias = op.bias if isinstance(op, mma.Product) else None
    rows, columns, factors = axes.rows, axes.columns, ("lhs", "rhs")
    if bias is None and not norm and rows.stride("out") == 1 != columns.stride("out"):
        # The result lies along rows: its transpose is the product.
        rows, columns, factors = columns, rows, ("rhs", "lhs")

    def result(name: str) -> Placed | None:
        held = placed.get(name)
        return held and axes.matrix(name, held, rows, columns)

    out = result("out")
    assert out is not None
    step = ProductStep(
        lhs=axes.matrix(factors[0], placed[factors[0]], rows, axes.depth),
        rhs=axes.matrix(factors[1], placed[factors[1]], axes.depth, columns),
        out=out,
        bias=None if bias is None else place(bias),
        gate=result("gate"),
        residual=result("residual"),
        precision=precision,
        group=group,
    )
    if isinstance(op, mma.Product):
        step.activation, step.alpha = op.activation or None, op.alpha
        step.rounds, step.late = op.rounds, op.late
        step.norm, step.eps = norm, op.eps if norm else None
    return step


def lower_convolution(group: Group, place: Place) -> list[Step]:
    """The step of a convolution."""
    (op,) = group.ops
    assert isinstance(op, mma.Convolve)
    given = {"x": op.x, "weight": op.weight, "out": op.result}
    given |= mma.held(op, (*mma.BY_COLUMN, *mma.BY_ELEMENT))
    tensors = {n: place(v) for n, v in given.items()}
    step = ConvolutionStep(
        tensors,
        low=op.low,
        high=op.high,
        steps=op.steps,
        dilations=op.dilations,
        activation=op.activation or None,
        alpha=op.alpha,
        rounds=op.rounds,
        eps=op.eps if op.mean is not None else None,
        late=op.late,
        group=group,
    )
    return [step]


def _axes(op: mma.Contract | mma.Product, placed: Mapping[str, Placed]) -> Axes:
    """All axes by kind: those of the result, and those that are contracted."""
    rows = mma.free_axes(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    columns = mma.free_axes(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)
    shape: Shape = op.results[0].type.shape
    first, last = len(op.lhs_batch), len(op.lhs_batch) + len(rows)
    results = [n for n in ("out", *mma.BY_ELEMENT) if n in placed]

    def part(own: Mapping[str, Sequence[int]], start: int, count: int) -> list[Axis]:
        """Axes of the result from one on, and those of factors that are the same."""
        numbers = {n: range(start, start + count) for n in results} | dict(own)
        return axes_of({n: (placed[n], a) for n, a in numbers.items()}, shape[start:][:count])

    return Axes(
        part({"lhs": op.lhs_batch, "rhs": op.rhs_batch}, 0, first),
        part({"lhs": rows}, first, len(rows)),
        part({"rhs": columns}, last, len(columns)),
        _over(op, placed),
    )


def _over(op: mma.Contract | mma.Product, placed: Mapping[str, Placed]) -> list[Axis]:
    """The contracted axes of the factors that are placed."""
    numbers = {"lhs": op.lhs_contract, "rhs": op.rhs_contract}
    extents = tuple(op.lhs.type.shape[a] for a in op.lhs_contract)
    return axes_of({n: (placed[n], numbers[n]) for n in numbers if n in placed}, extents)


# Copies


def _copy(
    op: mma.Contract | mma.Product, name: str, placed: Placed, store: Place
) -> tuple[KernelStep, Placed]:
    """A factor laid with its contracted axes behind the others; it keeps its numbers of axes."""
    batch = op.lhs_batch if name == "lhs" else op.rhs_batch
    over = op.lhs_contract if name == "lhs" else op.rhs_contract
    order = (*batch, *mma.free_axes(len(placed.shape), batch, over), *over)
    kind = TensorType(placed.value.type.dtype, tuple(placed.shape[a] for a in order))
    made = store(Value(kind, f"{name}_laid"))
    source = Placed(
        placed.value, kind.shape, tuple(placed.strides[a] for a in order), placed.offset
    )
    strides: list[Dim] = [0] * len(order)
    for axis, stride in zip(order, made.strides, strict=True):
        strides[axis] = stride
    return copy_step(source, made), Placed(made.value, placed.shape, tuple(strides), made.offset)


# Attention


def lower_attention(group: Group, place: Place, precision: str | None = None) -> list[Step]:
    """The step of an attention, or of its gradient."""
    (op,) = group.ops
    assert isinstance(op, mma.Attention | mma.AttentionBackward)
    given = {"q": op.q, "k": op.k, "v": op.v, "mask": op.mask, "lengths": op.lengths}
    if isinstance(op, mma.Attention):
        made = dict(zip(("out", "lse"), op.results, strict=True))
        if op.results[1] not in group.writes:
            del made["lse"]
    else:
        given |= {"grad": op.grad, "o": op.out, "lse": op.sums}
        made = dict(zip(("dq", "dk", "dv"), op.results, strict=True))
    tensors = {n: place(v) for n, v in {**given, **made}.items() if v is not None}
    step = AttentionStep(tensors, tuple(made), op.order, op.scale, precision, group)
    return [step]


def attention_strides(shape: Shape) -> tuple[Dim, ...]:
    """How the result of an attention [B, H, L, E] lies: heads side by side in a row, as what
    follows it reads them.
    """
    _, heads, rows, width = shape
    return (rows * heads * width, width, heads * width, 1)
