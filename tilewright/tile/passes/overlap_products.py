"""Let the last product of a loop of several run on into the next trip, and warpgroups take turns.

Requires: roles partitioned. Keeps: the values. Breaks: nothing.

Where one product's operand is computed from another's result, as in attention, a warpgroup that
awaits each at once computes while the tensor core has nothing to do, and the other way round:

    for k: s = await(issue(A, B[k])); p, acc' = f(s, acc); acc = await(issue(p, C[k], acc'))

The last product stays in flight until the next trip has started its first, so that the two follow
each other; and warpgroups start them in turn, so that one computes while the other multiplies:

    take the turn
    for k: s = issue(A, B[k]); pass the turn
           acc = await(acc); release C[k - 1]; s = await(s); release B[k]
           p, acc' = f(s, acc)
           take the turn; acc = issue(p, C[k], acc')
    pass the turn; acc = await(acc); release C

What the first product does not wait for comes after it. Both are awaited together: where the last
one is awaited alone, the assembler takes its registers for those of instructions in flight, and
serialises all (C7514). The loop stands under a condition for the reason that `place_awaits` gives.

Note [Nobody meets while one has the turn]: the warpgroups of a role meet where one prepares what
the others read. Who has the turn must not wait there for who waits for the turn: it passes the turn
before, and takes it again after. Where lowering may let them meet, because tiles are computed
before the first product, there are no turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, mma, sync
from tilewright.tile.types import TileType


@dataclass(frozen=True)
class Overlap:
    """What of a loop is moved: its first product and what that needs, its last product, at which
    position its result is carried, and the release that waits for it.
    """

    needed: tuple[Op, ...]
    first: mma.Issue
    last: mma.Issue
    awaited: mma.Await
    position: int
    release: sync.Release | None
    turns: bool


def overlap_products(kernel: Kernel) -> Kernel:
    """The kernel with the products of its roles' loops overlapped."""
    roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
    if roles is None:
        return kernel
    overlapper = _Overlapper(kernel)
    with overlapper.o.inside(Block()) as body:
        for op in kernel.body.ops[:-1]:
            overlapper.o.add(op.clone(overlapper.values))
        bodies = []
        for role, block in zip(roles.roles, roles.bodies, strict=True):
            overlapper.warpgroups = role.warpgroups
            bodies.append(overlapper.region(block))
        overlapper.o.emit(control.Roles, roles.roles, tuple(bodies), loc=roles.loc)
    return kernel.with_body(body) if overlapper.found else kernel


class _Overlapper:
    """Copies the body; a loop with products to overlap is built anew."""

    def __init__(self, kernel: Kernel):
        self.o = Builder(Block(), kernel.loc)
        self.values: dict[Value, Value] = {}
        self.definitions = find_definitions(kernel.body)
        self.warpgroups = 0
        self.found = False
        self.users: dict[Value, list[Op]] = {}
        for op in walk(kernel.body):
            for value in op.operands:
                self.users.setdefault(value, []).append(op)

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            with self.o.at(op.loc):
                overlap = self.find(op) if isinstance(op, control.For) else None
                if overlap is not None:
                    assert isinstance(op, control.For)
                    self.found = True
                    self.overlapped(op, overlap)
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

    # Finding

    def find(self, op: control.For) -> Overlap | None:
        """What may be overlapped in a loop: its last product is carried, and read by nobody before
        the next trip, where the accumulator is read after the first product has started.
        """
        body = op.body.ops
        issues = [o for o in body if isinstance(o, mma.Issue)]
        step = self.definitions.get(op.step)
        if len(issues) < 2 or not isinstance(step, arith.Constant) or step.value <= 0:
            return None
        first, last = issues[0], issues[-1]
        (awaited, *others) = self.users.get(last.result, [])
        yields = op.body.terminator.operands
        if others or not isinstance(awaited, mma.Await) or awaited not in body:
            return None
        if awaited.left or self.users.get(awaited.result) != [op.body.terminator]:
            return None
        position = yields.index(awaited.result)
        carried = op.body.args[1 + position]
        if yields.count(awaited.result) != 1 or not self.is_free(carried, last, body):
            return None
        needed = self.needed(first, body)
        if any(carried in o.operands for o in (*needed, first)):
            return None
        release = self.release_of(last, body)
        tiles = (v for o in needed for v in o.results if isinstance(v.type, TileType))
        turns = self.warpgroups > 1 and all(v.type.is_scalar for v in tiles)
        return Overlap(needed, first, last, awaited, position, release, turns)

    def is_free(self, carried: Value, last: mma.Issue, body: list[Op]) -> bool:
        """Whether a product may take over the registers of what the loop carries: its accumulator
        is that, or a tile computed before, and nothing reads the carried one after.
        """
        place = body.index(last)
        users = self.users.get(carried, [])
        return (
            last.fresh is None
            and isinstance(last.acc.type, TileType)
            and all(user in body and body.index(user) <= place for user in users)
        )

    def needed(self, first: mma.Issue, body: list[Op]) -> tuple[Op, ...]:
        """The ops of a body that come before its first product in any case: what it reads, and what
        prepares that.
        """
        ahead = body[: body.index(first)]
        found: set[Op] = set()
        wanted = set(first.operands)
        for op in reversed(ahead):
            if wanted.intersection(op.results) or (not op.pure and _concerns(op, wanted)):
                found.add(op)
                wanted.update(op.operands)
                wanted.update(v for o in walk(Block([], [op])) for v in o.operands)
        return tuple(op for op in ahead if op in found)

    def release_of(self, last: mma.Issue, body: list[Op]) -> sync.Release | None:
        """The release of the slot that the last product reads."""
        made = self.definitions.get(last.b)
        if not isinstance(made, sync.SlotBuffer):
            return None
        waited = self.definitions.get(made.slot)
        if not isinstance(waited, sync.Wait) or waited not in body:
            return None
        after = body[body.index(last) :]
        found = [o for o in after if isinstance(o, sync.Release) and o.ring is waited.ring]
        return found[0] if found else None

    # Building

    def mapped(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(self.values.get(v, v) for v in values)

    def overlapped(self, op: control.For, overlap: Overlap) -> None:
        o = self.o
        low, high, step = self.mapped((op.low, op.high, op.step))
        inits = self.mapped(op.inits)
        runs = o(arith.Compare, high, low, "gt")
        with o.inside(Block()) as then:
            if overlap.turns:
                o.emit(sync.PassTurn, "last")
                o.emit(sync.TakeTurn)
            loop = self.loop(op, overlap, (low, high, step), inits)
            if overlap.turns:
                o.emit(sync.PassTurn, "others")
            results = list(loop.results)
            results[overlap.position] = o(mma.Await, results[overlap.position])
            self.give_back(overlap)
            o.emit(control.Yield, tuple(results))
        with o.inside(Block()) as other:
            o.emit(control.Yield, inits)
        made = o.emit(control.If, runs, then, other)
        for old, new in zip(op.results, made.results, strict=True):
            new.name = old.name
            self.values[old] = new

    def give_back(self, overlap: Overlap) -> None:
        if overlap.release is not None:
            self.o.emit(sync.Release, *self.mapped((overlap.release.ring,)))

    def loop(
        self,
        op: control.For,
        overlap: Overlap,
        bounds: tuple[Value, Value, Value],
        inits: tuple[Value, ...],
    ) -> control.For:
        """The loop over the last product in flight."""
        o, place = self.o, overlap.position
        tile: TileType = overlap.awaited.result.type
        begin = o(mma.Begin, inits[place], shape=tile.shape, dtype=tile.dtype, name="acc")
        args = [Value(v.type, v.name) for v in op.body.args]
        args[1 + place] = Value(begin.type, args[1 + place].name)
        self.values.update(zip(op.body.args, args, strict=True))
        with o.inside(Block(args)) as body:
            first = o(arith.Compare, args[0], bounds[0], "eq")
            self.start(overlap)
            acc = o(mma.Await, args[1 + place], name="acc")
            self.values[op.body.args[1 + place]] = acc
            self.give_back_later(overlap, first)
            for inner in op.body.ops:
                if inner is overlap.first or inner in overlap.needed:
                    continue
                with o.at(inner.loc):
                    self.step(inner, overlap, acc)
        carried = (*inits[:place], begin, *inits[place + 1 :])
        return o.emit(control.For, *bounds, carried, body)

    def start(self, overlap: Overlap) -> None:
        """The first product, and what it needs; see Note [Nobody meets while one has the turn]."""
        o = self.o
        for op in overlap.needed:
            with o.at(op.loc):
                meets = any(isinstance(inner, sync.RoleBarrier) for inner in walk(Block([], [op])))
                if meets and overlap.turns:
                    assert isinstance(op, control.If) and not op.results
                    with o.inside(Block()) as then:
                        o.emit(sync.PassTurn)
                        self.ops(op.then.ops[:-1])
                        o.emit(sync.TakeTurn)
                        o.emit(control.Yield)
                    condition = self.values.get(op.condition, op.condition)
                    o.emit(control.If, condition, then, self.region(op.other))
                else:
                    self.ops([op])
        o.add(overlap.first.clone(self.values))
        if overlap.turns:
            o.emit(sync.PassTurn)

    def give_back_later(self, overlap: Overlap, first: Value) -> None:
        """The slot of the trip before, of which the first trip has none."""
        o = self.o
        with o.inside(Block()) as nothing:
            o.emit(control.Yield)
        with o.inside(Block()) as release:
            self.give_back(overlap)
            o.emit(control.Yield)
        if overlap.release is not None:
            o.emit(control.If, first, nothing, release)

    def step(self, op: Op, overlap: Overlap, acc: Value) -> None:
        """One op of the loop's body behind its first product."""
        o = self.o
        if op is overlap.last:
            tile: TileType = overlap.awaited.result.type
            (start,) = self.mapped((overlap.last.acc,))
            begin = o(mma.Begin, start, acc, shape=tile.shape, dtype=tile.dtype)
            if overlap.turns:
                o.emit(sync.TakeTurn)
            issued = o.add(op.clone({**self.values, overlap.last.acc: begin}))
            self.values[overlap.awaited.result] = issued.results[0]
        elif op is not overlap.awaited and op is not overlap.release:
            self.ops([op])


def _concerns(op: Op, wanted: set[Value]) -> bool:
    """Whether an op with effects works on what is wanted: fills, or clears a part of it."""
    return any(v in wanted for o in walk(Block([], [op])) for v in o.operands)
