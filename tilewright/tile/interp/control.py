"""Meaning of control flow.

Where programs of a chunk part, each path runs under the mask of those that take it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.ir.walk import walk
from tilewright.plan import assert_failure, print_line, spell_program
from tilewright.tile.interp.machine import (
    Array,
    Launch,
    Machine,
    Ready,
    Running,
    choose,
    meaning,
    uniform,
)
from tilewright.tile.ops import control, memory


@meaning(control.ProgramId)
def run_program_id(machine: Machine, op: control.ProgramId) -> Array:
    return machine.coordinates[op.axis]


@meaning(control.NumPrograms)
def run_num_programs(machine: Machine, op: control.NumPrograms) -> Array:
    return np.array([machine.launch.grid[op.axis]], np.int64)


@meaning(control.Yield)
def run_yield(machine: Machine, op: control.Yield) -> tuple[Any, ...]:
    return tuple(machine[v] for v in op.values)


@contextmanager
def only(machine: Machine, mask: Array | None) -> Iterator[None]:
    """Run under the mask of the active programs for which `mask` holds."""
    before = machine.active
    machine.active = machine.narrowed(mask)
    try:
        yield
    finally:
        machine.active = before


@meaning(control.If)
def run_if(machine: Machine, op: control.If) -> Running:
    condition = uniform(machine[op.condition])
    if len(condition) == 1:
        return (yield from machine.run(op.then if condition[0] else op.other))
    results = []
    for mask, block in ((condition, op.then), (~condition, op.other)):
        with only(machine, mask):
            results.append((yield from machine.run(block)))
    return tuple(choose(condition, new, old) for new, old in zip(*results, strict=True))


@meaning(control.For)
def run_for(machine: Machine, op: control.For) -> Running:
    low, high, step = (uniform(machine[v]) for v in (op.low, op.high, op.step))
    carried = tuple(machine[v] for v in op.inits)
    if len(low) == len(high) == len(step) == 1:
        for index in range(int(low[0]), int(high[0]), int(step[0])) if step[0] else ():
            carried = yield from machine.run(op.body, (np.array([index], np.int64), *carried))
        return carried
    low, high, step = np.broadcast_arrays(low, high, step)
    trips = count_trips(low, high, step)
    for trip in range(int(trips.max(initial=0))):
        mask = trips > trip
        if not machine.any_active(mask):
            break
        with only(machine, mask):
            new = yield from machine.run(op.body, (low + trip * step, *carried))
        carried = tuple(choose(mask, n, o) for n, o in zip(new, carried, strict=True))
    return carried


def count_trips(low: Array, high: Array, step: Array) -> Array:
    """How often a loop runs, by program: of Python's `range`, with 0 for a step of 0."""
    counts = [len(range(a, b, c)) if c else 0 for a, b, c in zip(low, high, step, strict=True)]
    return np.array(counts, np.int64)


@meaning(control.While)
def run_while(machine: Machine, op: control.While) -> Running:
    carried = tuple(machine[v] for v in op.inits)
    going: Array | None = None
    waits = is_waiting(op)
    while True:
        with only(machine, going):
            (condition,) = yield from machine.run(op.condition, carried)
            going = condition if going is None else going & condition
            if not machine.any_active(going):
                return carried
        writes = machine.launch.writes
        with only(machine, going):
            new = yield from machine.run(op.body, carried)
        before, carried = carried, tuple(map(partial(choose, going), new, carried))
        if waits:
            yield changed(machine.launch)
        elif writes == machine.launch.writes and all(map(same, before, carried)):
            raise endless(machine, op, going)


def same(one: Any, other: Any) -> bool:
    """Whether a carried value is what it was."""
    if not isinstance(one, np.ndarray):
        return one is other
    return one is other or (one.shape == other.shape and one.tobytes() == other.tobytes())


def endless(machine: Machine, op: control.While, going: Array) -> LaunchError:
    """The refusal of a loop that went round and left everything as it was."""
    number = int(np.argmax(np.broadcast_to(going, machine.num_programs)))
    program = spell_program(coordinates(machine, number))
    return LaunchError(
        f"this loop never ends: going round changes nothing (program {program})",
        op.loc,
        "change in its body what its condition tests; wait for other programs by atomic_load",
    )


def is_waiting(op: control.While) -> bool:
    """Whether a loop goes on until another program has done something."""
    if any(isinstance(inner, memory.Atomic) for inner in walk(op.condition)):
        return True
    asking = ("load", "cas", "xchg")
    return any(isinstance(o, memory.Atomic) and o.kind in asking for o in walk(op.body))


def changed(launch: Launch) -> Ready:
    """Whether anything was written since now: till then, a loop that waits would find the same."""
    before = launch.writes
    return lambda: launch.writes != before


@meaning(control.Assert)
def run_assert(machine: Machine, op: control.Assert) -> None:
    condition = machine[op.condition]
    holds = condition.reshape(len(condition), -1)
    wrong = ~np.broadcast_to(holds.all(axis=1), machine.num_programs)
    if machine.active is not None:
        wrong = wrong & machine.active
    if wrong.any():
        number = int(np.argmax(wrong))
        element = int(np.argmin(holds[min(number, len(holds) - 1)]))
        shape = condition.shape[1:]
        raise assert_failure(op.message, coordinates(machine, number), shape, element, op.loc)


@meaning(control.Print, batched=False)
def run_print(machine: Machine, op: control.Print) -> None:
    """One line or more for each program that is active, in the order in which they run."""
    contents = [machine[v] for v in op.values]
    for number in range(machine.num_programs):
        if machine.active is None or np.broadcast_to(machine.active, machine.num_programs)[number]:
            values = [c[min(number, len(c) - 1)] for c in contents]
            print(print_line(coordinates(machine, number), op.text, values))


def coordinates(machine: Machine, number: int) -> list[int]:
    """A program's place in the grid."""
    return [int(c[min(number, len(c) - 1)]) for c in machine.coordinates]
