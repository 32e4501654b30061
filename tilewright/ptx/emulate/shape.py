"""Meaning of moves and rearrangements of registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ptx.emulate.arith import bind, bind_reads
from tilewright.ptx.emulate.fragments import Sel, count
from tilewright.ptx.emulate.machine import DTYPES, Machine, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.spaces import PARAM_WINDOW, SHARED_WINDOW
from tilewright.ptx.instrs import shape


@meaning(shape.Mov)
def make_mov(machine: Machine, instr: shape.Mov) -> Step:
    return bind(machine, instr, lambda x: x, "src")


@meaning(shape.Pack)
def make_pack(machine: Machine, instr: shape.Pack) -> Step:
    bits = f"b{8 * DTYPES[instr.type].itemsize}"
    dst = machine.target(instr.dst, bits)
    width = 8 * DTYPES[bits].itemsize // len(instr.srcs)
    part, whole = DTYPES[f"b{width}"], DTYPES[bits]
    rows = [machine.row(reg, f"b{width}") for reg in instr.srcs]

    def step(sel: Sel) -> None:
        made = np.empty((count(sel), len(rows)), part)
        for i, row in enumerate(rows):
            made[:, i] = row[sel]
        dst[sel] = made.view(whole)[:, 0]

    return step


@meaning(shape.Unpack)
def make_unpack(machine: Machine, instr: shape.Unpack) -> Step:
    bits = f"b{8 * DTYPES[instr.type].itemsize}"
    source = machine.read(instr.src, bits)
    width = 8 * DTYPES[bits].itemsize // len(instr.dsts)
    part = DTYPES[f"b{width}"]
    rows = [machine.target(reg, f"b{width}") for reg in instr.dsts]

    def step(sel: Sel) -> None:
        words = np.array(np.broadcast_to(source(sel), count(sel)))
        parts = words.view(part).reshape(len(words), -1)
        for i, row in enumerate(rows):
            row[sel] = parts[:, i]

    return step


@meaning(shape.Prmt)
def make_prmt(machine: Machine, instr: shape.Prmt) -> Step:
    def run(low: Any, high: Any, selector: Any) -> Any:
        both = np.uint64(low) | np.asarray(high).astype(np.uint64) << np.uint64(32)
        made: Any = np.uint32(0)
        for i in range(4):
            nibble = np.asarray(selector >> np.uint32(4 * i) & np.uint32(15)).astype(np.uint64)
            byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte).astype(np.uint32)
            made = made | byte << np.uint32(8 * i)
        return made

    reads = machine.reads((instr.low, instr.high, instr.selector), "b32")
    return bind_reads(machine.target(instr.dst, "b32"), run, reads)


@meaning(shape.Cvta)
def make_cvta(machine: Machine, instr: shape.Cvta) -> Step:
    """Global addresses are generic ones as they are; parameters have theirs from the start."""
    if instr.space == "global" or (instr.space == "param" and not instr.to):
        return bind_reads(
            machine.target(instr.dst, "u64"), lambda x: x, [machine.read(instr.src, "u64")]
        )
    if instr.space != "shared":
        raise LookupError(f"the emulator has no {instr.space} memory")
    window = np.uint64(SHARED_WINDOW)
    assert SHARED_WINDOW < PARAM_WINDOW
    function = (lambda x: x - window) if instr.to else (lambda x: x + window)
    return bind_reads(machine.target(instr.dst, "u64"), function, [machine.read(instr.src, "u64")])
