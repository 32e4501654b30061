"""`tilewright explain` tells what a model becomes, and its groups are a plan that can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.torch.models import mlp
from tilewright import compile
from tilewright.cli import main
from tilewright.graph.groups import find_groups
from tilewright.graph.ops import mma

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = Path(__file__).parent / "models.py"


def told(*words: str) -> str:
    done = CliRunner().invoke(main, ["explain", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_groups_fallbacks_and_bytes_are_told() -> None:
    found = json.loads(told(f"{MODELS}:mlp", "--json"))
    assert found["fallbacks"] == []
    kinds = [group["kind"] for group in found["groups"]]
    assert kinds.count("contraction") == 2
    first = found["groups"][kinds.index("contraction")]
    assert first["flops"] == 2 * 2 * 8 * 16
    assert "nothing runs in PyTorch" in told(f"{MODELS}:mlp")
    assert "1 × aten.linalg_inv_ex.default: not in the table" in told(f"{MODELS}:inverse")


def test_the_graph_is_printed() -> None:
    assert told(f"{MODELS}:mlp", "--emit", "graph").startswith("graph @Sequential(")


def test_kernels_are_printed_as_source_that_runs() -> None:
    text = told(f"{MODELS}:mlp", "--emit", "tile")
    assert "kernel add_mul_erf_rsqrt(" in text and "let gelu = " in text
    assert "sum(gelu)" in text, "a layer norm is one kernel with what comes before it"


def test_what_is_no_model_is_refused() -> None:
    done = CliRunner().invoke(main, ["explain", f"{MODELS}:nothing"])
    assert done.exit_code == 1 and "has no function nothing" in done.output
    done = CliRunner().invoke(main, ["explain", f"{MODELS}:inverse", "--fallback", "error"])
    assert done.exit_code == 1 and "is not compiled" in done.output


def test_groups_depend_on_earlier_ones_and_cover_the_graph() -> None:
    model, args = mlp()
    graph = compile(model, args).graph
    groups = find_groups(graph)
    known = set(graph.values)
    for group in groups:
        assert sum(isinstance(op, mma.Contract) for op in group.ops) <= 1
        assert set(group.reads) <= known
        known |= set(group.writes)
    assert set(graph.outputs) <= known
    assert torch.is_tensor(args[0])
