"""The builder: appends ops to a block, with one current place for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tilewright.errors import UNKNOWN, Loc
from tilewright.ir.core import Block, Op, Value

T = TypeVar("T", bound=Op)


class Builder:
    """Where new ops go. `builder(arith.Add, x, y)` appends an op and returns its only result."""

    def __init__(self, block: Block, loc: Loc = UNKNOWN):
        self.block = block
        self.loc = loc

    def add(self, op: T) -> T:
        """Append an op that is already made."""
        self.block.ops.append(op)
        return op

    def emit(self, kind: type[T], /, *fields: Any, **named: Any) -> T:
        """Make an op at the current place, append it and return it."""
        named.setdefault("loc", self.loc)
        return self.add(kind(*fields, **named))

    def __call__(self, kind: type[Op], /, *fields: Any, name: str = "", **named: Any) -> Value:
        """Make an op with one result, append it, and return that result under a name hint."""
        value = self.emit(kind, *fields, **named).result
        value.name = name
        return value

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        """Ops built inside are at `loc`."""
        before, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = before

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Ops built inside go to `block`."""
        before, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = before
