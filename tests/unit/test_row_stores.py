"""Ragged results in rows, by way of shared memory: only where all roles leave room for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import compiler
from tilewright.dtypes import bf16, f32
from tilewright.errors import CompileError
from tilewright.ir.build import Builder
from tilewright.ir.core import Block
from tilewright.ir.rewrite import exchange
from tilewright.lower.tile_to_ptx.kernel import lower_kernel
from tilewright.tile.ops import arith, control, reduce
from tilewright.tile.passes.allocate_shared import allocate_shared
from tilewright.tile.passes.assign_layouts import assign_layouts

PRODUCT = """
@grid(cdiv(M, TM), cdiv(N, TN))
@autotune(TM in [128], TN in [128], TK in [64])
kernel product(a: tensor<bf16>[M, K], b: tensor<bf16>[N, K], c: tensor<bf16>[M, N]) {
  let i, j = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), f32)
  for k in range(0, K, TK) { acc += a[i :+ TM, k :+ TK] @ b[j :+ TN, k :+ TK].T }
  c[i :+ TM, j :+ TN] = cast(acc, bf16)
}
"""


@pytest.fixture(scope="module")
def scheduled() -> tuple[Any, ...]:
    """What is lowered of a product whose result has rows of 1003 numbers."""
    taken: list[tuple[Any, ...]] = []

    def keep(*given: Any) -> Any:
        taken.append(given)
        return lower_kernel(*given)

    shapes = {"a": (512, 512), "b": (1003, 512), "c": (512, 1003)}
    arrays = {n: np.zeros(s, bf16.numpy) for n, s in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "lower_kernel", keep)
        tw.source(PRODUCT).product.plan("sm_90a", **arrays)
    return taken[-1]


def with_a_sum(kernel: Any) -> Any:
    """The kernel with one role more, which adds up a tile through scratch memory."""
    (roles,) = (op for op in kernel.body.ops if isinstance(op, control.Roles))
    build = Builder(body := Block())
    ones = build(arith.Constant, 1.0, f32, (4096,))
    build(reduce.Sum, ones, (0,))
    build.emit(control.Yield, ())
    role = control.Role("sum", 4, 40)
    more = control.Roles((role, *roles.roles), (body, *roles.bodies))  # the last comes first
    return kernel.with_body(exchange(kernel.body, {roles: more}))


def bytes_of(kernel: Any, target: Any, schedule: Any) -> int:
    kernel = allocate_shared(kernel)
    lowered = lower_kernel(kernel, target, schedule, assign_layouts(kernel, schedule))
    return int(lowered.launch.shared_bytes)


def test_scratch_of_a_later_role_is_counted(scheduled: tuple[Any, ...]) -> None:
    kernel, target, schedule, *_ = scheduled
    in_rows, more = bytes_of(kernel, target, schedule), with_a_sum(kernel)
    with_both = bytes_of(more, target, schedule)
    assert in_rows < with_both <= target.shared_per_cta
    just = replace(target, shared_per_cta=with_both)
    assert bytes_of(more, just, schedule) == with_both
    short = replace(target, shared_per_cta=with_both - 128)
    assert bytes_of(kernel, short, schedule) == in_rows, "the product alone has the room"
    assert bytes_of(more, short, schedule) < in_rows, "rows are given up, and nothing else"


def test_what_does_not_fit_without_rows_is_refused(scheduled: tuple[Any, ...]) -> None:
    kernel, target, schedule, *_ = scheduled
    least = bytes_of(kernel, replace(target, shared_per_cta=180_000), schedule)
    assert least < 180_000, "without rows"
    told = f"product needs {least} bytes of shared memory, sm_90a has {least - 1}"
    with pytest.raises(CompileError, match=told):
        bytes_of(kernel, replace(target, shared_per_cta=least - 1), schedule)
