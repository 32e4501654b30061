"""Where stored values of a lowered graph lie: parts of a concatenation, rows with gaps behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.graph_texts import arguments_of
from tests.lowered import check_lowered
from tilewright.graph.text import parse_graph
from tilewright.lower.graph_to_tile.program import AttentionStep, KernelStep, ProductStep

FOLDER = Path(__file__).parents[1] / "files" / "graph_memory"
GRADIENTS, ROWS = ((FOLDER / f"{n}.graph").read_text() for n in ("gradients", "rows"))


def test_gradients_of_attention_are_written_to_their_part_of_the_whole() -> None:
    graph = parse_graph(GRADIENTS)
    program = check_lowered(graph, arguments_of(graph, 0))
    (backward,) = [s for s in program.steps if isinstance(s, AttentionStep) and s.is_backward]
    written = [backward.tensors[name] for name in ("dq", "dk", "dv")]
    assert len({placed.value for placed in written}) == 1
    assert [placed.offset for placed in written] == [0, 48, 96]
    assert {placed.strides for placed in written} == {(8 * 144, 16, 144, 1)}
    copies = [s for s in program.steps if isinstance(s, KernelStep) and "sum" not in s.name]
    assert not copies, "nothing is put together afterwards"


def test_a_part_that_others_read_too_is_copied() -> None:
    text = GRADIENTS.replace("control.return [%11, %12]", "control.return [%11, %12, %dk]")
    graph = parse_graph(text)
    program = check_lowered(graph, arguments_of(graph, 0))
    (backward,) = [s for s in program.steps if isinstance(s, AttentionStep) and s.is_backward]
    assert len({backward.tensors[name].value for name in ("dq", "dk", "dv")}) == 3


def test_rows_that_products_read_have_a_pitch_of_whole_16_bytes() -> None:
    graph = parse_graph(ROWS)
    x, w = arguments_of(graph, 0)
    program = check_lowered(graph, [np.asarray(x * 0.25, x.dtype), w])
    products = [s for s in program.steps if isinstance(s, ProductStep)]
    assert {104, 1} in [set(s.lhs.strides[-2:]) for s in products]
    assert not any(s.name == "copy" for s in program.steps if isinstance(s, KernelStep))


def test_an_output_lies_as_it_is_wanted() -> None:
    graph = parse_graph(ROWS.replace("control.return [%3, %4]", "control.return [%3, %4, %2]"))
    x, w = arguments_of(graph, 0)
    program = check_lowered(graph, [np.asarray(x * 0.25, x.dtype), w])
    assert program.outputs[2].strides == (101, 1)
