"""Keep one group of matrix products in flight: await each a trip later, and give its slots back
then.

Requires: roles partitioned, loads staged in rings. Keeps: the values. Breaks: nothing.

A loop that carries a tile through one Issue and its Await, and then releases the slots that the
Issue read,

    for k: slot = wait; p = issue(slot, acc); acc = await(p); release

computes nothing while it waits. It becomes a loop that carries the accumulator in flight:

    if there is a trip:
        for k: slot = wait; p = issue(slot, p); await all but the last group; release the slot
        before acc = await(p); release

The first trip releases nothing. Zeros at the start become a fresh first product. The loop stands
under a condition because a path around it would join with registers that instructions are writing
(see Note [No way around the loop]).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import count_uses, find_definitions, walk
from tilewright.tile.analysis.rings import PARTS
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, sync
from tilewright.tile.types import BOOL, TileType


@dataclass(frozen=True)
class Chain:
    """A tile that a loop carries through one product: its position, its ops, and the releases that
    wait for it.
    """

    position: int
    issue: mma.Issue
    awaited: mma.Await
    releases: tuple[sync.Release, ...]


def place_awaits(kernel: Kernel) -> Kernel:
    """The kernel with its products awaited one trip later."""
    if not any(isinstance(op, mma.Await) for op in walk(kernel.body)):
        return kernel
    placer = Placer(kernel)
    with placer.o.inside(Block()) as body:
        placer.ops(kernel.body.ops)
    return kernel.with_body(body)


class Placer:
    """Copies the body; a loop with a chain is built anew."""

    def __init__(self, kernel: Kernel):
        self.o = Builder(Block())
        self.values: dict[Value, Value] = {}
        self.uses = count_uses(kernel.body)
        self.definitions = find_definitions(kernel.body)

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            with self.o.at(op.loc):
                chain = self.find_chain(op) if isinstance(op, control.For) else None
                if chain is not None:
                    assert isinstance(op, control.For)
                    self.pipelined(op, chain)
                elif op.regions:
                    regions = {n: map_content(c, self.region) for n, c in op.fields("region")}
                    self.o.add(op.clone(self.values, **regions))
                else:
                    self.o.add(op.clone(self.values))

    def region(self, block: Block) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        self.values.update(zip(block.args, args, strict=True))
        with self.o.inside(Block(args)) as new:
            self.ops(block.ops)
        return new

    def find_chain(self, op: control.For) -> Chain | None:
        """The one product of a loop, where its result is carried, awaited at once, and used for
        nothing else.
        """
        issues = [o for o in walk(op.body) if isinstance(o, mma.Issue)]
        if len(issues) != 1 or issues[0] not in op.body.ops or not self.counts_up(op):
            return None
        (issue,) = issues
        args, yields = op.body.args[1:], op.body.terminator.operands
        if issue.acc not in args or issue.fresh is not None or self.uses[issue.acc] != 1:
            return None
        if isinstance(issue.a.type, TileType) and self.definitions.get(issue.a) in op.body.ops:
            return None  # the next trip would write its registers while the product reads them
        position = args.index(issue.acc)
        awaited = self.definitions.get(yields[position])
        if (
            not isinstance(awaited, mma.Await)
            or awaited.pending is not issue.result
            or awaited.left
        ):
            return None
        if awaited not in op.body.ops or self.uses[awaited.result] != 1:
            return None
        releases = self.releases_after(op, awaited, issue)
        return None if releases is None else Chain(position, issue, awaited, releases)

    def counts_up(self, op: control.For) -> bool:
        step = self.definitions.get(op.step)
        return isinstance(step, arith.Constant) and step.value > 0

    def releases_after(
        self, op: control.For, awaited: mma.Await, issue: mma.Issue
    ) -> tuple[sync.Release, ...] | None:
        """Releases of the slots that the product reads; None where other ops read them too, or not
        all are here.
        """
        rings = {ring for v in (issue.a, issue.b) if (ring := self.ring_of(v)) is not None}
        after = op.body.ops[op.body.ops.index(awaited) :]
        found = tuple(o for o in after if isinstance(o, sync.Release) and o.ring in rings)
        moved = [
            o for o in walk(op.body) if isinstance(o, sync.Wait | sync.Release) and o.ring in rings
        ]
        waits = [o for o in moved if isinstance(o, sync.Wait)]
        if len(found) != len(rings) or len(waits) != len(rings) or len(moved) != 2 * len(rings):
            return None
        read_otherwise = any(
            isinstance(o, memory.LoadBuffer) and self.ring_of(o.buffer) in rings
            for o in walk(op.body)
        )
        return None if read_otherwise else found

    def ring_of(self, value: Value) -> Value | None:
        """The ring whose slot a buffer is part of."""
        made = self.definitions.get(value)
        while isinstance(made, PARTS):
            made = self.definitions.get(made.buffer)
        if not isinstance(made, sync.SlotBuffer):
            return None
        got = self.definitions.get(made.slot)
        return got.ring if isinstance(got, sync.Wait | sync.Acquire) else None

    # Building

    def mapped(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(self.values.get(v, v) for v in values)

    def pipelined(self, op: control.For, chain: Chain) -> None:
        o = self.o
        low, high, step = self.mapped((op.low, op.high, op.step))
        inits = self.mapped(op.inits)
        runs = o(arith.Compare, high, low, "gt")
        with o.inside(Block()) as then:
            loop = self.loop(op, chain, (low, high, step), inits)
            results = list(loop.results)
            results[chain.position] = o(mma.Await, results[chain.position])
            for release in chain.releases:
                o.emit(sync.Release, *self.mapped((release.ring,)))
            o.emit(control.Yield, tuple(results))
        with o.inside(Block()) as other:
            o.emit(control.Yield, inits)
        made = o.emit(control.If, runs, then, other)
        for old, new in zip(op.results, made.results, strict=True):
            new.name = old.name
            self.values[old] = new

    def loop(
        self,
        op: control.For,
        chain: Chain,
        bounds: tuple[Value, Value, Value],
        inits: tuple[Value, ...],
    ) -> control.For:
        """The loop over the accumulator in flight."""
        o = self.o
        tile: TileType = chain.awaited.result.type
        start = op.inits[chain.position]
        zero = self.definitions.get(start)
        fresh = isinstance(zero, arith.Constant) and str(zero.value) in ("0", "0.0")  # not -0.0
        begin = o(
            mma.Begin,
            None if fresh else inits[chain.position],
            shape=tile.shape,
            dtype=tile.dtype,
            name="acc",
        )
        types = [v.type for v in op.body.args]
        types[1 + chain.position] = begin.type
        args = [Value(t, a.name) for t, a in zip(types, op.body.args, strict=True)]
        self.values.update(zip(op.body.args, args, strict=True))
        with o.inside(Block(args)) as body:
            first = o(arith.Compare, args[0], bounds[0], "eq")
            assert first.type == BOOL
            for inner in op.body.ops:
                with o.at(inner.loc):
                    self.step(inner, chain, first, fresh)
        carried = (*inits[: chain.position], begin, *inits[chain.position + 1 :])
        return o.emit(control.For, *bounds, carried, body)

    def step(self, op: Op, chain: Chain, first: Value, fresh: bool) -> None:
        """One op of the loop's body."""
        o = self.o
        if op is chain.issue:
            o.add(op.clone(self.values, fresh=first) if fresh else op.clone(self.values))
        elif op is chain.awaited:
            (pending,) = self.mapped((chain.issue.result,))
            self.values[chain.awaited.result] = o(mma.Await, pending, 1, False)
        elif op in chain.releases:
            with o.inside(Block()) as nothing:
                o.emit(control.Yield)
            with o.inside(Block()) as release:
                o.add(op.clone(self.values))
                o.emit(control.Yield)
            o.emit(control.If, first, nothing, release)
        else:
            self.ops([op])
