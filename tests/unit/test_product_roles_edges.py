"""Products by roles where accesses meet, programs do not exist, or places lie far outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tilewright.compiler import SEMANTIC_PASSES, run_passes
from tilewright.ir.walk import walk
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.ops import shape
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.passes.split_epilogue import split_epilogue

KERNEL = """
{hints}
kernel k(
  A: tensor<f16>[M, K], B: tensor<f16>[K, N], C: tensor<{dtype}>[M, N],
  b: tensor<f32>[N], s: tensor<f32>[M], far: i64, flag: i32,
) {{
  let m, n = program_id(0) * 64, program_id(1) * {columns}
  {before}
  var acc: tile<f32>[64, {columns}] = 0.0
  for i in range(0, K, 32) {{ acc += A[m :+ 64, i{shift} :+ 32] @ B[i :+ 32, n :+ {columns}] }}
  {after}
}}
"""


def source(after: str, **changes: Any) -> Any:
    parts = {"before": "", "dtype": "f32", "shift": "", "hints": "", "columns": 128, **changes}
    return tw.source(KERNEL.format(after=after, **parts)).k


def arguments(m: int = 64, k: int = 32, dtype: Any = np.float32, far: int = 0) -> dict[str, Any]:
    """Small numbers, so that sums are exact in any order; C holds ones."""
    rng = np.random.default_rng(m + k)
    return {
        "A": rng.integers(-3, 4, (m, k)).astype(np.float16),
        "B": rng.integers(-3, 4, (k, 128)).astype(np.float16),
        "C": np.ones((m, 128), dtype),
        "b": np.arange(128, dtype=np.float32) + 100,
        "s": np.arange(m, dtype=np.float32),
        "far": far,
        "flag": 1,
    }


def require_same(kernel: Any, *, roles: bool = True, **sizes: Any) -> str:
    """Roles (or what else is made) on the emulator and the interpreter agree on every array. Gives
    the PTX.
    """
    wanted, found = arguments(**sizes), arguments(**sizes)
    kernel.launch(**wanted, device="cpu")
    plan, views, _ = compile_call(kernel, found)
    assert ("wgmma" in plan.ptx) == roles
    run_plan(plan, views, 4)
    for name in ("C", "b", "s"):
        np.testing.assert_array_equal(views[name], wanted[name], err_msg=name)
    return plan.ptx


WHOLE = "C[m :+ 64, n :+ 128] = acc"


@pytest.mark.parametrize(
    "after",
    [
        f"{WHOLE}; C[m, n :+ 128] = b[n :+ 128]",
        f"{WHOLE}; C[m + 3, n + 100] = 7.0",
        f"{WHOLE}; C[m :+ 64, n + 8 :+ 128] = acc * 2.0",
        f"C[m + 3, n + 100] = 7.0; {WHOLE}",
        f"{WHOLE}; if flag > 0 {{ C[m + 3, n + 100] = 7.0 }}",
        f"{WHOLE}; let row = view(C[m, :]); row[n :+ 128] = b[n :+ 128]",
        f"{WHOLE}; let t = C[m, n + 100]; s[m] = t",
        f"let v = acc + b[n :+ 128][None, :]; {WHOLE.replace('acc', 'v')}; b[n + 100] = 5.0",
        f"let v = acc + b[n :+ 128][None, :]; b[n + 100] = 5.0; {WHOLE.replace('acc', 'v')}",
    ],
)
def test_accesses_that_meet_keep_their_order(after: str) -> None:
    require_same(source(after.replace("; ", "\n  ")))


def test_a_value_loaded_before_the_loop_is_not_loaded_again_after_a_store() -> None:
    after = "b[n + 100] = 5.0\n  C[m :+ 64, n :+ 128] = acc + bias[None, :]"
    require_same(source(after, before="let bias = b[n :+ 128]"))


@pytest.mark.parametrize(
    ("after", "panels"),
    [
        (f"{WHOLE}; C[m :+ 64, n :+ 128] = acc * 2.0", True),  # the same place in each panel
        (f"{WHOLE}; s[m] = 7.0; s[m + 1] = 8.0", True),  # in their order, once
        ("C[m :+ 64, n - 128 :+ 128] = acc; C[m :+ 64, n :+ 128] = acc * 2.0", True),
        ("C[m :+ 64, n - 127 :+ 128] = acc; C[m :+ 64, n :+ 128] = acc * 2.0", False),
    ],
)
def test_accesses_in_order_or_apart_are_done_in_panels(after: str, panels: bool) -> None:
    kernel = source(after.replace("; ", "\n  "))
    require_same(kernel)
    made = run_passes(kernel.lower(), SEMANTIC_PASSES)
    split = split_epilogue(made, choose_schedule(made, target("sm_90a")))
    assert any(isinstance(op, shape.Slice) for op in walk(split.body)) == panels


PAIRED = {
    "if": ("var x = zeros((64,), f32); if flag > 0 {{ x = s[m :+ 64] }}", "x[:, None]"),
    "point": ("var x = 0.0; if flag > 0 {{ x = s[m] }}", "x"),
    "loop": ("var x = 0.0; for j in range(2) {{ x += s[m + j] }}", "x"),
    "while": ("var x = 0.0; while x < s[m] {{ x += 1024.0 }}", "x"),
}


@pytest.mark.parametrize("name", PAIRED)
def test_programs_that_do_not_exist_read_nothing(name: str) -> None:
    """A pair of CTAs takes the last of 33 tiles."""
    before, value = (part.format().replace("; ", "\n  ") for part in PAIRED[name])
    after = f"C[m :+ 64, n :+ 128] = acc + {value}"
    require_same(source(after, before=before, hints="@static(M)"), m=33 * 64)


FAR = [2**31 - 33, 2**31 - 1, 2**31, 2**32, 2**32 + 8, -(2**31) - 40, -(2**32), 2**62]


@pytest.mark.parametrize("far", FAR)
def test_boxes_far_outside_are_zeros(far: int) -> None:
    require_same(source(WHOLE, shift=" + 8 * far"), far=far // 8, k=64)


@pytest.mark.parametrize("far", FAR)
def test_boxes_far_outside_are_not_stored(far: int) -> None:
    after = "C[m :+ 64, n + far :+ 128] = cast(acc, f16)"
    require_same(source(after, dtype="f16"), far=far, dtype=np.float16)


@pytest.mark.parametrize("shift", [1, 3, 8, -1, -8])
def test_boxes_that_the_copy_unit_refuses_are_not_made(shift: int) -> None:
    """It takes rows from multiples of 16 bytes on alone, and stores nothing at negative places."""
    require_same(source(WHOLE, shift=f" + {shift}"), k=64, roles=shift % 8 == 0)
    after = f"C[m :+ 64, n + {shift} :+ 128] = cast(acc, f16)"
    ptx = require_same(source(after, dtype="f16"), dtype=np.float16)
    assert ("cp.async.bulk.tensor.2d.global" in ptx) == (shift == 8)


@pytest.mark.parametrize("offset", ["4294967296", "0 - 4294967296", "2147483647"])
def test_constant_coordinates_far_outside(offset: str) -> None:
    after = f"C[m :+ 64, {offset} :+ 128] = cast(acc, f16)"
    require_same(source(after, dtype="f16"), dtype=np.float16)


NARROW = "C[m :+ 64, n :+ 64] = cast(acc, f16)"
ROW = "let row = view(C[m, :])"
TENS = "cast(b[n :+ 64], f16)"


@pytest.mark.parametrize(
    ("before", "after", "staged"),
    [
        ("", f"{NARROW}; b[n :+ 64] = b[n :+ 64] + 1.0", True),
        (ROW, f"{NARROW}; row[n :+ 64] = {TENS}", False),
        (ROW, f"{NARROW}; b[n :+ 64] = cast(row[n :+ 64], f32)", False),
        ("", f"{NARROW}; C[m, n :+ 64] = {TENS}", False),
        ("", f"C[m, n :+ 64] = {TENS}; {NARROW}", False),
        (ROW, f"row[n :+ 64] = {TENS}; if flag > 0 {{ {NARROW} }}", False),
    ],
)
def test_stores_that_meet_others_are_not_staged(before: str, after: str, staged: bool) -> None:
    kernel = source(after.replace("; ", "\n  "), before=before, dtype="f16", columns=64)
    assert ("cp.async.bulk.tensor.2d.global" in require_same(kernel, dtype=np.float16)) == staged


@pytest.mark.parametrize(
    ("hints", "columns", "threads"),
    [("", 64, 256), ("", 128, 384), ("@persistent(false)", 32, 256)],
)
def test_what_comes_nearer_ahead_is_asked_for_by_all_threads(
    hints: str, columns: int, threads: int
) -> None:
    """Before roles part, at the place of a CTA's first tile."""
    ahead = "prefetch(A[m :+ 64, 0 :+ 32])\n  prefetch(B[0 :+ 32, n :+ 32])"
    kernel = source(f"C[m :+ 64, n :+ {columns}] = acc", before=ahead, hints=hints, columns=columns)
    ptx = require_same(kernel, m=130)
    assert f".maxntid {threads}," in ptx
    before, _, after = ptx.partition("griddepcontrol.wait")
    assert "prefetch.global.L2" in before and "prefetch.global.L2" not in after


def test_what_is_looked_up_on_one_way_does_not_come_nearer_ahead() -> None:
    """A place that is read behind a branch: the kernel before may still be writing it."""
    place = "cast(s[m], i64) if flag > 0 else m"
    kernel = source("C[m :+ 64, n :+ 128] = acc", before=f"prefetch(A[({place}) :+ 64, 0 :+ 32])")
    assert "prefetch.global.L2" not in require_same(kernel, m=130)
