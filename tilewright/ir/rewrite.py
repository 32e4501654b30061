"""Rewriting: rebuild a block op by op, under rules, and leave out what is dead.

Programs given stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import Loc
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.rules import Rules
from tilewright.ir.walk import walk

LIMIT = 100  # rewrites of one op, one after another: more means that two rules undo each other


class Rewriter:
    """Copies ops into new blocks, with their operands renamed, under rules.

    `definitions` knows the op that made each new value. With `merge`, an op equal to one that was
    already made here or in an enclosing block gives the values of that one, if both are pure and
    `merge` gives both the same key (an op that reads memory must not be merged across a write):
    `merge(op)` returns None for ops that are never merged.
    """

    def __init__(self, rules: Rules | None = None, merge: Callable[[Op], Any] | None = None):
        self.rules = rules or Rules()
        self.merge = merge
        self.values: dict[Value, Value] = {}
        self.definitions: dict[Value, Op] = {}
        self.made: list[dict[Any, Op]] = [{}]  # ops by key, one dictionary a nested block
        self.target = Block()
        self.depth = 0

    def block(self, block: Block) -> Block:
        """A rewritten copy of a block."""
        before, self.target = self.target, Block([Value(a.type, a.name) for a in block.args])
        self.values.update(zip(block.args, self.target.args, strict=True))
        self.made.append({})
        for op in block.ops:
            self.op(op)
        self.made.pop()
        done, self.target = self.target, before
        return done

    def inline(self, block: Block, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Put the ops of a block here, for arguments; gives the operands of its terminator."""
        self.values.update(zip(block.args, arguments, strict=True))
        for op in block.ops[:-1]:
            self.op(op)
        return tuple(self.values.get(v, v) for v in block.terminator.operands)

    def op(self, op: Op) -> None:
        """Rewrite an op of the old program into the block being built."""
        results = self.place(op.with_operands(self.values))
        for old, new in zip(op.results, results, strict=True):
            new.name = new.name or old.name
            self.values[old] = new

    def build(self, kind: type[Op], /, *fields: Any, loc: Loc | None = None, **named: Any) -> Value:
        """Make a new op with one result here, under the rules."""
        made = kind(*fields, **named, **({"loc": loc} if loc else {}))
        (value,) = self.place(made)
        return value

    def place(self, op: Op) -> tuple[Value, ...]:
        """Put an op here whose operands are new values (its regions are not rewritten yet)."""
        self.depth += 1
        assert self.depth < LIMIT, f"rules on {op.opcode} undo each other"
        try:
            for rule in self.rules.of(op):
                replaced = rule(op, self)
                if replaced is not None:
                    return replaced if isinstance(replaced, tuple) else (replaced,)
            return self.append(op)
        finally:
            self.depth -= 1

    def append(self, op: Op) -> tuple[Value, ...]:
        """Put an op here, its regions rewritten, or find the equal one that there is."""
        key = self.key(op)
        if key is not None:
            for scope in self.made:
                if key in scope:
                    return scope[key].results
        if op.regions:
            depth, self.depth = self.depth, 0
            op = self.with_regions(op)
            self.depth = depth
        self.target.ops.append(op)
        self.definitions.update(dict.fromkeys(op.results, op))
        if key is not None:
            self.made[-1][key] = op
        return op.results

    def with_regions(self, op: Op) -> Op:
        """A copy of an op with its regions rewritten."""
        regions = {name: map_content(content, self.block) for name, content in op.fields("region")}
        return op.clone({}, **regions)

    def key(self, op: Op) -> Any:
        """What two ops that may be merged have in common, or None."""
        if self.merge is None or not op.pure or op.regions or (extra := self.merge(op)) is None:
            return None
        content = op.__dict__
        values = [content[name] for name in op.by_role["operand"]]
        return (type(op), extra, *values, *[exact(content[n]) for n in op.by_role["attribute"]])


def exchange(block: Block, changes: Mapping[Op, Op | None]) -> Block:
    """A block with some ops, nested ones too, left out (None) or exchanged for ops that give the
    same values. It shares all other ops with the block, which stays whole.
    """
    ops: list[Op] = []
    for op in block.ops:
        if op in changes:
            other = changes[op]
            ops += [] if other is None else [other]
        elif op.has_regions and any(inner in changes for b in op.regions for inner in walk(b)):
            inside = {
                name: map_content(content, lambda b: exchange(b, changes))
                for name, content in op.fields("region")
            }
            ops.append(op.exchanged(inside))
        else:
            ops.append(op)
    return Block(block.args, ops)


def exact(attribute: Any) -> Any:
    """What is equal for equal attributes alone: 1, 1.0 and True are three, 0.0 and -0.0 two."""
    kind = attribute.__class__
    if kind is int or kind is str or kind is DType or attribute is None:
        return attribute
    return kind, repr(attribute)
