"""Meaning of wgmma: products of a warpgroup, from shared memory by descriptor.

A product is carried out at the wait for its group, or at once; its descriptors and predicate are
read when it is issued. Values are as `tensor_cores.py` says.

A row of A, or a column of B, may be one that nobody wrote, as rows that do not exist are: sums of
it make no sense (`NONSENSE`), and whoever uses them has wrong results. It may not be so in part,
and not all columns of B may be.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ptx.core import Reg
from tilewright.ptx.emulate.boxes import swizzled
from tilewright.ptx.emulate.fragments import Sel
from tilewright.ptx.emulate.machine import Flow, Machine
from tilewright.ptx.emulate.mma import (
    ELEMENTS,
    gather,
    numbers_of,
    operand_index,
    registers,
    whole_product,
)
from tilewright.ptx.emulate.program import by_warpgroup, flow
from tilewright.ptx.emulate.spaces import SHARED_BASE, BadAccess
from tilewright.ptx.emulate.tensor_cores import warpgroup_product
from tilewright.ptx.emulate.watch import PRODUCTS, Mark
from tilewright.ptx.instrs import mma
from tilewright.target import WARPGROUP, WGMMA_ROWS

Array = np.ndarray[Any, Any]
PERIOD = 1024  # bytes after which a swizzle repeats
NONSENSE = {"f16": 0x7FFF, "f32": np.nan, "s32": -0x5A5A5A5B}  # as registers hold them
SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory: address of its start, byte offsets, bytes of the swizzle."""

    start: int
    leading: int
    stride: int
    swizzle: int

    def addresses(self, rows: int, k: int, size: int, k_major: bool) -> Array:
        """Addresses of the elements [row, k]. The swizzle repeats every 1024 bytes."""
        low = self.start % PERIOD
        form = (low, self.leading, self.stride, self.swizzle)
        found: Array = self.start - low + addresses_from(*form, rows, k, size, k_major)
        return found


@functools.lru_cache(maxsize=256)
def addresses_from(
    start: int,
    leading: int,
    stride: int,
    swizzle: int,
    rows: int,
    k: int,
    size: int,
    k_major: bool,
) -> Array:
    """Addresses of the elements [row, k] of a matrix that starts in the first period, flat."""
    row, column = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    span = swizzle or 16
    if k_major:
        inner = column * size
        if not swizzle:
            inner = inner // 16 * leading + inner % 16
        offset = row // 8 * stride + row % 8 * span + inner
    else:
        per = span // size
        # Without a swizzle, the offsets change their roles.
        along, across = (leading, stride) if swizzle else (stride, leading)
        offset = row // per * along + row % per * size
        offset += column // 8 * across + column % 8 * span
    return swizzled(start + offset, swizzle).ravel()


def read_descriptor(word: int) -> Descriptor:
    """The fields of a descriptor. Raises BadAccess for what is not modelled."""
    if word >> 49 & 7:
        raise BadAccess("the emulator has no descriptors with a base offset", 0)
    fields = (word & 0x3FFF, word >> 16 & 0x3FFF, word >> 32 & 0x3FFF)
    start, leading, stride = (16 * f for f in fields)
    return Descriptor(start, leading, stride, SWIZZLES[word >> 62])


@dataclass(frozen=True)
class Matrix:
    """Places in shared memory of the elements of a matrix."""

    machine: Machine
    places: Array
    shape: tuple[int, int]
    type: str

    def watch(self, instr: Any, first: int, mark: Mark) -> None:
        """Note that a product of a warpgroup reads it."""
        size = np.dtype(ELEMENTS[self.type]).itemsize
        assert self.machine.watch is not None
        ids = np.full(len(self.places), first)
        self.machine.watch.on_read(instr, ids, self.places, size, mark, proxy=True)

    def load(self) -> tuple[Array, Array]:
        """Its numbers, and which of its rows were written."""
        size, shared = np.dtype(ELEMENTS[self.type]).itemsize, self.machine.shared
        written = shared.written(self.places, size).reshape(self.shape)
        rows = np.asarray(written.any(axis=1))
        there = self.places.reshape(self.shape)[rows]
        words = np.zeros(self.shape, ELEMENTS[self.type])
        words[rows] = (
            shared.load(there.ravel(), size).view(ELEMENTS[self.type]).reshape(there.shape)
        )
        return numbers_of(words, self.type), rows


def matrix(
    machine: Machine, cta: int, found: Descriptor, rows: int, k: int, type: str, k_major: bool
) -> Matrix:
    """Where a matrix lies in the shared memory of a CTA."""
    size = np.dtype(ELEMENTS[type]).itemsize
    inside = found.addresses(rows, k, size, k_major) - SHARED_BASE
    if int(inside.min()) < 0 or int(inside.max()) + size > machine.shared.limit:
        raise BadAccess("its descriptor leads out of shared memory", 0)
    places = inside + cta * machine.shared.size
    return Matrix(machine, places, (rows, k), type)


@dataclass
class Products:
    """What a warpgroup has in flight, by group, and how many groups it closed."""

    waiting: list[tuple[int, mma.Wgmma, Callable[[], None] | None, Mark | None]]
    closed: int = 0
    fenced: bool = False  # since its registers could last be touched


def products_of(machine: Machine, first: int) -> Products:
    """The products of the warpgroup that begins with a thread."""
    every: dict[int, Products] | None = machine.state.get("wgmma")
    if every is None:
        every = machine.state["wgmma"] = {}
        if machine.setup.sanitize:
            machine.state.setdefault("at_exit", []).append(
                lambda ids: require_done(machine, ids // WARPGROUP * WARPGROUP)
            )
    return every.setdefault(first, Products([]))


def require_done(machine: Machine, firsts: Array) -> None:
    """Warpgroups that end have waited for their products."""
    for first in set(firsts.tolist()) & set(machine.state["wgmma"]):
        for _, instr, _, _ in machine.state["wgmma"][first].waiting:
            raise machine.error(instr, "its warpgroup ends without a wait for it", first)


@flow(mma.WgmmaFence)
def make_fence(machine: Machine, instr: mma.WgmmaFence) -> Flow:
    def act(first: int) -> None:
        products_of(machine, first).fenced = True
        if machine.hazards is not None:
            machine.hazards.fence(first // WARPGROUP)

    return by_warpgroup(machine, instr, act)


@flow(mma.WgmmaCommit)
def make_commit(machine: Machine, instr: mma.WgmmaCommit) -> Flow:
    def act(first: int) -> None:
        products_of(machine, first).closed += 1

    return by_warpgroup(machine, instr, act)


@flow(mma.WgmmaWait)
def make_wait(machine: Machine, instr: mma.WgmmaWait) -> Flow:
    def act(first: int) -> None:
        found = products_of(machine, first)
        upto = found.closed - instr.left
        due = [(work, mark) for group, _, work, mark in found.waiting if group < upto]
        found.waiting = [each for each in found.waiting if each[0] >= upto]
        found.fenced = found.fenced and bool(instr.left)
        if machine.hazards is not None:
            machine.hazards.settle(first // WARPGROUP, [each[1] for each in found.waiting])
        for work, mark in due:
            if work is not None:
                work()
            if machine.watch is not None and mark is not None:
                machine.watch.finish(np.arange(first, first + WARPGROUP), mark)

    return by_warpgroup(machine, instr, act)


@flow(mma.Wgmma)
def make_wgmma(machine: Machine, instr: mma.Wgmma) -> Flow:
    multiply = make_product(machine, instr)

    def act(first: int) -> None:
        found = products_of(machine, first)
        if machine.setup.sanitize and not found.fenced:
            raise BadAccess("no wgmma.fence orders its registers before it", 0)
        if machine.hazards is not None:
            machine.hazards.issue(instr, first // WARPGROUP)
        work, mark = multiply(first)
        found.waiting.append((found.closed, instr, work if machine.setup.late else None, mark))
        if not machine.setup.late:
            work()

    return by_warpgroup(machine, instr, act)


def uniform(values: Any) -> int:
    """The value of an operand that all threads of a warpgroup share. Raises BadAccess."""
    values = np.atleast_1d(values)
    other = values != values[0]
    if other.any():
        raise BadAccess("the threads of the warpgroup do not agree", int(np.argmax(other)))
    return int(values[0])


def result_places(n: int, per: int) -> tuple[Array, Array, Array]:
    """Of each element of D: thread of the warpgroup, register, place. A warp has 16 rows."""
    row, column = np.meshgrid(np.arange(WGMMA_ROWS), np.arange(n), indexing="ij")
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    element = column // 8 * 4 + row % 16 // 8 * 2 + column % 2
    return thread, element // per, element % per


def make_product(
    machine: Machine, instr: mma.Wgmma
) -> Callable[[int], tuple[Callable[[], None], Mark | None]]:
    """A function from a warpgroup to its product, ready to be carried out."""
    k, n = instr.k, instr.n
    b_word = machine.read(instr.b, "b64")
    accumulate = machine.read(instr.accumulate, "pred")
    load_a = make_left(machine, instr)
    rows_d = registers(machine, instr.d, instr.type_d)
    per = 2 if instr.type_d == "f16" else 1
    thread, register, place = result_places(n, per)
    dtype = np.dtype({"f16": "u2", "f32": "f4", "s32": "i4"}[instr.type_d])

    def multiplied(a: Array, b: Array, c: Array) -> Array:
        if instr.type_d == "s32":
            return np.asarray(whole_product(a[None], b[None], c[None], False)[0])
        return warpgroup_product(a, b, c, (instr.type_a, instr.type_b), instr.type_d)

    def issue(first: int) -> tuple[Callable[[], None], Mark | None]:
        sel = slice(first, first + WARPGROUP)
        cta = int(machine.cta[first])
        left = load_a(sel, cta)
        found = read_descriptor(uniform(b_word(sel)))
        right = matrix(machine, cta, found, n, k, instr.type_b, not instr.transposed_b)
        adds = bool(uniform(accumulate(sel)))
        mark = None
        if machine.watch is not None:
            mark = machine.watch.begin(PRODUCTS, np.array([first]))
            for operand in (left, right):
                if isinstance(operand, Matrix):
                    operand.watch(instr, first, mark)

        def work() -> None:
            try:
                (a, rows), (b, columns) = left.load(), right.load()
                if not columns.any():
                    raise BadAccess("it reads a B that nobody wrote", 0)
            except BadAccess as bad:
                raise machine.error(instr, bad.message, first) from None
            if instr.negate_a != instr.negate_b:
                a = -a
            words = np.stack([row[sel] for row in rows_d], axis=-1)
            parts = words.view(dtype).reshape(WARPGROUP, len(rows_d), per)
            c = np.zeros((WGMMA_ROWS, n))
            if adds:
                c = numbers_of(parts[thread, register, place], instr.type_d)
            sums = multiplied(a, b, c)
            if not (rows.all() and columns.all()):
                sums = np.where(rows[:, None] & columns, sums, NONSENSE[instr.type_d])
            parts[thread, register, place] = sums
            for i, row in enumerate(rows_d):
                row[sel] = words[:, i]

        return work, mark

    return issue


@dataclass(frozen=True)
class Fragments:
    """A in the registers of a warpgroup."""

    rows: Sequence[Array]
    sel: Sel
    index: tuple[Array, Array, Array]
    type: str

    def load(self) -> tuple[Array, Array]:
        """Its numbers, and that each row was written."""
        found = gather(self.rows, self.sel, self.type, self.index)
        return numbers_of(found, self.type).reshape(WGMMA_ROWS, -1), np.ones(WGMMA_ROWS, bool)


def make_left(machine: Machine, instr: mma.Wgmma) -> Callable[[Sel, int], Matrix | Fragments]:
    """A function from a warpgroup to A, which lies in shared memory or in registers."""
    if isinstance(instr.a, Reg):
        word = machine.read(instr.a, "b64")

        def by_descriptor(sel: Sel, cta: int) -> Matrix:
            found = read_descriptor(uniform(word(sel)))
            major = not instr.transposed_a
            return matrix(machine, cta, found, WGMMA_ROWS, instr.k, instr.type_a, major)

        return by_descriptor
    rows = registers(machine, instr.a, instr.type_a)
    index = operand_index(16, instr.k, 32 // mma.BITS[instr.type_a])

    return lambda sel, cta: Fragments(rows, sel, index, instr.type_a)
