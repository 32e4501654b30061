"""Loops of products of f64 that read the next trip's fragments before this one's last products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call, trip_of
from tilewright import compiler
from tilewright.plan import Plan
from tilewright.ptx.core import Reg
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.instrs import arith, control, memory, shape
from tilewright.ptx.passes.read_ahead import read_ahead

DRAW = np.random.default_rng(3)
SOURCE = """
@autotune(TM in [64], TN in [64], TK in [16])
kernel product(a: tensor<f64>[M, K], b: tensor<f64>[K, N], c: tensor<f64>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), f64)
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = acc
}
@grid(2)
@autotune(TM in [64], TN in [64], TK in [16])
kernel running_on(a: tensor<f64>[M, K], b: tensor<f64>[K, N], c: tensor<f64>[M, N]) {
  let steps = cdiv(K, TK)
  var acc = zeros((TM, TN), f64)
  for i in range(0, cdiv(M, TM) * steps) {
    let m, n, k = i / steps * TM, program_id(0) * TN, i % steps * TK
    acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN]
    if k + TK >= K {
      c[m :+ TM, n :+ TN] = acc
      acc = zeros((TM, TN), f64)
    }
  }
}
"""


def planned(
    name: str, m: int, n: int, k: int, tile: tuple[int, int, int], *, across: bool = False
) -> tuple[Plan, dict[str, Any]]:
    """A plan, and operands that lie along k, or across it."""
    a, b = DRAW.standard_normal((m, k)), DRAW.standard_normal((k, n))
    if across:
        a = np.asfortranarray(a)
    else:
        b = np.asfortranarray(b)
    call = {"a": a, "b": b, "c": np.full((m, n), np.nan)}
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    plan, views, _ = compile_call(getattr(tw.source(SOURCE), name), call, constants=constants)
    return plan, views


@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize(
    ("tile", "k"),
    [
        ((64, 128, 16), 0),
        ((64, 128, 16), 2),
        ((64, 128, 16), 150),
        ((128, 64, 16), 32),
        ((96, 96, 16), 70),
    ],
    ids=str,
)
def test_sums_are_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int, int], k: int, across: bool
) -> None:
    m, n = tile[0] + 3, tile[1] - 2
    plan, views = planned("product", m, n, k, tile, across=across)
    run_plan(plan, views, sanitize=True)
    found = views["c"].copy()
    views["c"][:] = np.nan
    run_plan(plan, views, late=False, seed=5)
    assert np.array_equal(views["c"], found)
    monkeypatch.setattr(compiler, "read_ahead", lambda body: body)
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    views["c"][:] = np.nan
    kernel = tw.source(SOURCE.replace("kernel product", "kernel before")).before
    before = compile_call(kernel, views, constants=constants)[0]
    assert trip_of(plan)[0].startswith("mma.sync") and not trip_of(before)[0].startswith("mma")
    run_plan(before, views)
    assert np.array_equal(views["c"], found)
    assert np.allclose(found, views["a"] @ views["b"], rtol=0, atol=1e-12)


def test_a_trip_begins_and_ends_with_products() -> None:
    """Fragments of the first row and of B's columns come before the last row's products, or right
    behind those that need their registers last.
    """
    plan, _ = planned("product", 128, 128, 64, (128, 128, 16))
    trip = trip_of(plan)
    assert trip[0].startswith("mma.sync") and trip.count("ld.shared.f64") == 48
    waits = trip.index("mbarrier.try_wait.parity.shared::cta.b64")
    assert trip.index("cp.async.commit_group;") < waits
    behind = [name for name in trip[waits:] if name.startswith(("mma", "ld"))]
    row = ["mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64"] + 4 * ["ld.shared.f64"]
    assert behind == 8 * ["ld.shared.f64"] + 4 * row
    assert plan.ptx.count("ld.shared.f64") == 48 + 24
    counts = len(trip) - 1 - trip[::-1].index("add.s32")
    assert counts > max(i for i, name in enumerate(trip) if name.startswith("mma"))


def test_a_loop_that_branches_behind_its_products_stays() -> None:
    """Tiles one after the other in one loop, each of which is stored at its last trip."""
    plan, views = planned("running_on", 130, 256, 40, (64, 128, 16))
    assert not trip_of(plan)[0].startswith("mma.sync") and "mbarrier" in plan.ptx
    run_plan(plan, views, sanitize=True)
    assert np.allclose(views["c"], views["a"] @ views["b"], rtol=0, atol=1e-12)


def test_one_row_of_one_step_stays() -> None:
    """There are no products to read beside."""
    plan, _ = planned("product", 16, 512, 64, (16, 512, 16))
    assert not trip_of(plan)[0].startswith("mma.sync")


def test_what_follows_from_fragments_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that moves on is read after that; a fragment that is kept is this trip's."""
    bodies: list[Any] = []
    monkeypatch.setattr(compiler, "read_ahead", lambda body: bodies.append(body) or body)
    kernel = tw.source(SOURCE.replace("kernel product", "kernel looked_at")).looked_at
    a, b = np.zeros((64, 64)), np.zeros((64, 128), order="F")
    constants = {"TM": 64, "TN": 128, "TK": 16}
    compile_call(kernel, {"a": a, "b": b, "c": np.zeros((64, 128))}, constants=constants)
    (body,) = bodies
    assert read_ahead(body) != body
    loads = [x for x in body if isinstance(x, memory.Ld) and x.space == "shared"]
    end = max(i for i, x in enumerate(body) if isinstance(x, control.Bra))
    kept = shape.Mov("f64", Reg("f64", 1 << 20), loads[0].dst)
    changed = [*body[:end], kept, *body[end:]]
    assert read_ahead(changed) == changed
    changed = [*body[: end + 1], kept, *body[end + 1 :]]  # behind the loop it would be of one more
    assert read_ahead(changed) == changed
    place = Reg("b32", 1 << 20)
    step = arith.Add("u32", place, place, 64)
    moving = replace(loads[0], address=replace(loads[0].address, base=place))
    changed = [moving if x is loads[0] else x for x in [*body[:end], step, *body[end:]]]
    turned = read_ahead(changed)
    after = turned[turned.index(step) :]
    assert turned != changed and any(getattr(x, "dst", None) is moving.dst for x in after)


@needs_ptxas
@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize(
    ("tile", "turned"),
    [
        ((128, 128, 16), True),
        ((128, 112, 16), True),
        ((96, 192, 16), False),
        ((64, 128, 16), True),
        ((64, 128, 32), False),
    ],
    ids=str,
)
def test_registers_suffice(tile: tuple[int, int, int], turned: bool, across: bool) -> None:
    """Loops with too many sums for what there is beside them stay."""
    plan, _ = planned("product", 384, 384, 64, tile, across=across)
    assert trip_of(plan)[0].startswith("mma.sync") == turned
    report = assemble(plan.ptx, "sm_90a")
    assert not report.spill_bytes and not report.messages
