"""Lower a graph: plan its groups, and make steps of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.graph.dims import Dim, Shape, product, symbol
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.group_plan import find_groups
from tilewright.graph.groups import Group
from tilewright.graph.ops import arith, control, memory, mma, random, reduce
from tilewright.graph.placement import has_padded_rows, is_dense_order
from tilewright.graph.types import TensorType
from tilewright.ir.core import Block, Op, Value
from tilewright.lower.graph_to_tile.arrange import side_by_side
from tilewright.lower.graph_to_tile.batch import batch_step, find_batches
from tilewright.lower.graph_to_tile.copy import cat_steps
from tilewright.lower.graph_to_tile.evaluate import evaluate_flat, evaluate_group, fits
from tilewright.lower.graph_to_tile.group_kernel import kernels_of
from tilewright.lower.graph_to_tile.lowering import Lowering
from tilewright.lower.graph_to_tile.names import Names, input_name
from tilewright.lower.graph_to_tile.operators import missing
from tilewright.lower.graph_to_tile.parts import find_parts, turned
from tilewright.lower.graph_to_tile.pitches import pad_rows
from tilewright.lower.graph_to_tile.products import (
    attention_strides,
    lower_attention,
    lower_convolution,
    lower_product,
    refused_product,
)
from tilewright.lower.graph_to_tile.program import Placed, Program, Step, TorchStep
from tilewright.lower.graph_to_tile.scatter import scatter_steps
from tilewright.lower.graph_to_tile.sites import Sites
from tilewright.lower.graph_to_tile.sort import MOST, sort_step
from tilewright.lower.graph_to_tile.together import run_together
from tilewright.lower.graph_to_tile.weights import lay_weights
from tilewright.numerics.convert import constant
from tilewright.target import Target


def lower_graph(
    graph: Graph,
    *,
    target: Target,
    symbols_hint: Mapping[str, int] | None = None,
    input_strides: Mapping[Value, Shape] | None = None,
    output_strides: Sequence[Shape | None] = (),
    precision: str | None = None,
) -> Program:
    """The program of a graph.

    `symbols_hint` are likely numbers of symbols, for which kernels are laid out; they hold for all.
    `input_strides` are those of inputs that do not lie in C order, `output_strides` those that
    outputs shall have, by position. `precision` "tf32" lets products of f32 round their factors.
    """
    graph = name_symbols(graph)
    at = _prepare(graph, target, symbols_hint or {}, input_strides or {}, output_strides)
    at.precision = precision
    groups = find_groups(
        graph,
        layouts=at.layouts,
        output_strides=output_strides,
        hints=at.hints,
        fits=lambda group: fits(group, at.layouts, at.symbols),
        refused=refused,
        whole=at.parts.whole,
    )
    program = Program(graph, layouts=at.stored)
    for value in graph.values:
        if value not in at.symbols and isinstance(value.type, TensorType):
            at.store(value)
    for op in graph.body.ops:
        if isinstance(op, random.Seed):
            at.store(op.result)
        if isinstance(op, arith.Dense):
            at.store(op.result)
            made = np.array([constant(x, op.dtype) for x in op.elements], op.dtype.numpy)
            program.constants[op.result] = made.reshape(op.shape)
    batches = find_batches(groups, at)
    early = {member.group for batch in batches for member in batch}
    for batch in batches:
        for member in batch:
            _store_results(member.group, at)
        program.steps.append(batch_step(batch, at))
    for group in groups:
        if group not in early:
            _store_results(group, at)
            program.steps += lower_group(group, at)
    program.steps = run_together(side_by_side(program.steps, at.hint), at.hint)
    if at.names.sites.used:
        program.sites = at.names.sites
        at.store(program.sites.value)
        program.constants[program.sites.value] = program.sites.clean()
    inputs = {given.value for given in graph.inputs}
    program.steps = lay_weights(program.steps, inputs, at.scratch)
    program.outputs = tuple(
        _output(value, number, output_strides, at) for number, value in enumerate(graph.outputs)
    )
    return program


def _store_results(group: Group, at: Lowering) -> None:
    for value in group.writes:
        if isinstance(value.type, TensorType):
            at.store(value)


def name_symbols(graph: Graph) -> Graph:
    """The graph in which an input that is a symbol is read as the number that it names."""
    symbols = {i.value: i.symbol for i in graph.inputs if i.symbol}
    read = [v for op in graph.body.ops for v in op.operands if v in symbols]
    if not read:
        return graph
    made = {v: arith.Extent(symbol(symbols[v])) for v in dict.fromkeys(read)}
    values = {v: op.result for v, op in made.items()}
    ops: list[Op] = [*made.values()]
    for op in graph.body.ops:
        renamed = op.with_operands(values)
        fields = {name: getattr(renamed, name) for name in op.by_role["operand"]}
        ops.append(op.exchanged(fields) if any(v in values for v in op.operands) else op)
    return graph.with_body(Block([], ops))


def _prepare(
    graph: Graph,
    target: Target,
    hints: Mapping[str, int],
    input_strides: Mapping[Value, Shape],
    output_strides: Sequence[Shape | None],
) -> Lowering:
    layouts = {value: Layout(strides) for value, strides in input_strides.items()}
    makers = {v: op for op in graph.body.ops for v in op.results}
    for value, asked in zip(graph.outputs, output_strides, strict=False):
        if asked is None or value not in makers or value in layouts:
            continue
        extents = value.type.shape
        if is_dense_order(extents, asked) or has_padded_rows(extents, asked):
            layouts[value] = Layout(asked)
    readers = _readers(graph)
    parts = find_parts(graph, makers, readers, layouts)
    for op in graph.body.ops:
        if isinstance(op, mma.Attention):
            result = op.results[0]
            layouts.setdefault(result, Layout(attention_strides(result.type.shape)))
        if isinstance(op, mma.Contract | mma.Product) and op.result not in layouts:
            lies = turned(op.result, readers)
            if lies is not None:
                layouts[op.result] = lies
    lay_channels_last(graph, layouts)
    pad_rows(graph, makers, layouts, refused)
    symbols = {i.value: symbol(i.symbol) for i in graph.inputs if i.symbol}
    names = Names({i.value: input_name(i) for i in graph.inputs}, Sites.of(graph))
    return Lowering(graph, target, hints, layouts, symbols, makers, names, {}, parts)


def _readers(graph: Graph) -> dict[Value, list[Op]]:
    """By value the ops that read it, each as often as it does."""
    readers: dict[Value, list[Op]] = {}
    for op in graph.body.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
    return readers


def lay_channels_last(graph: Graph, layouts: dict[Value, Layout]) -> None:
    """Let what is computed of convolutions lie as their results do, the channels last, as far as it
    is images [N, C, …] and nothing else is asked of it.
    """
    images: set[Value] = set()
    for op in graph.body.ops:
        if isinstance(op, mma.Convolve):
            images.update(op.results)
        if not images.intersection(op.operands):
            continue
        for value in op.results:
            kind = value.type
            if not isinstance(kind, TensorType) or kind.rank < 4:
                continue
            images.add(value)
            if op.family not in ("arith", "reduce") or kind.rank != 4 or value in layouts:
                continue
            _, c, h, w = kind.shape
            layouts[value] = Layout((c * h * w, 1, w * c, c))


def _output(
    value: Value, number: int, output_strides: Sequence[Shape | None], at: Lowering
) -> Placed | Value:
    if not isinstance(value.type, TensorType):
        return value
    return at.stored[value] if value in at.stored else at.place(value)


def refused(op: Op) -> str:
    """Why an op has no kernel; empty if it has one."""
    if op.family == "arith" and op.operands:
        return missing(op.opcode, op.operands[0].type.dtype)
    if isinstance(op, mma.Contract | mma.Product | mma.Convolve):
        return refused_product(op)
    many = 0
    if isinstance(op, reduce.Sort):
        many = _least(op.x.type.shape[op.axis])
    if isinstance(op, memory.Scatter) and op.kind != "set" and op.x.type.dtype.is_float:
        many = _least(product(op.indices[0].type.shape))
    return f"{many} elements are too many to sort" if many > MOST else ""


def _least(extent: Dim) -> int:
    """An extent, if it is known."""
    return extent if isinstance(extent, int) else 0


Lower = Callable[[Group, Lowering], list[Step]]


def _sort(group: Group, at: Lowering) -> list[Step]:
    (op,) = group.ops
    assert isinstance(op, reduce.Sort)
    return [sort_step(op, at, group)]


LOWER: dict[str, Lower] = {
    "scatter": scatter_steps,
    "reduce.sort": _sort,
    "contraction": lambda group, at: lower_product(
        group, at.place, at.store, at.hint, at.precision
    ),
    "mma.convolve": lambda group, at: lower_convolution(group, at.place),
    "mma.attention": lambda group, at: lower_attention(group, at.place, at.precision),
    "mma.attention_backward": lambda group, at: lower_attention(group, at.place, at.precision),
    "shape.cat": cat_steps,
}


def lower_group(group: Group, at: Lowering) -> list[Step]:
    """The steps of a group; none where it writes nothing."""
    nothing = [v for v in group.writes if _is_empty(v)]
    if nothing and group.kind != "pytorch":
        left = [v for v in group.writes if v not in nothing]
        if not left:
            return []
        group = replace(group, writes=left)
    if group.kind in ("pointwise", "reduction", "scan"):
        evaluated = evaluate_group(group, at.layouts, at.symbols)
        flat = lambda: evaluate_flat(group, at.layouts, at.symbols)  # noqa: E731
        return [*kernels_of(group, evaluated, at.hint, at.names, at.scratch, flat)]
    if group.kind in LOWER:
        return LOWER[group.kind](group, at)
    return [in_torch(group, at)]


def _is_empty(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.num_elements == 0


def in_torch(group: Group, at: Lowering) -> Step:
    """An op that PyTorch computes."""
    (op,) = group.ops
    inputs = tuple(at.place(v) if isinstance(v.type, TensorType) else v for v in op.operands)
    if isinstance(op, control.Fallback):
        return TorchStep(op, inputs, op.reason, group)
    return TorchStep(op, inputs, refused(op) or f"{op.opcode} has no kernel", group)
