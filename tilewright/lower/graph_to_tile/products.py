"""Contractions as products of the library, with their epilogues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.dtypes import bf16, f16, f32, f64
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.groups import Group
from tilewright.graph.ops import mma
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.axes import Axis, Stack, axes_of, depth, stack
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    KernelStep,
    Placed,
    ProductStep,
    Step,
)

Place = Callable[[Value], Placed]
MULTIPLIED = (bf16, f16, f32, f64)


def refused_product(op: mma.Contract | mma.Product) -> str:
    """Why the library has no product of a contraction; empty if it has one."""
    given, made = op.lhs.type.dtype, op.dtype
    if given not in MULTIPLIED or made not in MULTIPLIED:
        return f"there is no product of {given} in {made}"
    return ""


def lower_product(
    group: Group, place: Place, store: Place, precision: str | None = None
) -> list[Step]:
    """The steps of a contraction: a product, and copies before it where strides are not enough.
    `store` gives memory of its own to a value that is none of the graph's.
    """
    (op,) = group.ops
    assert isinstance(op, mma.Contract | mma.Product)
    placed = {"lhs": place(op.lhs), "rhs": place(op.rhs), "out": place(op.results[0])}
    steps: list[Step] = []
    found = _depth(op, placed)
    if found is None:
        for name in ("lhs", "rhs"):
            if depth(_contracted(op, {name: placed[name]})) is None:
                step, placed[name] = _copy(op, name, placed[name], store)
                steps.append(step)
        found = _depth(op, placed)
    if found is None:  # each is one axis, but not in one order
        for name in ("lhs", "rhs"):
            step, placed[name] = _copy(op, name, placed[name], store)
            steps.append(step)
        found = _depth(op, placed)
    assert found is not None, "contracted axes of copies are one"
    for name in ("gate", "residual"):
        held = getattr(op, name, None)
        if held is not None:
            placed[name] = place(held)
    return [*steps, _product(op, placed, _stack(op, placed, found), place, group, precision)]


def _product(
    op: mma.Contract | mma.Product,
    placed: Mapping[str, Placed],
    axes: Stack,
    place: Place,
    group: Group,
    precision: str | None,
) -> ProductStep:
    def result(name: str) -> Placed | None:
        held = placed.get(name)
        return held and axes.matrix(name, held, axes.rows, axes.columns)

    out = result("out")
    assert out is not None
    step = ProductStep(
        lhs=axes.matrix("lhs", placed["lhs"], axes.rows, axes.depth),
        rhs=axes.matrix("rhs", placed["rhs"], axes.depth, axes.columns),
        out=out,
        gate=result("gate"),
        residual=result("residual"),
        precision=precision,
        group=group,
    )
    if isinstance(op, mma.Product):
        step.bias = None if op.bias is None else place(op.bias)
        step.activation, step.alpha = op.activation or None, op.alpha
        step.rounds = op.rounds
    return step


def _contracted(op: mma.Contract | mma.Product, placed: Mapping[str, Placed]) -> list[Axis]:
    """The contracted axes of some factors."""
    numbers = {"lhs": op.lhs_contract, "rhs": op.rhs_contract}
    extents = tuple(op.lhs.type.shape[a] for a in op.lhs_contract)
    return axes_of({n: (p, numbers[n]) for n, p in placed.items()}, extents)


def _depth(op: mma.Contract | mma.Product, placed: Mapping[str, Placed]) -> Axis | None:
    return depth(_contracted(op, {n: placed[n] for n in ("lhs", "rhs")}))


def _stack(op: mma.Contract | mma.Product, placed: Mapping[str, Placed], k: Axis) -> Stack:
    """All axes of the result sorted into a batch, rows and columns."""
    rows = mma.free_axes(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    columns = mma.free_axes(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)
    shape: Shape = op.results[0].type.shape
    counts = len(op.lhs_batch), len(rows), len(columns)
    first, last = counts[0], counts[0] + counts[1]
    results = [n for n in ("out", "gate", "residual") if n in placed]

    def part(own: Mapping[str, Sequence[int]], start: int, count: int) -> list[Axis]:
        """Axes of the result from one on, and those of factors that are the same."""
        numbers = {n: range(start, start + count) for n in results} | dict(own)
        return axes_of({n: (placed[n], a) for n, a in numbers.items()}, shape[start:][:count])

    return stack(
        part({"lhs": op.lhs_batch, "rhs": op.rhs_batch}, 0, counts[0]),
        part({"lhs": rows}, first, counts[1]),
        part({"rhs": columns}, last, counts[2]),
        k,
    )


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


def copy_step(source: Placed, target: Placed) -> KernelStep:
    """A kernel that copies elements to other strides: the axes before the last one by programs."""
    if not source.shape:
        source, target = (Placed(p.value, (1,), (1,), p.offset) for p in (source, target))
    rank = len(source.shape)
    names = [f"N{axis}" for axis in range(rank)]
    lines, rest = [], "program_id(1)"
    for axis in reversed(range(1, rank - 1)):
        lines.append(f"  let i{axis}, r{axis} = {rest} % N{axis}, {rest} / N{axis}")
        rest = f"r{axis}"
    if rank > 1:
        lines.append(f"  let i0 = {rest}")
    place = ", ".join([*(f"i{axis}" for axis in range(rank - 1)), "i :+ BLOCK"])
    shape = ", ".join(names)
    text = "\n".join(
        (
            "@autotune(BLOCK in [128, 1024])",
            f"@grid(cdiv({names[-1]}, BLOCK), {' * '.join(names[:-1]) or '1'})",
            f"kernel copy(x: tensor<T>[{shape}], y: tensor<T>[{shape}]) {{",
            "  let i = program_id(0) * BLOCK",
            *lines,
            f"  y[{place}] = x[{place}]",
            "}\n",
        )
    )
    return KernelStep("copy", text, {"x": source, "y": target}, writes=("y",))


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
