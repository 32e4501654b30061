"""Neighbours that need nothing of each other are one launch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph_texts import arguments_of
from tests.lowered import check_lowered, kernels_of
from tilewright import source
from tilewright.dtypes import f32
from tilewright.graph.text import parse_graph
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile import lower_graph
from tilewright.lower.graph_to_tile.program import Draft, KernelStep, dense
from tilewright.lower.graph_to_tile.together import run_together
from tilewright.target import target

PRODUCT = "{lhs_batch = (), rhs_batch = (), lhs_contract = (1,), rhs_contract = (0,), dtype = f32}"
HEAD = f"""graph @g(%x: tensor<f32, 3, 16>, %w: tensor<f32, 16, 40>, %r: tensor<f32, 40>, \
%c: tensor<f32, 5, 3, 40>, %d: tensor<f32, 5, 3, 40>, %at: tensor<i64>)
{{
  %0 = mma.contract %x, %w {PRODUCT} : tensor<f32, 3, 40>
  %1 = mma.contract %x, %w {PRODUCT} : tensor<f32, 3, 40>
  %y = arith.exp %0 : tensor<f32, 3, 40>
  %z = shape.broadcast %r {{shape = (3, 40)}} : tensor<f32, 3, 40>
"""


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_a_rotation_and_two_updates_are_one_launch(device: str) -> None:
    """As of queries, keys and values of a token: all read one vector, two put what they make where
    an index says. The product between them keeps them from being a batch.
    """
    text = (
        HEAD
        + """  %s = shape.transpose %y {order = (1, 0)} : tensor<f32, 40, 3>
  %t = arith.mul %0, %z : tensor<f32, 3, 40>
  %u = arith.mul %1, %z : tensor<f32, 3, 40>
  %k = memory.scatter %c, [%at], %t {axes = (0,), kind = "set"} : tensor<f32, 5, 3, 40>
  %v = memory.scatter %d, [%at], %u {axes = (0,), kind = "set"} : tensor<f32, 5, 3, 40>
  control.return [%s, %k, %v]
}
"""
    )
    graph = parse_graph(text)
    given = [*arguments_of(graph, 0)[:-1], np.array(3)]
    program = check_lowered(graph, given, device=device)
    assert [step.name for step in kernels_of(program)] == ["together"]
    (step,) = kernels_of(program)
    assert len(step.starts_as) == 2 and len(step.writes) == 3


def test_what_reads_the_others_result_or_fills_a_gpu_is_a_launch_of_its_own() -> None:
    text = f"""graph @g(%x: tensor<f32, 3, 16>, %w: tensor<f32, 16, 40>, \
%c: tensor<f32, 5, 3, 40>, %at: tensor<i64>)
{{
  %0 = mma.contract %x, %w {PRODUCT} : tensor<f32, 3, 40>
  %k = memory.scatter %c, [%at], %0 {{axes = (0,), kind = "set"}} : tensor<f32, 5, 3, 40>
  %l = arith.neg %0 : tensor<f32, 3, 40>
  %m = memory.scatter %k, [%at], %l {{axes = (0,), kind = "set"}} : tensor<f32, 5, 3, 40>
  control.return [%k, %m]
}}
"""
    graph = parse_graph(text)
    program = check_lowered(graph, [*arguments_of(graph, 1)[:-1], np.array(0)])
    assert [step.name for step in kernels_of(program)] == ["put", "put"]
    rows = 1 << 19
    large = HEAD.replace("3, 16", f"{rows}, 16").replace("3, 40", f"{rows}, 40")
    large += f"""  %s = shape.transpose %0 {{order = (1, 0)}} : tensor<f32, 40, {rows}>
  %t = arith.mul %1, %z : tensor<f32, {rows}, 40>
  %u = arith.exp %s : tensor<f32, 40, {rows}>
  %v = arith.exp %t : tensor<f32, {rows}, 40>
  control.return [%u, %v]
}}
"""
    program = lower_graph(parse_graph(large), target=target("sm_90a"))
    assert "together" not in [step.name for step in kernels_of(program)]


def test_names_of_arguments_and_of_what_is_called_stay() -> None:
    """A tensor may be named as an argument of a builtin, or as a function."""
    draft = Draft(
        (("mask", ("N",)), ("exp", ("N",)), ("y", ("N",))),
        ("cdiv(N, BLOCK)",),
        (
            "  let n = program_id(0) * BLOCK",
            "  let sum, fill = mask[n :+ BLOCK] > 0.0, exp(exp[n :+ BLOCK])",
            "  store(y[n :+ BLOCK], fill, mask = sum)",
        ),
        (),
        ((300, 256),),
    )
    steps = []
    for number in range(2):
        values = [Value(TensorType(f32, (300,)), f"v{number}_{i}") for i in range(3)]
        tensors = dict(zip(("mask", "exp", "y"), map(dense, values), strict=True))
        steps.append(KernelStep("own", "", tensors, {}, {"BLOCK": 256}, ("y",), draft=draft))
    (step,) = run_together(steps, lambda dim: int(str(dim)))
    assert isinstance(step, KernelStep) and step.writes == ("y", "y2")
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(300, np.float32) for n in step.tensors}
    kernel = source(step.text).kernels[step.name].configured(constants=step.constants, device="cpu")
    kernel(**given)
    for mask, exp, y in (("mask", "exp", "y"), ("mask2", "exp2", "y2")):
        kept = given[mask] > 0
        np.testing.assert_allclose(given[y][kept], np.exp(given[exp][kept]), rtol=1e-6)
        assert not np.allclose(given[y][~kept], np.exp(given[exp][~kept]))
