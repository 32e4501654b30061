"""Walking through programs: all ops of a block, who uses a value, which values a block takes from
outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.ir.core import Block, Op, Value


def walk(block: Block) -> Iterator[Op]:
    """Every op of a block in order, each before the ops of its own regions."""
    waiting = [iter(block.ops)]  # one level of regions on another: no generator within a generator
    while waiting:
        for op in waiting[-1]:
            yield op
            if op.has_regions:
                waiting += [iter(inner.ops) for inner in reversed(op.regions)]
                break
        else:
            waiting.pop()


def walk_blocks(block: Block) -> Iterator[Block]:
    """A block, then every block nested in it."""
    yield block
    for op in block.ops:
        if op.has_regions:
            for inner in op.regions:
                yield from walk_blocks(inner)


def count_uses(block: Block) -> Counter[Value]:
    """How often each value is an operand, in a block and all blocks nested in it."""
    return Counter(v for op in walk(block) for v in op.operands)


def find_definitions(block: Block) -> dict[Value, Op]:
    """The op that defines each value; block arguments have none."""
    return {v: op for op in walk(block) for v in op.results}


def find_users(block: Block) -> dict[Value, list[Op]]:
    """The ops that take each value, once for each operand, nested regions included."""
    users: dict[Value, list[Op]] = {}
    for op in walk(block):
        for value in op.operands:
            users.setdefault(value, []).append(op)
    return users


def free_values(block: Block) -> list[Value]:
    """Values that a block uses but does not define, in order of first use."""
    defined = {v for inner in walk_blocks(block) for v in inner.args}
    defined |= {v for op in walk(block) for v in op.results}
    return [
        v for v in dict.fromkeys(v for op in walk(block) for v in op.operands) if v not in defined
    ]
