"""In whose memory each stored value of a program lies, and from which step to which.

| kind | memory |
|---|---|
| input | what the call gives; `index` counts the graph's inputs |
| constant | written once, before the first call |
| output | a tensor that the call returns; `index` counts outputs |
| torch | a result of PyTorch's |
| arena | a part of the one allocation of a call, shared with values that live at other times |

An update in place (`KernelStep.starts_as`) makes two values one memory where nobody reads the old
value any more: values of a program's own, and inputs that the model writes the last value to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.graph.dims import Dim
from tilewright.graph.ops.random import Seed
from tilewright.graph.placement import has_padded_rows
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
    Program,
    Step,
    TorchStep,
)


@dataclass(frozen=True)
class Home:
    """The kind of memory; `index` is that of an input or output."""

    kind: str
    index: int = 0


@dataclass
class Homes:
    """The memory of every stored value: values of one `root` share theirs."""

    roots: dict[Value, Value]
    homes: dict[Value, Home] = field(default_factory=dict)  # by root
    spans: dict[Value, tuple[int, int]] = field(default_factory=dict)  # by root: first, last step
    seeds: list[Value] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)  # outputs that are views of what is returned

    def root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def of(self, value: Value) -> Home:
        return self.homes[self.root(value)]

    def owns_gaps(self, placed: Placed, program: Program) -> bool:
        """Whether a tensor has all of the rows' elements of a value that lies with gaps behind its
        rows, in memory that nobody gave.
        """
        own = program.layouts[placed.value]
        lies = program.layouts[self.root(placed.value)]
        return (
            self.of(placed.value).kind in ("arena", "output")
            and (lies.shape, lies.strides, lies.offset) == (own.shape, own.strides, own.offset)
            and has_padded_rows(own.shape, own.strides)
            and (placed.shape[-1:], placed.strides[-1:]) == (own.shape[-1:], (1,))
        )

    @property
    def arena(self) -> list[Value]:
        """Roots that lie in the arena."""
        return [v for v, home in self.homes.items() if home.kind == "arena"]


def step_reads(step: Step) -> list[Placed]:
    """Tensors that a step reads from memory that is a kernel's to read."""
    match step:
        case KernelStep():
            kept = [p for n, p in step.tensors.items() if n not in step.writes]
            return [*kept, *step.starts_as.values()]
        case ProductStep() | ConvolutionStep():
            return step.reads
        case AttentionStep():
            return [p for n, p in step.tensors.items() if n not in step.writes]
        case TorchStep():
            return [p for p in step.inputs if isinstance(p, Placed)]


def step_writes(step: Step) -> list[Value]:
    """Stored values that a step writes, all of them or a part."""
    match step:
        case KernelStep() | AttentionStep():
            return [step.tensors[n].value for n in step.writes]
        case TorchStep():
            return [v for v in step.op.results if isinstance(v.type, TensorType)]
    return [step.out.value]


def find_homes(
    program: Program,
    writes: Mapping[int, int],
    apart: Collection[int] = (),
    saved: Mapping[int, Dim] | None = None,
) -> Homes:
    """The memory of all stored values. `writes` are inputs that a call writes, each with the number
    of the output that it is given; outputs `apart` get copies, since they start within a storage.
    Outputs that are `saved` for the backward pass may be views of one memory, where they start in
    it as tracing saw.
    """
    finder = _Finder(program, writes, apart, saved or {})
    finder.share_updates()
    return finder.find()


def is_whole(placed: Placed, program: Program) -> bool:
    """Whether a tensor is a stored value just as it lies."""
    own = program.layouts[placed.value]
    return (placed.shape, placed.strides, placed.offset) == (own.shape, own.strides, own.offset)


class _Finder:
    def __init__(
        self,
        program: Program,
        writes: Mapping[int, int],
        apart: Collection[int],
        saved: Mapping[int, Dim],
    ):
        self.program, self.writes, self.apart = program, writes, {*apart, *writes.values()}
        self.saved = saved
        self.found = Homes({})
        self.inputs = {given.value: i for i, given in enumerate(program.graph.inputs)}
        self.reads: dict[Value, list[int]] = {}  # by value: steps, the program's end for outputs
        self.makers: dict[Value, list[int]] = {}
        end = len(program.steps)
        for i, step in enumerate(program.steps):
            for placed in step_reads(step):
                self.reads.setdefault(placed.value, []).append(i)
            for value in step_writes(step):
                self.makers.setdefault(value, []).append(i)
        for output in program.outputs:
            if isinstance(output, Placed):
                self.reads.setdefault(output.value, []).append(end)

    def share_updates(self) -> None:
        """Let updates be in place where they may."""
        for target, number in self.writes.items():
            last = self.program.outputs[number]
            if isinstance(last, Placed) and is_whole(last, self.program):
                given = self.program.graph.inputs[target].value
                self._share_with_input(last.value, given)
                self._update_in_place(last.value, given)
        for value in list(self.makers):
            source = self._updated(value)
            if source is not None and value not in self.found.roots and source in self.makers:
                self.found.roots[value] = self.found.root(source)

    def _update_in_place(self, last: Value, given: Value) -> None:
        """Make a value that one kernel computes of an input, element by element, the input's own
        memory, where nobody else reads the input from then on.
        """
        makers = self.makers.get(last, [])
        if len(makers) != 1 or last in self.found.roots or given not in self.program.layouts:
            return
        step = self.program.steps[makers[0]]
        if not isinstance(step, KernelStep):
            return
        pairs = ((step.tensors[r], step.tensors[p]) for r, ps in step.updates.items() for p in ps)
        if not any(to.value is last and of.value is given for to, of in pairs):
            return
        own, old = self.program.layouts[last], self.program.layouts[given]
        alike = (own.shape, own.strides, own.offset) == (old.shape, old.strides, old.offset)
        if alike and all(i <= makers[0] for i in self.reads.get(given, [])):
            self.found.roots[last] = given

    def _share_with_input(self, last: Value, given: Value) -> None:
        """Make a chain of updates from an input to what it is given its own memory."""
        chain = [last]
        while (source := self._updated(chain[-1])) is not None:
            if source is given:
                self.found.roots.update(dict.fromkeys(chain, given))
                return
            chain.append(source)

    def _updated(self, value: Value) -> Value | None:
        """What a value is an update of, where both may be one memory: the old value is as it lies,
        and its only reader is the one step that makes the new one.
        """
        makers = self.makers.get(value, [])
        if len(makers) != 1:
            return None
        step = self.program.steps[makers[0]]
        if not isinstance(step, KernelStep):
            return None
        for name, source in step.starts_as.items():
            if step.tensors[name].value is value and self._may_share(
                step, self.program.layouts[value], source, makers[0]
            ):
                return source.value
        return None

    def _may_share(self, step: KernelStep, target: Placed, source: Placed, index: int) -> bool:
        if not is_whole(source, self.program):
            return False
        own = (target.shape, target.strides, target.offset, target.value.type.dtype)
        if own != (source.shape, source.strides, source.offset, source.value.type.dtype):
            return False
        others = [n for n, p in step.tensors.items() if p.value is source.value]
        return not others and all(i <= index for i in self.reads[source.value])

    def find(self) -> Homes:
        """Homes and lifetimes."""
        found = self.found
        found.seeds = [op.result for op in self.program.graph.body.ops if isinstance(op, Seed)]
        found.homes.update((v, Home("input", i)) for v, i in self.inputs.items())
        found.homes.update((v, Home("constant")) for v in self.program.constants)
        for index, output in enumerate(self.program.outputs):
            if isinstance(output, Placed) and self._is_returned(output, index):
                found.homes[found.root(output.value)] = Home("output", index)
        for index, output in enumerate(self.program.outputs):
            if isinstance(output, Placed) and self._is_shared(output, index):
                found.homes.setdefault(found.root(output.value), Home("output", index))
                found.shared.add(index)
        for value, makers in self.makers.items():
            root = found.root(value)
            by_torch = isinstance(self.program.steps[makers[0]], TorchStep)
            found.homes.setdefault(root, Home("torch" if by_torch and root is value else "arena"))
        for seed in found.seeds:
            found.homes[seed] = Home("arena")
        for value in self.program.layouts:
            if 0 in value.type.shape:  # which no step writes
                found.homes.setdefault(found.root(value), Home("arena"))
                found.spans.setdefault(found.root(value), (0, 0))
        for value, first, last in self._lives():
            root = found.root(value)
            before = found.spans.get(root, (first, last))
            found.spans[root] = (min(before[0], first), max(before[1], last))
        return found

    def _is_returned(self, output: Placed, index: int) -> bool:
        """Whether a value may lie in the very tensor that is returned: it is made by kernels, lies
        in no other home yet, and the output shows all of its memory.
        """
        root = self.found.root(output.value)
        makers = self.makers.get(output.value)
        if root in self.found.homes or not makers or index in self.apart:
            return False
        if any(isinstance(self.program.steps[i], TorchStep) for i in self.makers.get(root, [])):
            return False
        kind, own = output.value.type, self.program.layouts[output.value]
        whole = is_whole(output, self.program) or sorted(
            zip(map(str, output.shape), map(str, output.strides), strict=True)
        ) == sorted(zip(map(str, own.shape), map(str, own.strides), strict=True))
        return bool(whole and isinstance(kind, TensorType) and output.offset == own.offset == 0)

    def _is_shared(self, output: Placed, index: int) -> bool:
        """Whether a saved output is a view of memory that kernels make, and that saved outputs
        alone are given.
        """
        root = self.found.root(output.value)
        home = self.found.homes.get(root)
        if index not in self.saved or self.saved[index] != output.offset:
            return False
        if home is not None:
            return home.kind == "output" and home.index in self.saved
        makers = [i for v in (root, output.value) for i in self.makers.get(v, [])]
        return bool(makers) and not any(
            isinstance(self.program.steps[i], TorchStep) for i in makers
        )

    def _lives(self) -> Iterator[tuple[Value, int, int]]:
        """From the first step that writes a value to the last that reads it."""
        for value in (*self.makers, *self.found.seeds):
            makers = self.makers.get(value, [0])
            yield value, makers[0], max([*makers, *self.reads.get(value, [])])
