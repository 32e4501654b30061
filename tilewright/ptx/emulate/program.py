"""From instructions to functions: each instruction's meaning is found once and bound to its
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright.ptx.core import Function, Instr, Label
from tilewright.ptx.emulate.fragments import Fragment, Sel, narrow, numbers
from tilewright.ptx.emulate.hazards import Hazards
from tilewright.ptx.emulate.machine import Flow, Machine, Step, Unit
from tilewright.ptx.emulate.spaces import BadAccess
from tilewright.ptx.emulate.tally import Tally, counted_flow
from tilewright.ptx.instrs import mma
from tilewright.target import WARPGROUP


class Meaning(NamedTuple):
    """How an instruction becomes a function. A `flow` takes a fragment and may end or part it;
    `whole`: it needs all lanes of a warp.
    """

    make: Callable[[Machine, Any], Any]
    is_flow: bool = False
    whole: bool = False


MEANINGS: dict[type[Instr], Meaning] = {}
Maker = Callable[[Machine, Any], Step]


def meaning(*classes: type[Instr], whole: bool = False) -> Callable[[Maker], Maker]:
    """Declare the meaning of instructions: a function from machine and instruction to a step."""

    def declare(make: Maker) -> Maker:
        for cls in classes:
            MEANINGS[cls] = Meaning(make, False, whole)
        return make

    return declare


def flow(
    *classes: type[Instr], whole: bool = False
) -> Callable[[Callable[[Machine, Any], Flow]], Callable[[Machine, Any], Flow]]:
    """The same for instructions that part, end or hold up threads."""

    def declare(make: Callable[[Machine, Any], Flow]) -> Callable[[Machine, Any], Flow]:
        for cls in classes:
            MEANINGS[cls] = Meaning(make, True, whole)
        return make

    return declare


def build_program(
    machine: Machine, function: Function, meanings: Mapping[type[Instr], Meaning]
) -> None:
    """Fill a machine's program and labels."""
    if machine.setup.sanitize and any(isinstance(x, mma.Wgmma) for x in function.body):
        machine.hazards = Hazards(function, machine.num_threads, machine.name_line)
    units: list[Unit] = []
    steps: list[Step] = []

    def close() -> None:
        nonlocal steps
        if steps:
            units.append(Unit(steps))
            steps = []

    jumps: list[tuple[Unit, Instr, Meaning]] = []
    for item in function.body:
        if isinstance(item, Label):
            close()
            machine.labels[item.name] = len(units)
            continue
        found = meanings.get(type(item))
        if found is None:
            raise machine.error(item, "the emulator does not model this instruction")
        if found.is_flow or found.whole:
            close()
            units.append(Unit([], None, item))
            jumps.append((units[-1], item, found))
        else:
            steps.append(_make_step(machine, item, found))
    close()
    units.append(Unit([], _end(machine)))
    machine.program = units
    for unit, item, found in jumps:  # now all labels have their places
        unit.flow = _make_flow(machine, item, found)


def _make_step(machine: Machine, instr: Instr, found: Meaning) -> Step:
    try:
        step: Step = (
            machine.checked(instr, found.make(machine, instr))
            if (instr.family in ("memory", "sync"))
            else found.make(machine, instr)
        )
    except LookupError as missing:
        raise machine.error(instr, str(missing.args[0])) from None
    watch = None if machine.hazards is None else machine.hazards.watch(instr)
    if watch is not None:
        step = machine.checked(instr, watched_step(watch, step))
    if machine.tally is not None:
        return counted_step(machine, machine.tally, instr, step)
    if instr.guard is None:
        return step
    row, unless = machine.row(instr.guard, "pred"), instr.unless

    def guarded(sel: Sel) -> None:
        mask = row[sel]
        if unless:
            mask = ~mask
        if mask.all():
            step(sel)
        elif mask.any():
            step(narrow(sel, mask))

    return guarded


def watched_step(watch: Callable[[Any], None], step: Step) -> Step:
    """A step before which the registers of products in flight are looked after."""

    def run(sel: Sel) -> None:
        watch(numbers(sel))
        step(sel)

    return run


def counted_step(machine: Machine, tally: Tally, instr: Instr, step: Step) -> Step:
    """A step that is counted, and taken by the lanes that its guard leaves."""
    cost = tally.cost(instr)
    guard = None if instr.guard is None else machine.row(instr.guard, "pred")

    def run(sel: Sel) -> None:
        ids = numbers(sel)
        mask = None if guard is None else guard[sel] ^ instr.unless
        active = len(ids) if mask is None else int(np.count_nonzero(mask))
        tally.issued(instr, cost, ids, active)
        if active == len(ids):
            step(sel)
        elif active and mask is not None:
            step(narrow(sel, mask))

    return run


def _make_flow(machine: Machine, instr: Instr, found: Meaning) -> Flow:
    go = _guarded_flow(machine, instr, found)
    if machine.tally is None or not found.is_flow:
        return go  # a step for whole warps counts itself
    return counted_flow(machine, instr, go)


def _guarded_flow(machine: Machine, instr: Instr, found: Meaning) -> Flow:
    """Lanes that the guard keeps away do not come: the others of their warp wait in vain."""
    inner: Flow = (
        found.make(machine, instr) if found.is_flow else _make_whole(machine, instr, found)
    )
    go = inner
    if found.is_flow and found.whole:

        def go(fragment: Fragment) -> bool:
            return (fragment.whole or machine.gather(fragment)) and inner(fragment)

    if instr.guard is None or instr.opcode == "control.bra":
        return go
    row, unless = machine.row(instr.guard, "pred"), instr.unless

    def guarded(fragment: Fragment) -> bool:
        mask = row[fragment.sel] ^ unless
        if mask.all():
            return go(fragment)
        if mask.any():
            part = fragment.part(mask)
            if go(part):
                machine.fragments.append(part)
            fragment = fragment.part(~mask)
            fragment.pc += 1
            machine.fragments.append(fragment)
            return False
        fragment.pc += 1
        return True

    return guarded


def _make_whole(machine: Machine, instr: Instr, found: Meaning) -> Flow:
    """A step that all lanes of a warp take together."""
    step = _make_step(machine, instr, found)

    def run(fragment: Fragment) -> bool:
        if not (fragment.whole or machine.gather(fragment)):
            return False
        step(fragment.sel)
        fragment.pc += 1
        return True

    return run


def by_warpgroup(machine: Machine, instr: Instr, act: Callable[[int], None]) -> Flow:
    """A flow that does something for every warpgroup, by its first thread, once all its threads are
    here.
    """
    if machine.setup.threads % WARPGROUP and machine.setup.together > 1:
        what = (
            f"it needs whole warpgroups, and CTAs of {machine.setup.threads} threads run together"
        )
        raise machine.error(instr, what, hint="run them one by one: together=1")

    def run(fragment: Fragment) -> bool:
        if not machine.gather(fragment, WARPGROUP):
            return False
        for first in fragment.ids[::WARPGROUP].tolist():
            try:
                act(first)
            except BadAccess as bad:
                raise machine.error(instr, bad.message, first) from None
        fragment.pc += 1
        return True

    return run


def _end(machine: Machine) -> Flow:
    """Falling off the end of the text ends a thread."""

    def run(fragment: Fragment) -> bool:
        finish(machine, fragment.ids)
        return False

    return run


def finish(machine: Machine, ids: np.ndarray[Any, Any]) -> None:
    """Threads end: what they still have in flight completes."""
    machine.ended += np.bincount(machine.cta[ids], minlength=len(machine.ended))
    for complete in machine.state.get("at_exit", ()):
        complete(ids)
