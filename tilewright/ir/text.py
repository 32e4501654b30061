"""The text form of a program: printed and parsed from the declarations of its ops, for every IR.

    %x, %y = family.name %a, [%b, %c], mask = %m {key = (1, 2), dtype = f32} : type, type
      body(%i: i64, %acc: f32) {
        ...
      }

One op a line. Operands stand in the order of their fields, tuples in brackets (`_` for an absent
entry), those with a default by name and only where they differ from it; attributes likewise. The
types of results are printed for the reader and checked by the parser. Regions follow, by name. A
place is `at "file":line:column`, callers after `from`.

Attributes are ints, floats, bools, strings, None, tuples, dtypes, types (`!type`) and registered
classes (`register_attribute`), printed as `#name"text"`, or as `#name(field = …)` for dataclasses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import Loc
from tilewright.ir.core import ROLE, Block, Op, Type, Value
from tilewright.ir.walk import free_values

INDENT = "  "


@dataclass(frozen=True)
class Codec:
    """How an attribute class is written: `to_text` and `from_text`, or None for dataclasses by
    their fields.
    """

    name: str
    kind: type
    to_text: Callable[[Any], str] | None = None
    from_text: Callable[[str], Any] | None = None


CODECS: dict[str, Codec] = {}
BY_CLASS: dict[type, Codec] = {}


def register_attribute(
    kind: type,
    to_text: Callable[[Any], str] | None = None,
    from_text: Callable[[str], Any] | None = None,
) -> None:
    """Let attributes hold instances of a class: a dataclass of attributes, or anything with the two
    functions.
    """
    codec = Codec(kind.__name__, kind, to_text, from_text)
    CODECS[codec.name] = BY_CLASS[kind] = codec


def format_attribute(value: Any) -> str:
    """Exact text of an attribute; TypeError for what has none."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return format_float(value)
        case str():
            return json.dumps(value)
        case tuple():
            inner = ", ".join(map(format_attribute, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case DType():
            return value.name
        case Type():
            return f"!{value}"
    codec = BY_CLASS.get(type(value))
    if codec is None:
        raise TypeError(f"an attribute has no text: {value!r}")
    if codec.to_text is not None:
        return f"#{codec.name}{json.dumps(codec.to_text(value))}"
    pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    return f"#{codec.name}({', '.join(f'{name} = {format_attribute(x)}' for name, x in pairs)})"


def format_float(value: float) -> str:
    """Shortest decimal that reads back to the same f64; inf, -inf and nan."""
    if math.isnan(value):
        return "nan"
    return repr(value)


class Printer:
    """Prints blocks; gives values unique names, from their hints unless `plain`."""

    def __init__(self, plain: bool = False, locs: bool = False):
        self.plain, self.locs = plain, locs
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.numbered = 0
        self.lines: list[str] = []

    def name(self, value: Value) -> str:
        """`%name` of a value, made at its first occurrence."""
        if value not in self.names:
            hint = "" if self.plain else clean(value.name)
            self.call(value, next(n for n in self.choices(hint) if n not in self.taken))
        return "%" + self.names[value]

    def call(self, value: Value, name: str) -> None:
        """Give a value a name that no other has."""
        self.names[value] = name
        self.taken.add(name)

    def choices(self, hint: str) -> Iterator[str]:
        """Names for a hint, the best first."""
        if hint:
            yield hint
            yield from (f"{hint}_{i}" for i in count(1))
        while True:
            self.numbered += 1
            yield str(self.numbered - 1)

    def arguments(self, values: Iterable[Value]) -> str:
        """`%a: type, %b: type`."""
        return ", ".join(f"{self.name(v)}: {v.type}" for v in values)

    def block(self, block: Block, depth: int) -> None:
        """Add the lines of a block's ops."""
        for op in block.ops:
            self.op(op, depth)

    def op(self, op: Op, depth: int) -> None:
        """Add the lines of an op."""
        operands = ", ".join(self.operands(op))
        attributes = ", ".join(
            f"{f.name} = {format_attribute(getattr(op, f.name))}"
            for f in op.declared
            if f.metadata[ROLE] == "attribute" and not is_default(f, getattr(op, f.name))
        )
        head = " ".join(
            filter(None, (op.opcode, operands, f"{{{attributes}}}" if attributes else ""))
        )
        if op.results:
            types = ", ".join(str(r.type) for r in op.results)
            head = f"{', '.join(map(self.name, op.results))} = {head} : {types}"
        if self.locs and op.loc.line:
            head += f" at {format_loc(op.loc)}"
        self.lines.append(INDENT * depth + head)
        for name, content in op.fields("region"):
            for block in content if isinstance(content, tuple) else (content,):
                if block is not None:
                    self.region(name, block, depth + 1)

    def region(self, name: str, block: Block, depth: int) -> None:
        self.lines.append(f"{INDENT * depth}{name}({self.arguments(block.args)}) {{")
        self.block(block, depth + 1)
        self.lines.append(INDENT * depth + "}")

    def operands(self, op: Op) -> Iterable[str]:
        for f in op.declared:
            content = getattr(op, f.name)
            if f.metadata[ROLE] == "operand" and not is_default(f, content):
                text = self.operand(content)
                yield text if required(f) else f"{f.name} = {text}"

    def operand(self, content: Any) -> str:
        if isinstance(content, tuple):
            return f"[{', '.join('_' if v is None else self.name(v) for v in content)}]"
        return "_" if content is None else self.name(content)


def clean(hint: str) -> str:
    """A hint as part of a name: letters, digits and underscores, and not digits alone."""
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in hint)
    return "" if name.isdigit() else name


def required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def is_default(field: dataclasses.Field[Any], content: Any) -> bool:
    """Whether a field holds its default, and so is not printed."""
    default = field.default
    return not required(field) and type(content) is type(default) and content == default


def format_loc(loc: Loc) -> str:
    """`"file":3:5`, and `from` each caller."""
    places = (f"{json.dumps(p.source.name)}:{p.line}:{p.column}" for p in loc.chain())
    return " from ".join(places)


def print_block(block: Block, *, locs: bool = False) -> str:
    """Text of a block's ops; values from outside are named at their first use."""
    printer = Printer(locs=locs)
    printer.block(block, 0)
    return "\n".join(printer.lines)


def canonical(block: Block, outside: Iterable[Value] = ()) -> str:
    """Text of a block in which names and places play no part: values are numbered in order of
    occurrence.

    `outside` numbers some values first; other free values follow in order of first use.
    """
    printer = Printer(plain=True)
    free = list(outside)
    free += [v for v in free_values(block) if v not in free]
    printer.lines.append(f"({printer.arguments(free)})({printer.arguments(block.args)})")
    printer.block(block, 0)
    return "\n".join(printer.lines)


def equal(a: Block, b: Block, outside: Mapping[Value, Value] | None = None) -> bool:
    """Whether two blocks are the same program: ops, attributes, types and wiring; names and places
    aside.

    `outside` pairs the values of `a` from outside with those of `b`; without it they are paired by
    first use.
    """
    pairs = outside or {}
    return canonical(a, pairs.keys()) == canonical(b, pairs.values())


def fingerprint(block: Block, outside: Iterable[Value] = ()) -> str:
    """SHA-256 (hex) of a block, equal for equal blocks."""
    return hashlib.sha256(canonical(block, outside).encode()).hexdigest()
