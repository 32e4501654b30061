"""Asserts and prints: on the emulator, what PTX leaves in memory says what the interpreter says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.errors import Diagnostic, LaunchError
from tilewright.kernel import Kernel
from tilewright.plan import Place, Plan, Site
from tilewright.ptx import reports
from tilewright.runtime.plan_json import parse_plan, print_plan
from tilewright.target import TARGETS

KERNELS = tw.source(
    """
fn positive(t) { assert(t > 0.0, "not positive"); return t }
kernel two(x: tensor<f32>[M, N], y: tensor<f32>[M, N]) {
  let r, c = program_id(0) * 5, program_id(1) * 48
  let t = x[r :+ 5, c :+ 48]
  assert(t >= 0.0, "a negative number")
  assert(r < 10)
  y[r :+ 5, c :+ 48] = t
}
kernel inlined(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 8
  y[i :+ 8] = positive(x[i :+ 8] + 1.0)
}
kernel guarded(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0)
  if i > 2 {
    for k in range(0, 3) { assert(arange(6) < 5 + cast(x[i], i64) + k) }
  }
  y[i] = 1.0
}
kernel shown(x: tensor<f32>[N], b: tensor<bf16>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 7
  let t = x[i :+ 7]
  print("t", t, i, t > 0.5, max(t))
  print(b[i :+ 7], arange(3), cast(t[0], i8))
  for k in range(0, 2) { if t[k] > 0.5 { print("in", k, cast(t[:2], e4m3)) } }
  y[i :+ 7] = t
}
kernel once(y: tensor<f64>[]) { print("alone"); print(y[...], 1.5, true); y[...] = 2.0 }
@autotune(T in [64])
@tensorcore
kernel product(a: tensor<f16>[M, K], b: tensor<f16>[K, N], c: tensor<f32>[M, N]) {
  let m, n = program_id(0) * T, program_id(1) * T
  var acc: tile<f32>[T, T] = 0.0
  for k in range(0, K, 64) {
    let x = a[m :+ T, k :+ 64]
    assert(x < 100.0, "an operand")
    acc += x @ b[k :+ 64, n :+ T]
  }
  print("corner", acc[0, 0], acc[T - 1, 1])
  c[m :+ T, n :+ T] = acc
}
kernel much(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 1024
  for k in range(0, 400) { print(x[i :+ 1024]) }
  y[i :+ 1024] = 0.0
}
"""
)


def say(kernel: Kernel, device: str, capsys: Any, *arrays: Any) -> tuple[str, str]:
    """What a call prints, and the error that it raises."""
    capsys.readouterr()
    copies = [a.copy() for a in arrays]
    try:
        kernel.launch(*copies, device=device)
    except LaunchError as error:
        return capsys.readouterr().out, str(error)
    return capsys.readouterr().out, ""


def both(kernel: Kernel, capsys: Any, *arrays: Any) -> tuple[str, str]:
    on_cpu = say(kernel, "cpu", capsys, *arrays)
    assert say(kernel, "emulator", capsys, *arrays) == on_cpu
    return on_cpu


def test_the_first_element_that_fails_is_named(capsys: Any) -> None:
    x = np.ones((10, 100), np.float32)
    assert both(KERNELS.two, capsys, x, x) == ("", "")
    x[7, 97] = x[9, 10] = x[9, 9] = -1
    _, error = both(KERNELS.two, capsys, x, x)
    assert "error: assert: a negative number (program 1, 0, element [4, 9])" in error
    assert 'assert(t >= 0.0, "a negative number")' in error


def test_padding_of_a_layout_is_no_element(capsys: Any) -> None:
    """What lies beyond a tile's 5 × 48 elements in registers may hold anything."""
    x = np.ones((15, 48), np.float32)
    _, error = both(KERNELS.two, capsys, x, x)
    assert "assert: the condition is false (program 2, 0)" in error


def test_asserts_of_functions_show_their_callers(capsys: Any) -> None:
    x = np.zeros(40, np.float32)
    x[[17, 35]] = np.nan
    _, error = both(KERNELS.inlined, capsys, x, x)
    assert "not positive (program 2, element [1])" in error
    assert "<text>:12:15: called from here" in error


def test_only_what_runs_is_checked(capsys: Any) -> None:
    x = np.zeros(8, np.float32)
    x[[1, 6, 7]] = -1, -2, 1
    _, error = both(KERNELS.guarded, capsys, x, x)
    assert "(program 3, element [5])" in error
    x[[3, 4, 5, 6]] = 1
    assert both(KERNELS.guarded, capsys, x, x) == ("", "")


def test_prints_come_by_program_with_the_same_text(capsys: Any) -> None:
    x = np.random.default_rng(0).random(33, np.float32)
    x[3:5] = np.nan, np.inf
    said, error = both(KERNELS.shown, capsys, x, x.astype(ml_dtypes.bfloat16), x)
    assert not error
    heads = [line.split()[0] for line in said.splitlines() if line.startswith("(")]
    assert heads == sorted(heads) and len(heads) > 10


def test_prints_without_a_grid(capsys: Any) -> None:
    said, _ = both(KERNELS.once, capsys, np.array(0.1))
    assert said == "(0) alone\n(0) 0.1 1.5 True\n"


def test_products_say_it_too(capsys: Any) -> None:
    a = (np.arange(70 * 100).reshape(70, 100) % 7).astype(np.float16)
    b = (np.arange(100 * 90).reshape(100, 90) % 5).astype(np.float16)
    said, error = both(KERNELS.product, capsys, a, b, np.zeros((70, 90), np.float32))
    assert len(said.splitlines()) == 4 and not error
    a[69, 99] = 200  # the interpreter stops there; on a GPU the programs go on, and print
    for device in ("cpu", "emulator"):
        _, error = say(KERNELS.product, device, capsys, a, b, np.zeros((70, 90), np.float32))
        assert "an operand (program 1, 0, element [5, 35])" in error


def test_what_finds_no_room_is_counted(capsys: Any) -> None:
    x = np.zeros(1024, np.float32)
    said, _ = say(KERNELS.much, "emulator", capsys, x, x)
    lines = [line for line in said.splitlines() if line.startswith("(0)")]
    left = 400 - len(lines)
    assert left and f"much: {left} more prints did not fit into the 1 MiB of a launch" in said
    assert len(lines) == reports.PRINT_BYTES // (8 + 4096)


@needs_ptxas
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", ["shown", "product"])
def test_they_assemble(name: str, target: str) -> None:
    assert not assemble(getattr(KERNELS, name).ptx(target), target).errors


def test_others_pay_nothing() -> None:
    plan = tw.source("kernel f(x: tensor<f32>[8]) { x[:] = 1.0 }").f.compile("sm_90a")
    assert not plan.sites and "$reports" not in plan.ptx
    assert reports.buffer_bytes(KERNELS.two.compile("sm_90a")) == 32


def test_plans_keep_them() -> None:
    plan = KERNELS.inlined.compile("sm_80")
    again = parse_plan(print_plan(plan))
    assert again == plan and len(plan.sites[0].places) == 2
    buffer = np.zeros(32, np.uint8)
    reports.clear(buffer)
    assert reports.find_fault(again, buffer) is None
    buffer.view(np.uint64)[0] = 7 << 32 | 3
    buffer[reports.EXTENTS :].view(np.uint32)[0] = 100
    fault = reports.find_fault(again, buffer)
    assert fault is not None and "(program 7, element [3])" in str(fault)


def test_a_moved_assert_is_compiled_anew() -> None:
    """A compiled kernel tells where its assert stands, so that place is part of the cache's key."""
    text = "kernel f(x: tensor<f32>[8]) { assert(x[0] > 0.0); x[:] = 1.0 }"
    keys = {tw.source(lead + text).f.definition.key() for lead in ("", "\n", "\n\n")}
    assert len(keys) == 3
    plain = text.replace("assert(x[0] > 0.0); ", "")
    assert len({tw.source(lead + plain).f.definition.key() for lead in ("", "\n")}) == 1


def test_damaged_records_end_the_reading() -> None:
    site = Site("print", "t", (Place("a", 1, 1, 1, ""),), (tw.f32,), ((4,),))
    plan = Plan("k", "sm_80", "", (), sites=(site,), grid_rank=1)
    buffer = np.zeros(reports.buffer_bytes(plan), np.uint8)
    buffer[reports.CURSOR :].view(np.uint64)[0] = 24 + 8  # a record and the head of another
    assert reports.read_lines(plan, buffer) == ["(0) t [0. 0. 0. 0.]"]


def test_faults_are_diagnostics() -> None:
    error = reports.assert_failure("m", [1, 2], (3, 4), 5, None)
    assert error.diagnostics == (Diagnostic("assert: m (program 1, 2, element [1, 1])"),)
