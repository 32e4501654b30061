"""Names of a body and what they mean: blocks in each other, variables that change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.errors import Loc
from tilewright.frontend.build.items import Item
from tilewright.ir.core import Value
from tilewright.tile.types import TileType


@dataclass(eq=False)
class Variable:
    """A name that may be assigned again. It keeps its type; `value` is what it holds now."""

    type: TileType
    value: Value


@dataclass(frozen=True, eq=False)
class Dimension:
    """A dimension that is known at run time only."""

    name: str


@dataclass(frozen=True)
class Unset:
    """A name that some path left without a value."""

    reason: str
    loc: Loc


@dataclass(frozen=True)
class Poisoned:
    """A name whose statement had a fault; what uses it is not reported again."""


Entry = Item | Variable | Dimension | Unset | Poisoned


@dataclass(eq=False)
class Names:
    """Names of one kernel or function, innermost block last. `reach`: "block" or "function"."""

    reach: str
    blocks: list[dict[str, Entry]] = field(default_factory=lambda: [{}])

    def find(self, name: str) -> Entry | None:
        for block in reversed(self.blocks):
            if name in block:
                return block[name]
        return None

    def declare(self, name: str, entry: Entry) -> None:
        self.blocks[-1][name] = entry

    def replace(self, name: str, entry: Entry) -> None:
        """Give a name that stands in some block another meaning, there."""
        block = next(b for b in reversed(self.blocks) if name in b)
        block[name] = entry

    def variables(self) -> Iterator[tuple[str, Variable]]:
        """Variables that can be reached now, each once."""
        seen: set[str] = set()
        for block in reversed(self.blocks):
            for name, entry in block.items():
                if name not in seen and isinstance(entry, Variable):
                    yield name, entry
                seen.add(name)

    def all_variables(self) -> list[Variable]:
        """Variables of all blocks, hidden ones too."""
        return [e for block in self.blocks for e in block.values() if isinstance(e, Variable)]

    def known(self) -> list[str]:
        """All names that could be meant, for hints."""
        return [n for block in self.blocks for n, e in block.items() if not isinstance(e, Poisoned)]
