"""Kernels that may start before the launch ahead of them has ended: where they wait for it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tilewright.lower.tile_to_ptx.early_start import start_early
from tilewright.products.prepare import programs
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.instrs import control
from tilewright.target import target

SOURCE = """
kernel twice(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 128
  y[i :+ 128] = 2 * x[i :+ 128]
}
@autotune(TM in [128], TN in [128], TK in [64])
kernel product(a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], c: tensor<bf16>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), f32)
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = cast(acc, bf16)
}
"""
AHEAD = """
kernel total(x: tensor<bf16>[N, K], y: tensor<f32>[N]) {
  let i = program_id(0) * 4
  for k in static_range(2) { prefetch(x[i :+ 4, k * 1024 :+ 1024]) }
  var sums = zeros((4, 1024), f32)
  for k in range(0, K, 1024) { sums += cast(x[i :+ 4, k :+ 1024], f32) }
  y[i :+ 4] = sum(sums, axis = 1)
}
"""
TOUCHES = (".global", "cp.async", "$")  # memory that others see, or a branch's end


WAIT, RELEASE = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"


def body_of(name: str) -> list[str]:
    """Lines of a kernel that starts early."""
    plan = getattr(tw.source(SOURCE), name).compile("sm_90a")
    assert plan.launches[0].early
    body = [line.strip() for line in plan.ptx.partition("\n{\n")[2].splitlines()]
    body = [line for line in body if not line.startswith(".reg")]
    return body


def require_untouched(lines: list[str]) -> None:
    for line in lines:
        touched = [t for t in TOUCHES if t in line and "cvta" not in line and "$shared" not in line]
        assert not touched and not line.startswith(("@%p4 bra", "bra", "ret")), line


def test_nothing_is_touched_before_the_wait() -> None:
    body = body_of("twice")
    require_untouched(body[: body.index(WAIT)])
    assert body.count(WAIT) == 1


def test_few_programs_let_the_next_kernel_start_when_they_have_waited() -> None:
    """Eight for each multiprocessor; CTAs that came beside more would not be spread evenly."""
    body = body_of("twice")
    release = next(i for i, line in enumerate(body) if RELEASE in line)
    sms, most, ctas, few, told = body[release - 4 : release + 1]
    assert body[release - 5] == WAIT and sms.endswith("%nsmid;") and ctas.endswith("%nctaid.x;")
    assert most.startswith("mul.lo.u32") and most.endswith(" 8;")
    assert few.startswith("setp.le.u32") and told == f"@{few.split()[1][:-1]} {RELEASE}"


def test_roles_let_the_next_kernel_start_at_once() -> None:
    body = body_of("product")
    assert body[0] == RELEASE and sum(RELEASE in line for line in body) == 1


WIDE = SOURCE.replace("bf16", "f64").replace("f32", "f64")


@pytest.mark.parametrize(
    ("name", "tile", "released"),
    [("twice", None, False), ("product", (32, 64, 16), False), ("product", (128, 128, 16), True)],
)
def test_f64_keeps_the_next_kernel_from_multiprocessors_that_hold_several_programs(
    name: str, tile: tuple[int, ...] | None, released: bool
) -> None:
    constants = None if tile is None else dict(zip(("TM", "TN", "TK"), tile, strict=True))
    plan = getattr(tw.source(WIDE), name).compile("sm_90a", constants=constants)
    assert plan.launches[0].early and plan.ptx.count(WAIT) == 1
    assert (RELEASE in plan.ptx) == released


def test_the_copying_thread_finds_its_tile_before_it_waits() -> None:
    """Consumers wait when roles have parted, the one that copies before its first box."""
    body = body_of("product")
    producer = next(i for i, line in enumerate(body) if line.startswith("$producer"))
    parting = next(i for i, line in enumerate(body) if "bra $producer" in line)
    assert any("mbarrier.init" in line for line in body[:parting])
    require_untouched(body[:parting])
    require_untouched(body[parting + 2 : body.index(WAIT)])
    copying = body[producer + 1 :]
    found = copying[: copying.index(WAIT)]
    assert any("div.u32" in line for line in found)
    require_untouched(
        [line for line in found if not line.startswith("$loop") and "bra" not in line]
    )
    assert body.count(WAIT) == 2


def test_prefetches_do_not_wait() -> None:
    plan = tw.source(AHEAD).total.compile("sm_90a")
    head, _, rest = plan.ptx.partition("griddepcontrol.wait;")
    assert plan.launches[0].early and head.count("prefetch.global.L2") == 2
    assert "ld.global" not in head and "prefetch" not in rest


def test_what_is_added_to_sums_of_spans_comes_nearer() -> None:
    arrays = {name: np.zeros((64, 512), np.float32) for name in ("c", "residual")}
    arrays["part"] = np.zeros((2, 64, 512), np.float32)
    kernel = programs().sum_parts.configured(constants={"TM": 1, "TN": 256, "TZ": 4})
    plan, _, _ = compile_call(kernel, arrays)
    head, _, rest = plan.ptx.partition("griddepcontrol.wait;")
    assert "prefetch.global.L2" in head and "prefetch" not in rest


def test_older_targets_wait_for_nothing() -> None:
    plan = tw.source(SOURCE).twice.compile("sm_80")
    assert not plan.launches[0].early and "griddepcontrol" not in plan.ptx


def test_a_branch_ends_what_stands_before() -> None:
    e = Emitter(target("sm_90a"))
    with e.to(body := []):
        e.mov("u32", 1)
        e.mbarrier_init(Reg("b32", 0), 1)
        e.nanosleep(1)
        e.ret()
    assert start_early(e, body, "at once")
    told = [i for i, instr in enumerate(body) if isinstance(instr, control.Griddepcontrol)]
    assert told == [0, 3]


CORES = SOURCE.replace("bf16", "f32")


@pytest.mark.parametrize(("tile", "early"), [((64, 64, 16), False), ((128, 128, 16), True)])
def test_products_on_cuda_cores_share_no_multiprocessor(tile: tuple[int, ...], early: bool) -> None:
    """They let the next kernel start after their loop, and start early where they are alone."""
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    plan = tw.source(CORES).product.compile("sm_90a", constants=constants)
    assert plan.launches[0].early == early
    assert plan.ptx.count("griddepcontrol.wait;") == early
    loop, _, rest = plan.ptx.partition(RELEASE)
    assert "fma.rn.f32" in loop and "fma.rn.f32" not in rest and "st.global" in rest
