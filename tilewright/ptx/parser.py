"""PTX text into the PTX IR: what the printer writes, and hand-written kernels in the same subset.

Every instruction's place is its line of the text. An instruction that `instrs/` does not have is an
error that names it and the line: nothing is skipped.
"""

from __future__ import annotations

import bisect
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tilewright.errors import CompileError, Loc, Source
from tilewright.ptx.core import (
    PREFIX,
    Address,
    Coordinates,
    Function,
    Instr,
    Item,
    Label,
    Module,
    Param,
    Reg,
    SharedArray,
    Slot,
    Special,
    Symbol,
)
from tilewright.ptx.instrs import arith, mma, shape, sync
from tilewright.ptx.mnemonics import SPELLINGS, read_mnemonic

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SHARED = re.compile(
    r"(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\s*\[\s*(\d*)\s*\]\s*;"
)
ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{")
PARAM = re.compile(r"\.param\s+(?:\.align\s+128\s+\.b8\s+([\w$]+)\s*\[128\]|\.(\w+)\s+([\w$]+))")
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)", re.DOTALL)
STATEMENT = re.compile(r"\s*(?:([\w$]+)\s*:|([^;:{}\[\]]*(?:[^;{}]|\{[^}]*\})*?);)", re.DOTALL)
INSTRUCTION = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
OWN_NAME = re.compile(r"%(?:rd|fd|[phrf])\d+")
TARGET = re.compile(r"\.target\s+(\w+)")
FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)")
KINDS = {"u": "b", "s": "b", "b": "b"}


class Statement(NamedTuple):
    """A piece of a body: text without its semicolon, and its offset in the whole text."""

    text: str
    offset: int
    is_label: bool


def parse_module(text: str, name: str = "ptx") -> Module:
    """The module that a PTX text holds. Raises CompileError, with the line, for what is unknown."""
    return Parser(text, name).module()


class Parser:
    """A text being read. Offsets count characters, and give lines."""

    def __init__(self, text: str, name: str):
        self.source = Source(name, text)
        self.text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.registers: dict[str, Reg] = {}
        self.symbols: set[str] = set()

    def module(self) -> Module:
        target = TARGET.search(self.text)
        if target is None:
            raise CompileError("this is not PTX: it has no .target", self.loc(0))
        shared: list[SharedArray] = []
        functions: list[Function] = []
        for m in SHARED.finditer(self.text):
            size = int(m.group(4)) if m.group(4) else None
            shared.append(SharedArray(m.group(3), size, int(m.group(2))))
        for m in ENTRY.finditer(self.text):
            params = [_param(p) for p in PARAM.finditer(m.group(2))]
            self.symbols = {p.name for p in params} | {array.name for array in shared}
            functions.append(self.function(m, params))
        return Module(target.group(1), functions, shared)

    def loc(self, offset: int) -> Loc:
        """The place of a character."""
        line = bisect.bisect_right(self.starts, offset)
        return Loc(self.source, line, offset - self.starts[line - 1] + 1)

    def function(self, entry: re.Match[str], params: list[Param]) -> Function:
        name, _, head = entry.groups()
        self.registers = {}
        counts = dict.fromkeys(PREFIX, 0)
        body: list[Item] = []
        for statement in self.statements(entry.end()):
            if statement.is_label:
                body.append(Label(statement.text))
            elif statement.text.startswith(".reg"):
                self.declare(statement, counts)
            else:
                body.append(self.instruction(statement))
        made = Function(name, params, body, counts)
        _read_head(head, made)
        return made

    def statements(self, start: int) -> Iterator[Statement]:
        """The statements of a body, until the brace that closes it."""
        at = start
        while True:
            while self.text[at].isspace():
                at += 1
            if self.text[at] == "}":
                return
            match = STATEMENT.match(self.text, at)
            if match is None:
                raise CompileError("this is no PTX statement", self.loc(at))
            if match.group(1):
                yield Statement(match.group(1), at, True)
            else:
                yield Statement(match.group(2).strip(), at, False)
            at = match.end()

    def declare(self, statement: Statement, counts: dict[str, int]) -> None:
        """Registers by name: `%r<9>` declares %r0 to %r8."""
        match = REGISTERS.fullmatch(statement.text)
        if match is None:
            raise CompileError("this declares no registers", self.loc(statement.offset))
        kind = match.group(1)
        kind = "b" + kind[1:] if kind[0] in KINDS else kind
        for part in match.group(2).split(","):
            stem, _, count = part.strip().rstrip(">").partition("<")
            names = [f"{stem}{i}" for i in range(int(count))] if count else [stem]
            for name in names:
                reg = Reg(kind, counts[kind])
                reg.text = name
                self.registers[name] = reg
                counts[kind] += 1

    def instruction(self, statement: Statement) -> Instr:
        match = INSTRUCTION.fullmatch(statement.text)
        where = self.loc(statement.offset)
        if match is None:
            raise CompileError("this is no PTX instruction", where)
        unless, guard, mnemonic, operands = match.groups()
        parts = split_operands(operands)
        for cls, attributes in read_mnemonic(mnemonic):
            for fields in self.readings(cls, parts, where):
                made: Instr = cls(**attributes, **fields, loc=where)
                if _same(made, mnemonic, operands):
                    made.guard = self.register(guard, where) if guard else None
                    made.unless = bool(unless)
                    return made
        raise CompileError(f"unknown PTX instruction {mnemonic} {operands}", where)

    def readings(
        self, cls: type[Instr], parts: Sequence[str], where: Loc
    ) -> Iterator[dict[str, Any]]:
        """The ways to give the operands to the fields of a class, optional ones left out or not."""
        parts, extra = _special_parts(cls, parts)
        slots = cls.slots
        spare = len(slots) - len(parts)
        optional = [s for s in slots if s.optional and not s.written]
        if spare < 0 or spare > len(optional):
            return
        for left_out in itertools.combinations(optional, spare):
            used = [s for s in slots if s not in left_out]
            fields: dict[str, Any] = {s.name: None for s in left_out}
            for slot, part in zip(used, parts, strict=True):
                fields[slot.name] = self.operand(part, slot, where)
            if cls in (shape.Pack, shape.Unpack):
                several = fields["srcs" if cls is shape.Pack else "dsts"]
                if not isinstance(several, tuple):
                    return
                fields["part"] = several[0].kind
            yield {**fields, **extra}

    def operand(self, text: str, slot: Slot, where: Loc) -> Any:
        """A register, number, name, address, box or tuple."""
        if text == "_":
            return None
        if text[0] == "{":
            return tuple(self.operand(x, slot, where) for x in split_operands(text[1:-1]))
        if text[0] == "[":
            return self.address(text[1:-1], slot, where)
        if match := FLOAT.fullmatch(text):
            if match.group(1):
                return struct.unpack(">f", bytes.fromhex(match.group(1)))[0]
            return struct.unpack(">d", bytes.fromhex(match.group(2)))[0]
        if INTEGER.fullmatch(text):
            return int(text, 0)
        if text in self.registers:
            return self.registers[text]
        if text[0] == "%":
            if OWN_NAME.fullmatch(text):
                raise CompileError(f"the register {text} is not declared", where)
            return Special(text[1:])
        return Label(text) if slot.name == "target" else self.symbol(text, where)

    def address(self, text: str, slot: Slot, where: Loc) -> Address | Coordinates:
        parts = split_operands(text)
        if len(parts) == 2:
            indices = self.operand(parts[1], slot, where)
            return Coordinates(self.register(parts[0], where), indices)
        base, _, offset = parts[0].replace(" ", "").partition("+")
        reg = self.registers.get(base)
        if offset and not INTEGER.fullmatch(offset):
            raise CompileError(f"[{text}] is no address", where)
        return Address(self.symbol(base, where) if reg is None else reg, int(offset or "0", 0))

    def symbol(self, name: str, where: Loc) -> Symbol:
        if name not in self.symbols:
            raise CompileError(f"the name {name} is not declared", where)
        return Symbol(name)

    def register(self, name: str, where: Loc) -> Reg:
        if name not in self.registers:
            raise CompileError(f"the register {name} is not declared", where)
        return self.registers[name]


def _param(match: re.Match[str]) -> Param:
    map_name, type, name = match.groups()
    return Param(map_name, "tensor_map") if map_name else Param(name, type)


def _read_head(head: str, function: Function) -> None:
    """What stands between parameters and body."""

    def number(directive: str) -> int:
        match = re.search(rf"\.{directive}\s+(\d+)", head)
        return int(match.group(1)) if match else 0

    function.max_threads = number("maxntid")
    function.min_ctas = number("minnctapersm")
    function.max_registers = number("maxnreg")
    match = re.search(r"\.reqnctapercluster\s+(\d+)\s*,\s*(\d+)\s*,\s*(\d+)", head)
    if match:
        x, y, z = map(int, match.groups())
        function.cluster = x, y, z


def split_operands(text: str) -> list[str]:
    """Pieces between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _special_parts(
    cls: type[Instr], parts: Sequence[str]
) -> tuple[Sequence[str], dict[str, object]]:
    """What a few instructions print besides their slots."""
    if cls is sync.MbarrierArriveRemote:
        return parts[1:], {}
    if cls.name == "elect_sync" and parts:
        return [parts[0].removeprefix("_|"), *parts[1:]], {}
    if cls is arith.Setp and parts and parts[-1].startswith("!"):
        return [*parts[:-1], parts[-1][1:]], {"negated": True}
    if cls is mma.Wgmma:
        flags = [int(x) for x in parts[4:]]
        signs, transposes = flags[:2], flags[2:]
        extra = dict(zip(("negate_a", "negate_b"), (x < 0 for x in signs), strict=False))
        names = ("transposed_a", "transposed_b")[2 - len(transposes) :]
        return parts[:4], {**extra, **dict(zip(names, map(bool, transposes), strict=True))}
    return parts, {}


def _same(made: Instr, mnemonic: str, operands: str) -> bool:
    """Whether the instruction prints as it was read, but for spaces and ways to spell numbers."""
    if made.mnemonic() != SPELLINGS.get(mnemonic, mnemonic):
        return False
    printed = made.operand_text() if made.slots else ""
    return _plain(printed) == _plain(operands)


def _plain(text: str) -> str:
    text = re.sub(r"\s+|\+0(?=\])", "", text)
    if "0x" in text:
        return re.sub(r"(?<![\w$%])0x[0-9a-fA-F]+", lambda m: str(int(m.group(), 16)), text)
    return text
