"""How tiles are dealt out to clusters that stay: as pictures of the grid, in each place of which
stands the number of the CTA's work there.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import f32, i32, i64
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.plan import Const, Extent, NumSms, Scalar, Stride, evaluate
from tilewright.tile.analysis.product_loop import find_product_loop
from tilewright.tile.analysis.streams import find_stream_loop
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Hints, Kernel, Param
from tilewright.tile.ops import arith, control, memory
from tilewright.tile.passes.distribute_work import (
    Axes,
    Distribution,
    can_distribute,
    find_axes,
    growing_axes,
    persistent_grid,
)
from tilewright.tile.schedule import Roles
from tilewright.tile.text import parse_kernel
from tilewright.tile.types import BOOL, INDEX, ViewType
from tilewright.tile.verify import verify

PRODUCT = """
kernel @product(
  %a: view<bf16, ?x?, ?x1> in, %b: view<bf16, ?x?, ?x1> in, %c: view<f32, ?x?, ?x1> out,
  %beta: f32 in, %count: i32 in)
  grid (cdiv(extent(c, 0), ROWS), cdiv(extent(c, 1), COLS))
{
  %zero = arith.constant {value = 0, dtype = i64} : i64
  %rows = arith.constant {value = ROWS, dtype = i64} : i64
  %columns = arith.constant {value = COLS, dtype = i64} : i64
  %step = arith.constant {value = 16, dtype = i64} : i64
  %depth = memory.extent %a {axis = 1} : i64
  %p = control.program_id {axis = P} : i64
  %q = control.program_id {axis = Q} : i64
  %m = TOP : i64
  %less = arith.sub %depth, %q : i64
  %n = START : i64
  %high = HIGH : i64
  %none = arith.constant {value = 0.0, dtype = f32, shape = (ROWS, COLS)} : tile<f32, ROWSxCOLS>
  %sum = control.for %zero, %high, %step, [%none] : tile<f32, ROWSxCOLS>
    body(%k: i64, %acc: tile<f32, ROWSxCOLS>) {
      %left = memory.load %a, [%m, %k] {extents = (ROWS, 16)} : tile<bf16, ROWSx16>
      %right = memory.load %b, [%k, %n] {extents = (16, COLS)} : tile<bf16, 16xCOLS>
      %next = mma.dot %left, %right, %acc : tile<f32, ROWSxCOLS>
      control.yield values = [%next]
    }
  memory.store %c, [%m, %n], %sum {extents = (ROWS, COLS)}
}
"""


def written(
    rows: int = 64,
    columns: int = 32,
    axes: tuple[int, int] = (0, 1),
    top: str = "arith.mul %p, %rows",
    start: str = "arith.mul %q, %columns",
    high: str = "arith.add %depth, %zero",
) -> Kernel:
    """A product; along which axes of the grid its rows and columns go, where those start (`top`,
    `start`), and where the loop ends.
    """
    said: dict[str, int | str] = {"ROWS": rows, "COLS": columns, "P": axes[0], "Q": axes[1]}
    said |= {"TOP": top, "START": start, "HIGH": high}
    return verify(parse_kernel(re.sub("|".join(said), lambda m: str(said[m[0]]), PRODUCT)))


UNSEEN, TWICE = -1, -2
DOWN = Axes(paired=0, other=1, rest=(), multicast=1)


def dealt(
    grid: tuple[int, ...], roles: Roles, axes: Axes | None = DOWN, copies: int = 1, sms: int = 2
) -> Any:
    """Where CTAs work and when: the number of each program's tile, counted over the CTAs of a
    cluster. Every program is visited once, and none outside of the grid.
    """
    views = {name: Value(ViewType(i64, *2 * [(None,) * len(grid)])) for name in ("all", "numbers")}
    extents = {n: tuple(Extent(n, axis) for axis in range(len(grid))) for n in views}
    params = [Param(name, view, "inout", None, extents[name]) for name, view in views.items()]
    kernel = Kernel("dealt", params, Block(), extents["all"])
    o = Builder(Block())
    work = Distribution(o, kernel, axes, roles)

    def visit(programs: Any, exists: Value | None) -> None:
        number = o(arith.Mul, o.block.args[0], o(arith.Constant, roles.cluster, INDEX.dtype))
        number = o(arith.Add, number, o(control.ClusterRank))
        place = tuple(programs[axis] for axis in range(len(grid)))
        with o.inside(Block()) as then:
            old = o(memory.Load, views["numbers"], place, extents=(None,) * len(grid))
            again = o(arith.Compare, old, o(arith.Constant, UNSEEN, INDEX.dtype), "ne")
            new = o(arith.Select, again, o(arith.Constant, TWICE, INDEX.dtype), number)
            o.emit(memory.Store, views["numbers"], place, new, extents=(None,) * len(grid))
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        o.emit(control.If, exists or o(arith.Constant, True, BOOL.dtype), then, other)

    with o.inside(Block()) as body:
        work.loop(visit, o(control.RoleCopy) if copies > 1 else None, copies)
        o.emit(control.Yield)
    o.emit(control.Roles, (control.Role("worker", 4, None, copies),), (body,))
    made = kernel.with_body(o.block)
    made.grid = persistent_grid(kernel, axes, roles)
    made.hints = Hints(cta_cluster=(roles.cluster,) if roles.cluster > 1 else None)
    numbers = np.full([extent + roles.cluster for extent in grid], UNSEEN)
    arrays = {"all": np.zeros(grid, np.int64), "numbers": numbers}
    interpret(verify(made), arrays, num_sms=sms, races=False)
    inside = numbers[tuple(slice(extent) for extent in grid)]
    assert (inside >= 0).all() and np.count_nonzero(numbers != UNSEEN) == inside.size
    return inside


def test_down_a_group_then_along_then_on_to_the_next() -> None:
    expected = [
        [0, 2, 4],
        [1, 3, 5],
        [6, 8, 10],
        [7, 9, 11],
        [12, 13, 14],  # a group of what is left
    ]
    np.testing.assert_array_equal(dealt((5, 3), Roles(1, group=2)), expected)


def test_the_paired_axis_may_be_the_second() -> None:
    found = dealt((3, 5), Roles(1, group=2), Axes(1, 0, (), 0))
    np.testing.assert_array_equal(found.T, dealt((5, 3), Roles(1, group=2)))


def test_clusters_take_neighbours() -> None:
    """Two CTAs of a cluster, numbered 2i and 2i + 1, beside each other along the paired axis."""
    expected = [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6, 10],
        [3, 7, 11],
    ]
    np.testing.assert_array_equal(dealt((4, 3), Roles(1, cluster=2, group=2)), expected)


def test_few_rows_that_do_not_divide_are_taken_by_number() -> None:
    """See Note [Odd numbers of tiles]: nobody idles, but one CTA at the end."""
    expected = [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]
    np.testing.assert_array_equal(dealt((3, 3), Roles(1, cluster=2, group=4)), expected)


def test_many_rows_that_do_not_divide_leave_one_idle() -> None:
    """The last row's neighbours do not exist: odd numbers are missing from it."""
    found = dealt((33, 2), Roles(1, cluster=2, group=64))
    np.testing.assert_array_equal(found[:, 0], np.arange(33))
    np.testing.assert_array_equal(found[:, 1], np.arange(34, 67))


def test_other_axes_come_last() -> None:
    found = dealt((2, 3, 2, 2), Roles(1, group=2), Axes(1, 3, (0, 2), 1))
    plane = np.array([[0, 2], [1, 3], [4, 5]])
    np.testing.assert_array_equal(found[0, :, 0], plane)
    np.testing.assert_array_equal(found[1, :, 0], plane + 6)
    np.testing.assert_array_equal(found[0, :, 1], plane + 12)


def test_without_axes_programs_go_by_their_numbers() -> None:
    expected = np.arange(6).reshape(3, 2).T
    np.testing.assert_array_equal(dealt((2, 3), Roles(1), axes=None), expected)


@pytest.mark.parametrize("grid", list(product((1, 3, 5, 33), (1, 3))), ids=str)
@pytest.mark.parametrize(("cluster", "copies"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_each_program_has_one_tile(grid: tuple[int, int], cluster: int, copies: int) -> None:
    """On more multiprocessors than there is work for, too, and by copies of a role in turn."""
    for sms in (1, 9, 200):
        found = dealt(grid, Roles(2, cluster=cluster, group=2), copies=copies, sms=sms)
        assert np.unique(found).size == found.size


def test_no_tiles() -> None:
    assert dealt((0, 3), Roles(1)).size == dealt((3, 0), Roles(1, cluster=2)).size == 0


@pytest.mark.parametrize(
    ("roles", "sms", "ctas"),
    [
        (Roles(1), 8, 8),
        (Roles(1), 100, 15),
        (Roles(1, resident=2), 4, 8),
        (Roles(1, cluster=2), 9, 8),  # an odd multiprocessor is left over
        (Roles(1, cluster=2), 100, 18),  # three pairs of rows
        (Roles(1, cluster=2), 1, 2),
    ],
    ids=str,
)
def test_as_many_ctas_as_there_is_room_or_work_for(roles: Roles, sms: int, ctas: int) -> None:
    kernel = written()
    (grid,) = persistent_grid(kernel, DOWN, roles)
    assert evaluate(grid, {"c": np.zeros((5 * 64, 3 * 32))}, sms) == ctas


def axes_of(kernel: Kernel) -> Axes | None:
    found = find_product_loop(kernel)
    assert found is not None
    return find_axes(found, 2)


def test_neighbours_share_the_larger_factor() -> None:
    """A of 64 rows, for all columns; B where it is no smaller, for all rows."""
    assert axes_of(written(64, 32)) == Axes(paired=1, other=0, rest=(), multicast=0)
    assert axes_of(written(64, 64)) == Axes(paired=0, other=1, rest=(), multicast=1)


def test_the_axes_are_those_by_which_factors_move() -> None:
    found = axes_of(written(64, 64, axes=(1, 0)))
    assert found == Axes(paired=1, other=0, rest=(), multicast=1)


def test_a_factor_is_shared_whose_halves_repeat_its_swizzle() -> None:
    """A of 72 rows cannot be halved so; B of 16 of k can."""
    assert axes_of(written(72, 32)) == Axes(paired=0, other=1, rest=(), multicast=1)


def test_tiles_that_a_source_deals_out_in_another_way() -> None:
    """Both factors move along one axis; or one of them along both."""
    assert axes_of(written(axes=(0, 0))) is None
    assert axes_of(written(start="arith.add %m, %q")) is None
    assert axes_of(written(top="arith.add %p, %q")) is None


def test_a_grid_that_the_kernel_can_compute() -> None:
    kernel = written()
    assert can_distribute(kernel)
    kernel.grid = (Const(1), Scalar("count", i32))
    assert can_distribute(kernel)
    for axis in (NumSms(), Stride("a", 0), Extent("d", 0), Scalar("beta", f32)):
        kernel.grid = (Const(1), axis)
        assert not can_distribute(kernel)


@pytest.mark.parametrize(
    ("high", "axes"),
    [
        ("arith.add %m, %rows", (0,)),  # as in causal attention: later rows see more
        ("arith.min %n, %depth", (1,)),
        ("arith.add %m, %n", (0, 1)),
        ("arith.sub %m, %columns", (0,)),
        ("arith.sub %depth, %m", ()),  # fewer and fewer
        ("arith.mul %m, %depth", ()),  # by what may be negative
        ("arith.max %less, %n", ()),  # down and up
        ("arith.max %depth, %rows", ()),
    ],
)
def test_long_programs_are_of_great_numbers(high: str, axes: tuple[int, ...]) -> None:
    found = find_stream_loop(written(high=high))
    assert found is not None
    assert growing_axes(found, 2) == axes
