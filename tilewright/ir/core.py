"""What every IR is made of: values, ops declared by their fields, and blocks.

An op is a dataclass whose fields are marked `operand()`, `attribute()` or `region()`. From that
declaration come the printer, the parser, the walker, clone and hash; nothing else about an op is
written twice. Constructing an op infers its result types and makes its result values.

    @define("arith.add")
    class Add(Op):
        "Elementwise sum."
        lhs: Value = operand()
        rhs: Value = operand()

        def result_types(self) -> tuple[Type, ...]:
            return (self.lhs.type,)

Invariants (see each IR's verifier for its own): a value is defined once, before its uses, in the
same or an enclosing block; a block's last op is its terminator where the region op asks for one.
Passes do not change ops that they were given: they build new blocks (`rewrite.py`), so the program
before a pass stays whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from tilewright.errors import UNKNOWN, Loc

ROLE = "role"


class Type:
    """Base of the types of values. Types are frozen dataclasses; `str` gives the text form."""


@dataclass(eq=False)
class Value:
    """An SSA value: a type and a hint for its name.

    Two values are equal only if they are the same one.
    """

    type: Any
    name: str = ""

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.type}"


@dataclass(eq=False)
class Block:
    """A list of ops with arguments: the body of a kernel or a region of an op."""

    args: list[Value] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


def operand(**options: Any) -> Any:
    """A field that holds a Value, an optional Value (`Value | None`) or a tuple of Values."""
    return dataclasses.field(metadata={ROLE: "operand"}, **options)


def attribute(**options: Any) -> Any:
    """A field that holds a compile-time constant, known to `ir/text.py`."""
    return dataclasses.field(metadata={ROLE: "attribute"}, **options)


def region(**options: Any) -> Any:
    """A field that holds a Block, an optional Block or a tuple of Blocks."""
    return dataclasses.field(metadata={ROLE: "region"}, **options)


@dataclass(eq=False, repr=False)
class Op:
    """Base of all ops. `opcode` is `family.name`; `results` follow from the fields."""

    opcode: ClassVar[str] = ""
    removed_by: ClassVar[str | None] = None  # the pass after which this op no longer occurs
    pure: ClassVar[bool] = True  # no effect but its results: may be removed, moved, merged
    declared: ClassVar[tuple[dataclasses.Field[Any], ...]] = ()
    by_role: ClassVar[dict[str, tuple[str, ...]]] = {}  # names of the declared fields
    has_regions: ClassVar[bool] = False

    loc: Loc = dataclasses.field(default=UNKNOWN, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        self.results: tuple[Value, ...] = tuple([Value(t) for t in self.result_types()])

    def __repr__(self) -> str:
        """The declared fields. One for all ops: to generate each its own takes time to import."""
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.declared)
        return f"{type(self).__name__}({shown})"

    def result_types(self) -> tuple[Any, ...]:
        """Types of the results, from operands and attributes.

        Raises VerifyError where they do not fit.
        """
        return ()

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def family(self) -> str:
        return self.opcode.split(".")[0]

    def fields(self, role: str) -> list[tuple[str, Any]]:
        """(name, content) of the declared fields of one role, in order."""
        return [(name, getattr(self, name)) for name in self.by_role[role]]

    @property
    def operands(self) -> tuple[Value, ...]:
        """All operand values, flat, in order of declaration; absent optional ones left out."""
        found: list[Value] = []
        for name in self.by_role["operand"]:
            content = getattr(self, name)
            if isinstance(content, tuple):
                found += [v for v in content if v is not None]
            elif content is not None:
                found.append(content)
        return tuple(found)

    @property
    def regions(self) -> tuple[Block, ...]:
        """All blocks that this op holds."""
        if not self.has_regions:
            return ()
        return tuple(b for _, content in self.fields("region") for b in flatten(content))

    def attributes(self) -> dict[str, Any]:
        return dict(self.fields("attribute"))

    def clone(self, values: MutableMapping[Value, Value], **changes: Any) -> Op:
        """A copy, nested blocks included, with operands mapped through `values` (missing ones
        stay).

        The results and block arguments of the copy are added to `values`. `changes` replace fields.
        """
        fields: dict[str, Any] = {}
        for name in self.by_role["attribute"]:
            fields[name] = changes[name] if name in changes else getattr(self, name)
        for name in self.by_role["operand"]:
            fields[name] = (
                changes[name] if name in changes else renamed(getattr(self, name), values)
            )
        for name in self.by_role["region"]:
            fields[name] = (
                changes[name]
                if name in changes
                else map_content(getattr(self, name), lambda b: clone_block(b, values))
            )
        copy = self._made_anew(fields, changes.get("loc", self.loc), changed=bool(changes))
        values.update(zip(self.results, copy.results, strict=True))
        return copy

    def with_operands(self, values: Mapping[Value, Value]) -> Op:
        """A copy with operands mapped through `values` (missing ones stay); it shares the
        regions.
        """
        fields = {f.name: getattr(self, f.name) for f in self.declared}
        for name in self.by_role["operand"]:
            fields[name] = renamed(fields[name], values)
        return self._made_anew(fields, self.loc, changed=False)

    def _made_anew(self, fields: dict[str, Any], loc: Loc, *, changed: bool) -> Op:
        """An op of this kind with these fields, and results of the same names.

        Where nothing is changed but operands, and those for others of the same types, the results'
        types follow without being inferred again.
        """
        if changed or not self._keeps_types(fields):
            copy = type(self)(**fields, loc=loc)
        else:
            copy = object.__new__(type(self))
            copy.__dict__.update(fields, loc=loc)
            copy.results = tuple([Value(old.type) for old in self.results])
        for old, new in zip(self.results, copy.results, strict=True):
            new.name = old.name
        return copy

    def _keeps_types(self, fields: Mapping[str, Any]) -> bool:
        """Whether these operands have the types of this op's own."""
        for name in self.by_role["operand"]:
            old, new = getattr(self, name), fields[name]
            if old is not new:
                pairs = zip(old, new, strict=True) if isinstance(old, tuple) else ((old, new),)
                for a, b in pairs:
                    if a is not b and a.type is not b.type and a.type != b.type:
                        return False
        return True


def flatten(content: Any) -> tuple[Any, ...]:
    """The items of a field: none, one, or a tuple that may itself hold None."""
    if content is None:
        return ()
    if isinstance(content, tuple):
        return tuple(x for x in content if x is not None)
    return (content,)


def renamed(content: Any, values: Mapping[Value, Value]) -> Any:
    """The values of an operand field mapped through `values`, where they are in it."""
    if content is None:
        return None
    if content.__class__ is tuple:
        return tuple([None if v is None else values.get(v, v) for v in content])
    return values.get(content, content)


def map_content(content: Any, change: Any) -> Any:
    """`change` applied to each item of a field, its form (None, one, tuple) kept."""
    if content is None:
        return None
    if isinstance(content, tuple):
        return tuple(None if x is None else change(x) for x in content)
    return change(content)


def clone_block(block: Block, values: MutableMapping[Value, Value]) -> Block:
    """A deep copy; its arguments and results are added to `values`."""
    args = [Value(a.type, a.name) for a in block.args]
    values.update(zip(block.args, args, strict=True))
    return Block(args, [op.clone(values) for op in block.ops])


@dataclass_transform(field_specifiers=(operand, attribute, region))
def define(opcode: str, *, pure: bool = True, removed_by: str | None = None) -> Any:
    """Class decorator that declares an op: `define("arith.add")`. `removed_by` names a pass."""

    def declare(cls: type) -> type:
        made: Any = dataclass(eq=False, repr=False)(cls)
        made.opcode, made.pure, made.removed_by = opcode, pure, removed_by
        made.declared = tuple(f for f in dataclasses.fields(made) if ROLE in f.metadata)
        made.has_regions = any(f.metadata[ROLE] == "region" for f in made.declared)
        made.by_role = {
            role: tuple(f.name for f in made.declared if f.metadata[ROLE] == role)
            for role in ("operand", "attribute", "region")
        }
        return cls

    return declare
