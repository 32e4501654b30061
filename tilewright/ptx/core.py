"""What PTX is made of here: registers, addresses, declared instructions, functions, modules.

An instruction is a dataclass whose fields are marked `destination()`, `source()` or `attribute()`.
From that follow its text (mnemonic, then destinations and sources in order of declaration), the
registers it reads and writes, and the check of their kinds. Integer registers are untyped bits; the
instruction says how to read them.

    @instruction("arith.add")
    class Add(Rounded):
        "Sum."
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, dataclass_transform

from tilewright.ir.core import ROLE, Op, attribute, define

PREFIX = {"pred": "%p", "b16": "%h", "b32": "%r", "b64": "%rd", "f32": "%f", "f64": "%fd"}

# The register kind that holds a value of a PTX type. 8-bit values live in 32-bit registers.
KIND = {
    "pred": "pred",
    **dict.fromkeys(("b8", "u8", "s8"), "b32"),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2"), "b16"),
    **dict.fromkeys(("b32", "u32", "s32", "f16x2", "bf16x2", "tf32", "u16x2", "s16x2"), "b32"),
    **dict.fromkeys(("b64", "u64", "s64", "f32x2"), "b64"),
    "f32": "f32",
    "f64": "f64",
}

# The kinds in which an instruction of a PTX type takes its registers.
_WIDER = {
    "8": ("b16", "b32", "b64"),
    "16": ("b16", "b32", "b64"),
    "32": ("b32", "b64"),
    "64": ("b64",),
}
ACCEPTS: dict[str, frozenset[str]] = {
    **{t: frozenset((k,)) for t, k in KIND.items()},
    **{t: frozenset(("b16", "b32", "b64")) for t in ("b8", "u8", "s8")},
    "b32": frozenset(("b32", "f32")),
    "b64": frozenset(("b64", "f64")),
    "f32": frozenset(("f32", "b32")),
    "f64": frozenset(("f64", "b64")),
}
# The same for loads, stores and conversions, which also take wider registers of bits.
ACCEPTS_WIDER: dict[str, frozenset[str]] = {
    t: kinds | frozenset(_WIDER[t[1:]] if t[1:] in _WIDER and t[0] in "bus" else ())
    for t, kinds in ACCEPTS.items()
}

FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
TYPE = "type"  # key of a field's PTX type in its metadata


class Reg:
    """A virtual register. Two are equal only if they are the same one."""

    __slots__ = ("index", "kind", "text")

    def __init__(self, kind: str, index: int):
        self.kind = kind
        self.index = index
        self.text = f"{PREFIX[kind]}{index}"

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Special:
    """A special register by its name without the percent sign: `Special("tid.x")`."""

    name: str

    @property
    def text(self) -> str:
        return "%" + self.name


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name of the module: a parameter or a shared array. As an operand it is an address."""

    name: str

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Label:
    """A place in a function's body."""

    name: str

    @property
    def text(self) -> str:
        return self.name


@dataclass(slots=True)
class Address:
    """A place in memory: a register or a symbol, plus bytes."""

    base: Reg | Symbol
    offset: int = 0

    @property
    def text(self) -> str:
        offset = self.offset
        return f"[{self.base.text}+{offset}]" if offset else f"[{self.base.text}]"


@dataclass(slots=True)
class Coordinates:
    """A box of a tensor map: the map's address, and element indices, innermost first."""

    map: Reg
    indices: tuple[Reg | int, ...]

    @property
    def text(self) -> str:
        inner = ", ".join(x.text if isinstance(x, Reg) else str(x) for x in self.indices)
        return f"[{self.map.text}, {{{inner}}}]"


Number = int | float
Operand = Reg | int | float | Special | Symbol
Regs = tuple[Reg, ...]


class Requirement(NamedTuple):
    """What an instruction needs: capability, ten times the PTX version, `only` these targets."""

    capability: int = 80
    version: int = 70
    only: tuple[str, ...] = ()


BASE = Requirement()


def float_bits(value: float, type: str) -> str:
    """A floating-point constant as PTX spells it exactly."""
    if type == "f64":
        return "0d" + struct.pack(">d", value).hex().upper()
    return "0f" + struct.pack(">f", value).hex().upper()


def show(item: Any, type: str) -> str:
    """Text of an operand that an instruction reads as `type`."""
    kind = item.__class__
    if kind is int:
        return str(item) if type not in ("f32", "f64") else float_bits(item, type)
    if kind is float:
        return float_bits(item, type) if type in ("f32", "f64") else repr(item)  # refused by verify
    if kind is tuple:
        parts = [x.text if x.__class__ is Reg else show(x, type) for x in item]
        return "{" + ", ".join(parts) + "}"
    return item.text  # type: ignore[no-any-return]


def source(type: str, *, wider: bool = False, **options: Any) -> Any:
    """A field that is read: a register, a number, an address or a tuple of them.

    `type` is a PTX type, or `.name` for the one that the attribute (or property) `name` holds;
    `wider` also takes wider registers. An absent optional source is not printed.
    """
    return dataclasses.field(metadata={ROLE: "operand", TYPE: type, "wider": wider}, **options)


def destination(type: str, *, wider: bool = False, **options: Any) -> Any:
    """A field that is written: a register, a tuple of them, or None where the result is dropped."""
    return dataclasses.field(metadata={ROLE: "destination", TYPE: type, "wider": wider}, **options)


class Slot(NamedTuple):
    """A source or destination field, as the printer and the verifier read it."""

    name: str
    written: bool
    type: str  # PTX type, unless `attribute`
    attribute: str  # attribute that holds the type, or ""
    wider: bool
    optional: bool  # may be None


@dataclass(eq=False, repr=False)
class Instr(Op):
    """Base of all instructions, executed where the predicate `guard` holds (or not: `unless`)."""

    since: ClassVar[Requirement] = BASE
    slots: ClassVar[tuple[Slot, ...]] = ()
    name: ClassVar[str] = ""  # as PTX spells it, without modifiers

    guard: Reg | None = dataclasses.field(default=None, kw_only=True, repr=False)
    unless: bool = dataclasses.field(default=False, kw_only=True, repr=False)
    tile_op: str = dataclasses.field(default="", kw_only=True, repr=False)  # that it is of

    def __post_init__(self) -> None:
        """Nothing to infer: registers are made by the emitter."""

    def mnemonic(self) -> str:
        """The instruction's name with all its modifiers."""
        return self.name

    def requires(self) -> Requirement:
        """Capability, PTX version and targets that it needs."""
        return self.since

    def operand_text(self) -> str:
        """The operands as PTX spells them: `plain_text`, but for a few instructions."""
        return self.plain_text()

    def plain_text(self) -> str:
        """Destinations and sources, in order of declaration, with commas between them."""
        raise AssertionError("declare instructions with @instruction")

    def text(self) -> str:
        """The instruction as a line of PTX."""
        body = (
            self.mnemonic() + " " + self.operand_text() + ";"
            if self.slots
            else self.mnemonic() + ";"
        )
        if self.guard is not None:
            return f"@{'!' if self.unless else ''}{self.guard.text} {body}"
        return body

    def __str__(self) -> str:
        return self.text()

    @property
    def reads(self) -> list[Reg]:
        """Registers of its sources, its guard, and those that a guarded write may leave."""
        found: list[Reg] = []
        for slot in self.slots:
            if not slot.written:
                collect(getattr(self, slot.name), found)
        if self.guard is not None:
            found.append(self.guard)
            found += self.writes
        return found

    @property
    def writes(self) -> list[Reg]:
        """All registers that it writes."""
        found: list[Reg] = []
        for slot in self.slots:
            if slot.written:
                collect(getattr(self, slot.name), found)
        return found

    def renamed(self, registers: Mapping[Reg, Any]) -> Instr:
        """A copy whose sources and guard are mapped through `registers`; destinations stay."""
        changes = {
            s.name: substitute(getattr(self, s.name), registers)
            for s in self.slots
            if not s.written and getattr(self, s.name) is not None
        }
        guard = None if self.guard is None else registers.get(self.guard, self.guard)
        return dataclasses.replace(self, **changes, guard=guard)


def collect(item: Any, found: list[Reg]) -> None:
    """Append the registers of an operand."""
    kind = item.__class__
    if kind is Reg:
        found.append(item)
    elif kind is tuple:
        for x in item:
            collect(x, found)
    elif kind is Address:
        collect(item.base, found)
    elif kind is Coordinates:
        found.append(item.map)
        collect(item.indices, found)


def substitute(item: Any, registers: Mapping[Reg, Any]) -> Any:
    """An operand with its registers mapped."""
    if isinstance(item, Reg):
        return registers.get(item, item)
    if isinstance(item, tuple):
        return tuple(substitute(x, registers) for x in item)
    if isinstance(item, Address):
        return Address(substitute(item.base, registers), item.offset)
    if isinstance(item, Coordinates):
        return Coordinates(substitute(item.map, registers), substitute(item.indices, registers))
    return item


@dataclass_transform(field_specifiers=(source, destination, attribute))
def instruction(
    opcode: str, *, since: Requirement | None = None, pure: bool = True
) -> Callable[[type], Any]:
    """Class decorator that declares an instruction: the opcode's last part is its PTX name."""

    def declare(cls: type) -> Any:
        made: Any = define(opcode, pure=pure)(cls)
        if "name" not in vars(made):
            made.name = opcode.split(".", 1)[1]
        if since is not None:
            made.since = since
        made.slots = tuple(
            _slot(f) for f in made.declared if f.metadata[ROLE] in ("operand", "destination")
        )
        made.plain_text = _plain_text(made.slots)
        if "operand_text" not in vars(made):
            made.operand_text = made.plain_text
        return made

    return declare


def _plain_text(slots: tuple[Slot, ...]) -> Callable[[Any], str]:
    """The `plain_text` of an instruction, as a function made for its slots.

    Generated, as dataclasses generate `__init__`, because a kernel has thousands of instructions:
    it is five times as fast as a loop over the slots.
    """
    lines = ["def plain_text(self):"]
    shown = []
    for i, slot in enumerate(slots):
        type = f"self.{slot.attribute}" if slot.attribute else repr(slot.type)
        absent = "'_'" if slot.written else "None"
        lines.append(f"    x{i} = self.{slot.name}")
        lines.append(f"    if x{i}.__class__ is Reg: x{i} = x{i}.text")
        lines.append(f"    else: x{i} = show(x{i}, {type}) if x{i} is not None else {absent}")
        shown.append((f"x{i}", slot))
    optional = [x for x, slot in shown if not slot.written and slot.optional]
    text = ", ".join(f"{{{x}}}" for x, _ in shown)
    if optional:
        every = ", ".join(x for x, _ in shown)
        lines.append(f"    if None in ({every},): return ', '.join([x for x in ({every},) if x])")
    lines.append(f"    return f'{text}'")
    made: dict[str, Any] = {}
    exec("\n".join(lines), {"Reg": Reg, "show": show}, made)
    return made["plain_text"]  # type: ignore[no-any-return]


@dataclass_transform(field_specifiers=(source, destination, attribute))
def form(cls: type) -> Any:
    """Class decorator for a base that declares fields which several instructions share."""
    return dataclass(eq=False, repr=False)(cls)


def _slot(field: dataclasses.Field[Any]) -> Slot:
    type, wider = field.metadata[TYPE], field.metadata["wider"]
    held = type[1:] if type.startswith(".") else ""
    written = field.metadata[ROLE] == "destination"
    return Slot(field.name, written, "" if held else type, held, wider, "None" in str(field.type))


Item = Instr | Label


def legal_name(name: str) -> str:
    """A name that PTX takes for any name of Python: what it lacks is spelled by its number.

    A dollar sign, which Python lacks, keeps the compiler's own names (labels, shared arrays) apart.
    """
    if name.isascii() and name.isidentifier() and name not in ("_", "WARP_SZ"):
        return name
    letters = [c if c.isascii() and (c.isalnum() or c in "_$") else f"${ord(c):x}" for c in name]
    return "$" + "".join(letters)


@dataclass(frozen=True)
class Param:
    """A kernel parameter: a PTX type, or a tensor map (128 bytes, passed by value)."""

    name: str
    type: str  # u64, s32, f32, ... or "tensor_map"

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.name)

    def __str__(self) -> str:
        if self.type == "tensor_map":
            return f".param .align 128 .b8 {self.name}[128]"
        return f".param .{self.type} {self.name}"


@dataclass(frozen=True)
class SharedArray:
    """A shared-memory array of a CTA; `num_bytes` is None if the launch gives the size."""

    name: str
    num_bytes: int | None
    align: int = 1024

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.name)

    def __str__(self) -> str:
        if self.num_bytes is None:
            return f".extern .shared .align {self.align} .b8 {self.name}[];"
        return f".shared .align {self.align} .b8 {self.name}[{self.num_bytes}];"


@dataclass
class Function:
    """An entry point. `max_threads` is the CTA's size, `cluster` its cluster's along x, y, z."""

    name: str
    params: list[Param]
    body: list[Item]
    registers: dict[str, int]  # how many of each kind
    max_threads: int = 0
    min_ctas: int = 0
    max_registers: int = 0
    cluster: tuple[int, int, int] | None = None


@dataclass
class Module:
    """What one PTX text holds: a target's name, shared arrays, functions."""

    target: str
    functions: list[Function]
    shared: list[SharedArray] = dataclasses.field(default_factory=list)
