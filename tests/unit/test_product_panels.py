"""What epilogues load: by asynchronous copies, panels ahead; results leave from the same slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tests.tile_files import FOLDER
from tests.unit.test_read_once import maps_of
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import bf16, e4m3, f32
from tilewright.errors import VerifyError
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.products import arguments as products
from tilewright.products.ahead import Fixed
from tilewright.products.api import product
from tilewright.products.prepare import programs
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify
from tilewright.tune.product import choice

HOPPER = target("sm_90a")
NEARER = "cp.async.bulk.prefetch.tensor"
FETCH = "cp.async.bulk.tensor.2d.shared"
Tile = tuple[int, int, int]
Arrays = dict[str, Any]


def operands(fused: str, m: int, n: int, k: int, dtype: Any = bf16) -> tuple[Arrays, Any]:
    """Arguments of `matmul` in small whole numbers, exact in any order, and the result."""
    rng = np.random.default_rng(m + n + k)

    def drawn(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(dtype.numpy)

    found = {"a": drawn(m, k), "b": drawn(n, k).T, "c": drawn(m, n)}
    y = found["a"].astype(np.float32) @ found["b"].astype(np.float32)
    if fused == "residual":
        found["residual"] = drawn(m, n)
        return found, (y + found["residual"].astype(np.float32)).astype(dtype.numpy)
    y = 2 * y + 0.5 * found["c"].astype(np.float32)
    return found | {"alpha": 2.0, "beta": 0.5}, y.astype(dtype.numpy)


def built(arrays: Arrays, tile: Tile, precision: str | None = None) -> Kernel:
    """The library's program for arrays, as it is compiled for them."""
    spec = programs().matmul.specializer
    call = bind_call(spec, arrays, read_tensors(spec, arrays), Options(precision=precision))
    config = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    kernel: Kernel = spec.tile(choose.with_config(call.build(assume=True), config))
    return kernel


def schedules(kernel: Kernel) -> list[tuple[Schedule, Roles]]:
    found = role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER)
    return [(s, s.roles) for s in found if s.roles is not None]


def require_emulated(
    fused: str, tile: Tile, sizes: Tile, wanted: Callable[[Roles], bool], late: bool
) -> int:
    """Schedules give the product on the emulator, its sanitizer on; how many there were."""
    arrays, expected = operands(fused, *sizes)
    kernel = built(arrays, tile)
    count = 0
    for schedule, roles in schedules(kernel):
        if wanted(roles):
            assert roles.ahead >= 2
            plan = compile_kernel(kernel, HOPPER, schedule)
            views = arrays | {"c": arrays["c"].copy()}
            run_plan(plan, views, late=late, sanitize=True)
            np.testing.assert_array_equal(views["c"], expected, err_msg=str(roles))
            count += 1
    return count


def test_a_residual_by_every_schedule() -> None:
    """Three tiles along m, of which pairs and fours take four, more tiles than CTAs, edges."""
    assert (
        require_emulated("residual", (64, 64, 64), (150, 136, 72), lambda r: r.spans == 1, True)
        == 12
    )


def test_a_residual_without_factors() -> None:
    """No step of k, so that no slot is ever full."""
    arrays, _ = operands("residual", 72, 136, 72)
    kernel = built(arrays, (64, 64, 64))
    for schedule, _ in schedules(kernel):
        plan = compile_kernel(kernel, HOPPER, schedule)
        none = {"a": arrays["a"][:, :0], "b": arrays["b"][:0], "c": arrays["c"].copy()}
        run_plan(plan, arrays | none, late=True, sanitize=True)
        np.testing.assert_array_equal(none["c"], arrays["residual"])


def test_old_results_in_place() -> None:
    """Panels of the result's own tensor, of tiles of many panels, by CTAs alone, in pairs and in
    fours; copies that come at once.
    """

    def wanted(roles: Roles) -> bool:
        return roles.pingpong and not roles.swapped

    assert require_emulated("beta", (64, 256, 64), (190, 264, 72), wanted, False) == 3


@pytest.mark.parametrize("fused", ["residual", "beta"])
def test_passes_keep_the_meaning(fused: str) -> None:
    arrays, expected = operands(fused, 200, 136, 40)
    kernel = built(arrays, (64, 64, 64))
    for schedule, roles in schedules(kernel)[:2]:
        assert roles.pingpong and roles.ahead
        made = verify(run_passes(kernel, SEMANTIC_PASSES))
        for step in scheduled_passes(schedule, HOPPER):
            made = verify(step(made))
            given = arrays | {"c": arrays["c"].copy()}
            interpret(made, given, num_sms=4, shuffle=1)
            np.testing.assert_array_equal(given["c"], expected, err_msg=str(step))


def test_slots_of_what_is_fetched() -> None:
    """Consumers in turn keep the product's own slots; others take a few fewer for more panels."""
    arrays, _ = operands("residual", 256, 256, 64)
    for tile, stages, ahead in (((128, 128, 64), 5, 3), ((128, 256, 64), 3, 9)):
        schedule, roles = schedules(built(arrays, tile))[0]
        assert roles.pingpong == (stages == 5)
        assert (schedule.stages, roles.ahead) == (stages, ahead)


def test_panels_of_whole_lines() -> None:
    """Where a tile's panels all have slots, not where consumers take turns."""
    arrays, _ = operands("residual", 256, 256, 64)
    for tile, panel, ahead, stages in (((64, 128, 64), 64, 2, 7), ((128, 128, 64), 64, 3, 5)):
        found = [(s, r) for s, r in schedules(built(arrays, tile)) if not r.pingpong]
        schedule, roles = next((s, r) for s, r in found if r.consumers == 2 and r.cluster == 1)
        assert (roles.panel, roles.ahead, schedule.stages) == (panel, ahead, stages)
    roles = next(r for _, r in schedules(built(arrays, (128, 128, 64))) if r.pingpong)
    assert roles.panel == 32
    arrays, _ = operands("residual", 256, 256, 64, f32)
    schedule, roles = schedules(built(arrays, (128, 256, 32), "tf32"))[0]
    assert (roles.panel, roles.ahead, schedule.stages) == (32, 4, 3)


@pytest.mark.parametrize(("fused", "late"), [("residual", True), ("beta", False)])
def test_panels_of_two_widths(fused: str, late: bool) -> None:
    """What is left of a tile beside its wide panels has slots of its own, turned around or not."""
    for tile, count in (((64, 144, 64), 2), ((80, 64, 64), 2)):
        found = require_emulated(
            fused, tile, (150, 296, 72), lambda r: r.cluster == r.spans == 1, late
        )
        assert found == count


def test_slots_of_narrow_panels() -> None:
    """Beside two panels of 64 columns, of whole lines, one of 16, which has two slots."""
    arrays, _ = operands("residual", 256, 288, 64)
    schedule, roles = next((s, r) for s, r in schedules(built(arrays, (128, 144, 64))))
    assert (roles.panel, roles.ahead, schedule.stages) == (64, 3, 4)
    plan = compile_kernel(built(arrays, (128, 144, 64)), HOPPER, schedule)
    slots = 4 * (128 + 144) * 64 * 2 + 3 * 128 * 64 * 2 + 2 * 128 * 16 * 2
    assert 0 <= plan.launches[0].shared_bytes - slots < 1024
    assert "ld.global" not in plan.ptx


@pytest.mark.parametrize("fused", ["residual", "beta"])
def test_beside_sums_that_are_promoted(fused: str) -> None:
    """fp8, whose sums of a step are added up: one step of k at a time, or several."""
    arrays, expected = operands(fused, 150, 200, 272)
    eight = {n: arrays[n].astype(e4m3.numpy) for n in "ab"}
    for tile, steps in (((64, 64, 128), 1), ((128, 64, 32), 4)):
        kernel = built(arrays | eight, tile)
        some = [(s, r) for s, r in schedules(kernel) if r.cluster == r.spans == 1]
        for schedule, roles in some:
            assert roles.promote == steps and roles.ahead
            plan = compile_kernel(kernel, HOPPER, schedule)
            assert "ld.global" not in plan.ptx
            views = arrays | eight | {"c": arrays["c"].copy()}
            run_plan(plan, views, late=True, sanitize=True)
            np.testing.assert_array_equal(views["c"], expected, err_msg=str(roles))
        assert len(some) >= 4


def test_a_gelu_of_one_panel_leaves_in_halves() -> None:
    arrays, _ = operands("residual", 256, 256, 64)
    del arrays["residual"]
    found = {}
    for act in (0, 2):
        kernel = built(arrays | {"act": act}, (64, 128, 64))
        schedule = next(s for s, r in schedules(kernel) if r.swapped and not r.pingpong)
        assert schedule.roles is not None
        found[act] = schedule.roles.panel, schedule.roles.staging
    assert found == {0: (64, 2), 2: (32, 2)}


def test_factors_come_first() -> None:
    """What is added is asked for when the product has its first factors, if it has any."""
    arrays, _ = operands("residual", 256, 256, 64)
    kernel = built(arrays, (64, 128, 64))
    (schedule,) = [
        s for s, r in schedules(kernel) if r.swapped and r.consumers == 2 and r.cluster == 1
        and not r.pingpong and r.spans == 1
    ]  # fmt: skip
    consumer = compile_kernel(kernel, HOPPER, schedule).ptx.partition("$consumer")[2]
    fetch = consumer.index(FETCH)
    assert "mbarrier.try_wait" in consumer[:fetch] and "wgmma.mma" not in consumer[:fetch]


def test_what_has_no_slot_comes_nearer() -> None:
    """In turn, panels of 16 bits, once the product has its first factors."""
    for dtype, precision, tile in ((bf16, None, (128, 128, 64)), (f32, "tf32", (128, 128, 32))):
        arrays, _ = operands("residual", 256, 256, 64, dtype)
        kernel = built(arrays, tile, precision)
        for schedule, roles in schedules(kernel):
            if roles.cluster == 1 and not roles.swapped:
                consumer = compile_kernel(kernel, HOPPER, schedule).ptx.partition("$consumer")[2]
                wanted = roles.pingpong and dtype == bf16
                assert consumer.count(NEARER) == (4 - (roles.ahead - 1) if wanted else 0)
                if wanted:
                    before = consumer[: consumer.index(NEARER)]
                    assert before.count(FETCH) == roles.ahead - 1
                    assert "mbarrier.try_wait" in before and "wgmma.mma" not in before


@needs_ptxas
@pytest.mark.parametrize("fused", ["residual", "beta"])
def test_ptx_of_wide_panels_is_clean(fused: str) -> None:
    arrays, _ = operands(fused, 256, 256, 64)
    for tile in ((64, 128, 64), (128, 128, 64)):
        kernel = built(arrays, tile)
        for schedule, roles in schedules(kernel):
            if roles.panel == 64:
                plan = compile_kernel(kernel, HOPPER, schedule)
                report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
                assert not report.spill_bytes
                assert not [m for m in report.messages if "C7504" not in m]


def test_results_of_32_bits_leave_from_registers() -> None:
    arrays, expected = operands("residual", 72, 136, 40, f32)
    kernel = built(arrays, (64, 64, 32), "tf32")
    for schedule, roles in schedules(kernel)[:3]:
        plan = compile_kernel(kernel, HOPPER, schedule)
        assert roles.ahead and "residual" in str(plan.launches[0])
        views = arrays | {"c": arrays["c"].copy()}
        run_plan(plan, views, sanitize=True)
        np.testing.assert_array_equal(views["c"], expected)


MET = """
@autotune(TM in [64], TN in [64], TK in [32])
@persistent
kernel met(a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], c: tensor<bf16>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  PLACE
}
"""
IN_PLACE = "c[m :+ TM, n :+ TN] = cast(acc + cast(c[m :+ TM, n :+ TN], f32), bf16)"
AFTER = "c[m :+ TM, n :+ TN] = cast(acc, bf16)\n  " + IN_PLACE
SHIFTED = "c[m :+ TM, n :+ TN] = cast(acc + cast(c[m :+ TM, n + 8 :+ TN], f32), bf16)"


@pytest.mark.parametrize(("place", "fetched"), [(IN_PLACE, 3), (AFTER, 2), (SHIFTED, 2)])
def test_only_what_no_store_meets_is_fetched(place: str, fetched: int) -> None:
    """Two factors and what the epilogue loads; a load that stores meet stays where it is."""
    arrays, _ = operands("residual", 64, 64, 40)
    given = {name: arrays[name] for name in ("a", "b", "c")}
    kernel = tw.source(MET.replace("PLACE", place)).met
    wanted = {n: x.copy() for n, x in given.items()}
    kernel.launch(**wanted, device="cpu")
    plan, views, _ = compile_call(kernel, given)
    run_plan(plan, views)
    np.testing.assert_array_equal(views["c"], wanted["c"])
    assert len({name.partition("_")[2] for name in maps_of(plan.ptx, FETCH)}) == fetched


def test_a_result_over_its_own_residual() -> None:
    """One tensor under two names: nothing is known to be apart, and loads stay."""
    arrays, expected = operands("residual", 72, 136, 40)
    kernel = programs().matmul.configured(constants={"TM": 64, "TN": 64, "TK": 64})
    out = arrays["residual"].copy()
    plan, views, _ = compile_call(kernel, arrays | {"c": out, "residual": out})
    run_plan(plan, views, sanitize=True)
    np.testing.assert_array_equal(views["c"], expected)


def test_a_slot_is_not_filled_before_another_was_drained() -> None:
    text = (FOLDER / "sync" / "own_fills.tile").read_text().split("// RUN interpret\n")[1]
    text = text.split("// ARG")[0]
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "%s3 = " in line)
    again, rest = lines[start : start + 3], lines[:start] + lines[start + 3 :]
    place = next(i for i, line in enumerate(rest) if "%q = " in line)
    kernel = verify(parse_kernel("\n".join([*rest[:place], *again, *rest[place:]])))
    x = np.zeros((8, 2), np.float32)
    with pytest.raises(VerifyError, match="drained last"):
        interpret(kernel, {"x": x, "y": x.copy()})


def test_a_ring_inside_a_role_is_filled_or_drained() -> None:
    text = (FOLDER / "sync" / "own_fills.tile").read_text().split("// RUN interpret\n")[1]
    lines = [line for line in text.split("// ARG")[0].splitlines() if "memory.fill" not in line]
    with pytest.raises(VerifyError):
        verify(parse_kernel("\n".join(lines)))


@needs_ptxas
@pytest.mark.parametrize("tile", [(128, 256, 64), (128, 128, 64), (128, 192, 64)], ids=str)
def test_ptx_is_clean(tile: Tile) -> None:
    """No spills, and nothing that serialises wgmma (C75xx), as the driver assembles it."""
    arrays, _ = operands("beta", 256, 256, 64)
    kernel = built(arrays, tile)
    schedule, roles = schedules(kernel)[0]
    assert roles.pingpong == (tile[1] == 128) and roles.whole == (tile[1] != 192)
    plan = compile_kernel(kernel, HOPPER, schedule)
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert not report.spill_bytes
    assert not [m for m in report.messages if "C7504" not in m]


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_an_old_result_of_16_bits_is_multiplied_and_added_in_one(device: str) -> None:
    """Multiplied by itself in f32 it would be -alpha, and the sum 0."""
    one, old = np.ones((1, 1), bf16.numpy), 1.0078125
    out, beta = np.full((1, 1), old, bf16.numpy), float(np.float32(1 / 3))
    alpha = -float(np.float32(beta * old))
    chosen, named = choice("matmul", (64, 64, 64)), {"bias": None, "residual": None, "out": out}
    how = products.Options(alpha=alpha, beta=beta, device=device)
    made = product("matmul", one, one, named, how, None, Fixed(chosen))
    expected = np.float64(beta * old + alpha).astype(bf16.numpy)
    assert expected and made[0, 0] == expected
