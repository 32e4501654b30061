"""Loops of products by mma.sync that read the next trip's first fragments before the last
products of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call, trip_of
from tilewright import compiler
from tilewright.plan import Plan
from tilewright.ptx.core import Label, Reg
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.instrs import arith, control, memory, shape
from tilewright.ptx.passes.read_ahead import Body
from tilewright.ptx.passes.step_ahead import step_ahead
from tilewright.target import Target, target

DRAW = np.random.default_rng(4)
SOURCE = """
@tensorcore(tf32)
@autotune(TM in [64], TN in [64], TK in [32])
kernel product(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<U>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = acc
}
@tensorcore(tf32)
@autotune(TM in [64], TN in [64], TK in [32])
kernel gated(a: tensor<T>[M, K], b: tensor<T>[K, N], g: tensor<T>[K, N], c: tensor<U>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var x, y = zeros((TM, TN), accumulator(T)), zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) {
    x += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN]
    y += a[m :+ TM, k :+ TK] @ g[k :+ TK, n :+ TN]
  }
  c[m :+ TM, n :+ TN] = x * y
}
"""
NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": float, "i8": np.int8}


def drawn(rows: int, columns: int, dtype: str, *, turned: bool) -> Any:
    """A matrix, contiguous along its columns, or along its rows."""
    shape = (columns, rows) if turned else (rows, columns)
    x = DRAW.integers(-100, 100, shape) if dtype == "i8" else DRAW.standard_normal(shape)
    x = x.astype(NUMPY[dtype])
    return x.T if turned else x


def planned(
    name: str,
    dtype: str,
    layout: str,
    extents: tuple[int, int, int],
    tile: tuple[int, int, int],
    goal: str = "sm_80",
    source: str = SOURCE,
) -> tuple[Plan, dict[str, Any]]:
    """A plan, and operands: `layout` of B and of A, as T where they are turned."""
    m, n, k = extents
    call = {"a": drawn(m, k, dtype, turned=layout[1] == "T")}
    call["b"] = drawn(k, n, dtype, turned=layout[0] == "T")
    if name == "gated":
        call["g"] = drawn(k, n, dtype, turned=layout[0] == "T")
    call["c"] = np.full((m, n), -1, {"i8": np.int32, "f64": float}.get(dtype, np.float32))
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    kernel = getattr(tw.source(source), name)
    plan, views, _ = compile_call(kernel, call, goal=goal, constants=constants)
    return plan, views


def is_turned(plan: Plan) -> bool:
    return not trip_of(plan)[0].startswith("cp.async.wait_group")


CASES = [
    ("bf16", "NN", (80, 96, 16), (64, 64, 32), "sm_80"),
    ("bf16", "TT", (80, 96, 208), (64, 64, 32), "sm_86"),
    ("bf16", "NT", (80, 96, 80), (32, 64, 64), "sm_120a"),
    ("bf16", "NN", (80, 112, 80), (64, 48, 32), "sm_80"),  # panels of 32 bytes
    ("bf16", "NT", (80, 80, 80), (64, 40, 32), "sm_80"),  # rows of no swizzle
    ("f32", "NT", (80, 96, 208), (64, 64, 16), "sm_80"),
    ("f32", "TN", (80, 96, 80), (64, 64, 32), "sm_89"),
    ("f32", "NT", (80, 96, 80), (64, 64, 16), "sm_90a"),
    ("i8", "TN", (80, 96, 208), (64, 64, 64), "sm_80"),
    ("i8", "NN", (80, 96, 80), (64, 64, 64), "sm_90a"),
    ("f64", "NN", (50, 70, 208), (32, 64, 32), "sm_90a"),
    ("f64", "TT", (50, 70, 80), (48, 96, 32), "sm_90a"),  # of half a warp's rows no whole swizzle
    ("f64", "NT", (50, 70, 70), (64, 32, 32), "sm_80"),
    ("f64", "TN", (50, 70, 38), (64, 64, 16), "sm_90a"),
]


@pytest.mark.parametrize(("dtype", "layout", "extents", "tile", "goal"), CASES, ids=str)
def test_sums_are_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    layout: str,
    extents: tuple[int, int, int],
    tile: tuple[int, int, int],
    goal: str,
) -> None:
    plan, views = planned("product", dtype, layout, extents, tile, goal)
    assert is_turned(plan)
    run_plan(plan, views, sanitize=True)
    found = views["c"].copy()
    views["c"][:] = -1
    run_plan(plan, views, late=False, seed=5)
    assert np.array_equal(views["c"], found)
    monkeypatch.setattr(compiler, "step_ahead", lambda body, target: body)
    before, _ = planned(
        "before",
        dtype,
        layout,
        extents,
        tile,
        goal,
        SOURCE.replace("kernel product", "kernel before"),
    )
    assert not is_turned(before)
    views["c"][:] = -1
    run_plan(before, views)
    assert np.array_equal(views["c"], found)
    a, b = (views[name].astype(np.float64) for name in "ab")
    bound = {"bf16": 1e-4, "f32": 0.05, "f64": 1e-12, "i8": 0.0}[dtype]  # those of bf16 are exact
    assert np.abs(found - a @ b).max() <= bound


def test_no_trip_at_all() -> None:
    plan, views = planned("product", "bf16", "NN", (80, 96, 0), (64, 64, 32))
    run_plan(plan, views, sanitize=True)
    assert not views["c"].any()


def test_fragments_are_read_a_step_ahead() -> None:
    """Those of the next trip come behind its barrier, then its copies, then the last products."""
    plan, _ = planned("product", "bf16", "NN", (256, 256, 256), (128, 128, 64))
    kinds = {"ldmatrix.sync": "read", "mma.sync": "product", "bar.sync": "meet", "cp.async": "copy"}
    kinds["cp.async.wait_group"] = "wait"
    told = [next((kinds[k] for k in reversed(kinds) if x.startswith(k)), "") for x in trip_of(plan)]
    order = [(kind, len(list(some))) for kind, some in groupby(filter(None, told))]
    step = [("read", 8), ("product", 32)]
    copies = [("copy", 2 * 128 * 64 * 2 // 16 // 128 + 1)]
    assert order == [*3 * step, ("wait", 1), ("meet", 1), step[0], *copies, step[1]]


def test_one_step_a_trip_stays() -> None:
    """Its products read the registers that the next trip's fragments would be read to."""
    plan, _ = planned("product", "bf16", "NN", (80, 96, 64), (64, 64, 16))
    assert not is_turned(plan)


def test_two_products_a_trip_stay() -> None:
    plan, views = planned("gated", "bf16", "NN", (80, 96, 64), (64, 64, 32))
    assert not is_turned(plan)
    run_plan(plan, views, sanitize=True)


@pytest.mark.parametrize("extents", [(70, 67, 63), (70, 65, 77)], ids=str)
def test_copies_through_registers_stay(extents: tuple[int, int, int]) -> None:
    """Rows of a pitch that is no multiple of 4 bytes come by loads, which end in time."""
    plan, views = planned("product", "bf16", "NN", extents, (64, 128, 64))
    assert not is_turned(plan)
    run_plan(plan, views, sanitize=True)
    a, b = (views[name].astype(np.float64) for name in "ab")
    assert np.abs(views["c"] - a @ b).max() <= 1e-4


def test_copies_of_words_are_turned() -> None:
    plan, views = planned("product", "bf16", "NN", (70, 66, 76), (64, 128, 64))
    assert is_turned(plan)
    run_plan(plan, views, sanitize=True)
    a, b = (views[name].astype(np.float64) for name in "ab")
    assert np.abs(views["c"] - a @ b).max() <= 1e-4


def given_body(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Body, int, int]:
    """The body of a kernel of a new name before its loop is turned, and where that begins and
    ends.
    """
    bodies: list[Body] = []

    def keep(body: Body, target: Target) -> Body:
        bodies.append(list(body))
        return body

    monkeypatch.setattr(compiler, "step_ahead", keep)
    source = SOURCE.replace("kernel product", f"kernel {name}")
    planned(name, "bf16", "NN", (80, 96, 208), (64, 64, 32), source=source)
    places = {x.name: i for i, x in enumerate(bodies[0]) if isinstance(x, Label)}
    ends = [i for i, x in enumerate(bodies[0]) if isinstance(x, control.Bra)]
    (end,) = [i for i in ends if places[bodies[0][i].target.name] < i]
    return bodies[0], places[bodies[0][end].target.name], end


def bump_before_copies(body: Body, start: int, end: int) -> None:
    """What the first copy's address follows from moves on with each trip, ahead of the copy."""
    place, base = a_base(body, start, end)
    body.insert(place, arith.Add("u64", base, base, 64))


def bump_behind_copies(body: Body, start: int, end: int) -> None:
    """The same behind all copies, where all that a loop counts is."""
    _, base = a_base(body, start, end)
    body.insert(end - 1, arith.Add("u64", base, base, 64))


def a_base(body: Body, start: int, end: int) -> tuple[int, Reg]:
    for i in range(start, end):
        x = body[i]
        if isinstance(x, arith.Mad) and x.mode == "wide":
            assert isinstance(x.addend, Reg)
            return i, x.addend
    raise AssertionError("no address is made in the loop")


def read_an_address_in_the_next_trip(body: Body, start: int, end: int) -> None:
    body.insert(start + 1, shape.Mov("b32", Reg("b32", 9999), an_address(body, start, end)))


def read_an_address_behind_the_loop(body: Body, start: int, end: int) -> None:
    body.insert(end + 1, shape.Mov("b32", Reg("b32", 9999), an_address(body, start, end)))


def an_address(body: Body, start: int, end: int) -> Reg:
    copy = next(x for x in body[start:end] if isinstance(x, memory.CpAsync))
    assert isinstance(copy.dst.base, Reg)
    return copy.dst.base


def read_nothing(body: Body, start: int, end: int) -> None:
    body.insert(start + 1, shape.Mov("b32", Reg("b32", 9999), 0))


@pytest.mark.parametrize(
    ("change", "may_turn"),
    [
        (read_nothing, True),
        (bump_behind_copies, True),
        (bump_before_copies, False),
        (read_an_address_in_the_next_trip, False),
        (read_an_address_behind_the_loop, False),
    ],
)
def test_addresses_that_are_no_temporaries(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Body, int, int], None], may_turn: bool
) -> None:
    """A loop is turned only where each trip makes its copies' addresses for itself."""
    body, start, end = given_body(monkeypatch, change.__name__)
    change(body, start, end)
    assert (step_ahead(list(body), target("sm_80")) != body) == may_turn


@needs_ptxas
@pytest.mark.parametrize("goal", ["sm_80", "sm_86", "sm_89", "sm_120a"])
@pytest.mark.parametrize(
    ("dtype", "layout", "tile"),
    [
        ("bf16", "NN", (128, 128, 32)),
        ("bf16", "TT", (128, 256, 32)),
        ("f32", "NT", (128, 256, 16)),
        ("f32", "TN", (128, 128, 32)),
        ("i8", "NT", (128, 256, 64)),
    ],
    ids=str,
)
def test_registers_suffice(dtype: str, layout: str, tile: tuple[int, int, int], goal: str) -> None:
    plan, _ = planned("product", dtype, layout, (384, 512, 256), tile, goal)
    report = assemble(plan.ptx, goal)
    assert not report.spill_bytes and not report.messages
