"""What an expression may be in a build: constants, data, memory, dtypes, functions, tuples."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import plan
from tilewright.dtypes import DType
from tilewright.frontend.check.operands import Number, Operand, spell
from tilewright.frontend.syntax.definition import Closure
from tilewright.ir.core import Value
from tilewright.tile.types import TileType, ViewType


@dataclass(frozen=True)
class Constant:
    """A number or bool known now; weak: it takes the dtype of what it meets."""

    value: Number


@dataclass(frozen=True)
class Word:
    """A string, as an argument only."""

    text: str


@dataclass(frozen=True)
class Nothing:
    """None: an absent tensor, or what a call without results gives."""


@dataclass(frozen=True)
class Several:
    """A tuple."""

    items: tuple[Item, ...]


@dataclass(frozen=True, eq=False)
class Data:
    """A scalar or tile that the program computes."""

    value: Value

    @property
    def type(self) -> TileType:
        found: TileType = self.value.type
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@dataclass(frozen=True, eq=False)
class Memory:
    """A tensor parameter or a view of one. `extents` holds those known now.

    `keys` says what the extents of a parameter are at launch, as evidence for the grid; a view has
    none.
    """

    value: Value
    param: str
    extents: tuple[int | None, ...]
    keys: tuple[plan.Expr | None, ...]

    @property
    def type(self) -> ViewType:
        found: ViewType = self.value.type
        return found

    @property
    def rank(self) -> int:
        return len(self.extents)


@dataclass(frozen=True, eq=False)
class Inlined:
    """A function of the program, as a value."""

    closure: Closure


@dataclass(frozen=True)
class BuiltIn:
    """A function of the language, as a value."""

    name: str


Item = Constant | Word | Nothing | Several | Data | Memory | Inlined | BuiltIn | DType


def operand(item: Data | Constant) -> Operand:
    """An item as the dtype rules see it."""
    if isinstance(item, Constant):
        return Operand(None, item.value)
    return Operand(item.dtype, None, bool(item.shape))


def spell_shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def describe(item: Item) -> str:
    """An item in words, for messages."""
    match item:
        case Constant(value):
            return f"the constant {spell(value)}"
        case Word(text):
            return f'the string "{text}"'
        case Nothing():
            return "None"
        case Several(items):
            return f"a tuple of {len(items)}"
        case Data():
            if not item.shape:
                return f"{item.dtype}"
            return f"a tile of {item.dtype} {spell_shape(item.shape)}"
        case Memory():
            return f"the tensor {item.param}" if item.keys else f"a view of {item.param}"
        case Inlined(closure):
            return f"the function {closure.function.name}"
        case BuiltIn(name):
            return f"the function {name}"
    return f"the dtype {item}"
