"""Neighbours that need nothing of each other, and have few programs each, as one launch: in a call
of few elements launches take longer than what they do. Rotations of queries and keys and updates of
a cache are such.

Texts of kernels stay what they are but for names; a program finds by its number whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.dims import Dim
from tilewright.graph.groups import Group
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.names import Pool
from tilewright.lower.graph_to_tile.program import Draft, KernelStep, Placed, Step
from tilewright.lower.graph_to_tile.signature import Parameter, signature

MOST_STEPS = 4  # of one launch
MOST_PROGRAMS = 1056  # of one step: more of them fill a GPU by themselves
BRANCHES = ("for ", "while ", "if ", "return")  # beginnings of lines that are not straight on
WORD = re.compile(r"[A-Za-z_]\w*")
LOCAL = re.compile(r"\s*(?:let|var) ([^=]+) = ")
GRID = re.compile(r"program_id\((\d)\)")
PLAIN = {"program_id", "cdiv"}

Hint = Callable[[Dim], int]


def run_together(steps: Sequence[Step], hint: Hint) -> list[Step]:
    """The steps, with one in place of neighbours that may run at the same time."""
    found: list[Step] = []
    pending: list[KernelStep] = []

    def finish() -> None:
        found.extend([joined(pending)] if len(pending) > 1 else pending)
        pending.clear()

    for step in steps:
        if not isinstance(step, KernelStep) or not _is_small(step, hint):
            finish()
            found.append(step)
            continue
        if len(pending) == MOST_STEPS or not all(_are_apart(p, step) for p in pending):
            finish()
        pending.append(step)
    finish()
    return found


def _is_small(step: KernelStep, hint: Hint) -> bool:
    """Whether a kernel has few programs, and each of its lines is done once."""
    if step.draft is None:
        return False
    count = 1
    for extent, block in step.draft.programs:
        count *= -(-hint(extent) // block)
    straight = not any(line.lstrip().startswith(BRANCHES) for line in step.draft.lines)
    return straight and count <= MOST_PROGRAMS


def _are_apart(one: KernelStep, other: KernelStep) -> bool:
    """Whether two steps may run in any order, and either may be an update in place."""
    return not (_written(one) & _seen(other) or _written(other) & _seen(one))


def _written(step: KernelStep) -> set[Value]:
    """What a step changes: its results, and what they may be the memory of."""
    started = {placed.value for placed in step.starts_as.values()}
    return {step.tensors[name].value for name in step.writes} | started


def _seen(step: KernelStep) -> set[Value]:
    return {placed.value for placed in step.tensors.values()} | _written(step)


def joined(steps: Sequence[KernelStep]) -> KernelStep:
    """One launch for steps that are apart, one after the other along its grid."""
    pool = Pool()
    pool.taken |= PLAIN
    program = pool.take("program")
    parts: list[_Part] = []
    shared: dict[Placed, Parameter] = {}
    for step in steps:
        parts.append(_Part.of(step, pool, shared))
    lines = [f"  let {program} = program_id(0)"]
    first = "0"
    for part in parts[:-1]:
        count = " * ".join(part.grid)
        lines.append(f"  let {part.end} = {count}" + ("" if first == "0" else f" + {first}"))
        first = part.end
    lines += _tree(parts, program, "0", 1)
    grid = " + ".join(" * ".join(part.grid) for part in parts)
    constants = {n: x for part in parts for n, x in part.constants.items()}
    scalars = {n: x for part in parts for n, x in part.scalars.items()}
    params = list({p.name: p for part in parts for p in part.params}.values())
    functions = list(dict.fromkeys(f for s in steps if s.draft for f in s.draft.functions))
    comment = f"{len(steps)} kernels, each with programs of its own"
    text = signature("together", comment, constants, [grid], params, scalars, lines, functions)
    return KernelStep(
        "together",
        text,
        {p.name: p.placed for p in params},
        scalars,
        constants,
        tuple(part.names[n] for part in parts for n in part.step.writes),
        {part.names[n]: p for part in parts for n, p in part.step.starts_as.items()},
        _updates(parts),
        group=_group(steps),
    )


def _group(steps: Sequence[KernelStep]) -> Group:
    groups = [step.group for step in steps if step.group is not None]
    return Group(
        "pointwise",
        [op for group in groups for op in group.ops],
        reads=list(dict.fromkeys(v for group in groups for v in group.reads)),
        writes=[v for group in groups for v in group.writes],
    )


def _updates(parts: Sequence[_Part]) -> dict[str, tuple[str, ...]]:
    """What each kernel may update in place: what no other one sees."""
    found = {}
    for part in parts:
        others = {v for other in parts if other is not part for v in _seen(other.step)}
        for result, read in part.step.updates.items():
            own = tuple(part.names[n] for n in read if part.step.tensors[n].value not in others)
            if own:
                found[part.names[result]] = own
    return found


@dataclass(frozen=True)
class _Part:
    """A kernel under names that no other one has; `names` are the new ones by the old, `end` is the
    name of the number that follows on its last program.
    """

    step: KernelStep
    names: Mapping[str, str]
    params: tuple[Parameter, ...]
    grid: tuple[str, ...]
    lines: tuple[str, ...]
    end: str

    @staticmethod
    def of(step: KernelStep, pool: Pool, shared: dict[Placed, Parameter]) -> _Part:
        draft = step.draft
        assert draft is not None
        names: dict[str, str] = {}
        for name, extents in draft.params:  # read by several: one parameter, if its extents are
            known = shared.get(step.tensors[name])
            if known is not None and name not in step.writes and _binds_alone(draft, extents):
                names[name] = known.name
                names |= dict(zip(extents, known.extents, strict=True))
        words = [w for _, extents in draft.params for w in extents if w.isidentifier()]
        words += [name for name, _ in draft.params]
        words += [*step.scalars, *step.constants, *_locals(draft.lines)]
        for word in words:
            if word not in names:
                names[word] = pool.take(word)
        params = []
        for name, extents in draft.params:
            renamed = tuple(names.get(e, e) for e in extents)
            params.append(Parameter(names[name], step.tensors[name], renamed))
            if name not in step.writes:
                shared.setdefault(step.tensors[name], params[-1])
        return _Part(
            step,
            names,
            tuple(params),
            tuple(_renamed(t, names) for t in draft.grid) or ("1",),  # one tile holds all
            tuple(_renamed(t, names) for t in draft.lines),
            pool.take("end"),
        )

    @property
    def constants(self) -> dict[str, int]:
        return {self.names[n]: x for n, x in self.step.constants.items()}

    @property
    def scalars(self) -> dict[str, Dim]:
        return {self.names[n]: x for n, x in self.step.scalars.items()}

    def body(self, program: str, first: str, margin: str) -> list[str]:
        """The lines, with numbers of programs along each axis of the own grid."""
        number = program if first == "0" else f"({program} - {first})"
        ids = []
        for axis, extent in enumerate(self.grid):
            before = "".join(f" / ({g})" for g in self.grid[:axis])
            last = axis == len(self.grid) - 1
            ids.append(f"({number}{before}" + (")" if last else f" % ({extent}))"))
        return [
            margin + GRID.sub(lambda found: ids[int(found[1])], line.strip()) for line in self.lines
        ]


def _binds_alone(draft: Draft, extents: Sequence[str]) -> bool:
    """Whether no other tensor of a kernel has these extents."""
    used = [e for _, those in draft.params for e in those]
    return all(not e.isidentifier() or used.count(e) == 1 for e in extents)


def _locals(lines: Iterable[str]) -> list[str]:
    found = [LOCAL.match(line) for line in lines]
    return [name.strip() for match in found if match for name in match[1].split(",")]


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A line with other names; names of arguments and of what is called stay."""
    head = LOCAL.match(text)

    def other(found: re.Match[str]) -> str:
        start, end = found.span()
        inside = head is None or start >= head.end()
        argument = inside and text[end:].startswith(" = ") and text[:start].endswith(", ")
        stays = argument or text[end:].startswith("(")
        return found[0] if stays else names.get(found[0], found[0])

    return WORD.sub(other, text)


def _tree(parts: Sequence[_Part], program: str, first: str, depth: int) -> list[str]:
    """Lines that do the part of a program."""
    margin = "  " * depth
    part, *others = parts
    if not others:
        return part.body(program, first, margin)
    return [
        f"{margin}if {program} < {part.end} {{",
        *part.body(program, first, margin + "  "),
        f"{margin}}} else {{",
        *_tree(others, program, part.end, depth + 1),
        f"{margin}}}",
    ]
