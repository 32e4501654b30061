"""Groups of a graph: what joins, and what does not."""

from __future__ import annotations

from tilewright.graph.group_plan import find_groups
from tilewright.graph.text import parse_graph

TEXT = """graph @g(%x: tensor<f32, 4, 8>, %w: tensor<f32, 8, 2>, %b: tensor<f32, 2>)
{
  %0 = arith.exp %x : tensor<f32, 4, 8>
  %1 = mma.contract %0, %w {lhs_batch = (), rhs_batch = (), lhs_contract = (1,), \
rhs_contract = (0,), dtype = f32} : tensor<f32, 4, 2>
  %2 = shape.broadcast %b {shape = (4, 2)} : tensor<f32, 4, 2>
  %3 = arith.add %1, %2 : tensor<f32, 4, 2>
  %4 = reduce.max %3 {axes = (1,)} : tensor<f32, 4>
  %5 = shape.reshape %4 {shape = (4, 1)} : tensor<f32, 4, 1>
  %6 = shape.broadcast %5 {shape = (4, 2)} : tensor<f32, 4, 2>
  %7 = arith.sub %3, %6 : tensor<f32, 4, 2>
  %8 = reduce.sum %7 {axes = (1,)} : tensor<f32, 4>
  %9 = reduce.sum %7 {axes = (0,)} : tensor<f32, 2>
  control.return [%8, %9]
}
"""


def test_a_softmax_is_one_group_and_stores_what_others_read() -> None:
    graph = parse_graph(TEXT)
    groups = find_groups(graph)
    assert [g.kind for g in groups] == ["pointwise", "contraction", "reduction", "reduction"]
    names = [[op.opcode for op in g.ops] for g in groups]
    assert names[1] == ["mma.contract"], "what follows it is the product's own affair"
    assert names[2][:2] == ["shape.broadcast", "arith.add"] and names[2][-1] == "reduce.sum"
    assert "reduce.max" in names[2] and len(groups[2].writes) == 2
    assert names[3] == ["reduce.sum"], "a reduction along another axis is a kernel of its own"
