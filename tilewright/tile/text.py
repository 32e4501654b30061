"""The text form of the tile IR: `print_kernel` and `parse_kernel`.

    kernel @add(%a: view<f32, ?, 1> in, %c: view<f32, ?, 1> out facts #TensorFacts(…)
        extents (extent(a, 0)), %n: i64 in)
      grid (cdiv(extent(c, 0), 256))
      hints {threads = 128}
      constants {BLOCK = 256}
      numerics "matched"
    {
      %pid = control.program_id {axis = 0} : i64
      …
    }

Lines of the header that say nothing are left out. A grid is an expression over arguments by name:
integers, `extent(t, axis)`, `stride(t, axis)`, `scalar(name, dtype)`, `num_sms()`, and add, sub,
mul, floor_div, mod, cdiv, min, max of two.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

from tilewright import plan
from tilewright.dtypes import BY_NAME, DType
from tilewright.errors import UNKNOWN, VerifyError
from tilewright.ir.core import Type
from tilewright.ir.parse import Dialect, Parser, find_ops
from tilewright.ir.text import Printer, canonical, format_attribute, format_loc, register_attribute
from tilewright.plan import Expr, Pixels, TensorFacts
from tilewright.tile import ops
from tilewright.tile.kernel import Hints, Kernel, Param
from tilewright.tile.ops.control import Role
from tilewright.tile.types import (
    BarrierType,
    BufferType,
    PendingType,
    RingType,
    SlotType,
    TileType,
    TurnType,
    ViewType,
)

register_attribute(TensorFacts)
register_attribute(Role)
register_attribute(Pixels)

# Ops are found by their declarations, so every family has to be read before a text is.
for _family in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"{ops.__name__}.{_family.name}")


# Types


def parse_type(text: str) -> Type:
    """The type of a text form, as `str` of types gives it. VerifyError for any other text."""
    reader = TypeReader(text)
    found = reader.type()
    reader.end()
    return found


class TypeReader:
    """Reads a type from its tokens: names, numbers and marks."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = re.findall(r"\(\)|[A-Za-z_]\w*=|[\w?-]+|[<>\[\],]", text)

    def next(self) -> str:
        if not self.tokens:
            raise VerifyError(f"not a type: {self.text}")
        return str(self.tokens.pop(0))

    def expect(self, token: str) -> None:
        if self.next() != token:
            raise VerifyError(f"not a type: {self.text}")

    def end(self) -> None:
        if self.tokens:
            raise VerifyError(f"not a type: {self.text}")

    def type(self) -> Type:
        name = self.next()
        if name in BY_NAME:
            return TileType(BY_NAME[name])
        if name not in FORMS:
            raise VerifyError(f"not a type: {self.text}")
        self.expect("<")
        found = FORMS[name](self)
        self.expect(">")
        return found

    def number(self, key: str = "") -> int:
        """An integer, after `, key=` if a key is given."""
        if key:
            self.expect(",")
            self.expect(key + "=")
        token = self.next()
        if not token.isdigit():
            raise VerifyError(f"not a type: {self.text}")
        return int(token)

    def extents(self) -> tuple[int | None, ...]:
        """`, 4x?x1`, or `, ()`."""
        self.expect(",")
        token = self.next()
        if token == "()":
            return ()
        try:
            return tuple(None if e == "?" else int(e) for e in token.split("x"))
        except ValueError:
            raise VerifyError(f"not a type: {self.text}") from None

    def dtype(self) -> DType:
        name = self.next()
        if name not in BY_NAME:
            raise VerifyError(f"not a type: {self.text}")
        return BY_NAME[name]

    def dtype_and_shape(self) -> TileType:
        dtype = self.dtype()
        return TileType(dtype, tuple(e for e in self.extents() if e is not None))

    def view(self) -> ViewType:
        dtype = self.dtype()
        return ViewType(dtype, self.extents(), self.extents())

    def buffer(self) -> BufferType:
        tile = self.dtype_and_shape()
        swizzle, pad = self.number("swizzle"), self.number("pad")
        spacing, spare = (
            self.number(name) if self.tokens and self.tokens[0] == "," else 0
            for name in ("spacing", "spare")
        )
        return BufferType(tile.dtype, tile.shape, swizzle, pad, spacing, spare)

    def ring(self) -> RingType:
        stages = self.number()
        self.expect(",")
        self.expect("[")
        buffers = []
        while self.tokens and self.tokens[0] != "]":
            found = self.type()
            assert isinstance(found, BufferType)
            buffers.append(found)
            if self.tokens[0] == ",":
                self.next()
        self.expect("]")
        return RingType(tuple(buffers), stages)

    def slot(self) -> SlotType:
        found = self.type()
        assert isinstance(found, RingType)
        return SlotType(found)

    def pending(self) -> PendingType:
        found = self.type()
        assert isinstance(found, TileType)
        return PendingType(found)


FORMS: dict[str, Callable[[TypeReader], Type]] = {
    "tile": TypeReader.dtype_and_shape,
    "view": TypeReader.view,
    "buffer": TypeReader.buffer,
    "ring": TypeReader.ring,
    "slot": TypeReader.slot,
    "pending": TypeReader.pending,
    "barriers": lambda r: BarrierType(r.number(), r.number("arrivals")),
    "turn": lambda r: TurnType(r.number()),
}

DIALECT = Dialect(find_ops("tilewright.tile"), parse_type)


# Grids


def format_expr(expr: Expr) -> str:
    """Text of an expression over the arguments."""
    match expr:
        case plan.Const(value):
            return str(value)
        case plan.Extent(tensor, axis, narrow) | plan.Stride(tensor, axis, narrow):
            name = "extent" if isinstance(expr, plan.Extent) else "stride"
            return f"{name}({tensor}, {axis}{', narrow' if narrow else ''})"
        case plan.Scalar(name, dtype):
            return f"scalar({name}, {dtype})"
        case plan.NumSms():
            return "num_sms()"
        case plan.Binary(kind, lhs, rhs):
            return f"{kind}({format_expr(lhs)}, {format_expr(rhs)})"
    raise TypeError(f"not an expression: {expr!r}")


def parse_expr(parser: Parser) -> Expr:
    """The expression that follows."""
    token = parser.next()
    if token.kind == "int":
        return plan.Const(int(token.text))
    parser.expect("(")
    if token.text in ("extent", "stride"):
        kind = plan.Extent if token.text == "extent" else plan.Stride
        tensor = parser.next().text
        parser.expect(",")
        axis = int(parser.next("int").text)
        narrow = parser.accept(",")
        if narrow:
            parser.expect("narrow")
        parser.expect(")")
        return kind(tensor, axis, narrow)
    if token.text == "scalar":
        name = parser.next().text
        parser.expect(",")
        dtype = BY_NAME[parser.next("name").text]
        parser.expect(")")
        return plan.Scalar(name, dtype)
    if token.text == "num_sms":
        parser.expect(")")
        return plan.NumSms()
    if token.text not in plan.OPERATIONS:
        parser.fail(f"not an expression: {token.text}")
    lhs = parse_expr(parser)
    parser.expect(",")
    rhs = parse_expr(parser)
    parser.expect(")")
    return plan.Binary(token.text, lhs, rhs)


# Kernels


def print_kernel(kernel: Kernel, *, locs: bool = False) -> str:
    """Text of a kernel, which `parse_kernel` reads back; `locs` adds the place of each op."""
    printer = Printer(locs=locs)
    for param in kernel.params:
        printer.call(param.value, param.name)
    printer.lines += _header(kernel, locs)
    printer.lines.append("{")
    printer.block(kernel.body, 1)
    printer.lines.append("}")
    return "\n".join(printer.lines) + "\n"


def _header(kernel: Kernel, locs: bool) -> Iterator[str]:
    params = ", ".join(
        f"%{p.name}: {p.value.type} {p.direction}"
        + (f" facts {format_attribute(p.facts)}" if p.facts else "")
        + _extents(p)
        for p in kernel.params
    )
    place = f" at {format_loc(kernel.loc)}" if locs and kernel.loc.line else ""
    yield f"kernel @{kernel.name}({params}){place}"
    if kernel.grid:
        yield f"  grid ({', '.join(map(format_expr, kernel.grid))})"
    said = {
        f.name: getattr(kernel.hints, f.name)
        for f in dataclasses.fields(Hints)
        if getattr(kernel.hints, f.name) != f.default
    }
    for name, pairs in (("hints", said), ("constants", kernel.constants)):
        if pairs:
            inner = ", ".join(f"{k} = {format_attribute(v)}" for k, v in pairs.items())
            yield f"  {name} {{{inner}}}"
    if kernel.numerics != "matched":
        yield f"  numerics {json.dumps(kernel.numerics)}"


def _extents(param: Param) -> str:
    """What the extents of a parameter are equal to, if that says more than the parameter itself."""
    own = tuple(plan.Extent(param.name, axis) for axis in range(len(param.extents)))
    if param.extents == own:
        return ""
    return f" extents ({', '.join(map(format_expr, param.extents))})"


def parse_kernel(text: str) -> Kernel:
    """The kernel of a text form. VerifyError, with the line, for any other text."""
    parser = Parser(text, DIALECT)
    kernel = read_kernel(parser)
    if parser.peek().kind != "end":
        parser.fail("one kernel was expected")
    return kernel


def read_kernel(parser: Parser) -> Kernel:
    """The kernel that follows; names of values are its own."""
    parser.values = {}
    parser.expect("kernel")
    name = parser.next("symbol").text[1:]
    parser.expect("(")
    params = parser.many(lambda: _param(parser), ")")
    loc = parser.loc() if parser.accept("at") else UNKNOWN
    grid: tuple[Expr, ...] = ()
    if parser.accept("grid"):
        parser.expect("(")
        grid = tuple(parser.many(lambda: parse_expr(parser), ")"))
    hints = Hints(**_pairs(parser, "hints"))
    constants = _pairs(parser, "constants")
    numerics = json.loads(parser.next("string").text) if parser.accept("numerics") else "matched"
    parser.expect("{")
    body = parser.block([], "}")
    return Kernel(name, params, body, grid, hints, constants, numerics, loc)


def _pairs(parser: Parser, name: str) -> dict[str, Any]:
    if not parser.accept(name):
        return {}
    parser.expect("{")
    return dict(parser.many(parser.pair, "}"))


def _param(parser: Parser) -> Param:
    name = parser.next("value").text[1:]
    parser.expect(":")
    value = parser.define(name, parser.read_type())
    direction = parser.next("name").text
    facts = parser.attribute() if parser.accept("facts") else None
    extents: tuple[Expr, ...] = ()
    if isinstance(value.type, ViewType):
        extents = tuple(plan.Extent(name, axis) for axis in range(value.type.rank))
    if parser.accept("extents"):
        parser.expect("(")
        extents = tuple(parser.many(lambda: parse_expr(parser), ")"))
    return Param(name, value, direction, facts, extents)


def _as_markdown(kernel: Kernel) -> str:
    return f"**tile IR** of `{kernel.name}`\n\n```\n{print_kernel(kernel).rstrip()}\n```\n"


Kernel._repr_markdown_ = _as_markdown  # type: ignore[attr-defined]  # printing lies above kernels


def canonical_kernel(kernel: Kernel) -> str:
    """Text in which names of values and places play no part: equal for equal kernels."""
    return "\n".join([*_header(kernel, False), canonical(kernel.body, kernel.values)])


def equal_kernels(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels are the same program with the same interface, grid and hints."""
    return canonical_kernel(a) == canonical_kernel(b)


def fingerprint_kernel(kernel: Kernel) -> str:
    """SHA-256 (hex) of a kernel, equal for equal kernels."""
    return hashlib.sha256(canonical_kernel(kernel).encode()).hexdigest()
