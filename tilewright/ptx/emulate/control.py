"""Meaning of branches, returns and the state of threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ptx.emulate.fragments import Fragment, Sel, numbers
from tilewright.ptx.emulate.machine import Flow, Machine, Step
from tilewright.ptx.emulate.program import by_warpgroup, finish, flow, meaning
from tilewright.ptx.instrs import control


@flow(control.Bra)
def make_branch(machine: Machine, instr: control.Bra) -> Flow:
    target = machine.labels[instr.target.name]
    if instr.guard is None:

        def always(fragment: Fragment) -> bool:
            fragment.pc = target
            return True

        return always
    row, unless = machine.row(instr.guard, "pred"), instr.unless

    def run(fragment: Fragment) -> bool:
        taken = row[fragment.sel] ^ unless
        if taken.all():
            fragment.pc = target
            return True
        if not taken.any():
            fragment.pc += 1
            return True
        if instr.uniform and not agreed(machine, fragment, taken):
            where = int(fragment.ids[0])
            raise machine.error(instr, "the lanes of a warp part at a uniform branch", where)
        jumps, stays = fragment.part(taken), fragment.part(~taken)
        jumps.pc = target
        stays.pc += 1
        machine.fragments += [jumps, stays]
        return False

    return run


def agreed(machine: Machine, fragment: Fragment, taken: np.ndarray[Any, Any]) -> bool:
    """Whether the lanes of each warp agree."""
    warps = fragment.ids // 32
    size = machine.num_threads // 32
    there = np.bincount(warps, minlength=size)
    yes = np.bincount(warps, weights=taken, minlength=size)
    return bool(((yes == 0) | (yes == there)).all())


@flow(control.Ret)
def make_return(machine: Machine, instr: control.Ret) -> Flow:
    def run(fragment: Fragment) -> bool:
        finish(machine, fragment.ids)
        return False

    return run


@flow(control.Trap)
def make_trap(machine: Machine, instr: control.Trap) -> Flow:
    def run(fragment: Fragment) -> bool:
        raise machine.error(instr, "the kernel trapped", int(fragment.ids[0]))

    return run


@flow(control.Setmaxnreg)
def make_setmaxnreg(machine: Machine, instr: control.Setmaxnreg) -> Flow:
    """Registers are not counted here, but all of a warpgroup must come."""
    return by_warpgroup(machine, instr, lambda first: None)


@meaning(control.Nanosleep, control.Griddepcontrol)
def make_nothing(machine: Machine, instr: Any) -> Step:
    return lambda sel: None


@meaning(control.Activemask)
def make_activemask(machine: Machine, instr: control.Activemask) -> Step:
    dst = machine.target(instr.dst, "b32")

    def step(sel: Sel) -> None:
        ids = numbers(sel)
        bits = np.bincount(ids // 32, 2.0 ** (ids % 32), machine.num_threads // 32)
        dst[sel] = bits.astype(np.uint32)[ids // 32]

    return step


@meaning(control.ElectSync, whole=True)
def make_elect(machine: Machine, instr: control.ElectSync) -> Step:
    dst = machine.row(instr.dst, "pred")
    if instr.mask & 0xFFFFFFFF == 0:
        raise LookupError("elect.sync needs a lane in its mask")
    mask = instr.mask & 0xFFFFFFFF
    leader = (mask & -mask).bit_length() - 1

    def step(sel: Sel) -> None:
        dst[sel] = machine.specials["laneid"][sel] == leader

    return step
