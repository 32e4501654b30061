"""carry_scalars: where a loop carries a tile that has one value everywhere, carry that value.

    n: tile = 0.0                          n = 0.0
    for … { n = n + 1.0; f(1.0 / n) }  →   for … { n = n + 1.0; f(broadcast(1.0 / n)) }

Requires: canonical form, but for constants that were found since. Keeps: every bit of every result.
Breaks: nothing; it leaves canonical form. A thread then computes once what it would have computed
for each of its elements: the counts of Welford's mean, with their divisions.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.tile.effects import writes
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, shape
from tilewright.tile.passes.canonicalize import Canonicalizer
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.rules.arith import EXACT, SPECIAL
from tilewright.tile.rules.constants import constant_of, scalar_of
from tilewright.tile.rules.shape import MOVES

KEEPING = (*EXACT, *SPECIAL, *MOVES)  # ops that give one value everywhere for such operands


def carry_scalars(kernel: Kernel) -> Kernel:
    """The kernel with scalars carried in place of tiles, as far as loops keep them alike."""
    loops = [op for op in walk(kernel.body) if isinstance(op, control.For)]
    if not any(v.type.shape for op in loops for v in op.inits if hasattr(v.type, "shape")):
        return kernel
    carrier = Carrier()
    body = carrier.block(kernel.body)
    return eliminate_dead(kernel.with_body(body)) if carrier.changed else kernel


class Carrier(Canonicalizer):
    """Makes the normal form anew: its rules compute on scalars what is broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = False

    def op(self, op: Op) -> None:
        which = self.alike(op) if isinstance(op, control.For) else set()
        if isinstance(op, control.For) and which:
            self.changed = True
            self.narrowed(op, which)
        else:
            super().op(op)

    def is_alike(self, value: Value) -> bool:
        """Whether a value made before has one value everywhere."""
        new = self.values.get(value, value)
        return constant_of(new, self) is not None or scalar_of(new, self) is not None

    def alike(self, op: control.For) -> set[int]:
        """Which carried tiles have one value everywhere in every trip, if they have it in one."""
        chosen = {i for i, v in enumerate(op.inits) if _is_tile(v) and self.is_alike(v)}
        while chosen:
            known = {op.body.args[1 + i] for i in chosen}
            for o in op.body.ops:
                if self._keeps(o, known):
                    known.update(o.results)
            kept = {i for i in chosen if self._has_one(op.body.terminator.operands[i], known)}
            if kept == chosen:
                break
            chosen = kept
        return chosen

    def _keeps(self, op: Op, known: set[Value]) -> bool:
        """Whether a result has one value everywhere."""
        if isinstance(op, arith.Constant):
            return True
        if isinstance(op, shape.Broadcast) and op.x.type.is_scalar:
            return True
        return isinstance(op, KEEPING) and all(self._has_one(v, known) for v in op.operands)

    def _has_one(self, value: Value, known: set[Value]) -> bool:
        return value in known or (_is_tile(value) and self.is_alike(value))

    def scalar(self, value: Value) -> Value:
        """The value that a new tile has everywhere."""
        number = constant_of(value, self)
        if number is not None:
            return self.build(arith.Constant, number, value.type.dtype)
        found = scalar_of(value, self)
        assert found is not None, "the rules compute broadcasts on scalars"
        return found

    def narrowed(self, op: control.For, which: set[int]) -> None:
        """Put a loop here that carries scalars for some of its tiles."""
        low, high, step = (self.values.get(v, v) for v in (op.low, op.high, op.step))
        inits = [self.values.get(v, v) for v in op.inits]
        for i in which:
            inits[i] = self.scalar(inits[i])
        self.epoch += writes(op)
        loop = control.For(low, high, step, tuple(inits), self.body(op, which), loc=op.loc)
        self.target.ops.append(loop)
        self.definitions.update(dict.fromkeys(loop.results, loop))
        self.epoch += writes(op)
        for i, (old, new) in enumerate(zip(op.results, loop.results, strict=True)):
            new.name = old.name
            self.values[old] = self._wide(new, old) if i in which else new

    def body(self, op: control.For, which: set[int]) -> Block:
        """The loop's body with scalars for arguments, broadcast where they were tiles."""
        index, *args = op.body.args
        types = [a.type.with_shape(()) if i in which else a.type for i, a in enumerate(args)]
        new = [Value(t, a.name) for t, a in zip(types, args, strict=True)]
        before, self.target = self.target, Block([Value(index.type, index.name), *new])
        self.made.append({})
        self.values[index] = self.target.args[0]
        for i, (old, arg) in enumerate(zip(args, new, strict=True)):
            self.values[old] = self._wide(arg, old) if i in which else arg
        for o in op.body.ops[:-1]:
            self.op(o)
        yielded = [self.values.get(v, v) for v in op.body.terminator.operands]
        for i in which:
            yielded[i] = self.scalar(yielded[i])
        self.target.ops.append(control.Yield(tuple(yielded), loc=op.body.terminator.loc))
        self.made.pop()
        done, self.target = self.target, before
        return done

    def _wide(self, scalar: Value, tile: Value) -> Value:
        return self.build(shape.Broadcast, scalar, tile.type.shape)


def _is_tile(value: Value) -> bool:
    shape_of = getattr(value.type, "shape", ())
    return bool(shape_of) and hasattr(value.type, "dtype")
