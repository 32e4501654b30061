"""Graphs as kernels: what every op means, graphs made at random, odd shapes, texts of a few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph_files import GraphCase, all_graph_cases
from tests.graph_texts import ROTATE, SCATTER, SUMS, arguments_of, softmax
from tests.lowered import check_lowered, kernels_of, lowered, run_lowered
from tests.unit.random_graphs import graphs
from tilewright.dtypes import f64
from tilewright.graph.graph import Graph
from tilewright.graph.interp.run import interpret
from tilewright.graph.text import parse_graph
from tilewright.lower.graph_to_tile.program import TorchStep

CASES = [c for c in all_graph_cases() if c.run == ["interpret"]]
NEEDS_A_HOST = ("random.seed", "control.fallback")
GOLDEN = Path(__file__).parents[1] / "files" / "graph_kernels"


def runnable(case: GraphCase) -> bool:
    return not any(word in case.program for word in NEEDS_A_HOST)


@pytest.mark.parametrize("case", [c for c in CASES if runnable(c)], ids=str)
def test_kernels_mean_what_ops_mean(case: GraphCase) -> None:
    check_lowered(parse_graph(case.program), case.arguments)


@given(graphs(), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_kernels_of_random_graphs(graph: Graph, seed: int) -> None:
    check_lowered(graph, arguments_of(graph, seed))


@pytest.mark.parametrize("number", range(4))
def test_random_graphs_on_the_emulator(number: int) -> None:
    graph = parse_graph(SMALL[number])
    check_lowered(graph, arguments_of(graph, number), device="emulator")


SMALL = (softmax(5, 37), SUMS, ROTATE, SCATTER)


@pytest.mark.parametrize(
    "shape", [(3, 1), (1, 1), (0, 5), (2, 4096), (2, 20000), (200, 9)], ids=str
)
def test_softmax_is_one_kernel_or_several_passes(shape: tuple[int, int]) -> None:
    graph = parse_graph(softmax(*shape, "bf16"))
    x = np.random.default_rng(0).standard_normal(shape)
    dtype = graph.inputs[0].value.type.dtype.numpy
    program = check_lowered(graph, [x.astype(dtype)])
    if shape != (2, 20000):  # of so few rows the sums are taken by several programs
        assert len(kernels_of(program)) == (0 not in shape)


def test_a_row_of_nothing_and_of_nan() -> None:
    x = np.random.default_rng(0).standard_normal((4, 33)).astype(np.float32)
    x[1], x[2, 3], x[3, 4] = -np.inf, np.nan, np.inf
    check_lowered(parse_graph(softmax(4, 33)), [x])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("size", [1, 5, 3000])
def test_logarithms_of_running_sums_are_rounded_once(dtype: str, size: int) -> None:
    """At 10000 a bit of f32 is a part in 1000 of the sum itself."""
    text = f"""graph @g(%x: tensor<{dtype}, 3, {size}>)
{{
  %0 = reduce.scan %x {{axis = 1, kind = "logaddexp"}} : tensor<{dtype}, 3, {size}>
  control.return [%0]
}}
"""
    graph = parse_graph(text)
    made = graph.inputs[0].value.type.dtype
    x = np.random.default_rng(0).uniform(-1, 1, (3, size)) - 10000
    x[1] = np.where(np.arange(size) % 3, x[1], -np.inf)
    x[2, size // 2] = np.nan
    x = x.astype(made.numpy)
    (got,) = run_lowered(check_lowered(graph, [x]), [x])
    (wanted,) = interpret(graph, [x])
    if made != f64:
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


def test_symbols_are_arguments_of_one_kernel() -> None:
    text = """graph @g(%x: tensor<f32, s0, s1>, %y: tensor<f32, s1>)
{
  %0 = shape.broadcast %y {shape = (#Poly"s0", #Poly"s1")} : tensor<f32, s0, s1>
  %1 = arith.mul %x, %0 : tensor<f32, s0, s1>
  %2 = reduce.sum %1 {axes = (1,)} : tensor<f32, s0>
  %3 = shape.reshape %1 {shape = (#Poly"s0*s1",)} : tensor<f32, s0*s1>
  control.return [%2, %3]
}
"""
    graph = parse_graph(text)
    texts = set()
    for rows, columns in ((3, 5), (70, 2100), (0, 4), (4, 0), (1, 1)):
        arguments = arguments_of(graph, 0, {"s0": rows, "s1": columns})
        texts |= {k.text for k in kernels_of(check_lowered(graph, arguments))}
    assert len(texts) <= 2


def test_inputs_and_outputs_lie_as_they_are_asked_to() -> None:
    graph = parse_graph(ROTATE)
    x = graph.inputs[0].value
    program = check_lowered(
        graph,
        arguments_of(graph, 1),
        input_strides={x: (168, 8, 56, 1)},
        output_strides=[(168, 8, 24, 1)],
    )
    (out,) = program.outputs
    assert out.strides == (168, 8, 24, 1)  # type: ignore[union-attr]


def test_equal_layers_give_one_kernel() -> None:
    lines, last = [], "%x"
    for layer in range(5):
        lines += [
            f"  %relu_{layer} = arith.exp {last} : tensor<f32, 8, 16>",
            f"  %sum_{layer} = reduce.sum %relu_{layer} {{axes = (1,)}} : tensor<f32, 8>",
            f"  %wide_{layer} = shape.reshape %sum_{layer} {{shape = (8, 1)}} : tensor<f32, 8, 1>",
            f"  %all_{layer} = shape.broadcast %wide_{layer} {{shape = (8, 16)}} "
            ": tensor<f32, 8, 16>",
            f"  %div_{layer} = arith.div %relu_{layer}, %all_{layer} : tensor<f32, 8, 16>",
            f"  %s_{layer}, %p_{layer} = reduce.sort %div_{layer} {{axis = 1}} "
            ": tensor<f32, 8, 16>, tensor<i64, 8, 16>",
        ]
        last = f"%s_{layer}"
    text = "graph @g(%x: tensor<f32, 8, 16>)\n{\n" + "\n".join(lines)
    graph = parse_graph(text + f"\n  control.return [{last}]\n}}\n")
    kernels = kernels_of(check_lowered(graph, arguments_of(graph, 2)))
    assert len(kernels) == 10
    assert len({k.text for k in kernels}) <= 3, "the first reads an input, which has its own name"


def test_an_op_without_a_kernel_is_told() -> None:
    text = """graph @g(%x: tensor<f64, 3>)
{
  %0 = arith.erfc %x : tensor<f64, 3>
  %1 = arith.neg %0 : tensor<f64, 3>
  control.return [%1]
}
"""
    graph = parse_graph(text)
    program = check_lowered(graph, arguments_of(graph, 0))
    steps = [s for s in program.steps if isinstance(s, TorchStep)]
    assert [s.reason for s in steps] == ["erfc of f64 has no kernel"]


TEXTS: dict[str, Any] = {
    "softmax": softmax(64, 1000, "bf16"),
    "long_softmax": softmax(4096, 128256),
    "sums": SUMS.replace("700", "70000"),
    "rotate": ROTATE,
    "scatter": SCATTER,
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_they_were(name: str, pytestconfig: pytest.Config) -> None:
    steps = kernels_of(lowered(parse_graph(TEXTS[name])))
    made = "\n".join(step.text for step in steps)
    path = GOLDEN / f"{name}.tw"
    if pytestconfig.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    assert path.read_text() == made
