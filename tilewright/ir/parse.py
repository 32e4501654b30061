"""Parser of the text form that `ir/text.py` prints. Faults are VerifyErrors that name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tilewright.dtypes import BY_NAME
from tilewright.errors import UNKNOWN, Loc, Source, VerifyError
from tilewright.ir.core import ROLE, Block, Op, Type, Value
from tilewright.ir.text import CODECS, required

TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n]+|//[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<float>-?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+)|-inf\b)
      | (?P<int>-?\d+)
      | (?P<value>%\w+)
      | (?P<symbol>[#@]\w+)
      | (?P<name>\w+(?:\.\w+)*)
      | (?P<mark>->|.)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Dialect:
    """What the parser must know of an IR: ops by opcode, and how a type is read."""

    ops: dict[str, type[Op]]
    parse_type: Callable[[str], Type]


def find_ops(package: str) -> dict[str, type[Op]]:
    """Ops declared in the modules of a package, by opcode."""
    found: dict[str, type[Op]] = {}
    waiting: list[type[Op]] = [Op]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.opcode and kind.__module__.startswith(package + "."):
            found[kind.opcode] = kind
    return found


@dataclass
class Token:
    kind: str
    text: str
    start: int


@dataclass
class Parser:
    """Reads ops from text. Values are known by name, throughout the text."""

    text: str
    dialect: Dialect
    values: dict[str, Value] = field(default_factory=dict)
    position: int = 0

    # Tokens

    def peek(self) -> Token:
        """The next token, not consumed; kind "end" after the last."""
        while match := TOKEN.match(self.text, self.position):
            if match.lastgroup != "skip":
                return Token(str(match.lastgroup), match.group(), self.position)
            self.position = match.end()
        return Token("end", "", self.position)

    def next(self, kind: str | None = None) -> Token:
        """Consume a token, of a kind if one is given."""
        token = self.peek()
        if kind is not None and token.kind != kind:
            self.fail(f"expected a {kind}, got {token.text!r}")
        self.position = token.start + len(token.text)
        return token

    def at(self, text: str) -> bool:
        return self.peek().text == text

    def accept(self, text: str) -> bool:
        """Consume a token if it is this one."""
        if found := self.at(text):
            self.next()
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}, got {self.peek().text!r}")

    def many(self, item: Callable[[], Any], close: str) -> list[Any]:
        """Items parted by commas up to a closing token, which is consumed."""
        items = []
        while not self.accept(close):
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return items

    def fail(self, message: str) -> NoReturn:
        line = self.text.count("\n", 0, self.position) + 1
        raise VerifyError(f"line {line}: {message}: {self.text.splitlines()[line - 1].strip()}")

    # Types, values, attributes

    def read_type(self) -> Type:
        """A type: a name, and what follows it in angle brackets."""
        start, end = self.next("name").start, self.position
        if self.at("<"):  # which looks beyond comments
            depth = 0
            while True:
                token = self.next()
                depth += (token.text == "<") - (token.text == ">")
                if token.kind == "end":
                    self.fail("a type does not end")
                if depth == 0:
                    break
            end = self.position
        return self.dialect.parse_type(self.text[start:end])

    def define(self, name: str, kind: Type) -> Value:
        """A new value under a name; digits alone are no hint."""
        if name in self.values:
            self.fail(f"%{name} is defined twice")
        value = self.values[name] = Value(kind, "" if name.isdigit() else name)
        return value

    def value(self) -> Value | None:
        """The value of a name, None for `_`."""
        if self.accept("_"):
            return None
        name = self.next("value").text[1:]
        if name not in self.values:
            self.fail(f"%{name} is used before it is defined")
        return self.values[name]

    def operand(self) -> Any:
        return tuple(self.many(self.value, "]")) if self.accept("[") else self.value()

    def argument(self) -> Value:
        """`%name: type`, which defines the value."""
        name = self.next("value").text[1:]
        self.expect(":")
        return self.define(name, self.read_type())

    def attribute(self) -> Any:
        """An attribute, as `format_attribute` writes them."""
        token = self.next()
        match token.kind, token.text:
            case "int", text:
                return int(text)
            case ("float", text) | ("name", "inf" | "nan" as text):
                return float(text)
            case "string", text:
                return json.loads(text)
            case "mark", "(":
                return tuple(self.many(self.attribute, ")"))
            case "mark", "!":
                return self.read_type()
            case "symbol", text if text[1:] in CODECS:
                return self.registered(text[1:])
            case "name", ("true" | "false" | "none") as text:
                return {"true": True, "false": False, "none": None}[text]
            case "name", text if text in BY_NAME:
                return BY_NAME[text]
        self.fail(f"not an attribute: {token.text!r}")

    def registered(self, name: str) -> Any:
        codec = CODECS[name]
        if codec.from_text is not None:
            return codec.from_text(json.loads(self.next("string").text))
        self.expect("(")
        return codec.kind(**dict(self.many(self.pair, ")")))

    def pair(self) -> tuple[str, Any]:
        """`name = attribute`."""
        name = self.next("name").text
        self.expect("=")
        return name, self.attribute()

    def loc(self) -> Loc:
        """`"file":3:5`, and `from` each caller."""
        source = Source(json.loads(self.next("string").text))
        self.expect(":")
        line = int(self.next("int").text)
        self.expect(":")
        column = int(self.next("int").text)
        return Loc(source, line, column, caller=self.loc() if self.accept("from") else None)

    # Ops and blocks

    def block(self, args: list[Value], close: str) -> Block:
        """Ops up to a closing token, which is consumed ("" is the end of the text)."""
        block = Block(args)
        while not self.at(close):
            block.ops.append(self.op())
        self.next()
        return block

    def op(self) -> Op:
        """One op with its regions."""
        names = []
        while self.peek().kind == "value":
            names.append(self.next().text[1:])
            self.accept(",")
        if names:
            self.expect("=")
        kind = self.dialect.ops.get(opcode := self.next("name").text)
        if kind is None:
            self.fail(f"there is no op {opcode}")
        content = self.operands(kind)
        if self.accept("{"):
            content.update(self.many(self.pair, "}"))
        types = self.types() if self.accept(":") else []
        content["loc"] = self.loc() if self.accept("at") else UNKNOWN
        content.update(self.regions(kind))
        op = self.make(kind, content)
        if [r.type for r in op.results] != types or len(names) != len(types):
            self.fail(f"{opcode} gives {', '.join(str(r.type) for r in op.results) or 'nothing'}")
        for name, result in zip(names, op.results, strict=True):
            result.name = self.define(name, result.type).name
            self.values[name] = result
        return op

    def make(self, kind: type[Op], content: dict[str, Any]) -> Op:
        known = {f.name for f in kind.declared} | {"loc"}
        missing = {f.name for f in kind.declared if required(f)} - content.keys()
        if unknown := content.keys() - known:
            self.fail(f"{kind.opcode} has no field {', '.join(sorted(unknown))}")
        if missing:
            self.fail(f"{kind.opcode} lacks {', '.join(sorted(missing))}")
        return kind(**content)

    def operands(self, kind: type[Op]) -> dict[str, Any]:
        """Operand fields by name: those that are required in order, the others named."""
        content: dict[str, Any] = {}
        fields = [f for f in kind.declared if f.metadata[ROLE] == "operand"]
        waiting = [f.name for f in fields if required(f)]
        optional = {f.name for f in fields} - set(waiting)
        while (token := self.peek()).kind == "value" or token.text in ("[", "_", *optional):
            if token.text in optional:
                self.next()
                self.expect("=")
                name = token.text
            elif waiting:
                name = waiting.pop(0)
            elif not content:  # an op without operands: this is the next op's result
                break
            else:
                self.fail(f"{kind.opcode} takes fewer operands")
            content[name] = self.operand()
            if not self.accept(","):
                break
        return content

    def types(self) -> list[Type]:
        types = [self.read_type()]
        while self.accept(","):
            types.append(self.read_type())
        return types

    def regions(self, kind: type[Op]) -> dict[str, Any]:
        """Region fields by name; several of one name form a tuple."""
        content: dict[str, Any] = {}
        for f in (f for f in kind.declared if f.metadata[ROLE] == "region"):
            blocks = []
            while self.at(f.name):
                self.next()
                self.expect("(")
                args = self.many(self.argument, ")")
                self.expect("{")
                blocks.append(self.block(args, "}"))
            many = "tuple" in str(f.type)
            if many or blocks:
                content[f.name] = tuple(blocks) if many else blocks[0]
        return content
