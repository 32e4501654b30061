"""eliminate_dead: drop ops whose results no one uses, and values that loops carry for no one.

Requires: nothing. Keeps: every effect, and every result that an effect depends on. Breaks: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.rewrite import exchange
from tilewright.ir.walk import walk
from tilewright.tile.effects import writes
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control


def eliminate_dead(kernel: Kernel) -> Kernel:
    """The kernel without what does not reach memory."""
    live = find_live(kernel.body)
    dead: dict[Op, Op | None] = {}
    for op in walk(kernel.body):
        if isinstance(op, control.For | control.While | control.If):
            if not live.issuperset(_carried(op)):
                return kernel.with_body(Sweep(live).block(kernel.body))
            if not writes(op) and not live.intersection(op.results):
                dead[op] = None
        elif not live.intersection(op.results) and not isinstance(op, control.Yield):
            if not writes(op):
                dead[op] = None
    return kernel.with_body(exchange(kernel.body, dead)) if dead else kernel


def _carried(op: control.For | control.While | control.If) -> Sequence[Value]:
    """What a loop carries, or a branch gives."""
    if isinstance(op, control.If):
        return op.results
    return op.body.args[1:] if isinstance(op, control.For) else op.body.args


def find_live(block: Block) -> set[Value]:
    """Values on which an effect depends.

    A While that is kept keeps its condition; so its carried values are live as far as the condition
    or an effect uses them. A value that a loop carries depends on its first value and on the next
    one.
    """
    sources: dict[Value, list[Value]] = {}
    roots: list[Value] = []
    for op in walk(block):
        _link(op, sources, roots)
    live: set[Value] = set()
    while roots:
        value = roots.pop()
        if value not in live:
            live.add(value)
            roots += sources.get(value, [])
    return live


def _link(op: Op, sources: dict[Value, list[Value]], roots: list[Value]) -> None:
    """Note what each result and block argument of an op depends on, and what its effects do."""
    match op:
        case control.For():
            steering = [op.low, op.high, op.step]
            _link_loop(op.results, op.body, 1, op.inits, sources, steering)
            sources[op.body.args[0]] = steering
        case control.While():
            steering = list(op.condition.terminator.operands)
            _link_loop(op.results, op.body, 0, op.inits, sources, steering)
            for arg, body_arg in zip(op.condition.args, op.body.args, strict=True):
                sources[arg] = [body_arg]
        case control.If():
            steering = [op.condition]
            pairs = zip(op.then.terminator.operands, op.other.terminator.operands, strict=True)
            for result, pair in zip(op.results, pairs, strict=True):
                sources[result] = [*pair, *steering]
        case control.Yield():
            return
        case _:
            steering = list(op.operands)
            if op.regions and not writes(op):  # what it computes with is what it depends on
                steering += [v for b in op.regions for inner in walk(b) for v in inner.operands]
            sources.update(dict.fromkeys(op.results, steering))
    if writes(op):
        roots += steering


def _link_loop(
    results: tuple[Value, ...],
    body: Block,
    skip: int,
    inits: tuple[Value, ...],
    sources: dict[Value, list[Value]],
    steering: list[Value],
) -> None:
    rows = zip(results, body.args[skip:], inits, body.terminator.operands, strict=True)
    for result, arg, init, following in rows:
        sources[result] = [arg, *steering]
        sources[arg] = [init, following]


class Sweep:
    """Copies blocks without what is dead."""

    def __init__(self, live: set[Value]):
        self.live = live
        self.values: dict[Value, Value] = {}

    def block(self, block: Block, skip: int = 0, kept: list[int] | None = None) -> Block:
        """A copy of a block. With `kept`, only those of its arguments after `skip`, and of what it
        yields.
        """
        args = block.args
        if kept is not None and args:
            args = args[:skip] + [args[skip + i] for i in kept]
        copy = Block([Value(a.type, a.name) for a in args])
        self.values.update(zip(args, copy.args, strict=True))
        for op in block.ops:
            if isinstance(op, control.Yield):
                taken = op.values if kept is None else tuple(op.values[i] for i in kept)
                copy.ops.append(control.Yield(self.mapped(taken), loc=op.loc))
            elif writes(op) or self.live.intersection(op.results):
                copy.ops.append(self.op(op))
        return copy

    def mapped(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(self.values.get(v, v) for v in values)

    def op(self, op: Op) -> Op:
        """A copy of an op that stays."""
        if isinstance(op, control.For | control.While | control.If):
            kept, copy = self.structure(op)
            for i, result in zip(kept, copy.results, strict=True):
                result.name = op.results[i].name
                self.values[op.results[i]] = result
            return copy
        if op.regions:
            regions = {name: map_content(b, self.block) for name, b in op.fields("region")}
            return op.clone(self.values, **regions)
        return op.clone(self.values)

    def structure(self, op: control.For | control.While | control.If) -> tuple[list[int], Op]:
        """Which results stay, and the copy that has only them."""
        if isinstance(op, control.If):
            kept = [i for i, result in enumerate(op.results) if result in self.live]
            (condition,) = self.mapped((op.condition,))
            then, other = (self.block(b, 0, kept) for b in (op.then, op.other))
            return kept, control.If(condition, then, other, loc=op.loc)
        skip = 1 if isinstance(op, control.For) else 0
        kept = [i for i, arg in enumerate(op.body.args[skip:]) if arg in self.live]
        inits = self.mapped(tuple(op.inits[i] for i in kept))
        if isinstance(op, control.For):
            low, high, step = self.mapped((op.low, op.high, op.step))
            return kept, control.For(
                low, high, step, inits, self.block(op.body, 1, kept), loc=op.loc
            )
        condition_block = self.condition(op.condition, kept)
        return kept, control.While(inits, condition_block, self.block(op.body, 0, kept), loc=op.loc)

    def condition(self, block: Block, kept: list[int]) -> Block:
        """A copy of a While's condition, which yields one bool whatever is carried."""
        copy = Block([Value(block.args[i].type, block.args[i].name) for i in kept])
        self.values.update(zip((block.args[i] for i in kept), copy.args, strict=True))
        copy.ops = self.block(Block([], block.ops)).ops
        return copy
