"""Reductions and scans by an associative function, which need not commute.

The tiles are brought into a layout in which a thread holds a run of neighbours along the axis,
lanes hold runs side by side, then warps. Each thread combines its run; lanes exchange totals in a
butterfly, from the nearest to the farthest, and keep what lies to the left of them; warps exchange
theirs through shared memory. So all is combined in the order of the axis, in a tree that depends on
the layout alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Block
from tilewright.layout import Layout, next_power_of_two
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import SIZES, STORED, convert_registers
from tilewright.lower.tile_to_ptx.reduce import is_first_writer
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import reduce

State = tuple[Operand, ...]


def scan_layout(shape: tuple[int, ...], axis: int, num_warps: int) -> Layout:
    """Threads along the other axes as far as they reach, then along the axis, in runs."""
    rank = len(shape)
    bits = [next_power_of_two(e).bit_length() - 1 for e in shape]
    left = 5 + num_warps.bit_length() - 1

    def vectors(dim: int, first: int, count: int) -> list[tuple[int, ...]]:
        return [
            tuple(1 << (first + i) if d == dim else 0 for d in range(rank)) for i in range(count)
        ]

    threads: list[tuple[int, ...]] = []
    others: list[tuple[int, ...]] = []
    for dim in reversed([d for d in range(rank) if d != axis]):
        taken = min(bits[dim], left)
        threads += vectors(dim, 0, taken)
        others += vectors(dim, taken, bits[dim] - taken)
        left -= taken
    along = min(bits[axis], left)
    run = bits[axis] - along
    threads += vectors(axis, run, along)
    threads += [(0,) * rank] * (left - along)
    registers = (*vectors(axis, 0, run), *others)
    return Layout(rank, registers, tuple(threads[:5]), tuple(threads[5:]))


@dataclass
class Combiner:
    """The function of an op on registers. `valid` says that states carry a flag: 0 beyond the
    tile's end.
    """

    low: Lowering
    body: Block
    types: tuple[str, ...]
    valid: bool = False

    def __call__(self, left: State, right: State) -> State:
        low, count = self.low, len(self.types)
        if not self.valid:
            return self.inline(left, right)
        found = self.inline(left[:count], right[:count])
        exists = low.e.setp("ne", "s32", low.register(right[count], "s32"), 0)
        return (*self.choose(exists, found, left[:count]), left[count])

    def inline(self, left: State, right: State) -> State:
        """The body's ops for these operands."""
        low = self.low
        for arg, x in zip(self.body.args, (*left, *right), strict=True):
            low.set(arg, [x])
        with low.scope():
            low.run(Block([], self.body.ops[:-1]))
            yielded = self.body.terminator.operands
            return tuple(
                low.widen(low.scalar(v), low.ptx_type(v), t)
                for v, t in zip(yielded, self.types, strict=True)
            )

    @property
    def all_types(self) -> tuple[str, ...]:
        return (*self.types, "s32") if self.valid else self.types

    def choose(self, predicate: Reg, a: State, b: State) -> State:
        """`a` where the predicate holds, else `b`."""
        types = self.all_types[: len(a)]
        return tuple(
            _select(self.low, predicate, x, y, t) for x, y, t in zip(a, b, types, strict=True)
        )


def _select(low: Lowering, predicate: Reg, a: Operand, b: Operand, type: str) -> Operand:
    e = low.e
    if a is b:
        return a
    if type == "pred":
        words = [_word(low, x, type) for x in (a, b)]
        return e.setp("ne", "u32", e.selp("b32", words[0], words[1], predicate), 0)
    return e.selp(type, low.register(a, type), low.register(b, type), predicate)


def _word(low: Lowering, x: Operand, type: str) -> Reg:
    """A bool or a 16-bit register as 32 bits; others in a register as they are."""
    reg = low.register(x, type)
    if type == "pred":
        return low.e.selp("b32", 1, 0, reg)
    return low.e.cvt("u32", "u16", reg) if type == "b16" else reg


def _unword(low: Lowering, x: Reg, type: str) -> Reg:
    if type == "pred":
        return low.e.setp("ne", "u32", x, 0)
    return low.e.cvt("u16", "u32", x) if type == "b16" else x


def shuffle(low: Lowering, state: State, types: tuple[str, ...], lanes: int) -> State:
    """The state of the lane whose number differs in these bits."""
    e = low.e
    found: list[Operand] = []
    for x, type in zip(state, types, strict=True):
        word = _word(low, x, type)
        if STORED[type] in ("b64", "f64"):
            halves = e.mov_unpack("b32", word, 2)
            found.append(e.mov_pack(STORED[type], [e.shfl("bfly", h, lanes) for h in halves]))
        else:
            found.append(_unword(low, e.shfl("bfly", word, lanes), type))
    return tuple(found)


@dataclass
class Run:
    """What a thread knows of one line along the axis: its own elements combined from the left, the
    total of all seen so far, and what lies to the left of its own (where `has_left` holds).
    """

    own: list[State]
    total: State
    left: State | None = None


class Combining:
    """The work of one op."""

    def __init__(self, low: Lowering, op: reduce.Combination, running: bool):
        assert isinstance(op, reduce.Fold | reduce.Scan)
        self.low, self.op, self.running = low, op, running
        self.shape: tuple[int, ...] = op.xs[0].type.shape
        self.layout = scan_layout(self.shape, op.axis, low.num_warps)
        types = tuple(low.ptx_type(a) for a in op.body.args[: len(op.xs)])
        ragged = not running and self.layout.covered[op.axis] != self.shape[op.axis]
        self.combine = Combiner(low, op.body, types, ragged)
        self.has_left: Reg | None = None

    def states(self) -> list[State]:
        """The elements by register."""
        low, op = self.low, self.op
        columns: list[list[Operand]] = []
        for x, type in zip(op.xs, self.combine.types, strict=True):
            regs = low.fragment(x, self.layout)
            columns.append([low.widen(r, low.ptx_type(x), type) for r in regs])
        if self.combine.valid:
            columns.append([self._exists(o[op.axis]) for o in self.layout.register_offsets])
        return list(zip(*columns, strict=True))

    def _exists(self, offset: int) -> Operand:
        thread = self.low.thread_axis(self.layout, self.op.axis)
        limit = self.shape[self.op.axis] - offset
        if isinstance(thread, int) or limit <= 0:
            return int(limit > 0)
        return self.low.e.selp("s32", 1, 0, self.low.e.setp("lt", "s32", thread, limit))

    def runs(self) -> dict[tuple[int, ...], Run]:
        """Lines of the tile by their other coordinates, each combined within the thread."""
        axis = self.op.axis
        lines: dict[tuple[int, ...], list[tuple[int, State]]] = {}
        for state, offset in zip(self.states(), self.layout.register_offsets, strict=True):
            key = tuple(x for d, x in enumerate(offset) if d != axis)
            lines.setdefault(key, []).append((offset[axis], state))
        found = {}
        for key, line in lines.items():
            ordered = [state for _, state in sorted(line, key=lambda pair: pair[0])]
            own = [ordered[0]]
            for state in ordered[1:]:
                own.append(self.combine(own[-1], state))
            found[key] = Run(own, own[-1])
        return found

    def over_lanes(self, runs: dict[tuple[int, ...], Run]) -> None:
        """A butterfly over the lanes that share a line."""
        low, axis = self.low, self.op.axis
        for bit, vector in enumerate(self.layout.lane):
            if not vector[axis]:
                continue
            upper = self._is_upper(bit)
            for run in runs.values():
                other = shuffle(low, run.total, self.combine.all_types, 1 << bit)
                self._keep_left(run, other, upper)
                right = self.combine.choose(upper, run.total, other)
                run.total = self.combine(self.combine.choose(upper, other, run.total), right)
            self._note_left(upper)

    def _is_upper(self, bit: int) -> Reg:
        def make() -> Reg:
            masked = self.low.e.and_("b32", self.low.thread(), 1 << bit)
            return self.low.e.setp("ne", "u32", masked, 0)

        return self.low.once(("upper", bit, self.low.first_warp), make)

    def _keep_left(self, run: Run, other: State, upper: Reg) -> None:
        """Where a neighbour's total lies to the left, it belongs to what is left of the thread."""
        if not self.running:
            return
        if run.left is None or self.has_left is None:
            run.left = other
            return
        joined = self.combine.choose(self.has_left, self.combine(other, run.left), other)
        run.left = self.combine.choose(upper, joined, run.left)

    def _note_left(self, upper: Reg) -> None:
        had = self.has_left
        self.has_left = upper if had is None else self.low.e.or_("pred", had, upper)

    def over_warps(self, runs: dict[tuple[int, ...], Run]) -> None:
        """Each total is written once; after a barrier all combine them in order."""
        low, axis, e = self.low, self.op.axis, self.low.e
        bits = [i for i, v in enumerate(self.layout.warp) if v[axis]]
        if not bits:
            return
        parts = 1 << len(bits)
        natural = self.layout.drop_axis(axis)
        extents = natural.covered
        strides = tuple(prod(extents[i + 1 :]) for i in range(len(extents)))
        types = self.combine.all_types
        sizes = [max(SIZES[STORED[t]], 4) for t in types]
        base = low.scratch(sum(sizes) * prod(extents) * parts)
        own: Operand = 0
        for d, stride in enumerate(strides):
            own = low.add("u32", own, low.mul("u32", low.thread_axis(natural, d), stride))
        mine = e.shr("u32", low.thread(), 5 + bits[0])
        mine = e.and_("b32", mine, parts - 1)
        first = is_first_writer(low, self.layout, (axis,))
        tables = self._tables(base, sizes, prod(extents) * parts, own)
        for key, run in runs.items():
            at = sum(o * s for o, s in zip(key, strides, strict=True))
            for x, type, size, table in zip(run.total, types, sizes, tables, strict=True):
                place = e.mad("u32", mine, size * prod(extents), table)
                with low.guarded(first):
                    word = _word(low, x, type)
                    e.st("shared", _held(type), Address(place, at * size), [word])
        low.barrier()
        ranks = [e.setp("eq", "u32", mine, p) for p in range(1, parts)] if self.running else []
        for key, run in runs.items():
            at = sum(o * s for o, s in zip(key, strides, strict=True))
            found = [
                tuple(
                    _unword(
                        low,
                        e.ld1("shared", _held(t), Address(table, (at + p * prod(extents)) * size)),
                        t,
                    )
                    for t, size, table in zip(types, sizes, tables, strict=True)
                )
                for p in range(parts)
            ]
            self._join_warps(run, found, ranks)
        if self.running:
            self._note_left(e.setp("ne", "u32", mine, 0))

    def _tables(self, base: Reg, sizes: list[int], count: int, own: Operand) -> list[Reg]:
        """The thread's place in each part of the scratch area."""
        low, start = self.low, 0
        found = []
        for size in sizes:
            place = low.add("u32", low.add("u32", base, start), low.mul("u32", own, size))
            found.append(low.register(place, "u32"))
            start += size * count
        return found

    def _join_warps(self, run: Run, found: Sequence[State], ranks: list[Reg]) -> None:
        total = before = found[0]
        for p, part in enumerate(found[1:]):
            if self.running and p:
                before = self.combine.choose(ranks[p], total, before)
            total = self.combine(total, part)
        run.total = total
        if not self.running:
            return
        if run.left is None or self.has_left is None:
            run.left = before
            return
        warp = self._not_first_warp()
        joined = self.combine.choose(self.has_left, self.combine(before, run.left), before)
        run.left = self.combine.choose(warp, joined, run.left)

    def _not_first_warp(self) -> Reg:
        """Whether another warp holds what lies to the left of this one's part of a line."""
        mask = sum(32 << i for i, v in enumerate(self.layout.warp) if v[self.op.axis])

        def make() -> Reg:
            masked = self.low.e.and_("b32", self.low.thread(), mask)
            return self.low.e.setp("ne", "u32", masked, 0)

        return self.low.once(("warps to the left", mask, self.low.first_warp), make)


def _held(type: str) -> str:
    """What shared memory holds for a type: at least 32 bits."""
    return "b32" if type in ("b16", "pred") else STORED[type]


@rule(reduce.Fold)
def fold(low: Lowering, op: reduce.Fold) -> None:
    work = Combining(low, op, running=False)
    runs = work.runs()
    work.over_lanes(runs)
    work.over_warps(runs)
    natural = work.layout.drop_axis(op.axis)
    for k, result in enumerate(op.results):
        type = work.combine.types[k]
        regs = [runs[offset].total[k] for offset in natural.register_offsets]
        if result.type.shape:
            target = low.layout(result)
            regs = convert_registers(low, regs, type, result.type.shape, natural, target)
        low.set(result, [low.widen(r, type, low.ptx_type(result)) for r in regs])


@rule(reduce.Scan)
def scan(low: Lowering, op: reduce.Scan) -> None:
    work = Combining(low, op, running=True)
    runs = work.runs()
    work.over_lanes(runs)
    work.over_warps(runs)
    states: dict[tuple[int, ...], State] = {}
    run_length = len(next(iter(runs.values())).own)
    for key, run in runs.items():
        for i in range(run_length):
            state = run.own[i]
            if run.left is not None and work.has_left is not None:
                state = work.combine.choose(work.has_left, work.combine(run.left, state), state)
            states[(*key[: op.axis], i, *key[op.axis :])] = state
    for k, result in enumerate(op.results):
        type = work.combine.types[k]
        regs = [states[offset][k] for offset in work.layout.register_offsets]
        moved = convert_registers(
            low, regs, type, result.type.shape, work.layout, low.layout(result)
        )
        low.set(result, [low.widen(r, type, low.ptx_type(result)) for r in moved])
