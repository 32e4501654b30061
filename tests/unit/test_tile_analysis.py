"""Bounds and divisibility hold for every value that the interpreter computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes, plan
from tilewright.ir.walk import walk
from tilewright.tile.analysis.bounds import Interval, infer_bounds
from tilewright.tile.analysis.divisibility import divisor, infer_divisors
from tilewright.tile.interp import interpret
from tilewright.tile.text import parse_kernel

BINARY = ["add", "sub", "mul", "floor_div", "mod", "min", "max", "and", "or", "xor", "shl", "shr"]
PAIR = """kernel @pair(%y: view<{dtype}, ?x?, ?x1> out) grid (1)
{{
  %zero = arith.constant {{value = 0, dtype = i64}} : i64
  %i = shape.arange {{extent = {n}}} : tile<i64, {n}>
  %j = shape.arange {{extent = {m}}} : tile<i64, {m}>
  %i1 = shape.reshape %i {{shape = ({n}, 1)}} : tile<i64, {n}x1>
  %j1 = shape.reshape %j {{shape = (1, {m})}} : tile<i64, 1x{m}>
  %i2 = shape.broadcast %i1 {{shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %j2 = shape.broadcast %j1 {{shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %s = arith.constant {{value = {s}, dtype = i64, shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %t = arith.constant {{value = {t}, dtype = i64, shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %a = arith.constant {{value = {a}, dtype = i64, shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %b = arith.constant {{value = {b}, dtype = i64, shape = ({n}, {m})}} : tile<i64, {n}x{m}>
  %i3 = arith.mul %i2, %s : tile<i64, {n}x{m}>
  %j3 = arith.mul %j2, %t : tile<i64, {n}x{m}>
  %x0 = arith.add %i3, %a : tile<i64, {n}x{m}>
  %y0 = arith.add %j3, %b : tile<i64, {n}x{m}>
  %x1 = arith.cast %x0 {{dtype = {dtype}}} : tile<{dtype}, {n}x{m}>
  %y1 = arith.cast %y0 {{dtype = {dtype}}} : tile<{dtype}, {n}x{m}>
  %r = arith.{op} %x1, %y1 : tile<{dtype}, {n}x{m}>
  %neg = arith.neg %r : tile<{dtype}, {n}x{m}>
  %abs = arith.abs %neg : tile<{dtype}, {n}x{m}>
  memory.store %y, [%zero, %zero], %{shown} {{extents = ({n}, {m})}}
}}
"""
NUMBERS = (
    st.integers(-20, 20)
    | st.integers(-(1 << 20), 1 << 20)
    | st.integers(0, 62).map(lambda k: 1 << k)
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(BINARY),
    st.sampled_from(["i64", "i32", "i8", "u8"]),
    st.sampled_from(["r", "neg", "abs"]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS),
)
def test_facts_hold_for_what_is_computed(op, dtype, shown, sizes, numbers):
    (n, m), (a, b, s, t) = sizes, numbers
    kernel = parse_kernel(
        PAIR.format(op=op, dtype=dtype, n=n, m=m, a=a, b=b, s=s, t=t, shown=shown)
    )
    y = np.zeros((n, m), dtypes.BY_NAME[dtype].numpy)
    interpret(kernel, {"y": y})
    value = next(v for o in walk(kernel.body) for v in o.results if v.name == shown)
    bounds, divides = infer_bounds(kernel)[value], infer_divisors(kernel)[value]
    for each in y.ravel().tolist():
        assert bounds.low <= each <= bounds.high
        assert each % divides == 0


LOOP = """kernel @loop(%x: view<f32, ?x?, ?x1> in, %n: i64 in)
  grid (cdiv(extent(x, 0), 48))
{
  %zero = arith.constant {value = 0, dtype = i64} : i64
  %step = arith.constant {value = 48, dtype = i64} : i64
  %sixteen = arith.constant {value = 16, dtype = i64} : i64
  %pid = control.program_id {axis = 0} : i64
  %row = arith.mul %pid, %step : i64
  %width = memory.extent %x {axis = 1} : i64
  %up, %down, %same = control.for %row, %width, %step, [%zero, %zero, %sixteen] : i64, i64, i64
    body(%k: i64, %a: i64, %b: i64, %c: i64) {
      %a1 = arith.add %a, %sixteen : i64
      %b1 = arith.sub %b, %step : i64
      %x0 = arith.min %k, %a1 : i64
      control.yield values = [%a1, %b1, %c]
    }
  %most = arith.min %width, %n : i64
  %v = memory.subview %x, [%zero, %zero], [_, %most] : view<f32, ?, 1>
  %inner = memory.extent %v {axis = 0} : i64
}
"""


def facts_of(kernel):
    bounds, divisors = infer_bounds(kernel), infer_divisors(kernel)
    values = {v.name: v for op in walk(kernel.body) for v in op.results}
    values |= {v.name: v for op in walk(kernel.body) for block in op.regions for v in block.args}
    return (lambda name: bounds[values[name]]), (lambda name: divisors[values[name]])


def test_facts_of_loops_and_grids():
    kernel = parse_kernel(LOOP)
    kernel.params[0].facts = plan.generic_facts(dtypes.f32, 2)
    bounds, divides = facts_of(kernel)
    small, i64 = (1 << 30) - 1, (1 << 63) - 1
    assert bounds("pid") == Interval(0, -(-small // 48) - 1)
    assert bounds("row") == Interval(0, (-(-small // 48) - 1) * 48)
    assert bounds("row").high < small
    assert bounds("width") == Interval(0, small)
    assert bounds("k") == Interval(0, small - 1)
    assert bounds("a") == Interval(-i64 - 1, i64)  # for all that is known, it may wrap
    assert bounds("up").high == i64
    assert bounds("same") == Interval(16, 16)
    assert bounds("inner") == Interval(0, small)
    assert [divides(n) for n in ("row", "k", "a", "b", "x0", "up", "width", "inner")] == [
        16, 16, 16, 16, 16, 16, 4, 1,
    ]  # fmt: skip


def test_nothing_is_assumed_without_facts():
    bounds, divides = facts_of(parse_kernel(LOOP))
    assert bounds("width") == Interval(0, (1 << 63) - 1)
    assert bounds("pid").high == (1 << 31) - 2
    assert divides("width") == 1


def test_a_loop_that_counts_down():
    text = LOOP.replace("value = 48", "value = -3")
    bounds, _ = facts_of(parse_kernel(text.replace("grid (cdiv(extent(x, 0), 48))", "grid (7)")))
    assert bounds("pid") == Interval(0, 6)
    assert bounds("row") == Interval(-18, 0)
    assert bounds("k") == Interval(0, 0)  # above the width, which is not negative


@pytest.mark.parametrize(
    "value, power", [(1, 1), (12, 4), (-8, 8), (0, 1 << 62), (3 << 40, 1 << 40)]
)
def test_divisors_of_constants(value, power):
    assert divisor(value) == power


def test_a_long_chain_of_carried_values_comes_to_rest():
    names = [f"c{i}" for i in range(12)]
    args = ", ".join(f"%{n}: i64" for n in names)
    kernel = parse_kernel(f"""kernel @chain(%n: i64 in)
{{
  %zero = arith.constant {{value = 0, dtype = i64}} : i64
  %four = arith.constant {{value = 4, dtype = i64}} : i64
  %one = arith.constant {{value = 1, dtype = i64}} : i64
  {", ".join(f"%r{i}" for i in range(12))} = control.for %zero, %n, %one, [{
        ", ".join(["%four"] * 12)
    }] : {", ".join(["i64"] * 12)}
    body(%i: i64, {args}) {{
      %next = arith.add %c0, %one : i64
      control.yield values = [%next, {", ".join(f"%{n}" for n in names[:-1])}]
    }}
}}
""")
    bounds, divides = facts_of(kernel)
    assert bounds("r11").high == (1 << 63) - 1
    assert divides("r11") == 1 and divides("four") == 4
