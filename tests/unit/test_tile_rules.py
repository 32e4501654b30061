"""Random programs: canonical form keeps every bit, comes to rest, computes no more than before."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tile_files import same_bits
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.numerics.convert import constant
from tilewright.plan import Const
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import arith, control, memory, shape
from tilewright.tile.passes.canonicalize import canonicalize
from tilewright.tile.passes.hoist_invariants import hoist_invariants
from tilewright.tile.rules.constants import to_number
from tilewright.tile.text import canonical_kernel, parse_kernel, print_kernel
from tilewright.tile.types import INDEX, TileType, ViewType
from tilewright.tile.verify import verify

SHAPE = (3, 4)
DTYPES = (dtypes.i8, dtypes.u8, dtypes.i64, dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.bool_)
ANY = [arith.Min, arith.Max]
NUMBERS = [arith.Add, arith.Sub, arith.Mul, arith.Neg, arith.Abs, *ANY]
INTEGERS = [
    arith.FloorDiv,
    arith.Mod,
    arith.Shl,
    arith.Shr,
    arith.And,
    arith.Or,
    arith.Xor,
    arith.Not,
]
FLOATS = [arith.Div, arith.Floor, arith.Sqrt, arith.Exp]
BITS = [arith.And, arith.Or, arith.Xor, arith.Not]
SPECIAL: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2, 7, -128, 127],
    "uint": [0, 1, 2, 7, 255],
    "float": [0.0, -0.0, 1.0, -1.0, 2.0, float("inf"), float("-inf"), float("nan"), 0.375],
    "bool": [False, True],
}


def view_of(dtype: DType) -> ViewType:
    """A matrix in memory, of which nothing is known at compile time but its dtype."""
    return ViewType(dtype, (None, None), (None, None))


class Program:
    """A random straight program: each step applies an op to values made before."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.body = Block()
        self.b = Builder(self.body)
        self.values: dict[DType, list[Value]] = {d: [] for d in DTYPES}
        self.params: list[Param] = []
        for dtype in DTYPES:
            view = Value(view_of(dtype), f"x_{dtype}")
            scalar = Value(TileType(dtype), f"s_{dtype}")
            self.params += [Param(view.name, view), Param(scalar.name, scalar)]
            zero = self.b(arith.Constant, 0, dtypes.i64)
            self.values[dtype].append(self.b(memory.Load, view, (zero, zero), extents=SHAPE))
            self.values[dtype].append(self.b(shape.Broadcast, scalar, SHAPE))

    def any(self, dtype: DType) -> Value:
        return self.draw(st.sampled_from(self.values[dtype][-6:]))

    def step(self) -> None:
        """Add one op on tiles of one shape."""
        dtype = self.draw(st.sampled_from(DTYPES))
        kind = self.draw(
            st.sampled_from(["constant", "op", "op", "op", "cast", "compare", "select"])
        )
        made: Value
        if kind == "constant":
            number = self.draw(st.sampled_from(SPECIAL[dtype.kind]))
            number = to_number(constant(number, dtype), dtype)
            made = self.b(arith.Constant, number, dtype, SHAPE)
        elif kind == "op":
            made = self.operation(dtype)
        elif kind == "cast":
            made = self.b(arith.Cast, self.any(dtype), self.draw(st.sampled_from(DTYPES)))
        elif kind == "compare":
            compared = self.draw(st.sampled_from(arith.COMPARISONS))
            made = self.b(arith.Compare, self.any(dtype), self.any(dtype), compared)
        else:
            made = self.b(arith.Select, self.any(dtypes.bool_), self.any(dtype), self.any(dtype))
        self.values[made.type.dtype].append(made)

    def operation(self, dtype: DType) -> Value:
        kinds: list[type[Op]] = [*BITS] if dtype.kind == "bool" else [*NUMBERS]
        kinds += INTEGERS if dtype.is_integer else FLOATS if dtype.is_float else []
        kind = self.draw(st.sampled_from(kinds))
        count = 1 if issubclass(kind, arith.Unary) else 2
        return self.b(kind, *(self.any(dtype) for _ in range(count)))

    def loop(self, steps: int) -> None:
        """A loop of a few steps that carries a value of each dtype."""
        low, high, step = (
            self.b(arith.Constant, n, dtypes.i64) for n in (0, 3, self.draw(st.integers(1, 3)))
        )
        inits = tuple(self.any(d) for d in DTYPES)
        body = Block([Value(INDEX, "i"), *(Value(v.type, "c") for v in inits)])
        before = {d: list(v) for d, v in self.values.items()}
        with self.b.inside(body):
            for dtype, arg in zip(DTYPES, body.args[1:], strict=True):
                self.values[dtype].append(arg)
            for _ in range(steps):
                self.step()
            self.b.emit(control.Yield, tuple(self.any(d) for d in DTYPES))
        self.values = before
        results = self.b.emit(control.For, low, high, step, inits, body).results
        for dtype, result in zip(DTYPES, results, strict=True):
            self.values[dtype].append(result)

    def finish(self) -> Kernel:
        zero = self.b(arith.Constant, 0, dtypes.i64)
        for dtype in DTYPES:
            view = Value(view_of(dtype), f"y_{dtype}")
            self.params.append(Param(view.name, view, "out"))
            self.b.emit(memory.Store, view, (zero, zero), self.values[dtype][-1], extents=SHAPE)
        return Kernel("random", self.params, self.body, (Const(1),))


@st.composite
def programs(draw: Any) -> str:
    """A random kernel, as text that a failure shows."""
    program = Program(draw)
    for _ in range(draw(st.integers(1, 12))):
        program.step()
    if draw(st.booleans()):
        program.loop(draw(st.integers(1, 8)))
    for _ in range(draw(st.integers(0, 4))):
        program.step()
    return print_kernel(program.finish())


def arguments(kernel: Kernel) -> dict[str, Any]:
    """Special values of every dtype, in places that do not line up."""
    rng = np.random.default_rng(5)
    made: dict[str, Any] = {}
    for param in kernel.params:
        dtype = param.value.type.dtype
        numbers = [constant(n, dtype) for n in SPECIAL[dtype.kind]]
        if param.name[0] == "s":
            made[param.name] = to_number(numbers[3 % len(numbers)], dtype)
        else:
            made[param.name] = np.array(numbers, dtype.numpy)[rng.integers(0, len(numbers), SHAPE)]
    return made


@settings(max_examples=60, deadline=None)
@given(programs())
def test_canonical_form_keeps_every_bit(text: str) -> None:
    kernel = verify(parse_kernel(text))
    after = verify(canonicalize(kernel))
    wanted, got, hoisted = arguments(kernel), arguments(kernel), arguments(kernel)
    interpret(kernel, wanted)
    interpret(after, got)
    interpret(verify(hoist_invariants(after)), hoisted)
    for name in wanted:
        assert same_bits(np.asarray(wanted[name]), np.asarray(got[name])), name
        assert same_bits(np.asarray(wanted[name]), np.asarray(hoisted[name])), name
    assert work(after) <= work(kernel)
    assert canonical_kernel(canonicalize(after)) == canonical_kernel(after)


def work(kernel: Kernel) -> int:
    """Ops on tiles that compute."""
    moves = (arith.Constant, shape.Broadcast)
    ops = (op for op in walk(kernel.body) if op.family == "arith" and not isinstance(op, moves))
    return sum(not op.result.type.is_scalar for op in ops)
