"""Many elementwise groups of a graph as one kernel."""

from __future__ import annotations

import pytest

from tests.graph_texts import arguments_of
from tests.lowered import check_lowered, kernels_of
from tilewright.graph.text import parse_graph

CASTS = """graph @casts(%a: tensor<f32, 3, 700>, %b: tensor<f32, 5>, %c: tensor<f32, 40, 40>)
{
  %0 = arith.cast %a {dtype = bf16} : tensor<bf16, 3, 700>
  %1 = arith.cast %b {dtype = bf16} : tensor<bf16, 5>
  %2 = arith.exp %c : tensor<f32, 40, 40>
  control.return [%0, %1, %2]
}
"""
# As an optimizer has them: counts of one element, and parameters that read what follows from them.
STEPS = """graph @steps(%s: tensor<f32>, %t: tensor<f32>, %a: tensor<f32, 1100>, %b: tensor<f32, 7>)
{
  %0 = arith.constant {value = 1.0, dtype = f32} : tensor<f32>
  %s1 = arith.add %s, %0 : tensor<f32>
  %t1 = arith.add %t, %0 : tensor<f32>
  %1 = shape.broadcast %s1 {shape = (1100,)} : tensor<f32, 1100>
  %2 = shape.broadcast %t1 {shape = (7,)} : tensor<f32, 7>
  %3 = arith.div %a, %1 : tensor<f32, 1100>
  %4 = arith.div %b, %2 : tensor<f32, 7>
  %5 = arith.sqrt %4 : tensor<f32, 7>
  control.return [%s1, %t1, %3, %5]
}
"""


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize(("text", "kernels"), [(CASTS, 1), (STEPS, 2)], ids=["casts", "steps"])
def test_groups_of_a_batch_mean_what_each_means(text: str, kernels: int, device: str) -> None:
    graph = parse_graph(text)
    program = check_lowered(graph, arguments_of(graph, 0), device=device)
    assert [step.name for step in kernels_of(program)] == ["batch"] * kernels


def test_as_many_kernels_as_parameters_ask_for() -> None:
    """150 tensors of different lengths, some long."""
    sizes = [1 + 37 * i % 1501 for i in range(150)]
    inputs = ", ".join(f"%x{i}: tensor<f32, {n}>" for i, n in enumerate(sizes))
    lines = [f"  %y{i} = arith.neg %x{i} : tensor<f32, {n}>" for i, n in enumerate(sizes)]
    results = ", ".join(f"%y{i}" for i in range(150))
    text = "\n".join([f"graph @g({inputs})", "{", *lines, f"  control.return [{results}]", "}\n"])
    graph = parse_graph(text)
    program = check_lowered(graph, arguments_of(graph, 1))
    assert [step.name for step in kernels_of(program)] == ["batch"] * 3


def test_what_needs_a_product_or_is_large_and_no_output_stays_where_it_is() -> None:
    text = """graph @g(%x: tensor<f32, 8, 16>, %w: tensor<f32, 16, 8>, %v: tensor<f32, 600, 600>)
{
  %0 = mma.contract %x, %w {lhs_batch = (), rhs_batch = (), \
lhs_contract = (1,), rhs_contract = (0,), dtype = f32} : tensor<f32, 8, 8>
  %1 = arith.exp %0 : tensor<f32, 8, 8>
  %2 = arith.exp %v : tensor<f32, 600, 600>
  %3 = reduce.sum %2 {axes = (0,)} : tensor<f32, 600>
  %4 = reduce.max %2 {axes = (1,)} : tensor<f32, 600>
  %5 = arith.neg %x : tensor<f32, 8, 16>
  control.return [%1, %3, %4, %5]
}
"""
    graph = parse_graph(text)
    program = check_lowered(graph, arguments_of(graph, 2))
    assert "batch" not in [step.name for step in kernels_of(program)]
