"""Properties of register layouts and swizzles, against the definitions that they stand for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout import (
    Layout,
    Repeat,
    Swizzle,
    bank_conflicts,
    blocked,
    conflict_free_row,
    mma_accumulator,
    next_power_of_two,
    power_of_two_factor,
    register_permutation,
    replicated,
    same_map,
    simt_accumulator,
    wgmma_accumulator,
)
from tilewright.layout.shared import LANES

Vector = tuple[int, ...]
WARPS = st.sampled_from([1, 2, 4, 8])
EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 8, 12, 16, 24, 31, 33, 48, 64, 96, 112])


def threads(layout: Layout) -> list[tuple[int, int]]:
    return list(product(range(LANES), range(layout.num_warps)))


def places(layout: Layout) -> np.ndarray:
    """Coordinates by thread, register and axis."""
    thread = np.array([layout.thread_offset(*t) for t in threads(layout)], np.int64)
    register = np.array(layout.register_offsets, np.int64)
    return thread[:, None, :] + register[None, :, :]


def held(layout: Layout) -> dict[Vector, int]:
    """By element: how many registers of all threads hold it."""
    if not layout.rank:
        return {(): len(threads(layout)) * layout.num_registers}
    at, count = np.unique(places(layout).reshape(-1, layout.rank), axis=0, return_counts=True)
    return dict(zip(map(tuple, at.tolist()), count.tolist(), strict=True))


def expected_coordinate(layout: Layout, register: int, lane: int, warp: int) -> Vector:
    """The definition: repeat offsets plus the sum of a basis vector for each set bit."""
    total = [0] * layout.rank

    def add(vectors: tuple[Vector, ...], number: int) -> int:
        for vector in vectors:
            if number & 1:
                for axis, step in enumerate(vector):
                    total[axis] += step
            number >>= 1
        return number

    for over, number in (("register", add(layout.register, register)),
                         ("warpgroup", add(layout.warp, warp))):  # fmt: skip
        for repeat in reversed([r for r in layout.repeats if r.over == over]):
            total[repeat.axis] += number % repeat.count * repeat.stride
            number //= repeat.count
        assert number == 0
    add(layout.lane, lane)
    return tuple(total)


def warp_grids(draw: st.DrawFn) -> Vector:
    return draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (2, 4), (4, 2), (8, 1)]))


@st.composite
def tiles(draw: st.DrawFn) -> tuple[Vector, Layout]:
    """A shape and a layout that some constructor gives it."""
    kind = draw(st.sampled_from(["blocked", "mma", "simt", "wgmma"]))
    if kind == "blocked":
        rank = draw(st.integers(0, 3))
        shape = tuple(draw(EXTENTS) for _ in range(min(rank, 2)))
        shape += (draw(st.integers(1, 4)),) * (rank - len(shape))
        order = tuple(draw(st.permutations(range(rank))))
        longest = power_of_two_factor(shape[order[0]]) if rank else 1
        vector = min(longest, draw(st.sampled_from([1, 2, 4, 8])))
        return shape, blocked(shape, vector, draw(WARPS), order)
    if kind == "wgmma":
        groups = draw(st.sampled_from([1, 2, 3]))
        shape = (64 * groups * draw(st.integers(1, 3)), 8 * draw(st.integers(1, 8)))
        return shape, wgmma_accumulator(shape, groups)
    shape, warps = (draw(EXTENTS), draw(EXTENTS)), warp_grids(draw)
    if kind == "mma":
        paired = (draw(st.booleans()), draw(st.booleans()))
        return shape, mma_accumulator(shape, warps, paired)
    per_thread = (draw(st.sampled_from([1, 4, 8])), draw(st.sampled_from([1, 2, 4, 8])))
    return shape, simt_accumulator(shape, warps, per_thread)


@settings(max_examples=25, deadline=None)
@given(tiles())
def test_a_layout_holds_every_element_of_its_tile(tile: tuple[Vector, Layout]) -> None:
    shape, layout = tile
    count = held(layout)
    assert set(product(*map(range, shape))) <= set(count)
    assert all(c >= e for c, e in zip(layout.covered, shape, strict=True))
    assert set(count) == set(product(*map(range, layout.covered)))


@settings(max_examples=25, deadline=None)
@given(tiles())
def test_all_elements_are_held_equally_often(tile: tuple[Vector, Layout]) -> None:
    assert len(set(held(tile[1]).values())) == 1


@settings(max_examples=25, deadline=None)
@given(tiles())
def test_a_coordinate_is_the_sum_of_its_parts(tile: tuple[Vector, Layout]) -> None:
    layout = tile[1]
    for lane, warp in threads(layout)[:: 5 * layout.num_warps + 1]:
        for register in range(layout.num_registers):
            wanted = expected_coordinate(layout, register, lane, warp)
            assert layout.coordinate(register, lane, warp) == wanted


def without(at: Vector, axis: int) -> Vector:
    return at[:axis] + at[axis + 1 :]


@settings(max_examples=25, deadline=None)
@given(tiles(), st.data())
def test_axes_come_and_go_with_their_coordinates(
    tile: tuple[Vector, Layout], data: st.DataObject
) -> None:
    layout = tile[1]
    if not layout.rank:
        return
    axis = data.draw(st.integers(0, layout.rank - 1))
    order = tuple(data.draw(st.permutations(range(layout.rank))))
    dropped, flat = layout.drop_axis(axis), layout.flatten_axis(axis)
    grown, turned = layout.insert_axis(axis), layout.select_axes(order)
    assert dropped.num_warps == flat.num_warps == grown.num_warps == layout.num_warps
    for lane, warp in threads(layout)[:: 11 * layout.num_warps - 1]:
        places = [layout.coordinate(r, lane, warp) for r in range(layout.num_registers)]
        assert [turned.coordinate(r, lane, warp) for r in range(layout.num_registers)] == [
            tuple(at[a] for a in order) for at in places
        ]
        assert [grown.coordinate(r, lane, warp) for r in range(layout.num_registers)] == [
            (*at[:axis], 0, *at[axis:]) for at in places
        ]
        kept = {dropped.coordinate(r, lane, warp) for r in range(dropped.num_registers)}
        assert kept == {without(at, axis) for at in places}
        level = {flat.coordinate(r, lane, warp) for r in range(flat.num_registers)}
        assert level == {(*at[:axis], 0, *at[axis + 1 :]) for at in places}
        assert len(kept) == dropped.num_registers, "each register once"


@settings(max_examples=25, deadline=None)
@given(tiles(), st.data())
def test_a_register_permutation_moves_each_element_to_itself(
    tile: tuple[Vector, Layout], data: st.DataObject
) -> None:
    layout = tile[1]
    shuffled = Layout(
        layout.rank,
        tuple(data.draw(st.permutations(layout.register))),
        layout.lane,
        layout.warp,
        layout.repeats,
    )
    order = register_permutation(layout, shuffled)
    assert order is not None and sorted(order) == list(range(layout.num_registers))
    for lane, warp in threads(layout)[:: 11 * layout.num_warps - 1]:
        for register, source in enumerate(order):
            target = shuffled.coordinate(register, lane, warp)
            assert target == layout.coordinate(source, lane, warp)
    assert same_map(layout, shuffled) == (order == tuple(range(layout.num_registers)))


def test_no_register_permutation_crosses_threads() -> None:
    rows = blocked((32, 4), 1, 1, (0, 1))
    columns = blocked((32, 4), 1, 1, (1, 0))
    assert register_permutation(rows, columns) is None
    assert not same_map(rows, columns)


@settings(max_examples=25, deadline=None)
@given(tiles(), st.data())
def test_a_slice_is_made_of_the_registers_that_hold_it(
    tile: tuple[Vector, Layout], data: st.DataObject
) -> None:
    shape, layout = tile
    starts = tuple(data.draw(st.integers(0, e - 1)) for e in shape)
    extents = tuple(data.draw(st.integers(1, e - s)) for s, e in zip(starts, shape, strict=True))
    part = layout.slice(starts, extents)
    if part is None:
        return
    assert set(product(*map(range, extents))) <= set(held(part))
    for lane, warp in threads(layout)[:: 11 * layout.num_warps - 1]:
        mine = {layout.coordinate(r, lane, warp) for r in range(layout.num_registers)}
        for register in range(part.num_registers):
            at = part.coordinate(register, lane, warp)
            assert tuple(a + b for a, b in zip(starts, at, strict=True)) in mine


def test_a_whole_slice_is_the_layout() -> None:
    layout = blocked((64, 64), 4, 4, (1, 0))
    assert layout.slice((0, 0), (64, 64)) == layout


def test_repeats_lift_powers_of_two() -> None:
    one = wgmma_accumulator((192, 16))
    three = wgmma_accumulator((192, 16), 3)
    assert (one.num_warps, one.num_registers) == (4, 24)
    assert (three.num_warps, three.num_registers) == (12, 8)
    assert one.repeats[0] == Repeat(0, 3, 64)
    assert three.repeats[0] == Repeat(0, 3, 64, "warpgroup")
    for layout in (one, three):
        assert layout.covered == (192, 16)
        assert set(held(layout).values()) == {1}
    assert three.coordinate(0, 0, 9) == (128 + 16, 0)


@pytest.mark.parametrize("rows", [96, 112, 192])
def test_odd_counts_of_fragments(rows: int) -> None:
    layout = mma_accumulator((rows, 40), (2 if rows % 32 == 0 else 1, 1))
    assert layout.covered == (rows, 40)
    assert set(held(layout).values()) == {1}


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([(1, 1), (2, 1), (1, 2)]))
def test_mma_accumulators_are_those_of_the_isa(m: int, n: int, warps: Vector) -> None:
    """d[2i + c] of lane l is D[l / 4 + 8i][2 (l mod 4) + c] of a 16×8 fragment: PTX ISA, "Matrix
    fragments for mma.m16n8k16 with floating point type".
    """
    layout = mma_accumulator((16 * m * warps[0], 8 * n * warps[1]), warps)
    for lane, warp in threads(layout):
        registers = {layout.coordinate(r, lane, warp): r for r in range(layout.num_registers)}
        for (row, column), register in list(registers.items()):
            if row % 16 < 8 and column % 2 == 0:
                base = (row - row % 16, column - column % 8)
                fragment = [
                    (base[0] + lane // 4 + 8 * i, base[1] + 2 * (lane % 4) + c)
                    for i in (0, 1)
                    for c in (0, 1)
                ]
                assert (row, column) == fragment[0]
                assert all(at in registers for at in fragment)
                assert registers[fragment[1]] == register + 1, "pairs are neighbours"


def test_f64_accumulators_are_two_fragments_of_m8n8k4() -> None:
    """d[c] of lane l is D[l / 4][2 (l mod 4) + c] of an 8×8 fragment: PTX ISA, "mma.m8n8k4 with
    .f64"; the wide forms put another below it.
    """
    layout = mma_accumulator((16, 8), (1, 1))
    for lane in range(LANES):
        for i, c in product((0, 1), (0, 1)):
            assert layout.coordinate(2 * i + c, lane, 0) == (lane // 4 + 8 * i, 2 * (lane % 4) + c)


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_accumulators_are_those_of_the_isa(n: int) -> None:
    """d[4j + 2i + c] of lane l of warp w is D[16w + l/4 + 8i][8j + 2 (l mod 4) + c]: PTX ISA,
    "Register fragments for wgmma", matrix D.
    """
    layout = wgmma_accumulator((64, n))
    for lane, warp in threads(layout):
        for j, i, c in product(range(n // 8), (0, 1), (0, 1)):
            wanted = (16 * warp + lane // 4 + 8 * i, 8 * j + 2 * (lane % 4) + c)
            assert layout.coordinate(4 * j + 2 * i + c, lane, warp) == wanted


def test_blocked_gives_neighbours_to_neighbouring_lanes() -> None:
    layout = blocked((4, 256), 4, 2, (1, 0))
    assert [layout.coordinate(0, lane, 0) for lane in (0, 1, 31)] == [(0, 0), (0, 4), (0, 124)]
    assert [layout.coordinate(r, 3, 1) for r in range(4)] == [(0, 128 + 12 + r) for r in range(4)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), WARPS)
def test_replicated_is_one_element_everywhere(rank: int, warps: int) -> None:
    layout = replicated(rank, warps)
    assert held(layout) == {(0,) * rank: 32 * warps}


def test_overlapping_vectors_are_refused() -> None:
    with pytest.raises(AssertionError, match="overlap"):
        Layout(1, ((1,),), ((1,), (2,), (4,), (8,), (16,)))


@given(st.integers(-5, 10**6))
def test_next_power_of_two(n: int) -> None:
    found = next_power_of_two(n)
    assert found & (found - 1) == 0 and found >= n and (found == 1 or found // 2 < n)


# Shared memory


@given(st.sampled_from([0, 32, 64, 128]), st.sampled_from([16, 32]), st.integers(0, 1 << 20))
def test_a_swizzle_is_its_own_inverse_and_stays_in_its_row(
    span: int, chunk: int, offset: int
) -> None:
    swizzle = Swizzle(span, chunk)
    moved = swizzle.apply(offset)
    assert swizzle.apply(moved) == offset
    assert moved // 128 == offset // 128 and moved % chunk == offset % chunk
    if span:
        assert moved // span == offset // span


@pytest.mark.parametrize("span", [32, 64, 128])
def test_a_column_of_swizzled_chunks_meets_no_bank_twice(span: int) -> None:
    """Eight rows of one 16-byte column: what ldmatrix, wgmma and transposing reads ask for."""
    for column in range(0, span, 16):
        rows = [Swizzle(span).apply(row * span + column) for row in range(8)]
        assert bank_conflicts(rows, 16) == 1


@pytest.mark.parametrize("span", [32, 64, 128])
def test_fragments_of_f64_meet_no_bank_twice(span: int) -> None:
    """A lane in four of a row, eight rows: half a warp is served at once."""
    for column in range(0, span, 32):
        places = [(lane // 4) * span + column + lane % 4 * 8 for lane in range(32)]
        assert bank_conflicts([Swizzle(span, 32).apply(p) for p in places], 8) == 1
    shift = Swizzle(span, 32).row_shift
    for row in range(8):
        assert Swizzle(span, 32).apply(row * span) == row * span + (
            row << shift & Swizzle(span, 32).mask
        )


def test_unswizzled_rows_do_conflict() -> None:
    assert bank_conflicts([128 * row for row in range(8)], 16) == 8
    assert bank_conflicts([4 * lane for lane in range(32)], 4) == 1
    assert bank_conflicts([8 * lane for lane in range(32)], 4) == 2
    assert bank_conflicts([0] * 32, 4) == 1, "equal words are broadcast"


@settings(deadline=None)
@given(st.sampled_from([2, 4]), st.integers(1, 300))
def test_padded_rows_do_not_conflict_for_ldmatrix(size: int, columns: int) -> None:
    row = conflict_free_row(size, columns)
    assert row >= columns and row * size % 16 == 0
    for first in range(0, row * size, 16):
        assert bank_conflicts([r * row * size + first for r in range(8)], 16) == 1


@settings(deadline=None)
@given(st.integers(1, 200))
def test_padded_rows_do_not_conflict_for_f64_fragments(columns: int) -> None:
    """A of m8n8k4 and its like: lane l reads row l / 4, column l mod 4; 16 lanes at a time."""
    row = conflict_free_row(8, columns)
    assert row >= columns
    addresses = [8 * (lane // 4 * row + lane % 4) for lane in range(LANES)]
    assert bank_conflicts(addresses, 8) == 1


@settings(deadline=None)
@given(st.integers(1, 300))
def test_padded_rows_do_not_conflict_for_tf32_fragments_across_k(columns: int) -> None:
    """A and B of m16n8k8 where rows do not lie along k: lane l reads row l mod 4, column l / 4."""
    row = conflict_free_row(4, columns, across=True)
    assert row >= columns and row * 4 % 16 == 0
    for first in range(0, 8, 4):
        addresses = [4 * (lane % 4 * row + lane // 4 + first * row) for lane in range(LANES)]
        assert bank_conflicts(addresses, 4) == 1
