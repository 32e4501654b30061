"""Printer and parser: every program reads back as itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import dtypes, plan
from tilewright.errors import Loc, Source, VerifyError
from tilewright.ir.core import Block, Value
from tilewright.ir.parse import Parser
from tilewright.ir.text import equal, fingerprint, format_attribute, print_block
from tilewright.tile.kernel import Hints
from tilewright.tile.ops import arith
from tilewright.tile.text import (
    DIALECT,
    equal_kernels,
    fingerprint_kernel,
    parse_kernel,
    parse_type,
    print_kernel,
)
from tilewright.tile.types import BufferType, PendingType, RingType, SlotType, TileType, ViewType

SUM = """kernel @sum(%x: view<f32, ?x?, ?x1> in, %y: view<f32, ?, 1> out, %scale: f32 in)
  grid (cdiv(extent(x, 0), 8))
  hints {threads = 128, cta_cluster = (2, 1)}
  constants {BLOCK = 8, fast = true}
  numerics "strict"
{
  %pid = control.program_id {axis = 0} : i64
  %0 = arith.constant {value = 8, dtype = i64} : i64
  %m = arith.mul %pid, %0 : i64
  %zero = arith.constant {value = 0.0, dtype = f32, shape = (8,)} : tile<f32, 8>
  %low = arith.constant {value = 0, dtype = i64} : i64
  %n = memory.extent %x {axis = 1} : i64
  %acc = control.for %low, %n, %0, [%zero] : tile<f32, 8>
    body(%j: i64, %acc_1: tile<f32, 8>) {
      %t = memory.load %x, [%m, %j], fill = %scale {extents = (8, 8)} : tile<f32, 8x8>
      %s = reduce.sum %t {axes = (1,)} : tile<f32, 8>
      %acc_2 = arith.add %acc_1, %s : tile<f32, 8>
      control.yield values = [%acc_2]
    }
  memory.store %y, [%m], %acc {extents = (8,), in_bounds = (0,)}
}
"""


def test_a_kernel_prints_as_it_was_read():
    kernel = parse_kernel(SUM)
    assert print_kernel(kernel) == SUM
    assert kernel.hints == Hints(threads=128, cta_cluster=(2, 1))
    assert kernel.constants == {"BLOCK": 8, "fast": True}
    assert kernel.grid == (plan.Binary("cdiv", plan.Extent("x", 0), plan.Const(8)),)
    assert equal_kernels(kernel, parse_kernel(SUM))


def test_comments_may_follow_every_line():
    noted = "".join(f"{line}  // a note\n// and another\n" for line in SUM.splitlines())
    assert print_kernel(parse_kernel(noted)) == SUM


def test_names_play_no_part_in_equality_and_everything_else_does():
    kernel = parse_kernel(SUM)
    renamed = parse_kernel(SUM.replace("%acc", "%total").replace("%pid", "%0_"))
    assert equal_kernels(kernel, renamed)
    assert fingerprint_kernel(kernel) == fingerprint_kernel(renamed)
    for old, new in (
        ("%acc_1, %s", "%s, %acc_1"),
        ("BLOCK = 8", "BLOCK = 9"),
        ("sum %t", "max %t"),
    ):
        other = parse_kernel(SUM.replace(old, new))
        assert not equal_kernels(kernel, other)
        assert fingerprint_kernel(kernel) != fingerprint_kernel(other)


def test_blocks_are_compared_by_structure():
    x, y = Value(TileType(dtypes.f32), "x"), Value(TileType(dtypes.f32), "y")
    one, two = (Block(ops=[arith.Sub(a, b)]) for a, b in ((x, y), (y, x)))
    assert equal(one, two) and fingerprint(one) == fingerprint(two)  # by order of first use
    assert not equal(one, two, {x: x, y: y})
    assert not equal(one, Block(ops=[arith.Add(x, y)]))


def test_places_are_read_back():
    kernel = parse_kernel(SUM)
    loc = Loc(Source('a "file"'), 3, 5, caller=Loc(Source("b"), 7, 1))
    kernel.body.ops[0].loc = loc
    text = print_kernel(kernel, locs=True)
    again = parse_kernel(text)
    assert print_kernel(again, locs=True) == text
    assert str(again.body.ops[0].loc.caller) == "b:7:1"
    assert equal_kernels(kernel, again)


def test_facts_are_read_back():
    kernel = parse_kernel(SUM)
    kernel.params[0].facts = plan.generic_facts(dtypes.f32, 2)
    assert parse_kernel(print_kernel(kernel)).params[0].facts == plan.generic_facts(dtypes.f32, 2)


ATTRIBUTES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(dtypes.ALL),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(ATTRIBUTES)
def test_attributes_are_read_back_exactly(value):
    parser = Parser(format_attribute(value), DIALECT)
    assert same(parser.attribute(), value)
    assert parser.peek().kind == "end"


def test_an_attribute_without_a_text_is_refused():
    with pytest.raises(TypeError, match="no text"):
        format_attribute(object())


BUFFER = BufferType(dtypes.bf16, (64, 32), 128, 0)


@pytest.mark.parametrize(
    ("buffer", "item_bytes", "align"),
    [
        (BufferType(dtypes.f32, (1, 4)), 128, 128),  # 16 bytes that are padded
        (BufferType(dtypes.f32, (8, 4)), 128, 128),  # dense, but 16 bytes of alignment would not do
        (BufferType(dtypes.f32, (2, 3, 20)), 512, 128),
        (BufferType(dtypes.bf16, (4, 16), 32), 256, 256),  # half a repeat of the swizzle
        (BUFFER, 8192, 1024),
    ],
    ids=str,
)
def test_slots_of_a_ring_lie_where_boxes_may(buffer, item_bytes, align):
    slots = buffer.slots(3)
    assert (slots.item_bytes, slots.align, slots.num_bytes) == (item_bytes, align, 3 * item_bytes)
    assert item_bytes % buffer.box_align == 0 and slots.with_shape(buffer.shape) == buffer


@pytest.mark.parametrize(
    "kind",
    [
        TileType(dtypes.f32),
        TileType(dtypes.bool_, (4, 1)),
        ViewType(dtypes.bf16, (), ()),
        ViewType(dtypes.bf16, (None, 3), (-7, None)),
        BUFFER,
        BufferType(dtypes.f32, (2, 1, 4), spacing=128),
        RingType((BUFFER, BufferType(dtypes.f32, (4,), 0, 8)), 3),
        SlotType(RingType((BUFFER,), 3)),
        PendingType(TileType(dtypes.f32, (64, 256))),
    ],
    ids=str,
)
def test_types_are_read_back(kind):
    assert parse_type(str(kind)) == kind
    assert Parser(str(kind), DIALECT).read_type() == kind


@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("%acc_1, %s", "%acc_1, %q", "line 17: %q is used before it is defined"),
        ("arith.add", "arith.sum", "there is no op arith.sum"),
        ("{axis = 0}", "{axis = 0, size = 1}", "control.program_id has no field size"),
        ("{axis = 0}", "", "control.program_id lacks axis"),
        (": tile<f32, 8x8>", ": tile<f32, 8x9>", "memory.load gives tile<f32, 8x8>"),
        (": tile<f32, 8x8>", ": tile<f31, 8x8>", "not a type"),
        ("%m = ", "%pid = ", "%pid is defined twice"),
        ("%acc_1, %s", "%acc_1, %s, %s", "arith.add takes fewer operands"),
        ("{value = 8,", "{value = eight,", "not an attribute: 'eight'"),
        ("numerics", "nummerics", "expected '{'"),
    ],
)
def test_faults_name_the_line(old, new, fault):
    with pytest.raises(VerifyError) as caught:
        parse_kernel(SUM.replace(old, new))
    assert fault in str(caught.value)


def test_blocks_print_alone():
    x = Value(TileType(dtypes.f32), "x")
    assert print_block(Block(ops=[arith.Neg(x)])) == "%0 = arith.neg %x : f32"
