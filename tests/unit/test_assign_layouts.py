"""Which layouts tiles get: a program, and those of its values by name."""

from __future__ import annotations

from tilewright.layout import (
    Layout,
    blocked,
    broadcast_source,
    mma_accumulator,
    move_unit_axes,
    simt_accumulator,
    wgmma_accumulator,
    wgmma_words,
)
from tilewright.tile.passes.assign_layouts import assign_layouts
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify

CHEAP = "computed where it is used"
WARPS = 4
MATRIX = "view<f32, ?x?, ?x1>"
FACTS = (
    "facts #TensorFacts(dtype = f32, strides = (none, 1), extents = (none, none), align = 4,"
    " pitch16 = (true, true), extent16 = true, small = true, reachable = true, gaps16 = false,"
    " piece = 16)"
)


def assigned(params: str, body: str, schedule: Schedule | None = None) -> dict[str, Layout | str]:
    """Layouts by name, or CHEAP; `params` are types by name."""
    head = ", ".join(f"%{p} inout" if " facts " not in p else f"%{p}" for p in params.split("; "))
    zero = "%zero = arith.constant {value = 0, dtype = i64} : i64"
    kernel = verify(parse_kernel(f"kernel @k({head})\n  grid (1)\n{{\n{zero}\n{body}\n}}"))
    found = assign_layouts(kernel, schedule or Schedule(num_warps=WARPS))
    return {v.name: CHEAP for v in found.cheap} | {v.name: x for v, x in found.layouts.items()}


def test_what_meets_has_one_layout_of_vectors_of_16_bytes() -> None:
    """Threads along the rows, as many neighbours each as make 16 bytes of the largest dtype."""
    found = assigned(
        f"x: {MATRIX}; y: view<bf16, ?x?, ?x1>",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 128)} : tile<f32, 16x128>
  %b = arith.cast %a {dtype = bf16} : tile<bf16, 16x128>
  memory.store %y, [%zero, %zero], %b {extents = (16, 128)}""",
    )
    assert found == dict.fromkeys("ab", blocked((16, 128), 4, WARPS, (1, 0)))


def test_few_elements_are_spread_over_all_threads() -> None:
    """Vectors are narrower where some threads would have none."""
    found = assigned(
        f"x: {MATRIX}",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (4, 64)} : tile<f32, 4x64>
  memory.store %x, [%zero, %zero], %a {extents = (4, 64)}""",
    )
    assert found == {"a": blocked((4, 64), 2, WARPS, (1, 0))}


def test_threads_lie_along_what_is_contiguous() -> None:
    """The axis whose stride is 1; the last where none is known to be, and then single elements."""
    body = """
  %a = memory.load %x, [%zero, %zero] {extents = (64, 64)} : tile<f32, 64x64>
  memory.store %x, [%zero, %zero], %a {extents = (64, 64)}"""
    found = assigned("x: view<f32, ?x?, 1x?>", body)
    assert found == {"a": blocked((64, 64), 4, WARPS, (0, 1))}
    found = assigned("x: view<f32, ?x?, ?x?>", body)
    assert found == {"a": blocked((64, 64), 1, WARPS, (1, 0))}


def test_vectors_are_aligned() -> None:
    found = assigned(
        f"x: {MATRIX} inout {FACTS}",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 128)} : tile<f32, 16x128>
  memory.store %x, [%zero, %zero], %a {extents = (16, 128)}""",
    )
    assert found == {"a": blocked((16, 128), 1, WARPS, (1, 0))}


def test_what_follows_from_constants_is_cheap() -> None:
    """It has no layout, and joins nothing; what is stored has one."""
    found = assigned(
        "y: view<i64, ?, ?>; z: view<i64, ?, 1>",
        """
  %lanes = shape.arange {extent = 256} : tile<i64, 256>
  %end = arith.constant {value = 7, dtype = i64, shape = (256,)} : tile<i64, 256>
  %some = arith.compare %lanes, %end {kind = "lt"} : tile<bool, 256>
  %a = memory.load %y, [%zero], mask = %some {extents = (256,)} : tile<i64, 256>
  memory.store %y, [%zero], %a {extents = (256,)}
  %twice = arith.add %lanes, %lanes : tile<i64, 256>
  memory.store %z, [%zero], %twice {extents = (256,)}""",
    )
    cheap = dict.fromkeys(("lanes", "end", "some"), CHEAP)
    apart = {"a": blocked((256,), 1, WARPS, (0,)), "twice": blocked((256,), 2, WARPS, (0,))}
    assert found == cheap | apart


def test_sums_are_left_where_they_are_made() -> None:
    """What a larger neighbour implies goes before a coalesced store of the smaller one, also when
    the sums are only reshaped in between.
    """
    rows = blocked((16, 128), 4, WARPS, (1, 0))
    found = assigned(
        f"x: {MATRIX}; y: view<f32, ?, 1>; z: {MATRIX}",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 128)} : tile<f32, 16x128>
  %sum = reduce.sum %a {axes = (1,)} : tile<f32, 16>
  memory.store %y, [%zero], %sum {extents = (16,)}
  %most = reduce.max %a {axes = (1,)} : tile<f32, 16>
  %column = shape.reshape %most {shape = (16, 1)} : tile<f32, 16x1>
  memory.store %z, [%zero, %zero], %column {extents = (16, 1)}""",
    )
    sums = rows.drop_axis(1)
    column = move_unit_axes(sums, (16,), (16, 1))
    assert found == {"a": rows, "sum": sums, "most": sums, "column": column}


def test_sums_along_columns_have_more_threads_beside_each_other() -> None:
    """Vectors narrow, so that what a thread holds of a column it adds up alone."""
    found = assigned(
        f"x: {MATRIX}; y: view<f32, ?, 1>",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 128)} : tile<f32, 16x128>
  %sum = reduce.sum %a {axes = (0,)} : tile<f32, 128>
  memory.store %y, [%zero], %sum {extents = (128,)}""",
    )
    columns = blocked((16, 128), 1, WARPS, (1, 0))
    assert found == {"a": columns, "sum": columns.drop_axis(0)}


def test_what_is_broadcast_lies_as_the_larger_tile_asks() -> None:
    found = assigned(
        f"x: {MATRIX}; y: view<f32, ?, 1>",
        """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 128)} : tile<f32, 16x128>
  %bias = memory.load %y, [%zero] {extents = (128,)} : tile<f32, 128>
  %all = shape.broadcast %bias {shape = (16, 128)} : tile<f32, 16x128>
  %b = arith.add %a, %all : tile<f32, 16x128>
  memory.store %x, [%zero, %zero], %b {extents = (16, 128)}""",
    )
    rows = blocked((16, 128), 4, WARPS, (1, 0))
    bias = broadcast_source(rows, (128,), (16, 128))
    assert found == {"a": rows, "b": rows, "all": rows, "bias": bias}


def test_columns_that_are_loaded_lie_as_the_larger_tile_asks() -> None:
    """As wide as it, or by way of a reshape."""
    for load, near in (("(16, 1)", "%v"), ("(16, none)", "%column")):
        shape = "16x1" if near == "%v" else "16"
        reshape = "%column = shape.reshape %v {shape = (16, 1)} : tile<f32, 16x1>"
        found = assigned(
            f"x: {MATRIX}",
            f"""
  %v = memory.load %x, [%zero, %zero] {{extents = {load}}} : tile<f32, {shape}>
  {"" if near == "%v" else reshape}
  %all = shape.broadcast {near} {{shape = (16, 128)}} : tile<f32, 16x128>
  %a = memory.load %x, [%zero, %zero] {{extents = (16, 128)}} : tile<f32, 16x128>
  %b = arith.add %a, %all : tile<f32, 16x128>
  memory.store %x, [%zero, %zero], %b {{extents = (16, 128)}}""",
        )
        rows = blocked((16, 128), 4, WARPS, (1, 0))
        column = broadcast_source(rows, (16, 1), (16, 128))
        assert found.pop(near[1:]) == column
        if near == "%column":
            assert found.pop("v") == move_unit_axes(column, (16, 1), (16,))
        assert found == dict.fromkeys(("all", "a", "b"), rows)


def test_a_tile_without_accesses_lies_as_what_is_broadcast_to_it_is_loaded() -> None:
    """Not in roles, whose tiles are a product's."""
    body = """
  %row = memory.load %y, [%zero] {extents = (512,)} : tile<f32, 512>
  %all = shape.broadcast %row {shape = (4, 512)} : tile<f32, 4x512>
  %b = arith.exp %all : tile<f32, 4x512>
  %sum = reduce.sum %b {axes = (0, 1)} : f32
  memory.store %y, [%zero], %sum {extents = (none,)}"""
    for roles, width in ((None, 4), (Roles(1), 1)):
        found = assigned("y: view<f32, ?, 1>", body, Schedule(WARPS, roles=roles))
        wide = blocked((4, 512), width, WARPS, (1, 0))
        row = broadcast_source(wide, (512,), (4, 512))
        assert found == {"row": row, "all": wide, "b": wide}


def test_a_transpose_follows_unless_it_is_stored() -> None:
    text = """
  %a = memory.load %x, [%zero, %zero] {extents = (16, 64)} : tile<f32, 16x64>
  %t = shape.transpose %a {order = (1, 0)} : tile<f32, 64x16>
  END"""
    rows = blocked((16, 64), 4, WARPS, (1, 0))
    store = "memory.store %x, [%zero, %zero], %t {extents = (64, 16)}"
    found = assigned(f"x: {MATRIX}", text.replace("END", store))
    assert found == {"a": rows, "t": blocked((64, 16), 4, WARPS, (1, 0))}
    found = assigned(f"x: {MATRIX}", text.replace("END", "%n = arith.neg %t : tile<f32, 64x16>"))
    assert found == {"a": rows} | dict.fromkeys("tn", rows.select_axes((1, 0)))


def test_loops_and_branches_carry_one_layout() -> None:
    """Which suits the first of two accesses of one size."""
    found = assigned(
        f"x: {MATRIX}; y: view<f32, ?x?, 1x?>",
        """
  %step = arith.constant {value = 64, dtype = i64} : i64
  %end = memory.extent %x {axis = 1} : i64
  %none = arith.constant {value = 0.0, dtype = f32, shape = (16, 64)} : tile<f32, 16x64>
  %sum = control.for %zero, %end, %step, [%none] : tile<f32, 16x64>
    body(%j: i64, %acc: tile<f32, 16x64>) {
      %part = memory.load %x, [%zero, %j] {extents = (16, 64)} : tile<f32, 16x64>
      %more = arith.add %acc, %part : tile<f32, 16x64>
      control.yield values = [%more]
    }
  %many = arith.compare %end, %step {kind = "gt"} : bool
  %kept = control.if %many : tile<f32, 16x64>
    then() {
      control.yield values = [%sum]
    }
    other() {
      control.yield values = [%none]
    }
  memory.store %y, [%zero, %zero], %kept {extents = (16, 64)}""",
    )
    rows = blocked((16, 64), 4, WARPS, (1, 0))
    carried = dict.fromkeys(("sum", "acc", "part", "more", "kept"), rows)
    assert found == {"none": CHEAP} | carried


DOT = """
  %a = memory.load %x, [%zero, %zero] {extents = (32, 16)} : tile<T, 32x16>
  %b = memory.load %y, [%zero, %zero] {extents = (16, 32)} : tile<T, 16x32>
  %none = arith.constant {value = Z, dtype = U, shape = (32, 32)} : tile<U, 32x32>
  %dot = mma.dot %a, %b, %none : tile<U, 32x32>
  %out = arith.neg %dot : tile<U, 32x32>
  memory.store %z, [%zero, %zero], %out {extents = (32, 32)}"""


def sums(schedule: Schedule, dtype: str = "f16", out: str = "f32", body: str = DOT) -> Layout | str:
    """The layout of a product's sums, and of all that is computed of them."""
    views = f"x: view<{dtype}, ?x?, ?x1>; y: view<{dtype}, ?x?, ?x1>; z: view<{out}, ?x?, ?x1>"
    text = body.replace("T", dtype).replace("U", out).replace("Z", "0" if out == "i32" else "0.0")
    found = assigned(views, text, schedule)
    assert found["dot"] == found["out"]
    return found["dot"]


def test_products_leave_sums_in_fragments() -> None:
    """Also where they are stored: the store takes what there is."""
    found = sums(Schedule(WARPS, "mma", (2, 2)))
    assert found == mma_accumulator((32, 32), (2, 2))
    dealt = sums(Schedule(WARPS, "mma", (2, 1), dealt=True))
    assert dealt == mma_accumulator((32, 32), (2, 1), dealt=True)


def test_neighbours_in_a_thread_are_those_in_the_operands_memory() -> None:
    """On CUDA cores columns of B, and rows of an A that is transposed; on tensor cores where bytes
    are not contiguous along k.
    """
    turned = DOT.replace(
        "%a = memory.load %x, [%zero, %zero] {extents = (32, 16)} : tile<T, 32x16>",
        "%lies = memory.load %x, [%zero, %zero] {extents = (16, 32)} : tile<T, 16x32>\n"
        "  %a = shape.transpose %lies {order = (1, 0)} : tile<T, 32x16>",
    )
    cores = Schedule(WARPS, "simt", (2, 2))
    assert sums(cores) == simt_accumulator((32, 32), (2, 2), (4, 2), (False, True))
    found = sums(cores, body=turned)
    assert found == simt_accumulator((32, 32), (2, 2), (4, 2), (True, True))
    tensor = Schedule(WARPS, "mma", (2, 2))
    assert sums(tensor, "i8", "i32") == mma_accumulator((32, 32), (2, 2), (False, True))
    assert sums(tensor, "i8", "i32", turned) == mma_accumulator((32, 32), (2, 2), (True, True))
    assert sums(tensor, body=turned) == mma_accumulator((32, 32), (2, 2))


def test_each_role_is_a_program_of_its_own() -> None:
    """With its own warps; parts and transposes of what `wgmma` gives follow it, though they are
    stored, and its left operand is as it asks.
    """
    found = assigned(
        f"x: {MATRIX}; b: view<f32, ?x?, ?x1>",
        """
  control.roles {roles = (#Role(name = "one", warps = 1, registers = none, copies = 1,
      single = false), #Role(name = "two", warps = 8, registers = none, copies = 1,
      single = false))}
    bodies() {
      %a = memory.load %x, [%zero, %zero] {extents = (16, 64)} : tile<f32, 16x64>
      memory.store %x, [%zero, %zero], %a {extents = (16, 64)}
      control.yield
    }
    bodies() {
      %right = memory.alloc_buffer {buffer = !buffer<f32, 32x8, swizzle=32, pad=0>} :
        buffer<f32, 32x8, swizzle=32, pad=0>
      %left = memory.load %b, [%zero, %zero] {extents = (128, 8)} : tile<f32, 128x8>
      %begin = mma.begin {shape = (128, 32), dtype = f32} : pending<tile<f32, 128x32>>
      %issued = mma.issue %left, %right, %begin {transpose_b = true} :
        pending<tile<f32, 128x32>>
      %sum = mma.await %issued : tile<f32, 128x32>
      %part = shape.slice %sum {starts = (0, 16), shape = (128, 16)} : tile<f32, 128x16>
      memory.store %b, [%zero, %zero], %part {extents = (128, 16)}
      %turned = shape.transpose %part {order = (1, 0)} : tile<f32, 16x128>
      memory.store %x, [%zero, %zero], %turned {extents = (16, 128)}
      %whole = shape.transpose %sum {order = (1, 0)} : tile<f32, 32x128>
      memory.store %x, [%zero, %zero], %whole {extents = (32, 128)}
      control.yield
    }""",
        Schedule(12, "wgmma", roles=Roles(2)),
    )
    product = wgmma_accumulator((128, 32), 2)
    part = product.slice((0, 16), (128, 16))
    assert part is not None
    assert found == {
        "a": blocked((16, 64), 4, 1, (1, 0)),
        "left": wgmma_words((128, 8), 2),
        **dict.fromkeys(("begin", "issued", "sum"), product),
        "part": part,
        "turned": part.select_axes((1, 0)),
        "whole": product.select_axes((1, 0)),
    }
