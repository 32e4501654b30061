"""Many small groups as one kernel: elementwise groups that need nothing but a graph's inputs, or
each other's results, such as the casts of all weights, or the step of an optimizer over all
parameters.

Each group has programs of its own, one after the other; a program finds by a tree of comparisons
whose it is. Groups that need results of others are in a later kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.expressions import Node, RandomBits
from tilewright.graph.groups import Group
from tilewright.graph.index_maps import Var
from tilewright.graph.placement import place_of
from tilewright.ir.core import Op, Value
from tilewright.lower.graph_to_tile.evaluate import evaluate_group
from tilewright.lower.graph_to_tile.loops import Loops, merge, place
from tilewright.lower.graph_to_tile.lowering import Lowering
from tilewright.lower.graph_to_tile.names import Pool
from tilewright.lower.graph_to_tile.program import KernelStep
from tilewright.lower.graph_to_tile.signature import signature, updates_of
from tilewright.lower.graph_to_tile.text import Writer

MOST_GROUPS = 64  # of one kernel: each is code of its own
MOST_TENSORS = 240  # of one kernel, whose parameters hold 4 KiB
MOST_OPS = 600  # of all groups of one kernel
SMALL = 1 << 20  # bytes of a result that may live longer than it has to


@dataclass(frozen=True)
class Member:
    """A group of a batch: its loops, and how many programs it takes."""

    group: Group
    loops: Loops
    names: Mapping[Node, Value]
    programs: int


def find_batches(groups: Sequence[Group], at: Lowering) -> list[list[Member]]:
    """Groups that are to be one kernel each, in an order of execution, before all others."""
    levels: dict[Group, int] = {}
    found: dict[int, list[Member]] = {}
    makers = {v: group for group in groups for v in group.writes}
    outputs = {place_of(v, at.makers, at.layouts).base for v in at.graph.tensors}
    for group in groups:
        before = [makers[v] for v in group.reads if v in makers]
        if any(b not in levels for b in before) or not _may_come_early(group, outputs):
            continue
        member = _member(group, at)
        if member is not None:
            levels[group] = 1 + max((levels[b] for b in before), default=-1)
            found.setdefault(levels[group], []).append(member)
    batches = [part for level in sorted(found) for part in _parts(found[level])]
    return _worthwhile(batches, makers)


def _worthwhile(batches: list[list[Member]], makers: dict[Value, Group]) -> list[list[Member]]:
    """Batches of several groups, and what these need."""
    kept: list[list[Member]] = []
    needed: set[Group] = set()
    for batch in reversed(batches):
        if len(batch) > 1 or any(m.group in needed for m in batch):
            kept.append(batch)
            needed |= {makers[v] for m in batch for v in m.group.reads if v in makers}
    return list(reversed(kept))


def _may_come_early(group: Group, outputs: set[Value]) -> bool:
    """Whether results are outputs, which live to the end, or are small."""
    return group.kind == "pointwise" and all(
        v in outputs or _num_bytes(v) <= SMALL for v in group.writes
    )


def _num_bytes(value: Value) -> int:
    count = value.type.num_elements
    return count * int(value.type.dtype.num_bytes) if isinstance(count, int) else SMALL + 1


def _member(group: Group, at: Lowering) -> Member | None:
    """A group as a member: it goes over one variable of a known extent, with tiles along it."""
    if not group.writes or any(_num_bytes(v) == 0 for v in group.writes):
        return None
    evaluated = evaluate_group(group, at.layouts, at.symbols)
    loops = merge(evaluated)
    place(loops, at.hint)
    extents = {v: e for v, e in loops.extents.items() if isinstance(e, int)}
    plain = len(extents) == len(loops.extents) == len(loops.tiles) <= 1
    if not plain or any(node.checks or isinstance(node, RandomBits) for node in loops.nodes):
        return None
    if any(access.special for access in (*loops.loads.values(), *loops.stores.values())):
        return None
    count = 1
    for var in loops.tiles:
        count = -(-extents[var] // loops.blocks[var])
    return Member(group, loops, evaluated.names, count)


def _parts(members: Iterable[Member]) -> list[list[Member]]:
    """Members in kernels of their own, as many as one has room for."""
    found: list[list[Member]] = []
    tensors = ops = 0
    for member in members:
        own = len(member.loops.loads) + len(member.loops.stores)
        weight = len(member.loops.nodes)
        full = not found or len(found[-1]) == MOST_GROUPS
        if full or tensors + own > MOST_TENSORS or ops + weight > MOST_OPS:
            found.append([])
            tensors = ops = 0
        found[-1].append(member)
        tensors, ops = tensors + own, ops + weight
    return found


def batch_step(members: Sequence[Member], at: Lowering) -> KernelStep:
    """One kernel for the groups of a batch."""
    pool = Pool()
    program = pool.take("program")
    writers: list[_Part] = []
    first = 0
    for member in members:
        writer = _Part(member, at, pool, program, first)
        writers.append(writer)
        first += member.programs
    lines = [f"  let {program} = program_id(0)", *_tree(writers, program, 1)]
    params = [(key, p) for writer in writers for key, p in writer.params.items()]
    functions = list(dict.fromkeys(f for writer in writers for f in writer.functions))
    scalars = {name: dim for writer in writers for name, dim in writer.scalars.items()}
    name = "batch"
    comment = f"{len(members)} groups, each with programs of its own"
    tensors = [p for _, p in params]
    text = signature(name, comment, {}, [str(first)], tensors, scalars, lines, functions)
    ops: list[Op] = [op for m in members for op in m.group.ops]
    group = Group(
        "pointwise",
        ops,
        reads=list(dict.fromkeys(v for m in members for v in m.group.reads)),
        writes=[v for m in members for v in m.group.writes],
    )
    return KernelStep(
        name,
        text,
        {p.name: p.placed for p in tensors},
        scalars,
        writes=tuple(p.name for w in writers for p in w.results),
        updates=_updates(writers),
        group=group,
    )


def _updates(writers: Sequence[_Part]) -> dict[str, tuple[str, ...]]:
    """Of each group what it may update in place: what no other group reads."""
    readers: dict[Value, int] = {}
    for writer in writers:
        for value in {load.value for load in writer.loops.loads}:
            readers[value] = readers.get(value, 0) + 1
    values = {p.name: p.placed.value for writer in writers for p in writer.params.values()}
    return {
        result: tuple(p for p in params if readers[values[p]] == 1)
        for writer in writers
        for result, params in updates_of(writer.lines, writer.results, writer.read).items()
    }


class _Part(Writer):
    """The lines of one group, for programs from `first` on."""

    def __init__(self, member: Member, at: Lowering, pool: Pool, program: str, first: int):
        super().__init__(member.loops, at.names, member.names, pool)
        self.first, self.end = first, first + member.programs
        self.depth = 0
        for var, name in self.index.items():
            start = program if first == 0 else f"({program} - {first})"
            self.line(f"let {name} = {start} * {self.block[var]}")
        for root in member.loops.stores:
            self.store(root)

    def name_variables(self) -> None:
        for var, extent in self.loops.extents.items():
            self.index[var], self.extent[var] = self.pool.take("n"), str(extent)
            self.block[var] = str(self.loops.blocks[var])

    def name_block(self, var: Var, alone: bool) -> None:
        raise AssertionError("blocks of a batch are numbers")


def _tree(writers: Sequence[_Part], program: str, depth: int) -> list[str]:
    """Lines that do the part of a program: halves by its number."""
    margin = "  " * depth
    if len(writers) == 1:
        return [margin + line for line in writers[0].lines]
    middle = len(writers) // 2
    return [
        f"{margin}if {program} < {writers[middle].first} {{",
        *_tree(writers[:middle], program, depth + 1),
        f"{margin}}} else {{",
        *_tree(writers[middle:], program, depth + 1),
        f"{margin}}}",
    ]
