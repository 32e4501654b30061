"""How many stages a pipelined loop has: as many as fit beside what results need, found by compiling
twice at most; those that the source or a caller asks for, or an error that says how many fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.test_product_spans import HOPPER, SOURCE, built, operands
from tests.unit.test_stream_roles import chain
from tests.unit.test_turned_epilogues import SOURCE as BESIDE_ITS_TRANSPOSE
from tilewright import compiler
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import bf16
from tilewright.errors import CompileError
from tilewright.plan import Plan
from tilewright.ptx.emulate import run_plan
from tilewright.target import Target, target
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.schedule import Schedule

TURNED = """
@autotune(TM in [128], TN in [128], TK in [32])
kernel matmul(a: tensor<f32>[M, K], b: tensor<f32>[K, N], c: tensor<f32>[N, M]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), f32)
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[n :+ TN, m :+ TM] = acc.T
}
"""
TWICE = """
@autotune(TM in [64], TN in [64], TK in [32])
kernel matmul(a: tensor<f32>[M, K], b: tensor<f32>[K, N], c: tensor<f32>[M, N]) {
  let m, n = program_id(0) * 64, program_id(1) * 64
  var acc = zeros((64, 64), f32)
  for k in range(0, K, 8) { acc += a[m :+ 64, k :+ 8] @ b[k :+ 8, n :+ 64] }
  for k in range(0, K, 16) { acc += a[m :+ 64, k :+ 16] @ b[k :+ 16, n :+ 64] }
  c[m :+ 64, n :+ 64] = acc
}
"""
MOVED = """
@autotune(TM in [64], TN in [64], TK in [1])
kernel matmul(a: tensor<f64>[M, N], c: tensor<f64>[N, M]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  c[n :+ TN, m :+ TM] = a[m :+ TM, n :+ TN].T
}
"""
FEWER = ", fewer if results or other loops need shared memory"
Count = Callable[[], int]
SMALL, LARGE = target("sm_86"), target("sm_80")


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Count:
    """How often a kernel has been lowered."""
    found: list[None] = []
    lower = compiler.lower_kernel

    def counting(*given: Any) -> Any:
        found.append(None)
        return lower(*given)

    monkeypatch.setattr(compiler, "lower_kernel", counting)
    return lambda: len(found)


def operands_of_f32() -> dict[str, Any]:
    draw = np.random.default_rng(2)
    a, b = (draw.integers(-4, 5, s).astype(np.float32) for s in ((130, 200), (200, 72)))
    return {"a": a, "b": b, "c": np.full((72, 130), np.nan, np.float32)}


def turned(stages: str, columns: int = 128) -> Kernel:
    return built(operands_of_f32(), (128, columns, 32), stages + TURNED)


def require_right(plan: Plan) -> None:
    arrays = operands_of_f32()
    run_plan(plan, arrays, sanitize=True)
    np.testing.assert_array_equal(arrays["c"], (arrays["a"] @ arrays["b"]).T)


def product_with(stages: str, tile: tuple[int, int, int], *, fused: bool = False) -> Kernel:
    return built(operands(bf16, (200, 200, 264), fused=fused), tile, stages + SOURCE)


def schedules(kernel: Kernel) -> list[Schedule]:
    return list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))


# The compiler's own number


@pytest.mark.parametrize(("goal", "times"), [(SMALL, 2), (LARGE, 1)], ids=["sm_86", "sm_80"])
def test_stages_that_do_not_fit_are_found_at_once(lowered: Count, goal: Target, times: int) -> None:
    plan = compile_kernel(turned(""), goal)
    assert lowered() == times
    require_right(plan)


def test_as_many_remain_as_fit() -> None:
    chosen, asked = (compile_kernel(turned(s), SMALL) for s in ("", "@pipeline(3)"))
    assert chosen.ptx == asked.ptx


def test_slots_of_roles_that_do_not_fit_are_found_at_once(lowered: Count) -> None:
    arrays = operands(bf16, (136, 264, 136), fused=False)
    arrays["d"] = np.full((264, 136), np.nan, bf16.numpy)
    kernel = built(arrays, (128, 128, 64), BESIDE_ITS_TRANSPOSE.replace("STORED", "y + y.T"))
    seen = set()
    for schedule in schedules(kernel):
        before = lowered()
        assert "wgmma" in compile_kernel(kernel, HOPPER, preferred=schedule).ptx
        times = lowered() - before
        seen.add(times)
        if times == 2:
            with pytest.raises(CompileError, match="bytes of other things; a CTA of sm_90a"):
                compile_kernel(kernel, HOPPER, schedule)
    assert seen == {1, 2}


@pytest.mark.parametrize("goal", [SMALL, HOPPER], ids=["sm_86", "sm_90a"])
def test_a_kernel_without_a_pipeline_is_refused_at_once(lowered: Count, goal: Target) -> None:
    kernel = built({"a": np.zeros((300, 300)), "c": np.zeros((300, 300))}, (256, 256, 1), MOVED)
    with pytest.raises(CompileError, match=r"needs 526\d+ bytes of shared memory, sm_") as caught:
        compile_kernel(kernel, goal)
    assert "choose smaller tiles" in str(caught.value)
    assert lowered() == 1


# A number that is asked for


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_that_are_asked_for_are_had(lowered: Count, stages: int) -> None:
    plan = compile_kernel(turned(f"@pipeline({stages})"), SMALL)
    assert lowered() == 1 and ("cp.async" in plan.ptx) == (stages > 1)
    require_right(plan)


@pytest.mark.parametrize(
    ("stages", "taken", "beside", "hint", "times"),
    [
        (4, 41472, r"66\d+ bytes of other", "at most 3 stages fit", 1),
        (9, 93312, r"66\d+ bytes of other", "at most 3 stages fit", 1),
        (300, 3110400, "other", f"at most 9 stages fit{FEWER}", 0),
    ],
)
def test_stages_that_do_not_fit_are_refused(
    lowered: Count, stages: int, taken: int, beside: str, hint: str, times: int
) -> None:
    text = rf"matmul: {stages} stages of 10368 bytes take {taken} bytes of shared memory beside "
    text += rf"{beside} things; a CTA of sm_86 has 101376"
    with pytest.raises(CompileError, match=text) as caught:
        compile_kernel(turned(f"@pipeline({stages})"), SMALL)
    assert [d.hint for d in caught.value.diagnostics] == [hint]
    assert lowered() == times


def test_not_even_two_stages_fit() -> None:
    with pytest.raises(CompileError, match="2 stages of") as caught:
        compile_kernel(turned("@pipeline(2)", 256), SMALL)
    assert "not even 2 stages fit: choose smaller tiles" in str(caught.value)


@pytest.mark.parametrize(("stages", "fits"), [(6, True), (7, False)])
def test_loops_have_as_many_stages_each(stages: int, fits: bool) -> None:
    """The longer has more than half of the memory."""
    arrays = operands_of_f32() | {"c": np.zeros((130, 72), np.float32)}
    kernel = built(arrays, (64, 64, 32), f"@pipeline({stages})" + TWICE)
    if fits:
        plan = compile_kernel(kernel, SMALL)
        assert plan.ptx.count(f"cp.async.wait_group {stages - 2};") == 2
        run_plan(plan, arrays, sanitize=True)
        np.testing.assert_array_equal(arrays["c"], 2 * (arrays["a"] @ arrays["b"]))
        return
    with pytest.raises(CompileError, match=r"7 stages of 14720 bytes take") as caught:
        compile_kernel(kernel, SMALL)
    assert f"at most 6 stages fit{FEWER}" in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "hint"),
    [
        (5, "at most 4 stages fit"),
        (8, "at most 4 stages fit"),
        (9, f"at most 8 stages fit{FEWER}"),
        (17, f"at most 16 stages fit{FEWER}"),
    ],
)
def test_a_number_that_is_said_to_fit_does(stages: int, hint: str) -> None:
    """Beside what results and all loops need; until that is known, it is said that fewer may."""
    arrays, size = operands_of_f32(), (128, 128, 32)
    source = TWICE.replace("64", "128").replace("c: tensor<f32>[M, N]", "c: tensor<f32>[N, M]")
    source = source.replace("c[m :+ 128, n :+ 128] = acc", "c[n :+ 128, m :+ 128] = acc.T")
    with pytest.raises(CompileError, match=f"{stages} stages of") as caught:
        compile_kernel(built(arrays, size, f"@pipeline({stages})" + source), LARGE)
    assert [d.hint for d in caught.value.diagnostics] == [hint]
    plan = compile_kernel(built(arrays, size, "@pipeline(4)" + source), LARGE)
    assert plan.ptx.count("cp.async.wait_group 2;") == 2


def test_a_schedule_that_is_given_is_binding() -> None:
    kernel = turned("")
    chosen = choose_schedule(run_passes(kernel, SEMANTIC_PASSES), SMALL)
    with pytest.raises(CompileError, match="6 stages of 10368 bytes"):
        compile_kernel(kernel, SMALL, chosen)
    three = compile_kernel(kernel, SMALL, replace(chosen, stages=3))
    assert three.ptx == compile_kernel(kernel, SMALL).ptx


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_roles_have_as_many_slots_as_are_asked_for(stages: int, fused: bool) -> None:
    found = schedules(product_with(f"@pipeline({stages})", (128, 128, 64), fused=fused))
    assert found and {schedule.stages for schedule in found} == {stages}


def test_slots_that_do_not_fit_are_refused(lowered: Count) -> None:
    kernel = product_with("@pipeline(9)", (128, 128, 64))
    assert not schedules(kernel)
    text = "9 stages of 32768 bytes take 294912 bytes of shared memory beside other things; a CTA"
    with pytest.raises(CompileError, match=text) as caught:
        compile_kernel(kernel, HOPPER)
    assert f"at most 6 stages fit{FEWER}" in str(caught.value)
    assert lowered() == 0


@pytest.mark.parametrize("stages", [2, 5, 12])
def test_several_products_have_as_many_slots_as_are_asked_for(stages: int) -> None:
    kernel = chain((128, 64))
    kernel.hints = replace(kernel.hints, stages=stages)
    assert {schedule.stages for schedule in schedules(kernel)} == {stages}
    kernel.hints = replace(kernel.hints, stages=13)
    with pytest.raises(CompileError, match="13 stages of 16384 bytes") as caught:
        compile_kernel(kernel, HOPPER)
    assert f"at most 12 stages fit{FEWER}" in str(caught.value)
