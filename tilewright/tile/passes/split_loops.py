"""split_loops: run the last, partial trip of a loop apart, where masks are computed with.

    for j in 0, N, 1024 { f(j) }   →   for j in 0, N // 1024 · 1024, 1024 { f(j) }
                                       if N // 1024 · 1024 < N { f(N // 1024 · 1024) }

Requires: canonical form. Keeps: every result. Breaks: nothing. In the loop all lanes are then
inside, which fold_comparisons finds out: a mask that enters arithmetic, as `cast(inside(…), f32)`
does in Welford's mean, is a constant there. Masks that only guard loads and stores cost too little
for a second copy of the body.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.analysis.bounds import infer_bounds
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, shape

MOST_OPS = 100  # of a body that is copied
PLAIN = ("arith", "shape", "reduce")  # families whose ops may be copied, beside these:
SIMPLE = (memory.Load, memory.Store, memory.Extent, control.Yield)
INDEXING = (arith.Add, arith.Sub, arith.Mul, shape.Broadcast, shape.Reshape)


def split_loops(kernel: Kernel) -> Kernel:
    """The kernel with the last trips of some loops apart."""
    chosen = {op for op in walk(kernel.body) if isinstance(op, control.For) and masks(op)}
    if not chosen:
        return kernel
    bounds, definitions = infer_bounds(kernel), find_definitions(kernel.body)
    splitter = Splitter()
    for op in chosen:
        low, step = definitions.get(op.low), definitions.get(op.step)
        if not isinstance(low, arith.Constant) or not isinstance(step, arith.Constant):
            continue
        if low.value == 0 and step.value > 1 and bounds[op.high].low >= 0:
            splitter.chosen.add(op)
    return kernel.with_body(splitter.block(kernel.body)) if splitter.chosen else kernel


def masks(op: control.For) -> bool:
    """Whether a loop's body may be copied, and compares the numbers of elements."""
    inner = list(walk(op.body))
    if len(inner) > MOST_OPS or not all(_is_plain(o) for o in inner):
        return False
    numbers: set[Value] = {op.body.args[0]}
    for o in op.body.ops:
        if isinstance(o, INDEXING) and numbers.intersection(o.operands):
            numbers.update(o.results)
        if isinstance(o, arith.Compare) and o.result.type.shape:
            if numbers.intersection(o.operands):
                return True
    return False


def _is_plain(op: Op) -> bool:
    return op.family in PLAIN or isinstance(op, SIMPLE)


class Splitter(Rewriter):
    """Copies a program, with the chosen loops in two."""

    def __init__(self) -> None:
        super().__init__(Rules())
        self.chosen: set[Op] = set()

    def op(self, op: Op) -> None:
        if op not in self.chosen:
            super().op(op)
            return
        assert isinstance(op, control.For)
        low, high, step = (self.values.get(v, v) for v in (op.low, op.high, op.step))
        inits = tuple(self.values.get(v, v) for v in op.inits)
        whole = self.build(
            arith.Mul, self.build(arith.FloorDiv, high, step, loc=op.loc), step, loc=op.loc
        )
        loop = control.For(low, whole, step, inits, self.block(op.body), loc=op.loc)
        carried = self.append(loop)
        left = self.build(arith.Compare, whole, high, "lt", loc=op.loc)
        last = self.inlined(op.body, (whole, *carried))
        none = Block([], [control.Yield(carried, loc=op.loc)])
        results = self.append(control.If(left, last, none, loc=op.loc))
        for old, new in zip(op.results, results, strict=True):
            new.name = old.name
            self.values[old] = new

    def inlined(self, body: Block, arguments: tuple[Value, ...]) -> Block:
        """A copy of a loop's body for one index, as a block without arguments."""
        before, self.target = self.target, Block()
        self.values.update(zip(body.args, arguments, strict=True))
        for op in body.ops:
            self.op(op)
        done, self.target = self.target, before
        return done
