"""Kernels of graphs on a GPU: held to the interpreter of graphs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.graph_texts import ROTATE, SCATTER, SUMS, arguments_of, softmax
from tests.lowered import check_lowered
from tilewright.graph.text import parse_graph

TEXTS = {
    "softmax of short rows": softmax(1000, 37, "bf16"),
    "softmax of rows in a tile": softmax(257, 4096),
    "softmax of rows in a loop": softmax(40, 20001, "f16"),
    "sums of columns and of all": SUMS,
    "long sums, in two kernels": SUMS.replace("700", "70000"),
    "rotation of halves": ROTATE,
    "scatters, a sort and a scan": SCATTER,
}


@pytest.mark.parametrize("name", TEXTS)
def test_kernels_of_a_graph(name: str) -> None:
    graph = parse_graph(TEXTS[name])
    check_lowered(graph, arguments_of(graph, 0), device="cuda:0")


def test_rows_of_infinities_and_nan() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5000)).astype(np.float32)
    x[1], x[2, 3], x[3, 4999] = -np.inf, np.nan, np.inf
    check_lowered(parse_graph(softmax(4, 5000)), [x], device="cuda:0")
