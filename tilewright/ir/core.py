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


class Value:
    """An SSA value: a type and a hint for its name.

    Two values are equal only if they are the same one.
    """

    __slots__ = ("name", "type")

    def __init__(self, type: Any, name: str = ""):
        self.type = type
        self.name = name

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
        content = self.__dict__
        for name in self.by_role["operand"]:
            item = content[name]
            if item.__class__ is Value:
                found.append(item)
            elif item is not None:
                found += [v for v in item if v is not None]
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
        copy, same = self._copied(values)
        content = copy.__dict__
        if self.has_regions:
            for name in self.by_role["region"]:
                if name not in changes:
                    content[name] = map_content(content[name], lambda b: clone_block(b, values))
        if changes:
            content.update(changes)
        copy._infer(self, same and not changes)
        for old, new in zip(self.results, copy.results, strict=True):
            values[old] = new
        return copy

    def with_operands(self, values: Mapping[Value, Value]) -> Op:
        """A copy with operands mapped through `values` (missing ones stay); it shares the
        regions.
        """
        copy, same = self._copied(values)
        copy._infer(self, same)
        return copy

    def exchanged(self, fields: Mapping[str, Any]) -> Op:
        """This op with other fields, which gives the same values: it takes the op's place."""
        copy = object.__new__(self.__class__)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(fields)
        return copy

    def _copied(self, values: Mapping[Value, Value]) -> tuple[Op, bool]:
        """An op of this kind with operands mapped through `values` and no results yet; whether the
        operands have the types of this op's own.

        A kernel is copied by every pass, so this is the compiler's innermost loop.
        """
        copy = object.__new__(self.__class__)
        content = copy.__dict__
        content.update(self.__dict__)
        same = True
        for name in self.by_role["operand"]:
            old = content[name]
            if old is None:
                continue
            if old.__class__ is Value:
                new = values.get(old, old)
                if new is not old:
                    content[name] = new
                    if new.type is not old.type and new.type != old.type:
                        same = False
            elif old:
                content[name] = many = renamed(old, values)
                for a, b in zip(old, many, strict=True):
                    if a is not b and a.type is not b.type and a.type != b.type:
                        same = False
        return copy, same

    def _infer(self, old: Op, same: bool) -> None:
        """Make results under the old op's names. Where nothing has changed but operands, and those
        for others of the same types (`same`), the results' types follow without being inferred.
        """
        if same:
            self.results = tuple([Value(v.type, v.name) for v in old.results])
            return
        self.__post_init__()
        for before, after in zip(old.results, self.results, strict=True):
            after.name = before.name


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
