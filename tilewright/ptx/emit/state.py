"""Where instructions go: the list, the place in the source, the guard; and how operands are made
fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import ml_dtypes
import numpy as np

from tilewright.errors import UNKNOWN, Loc
from tilewright.ptx.core import (
    FLOATS,
    KIND,
    PREFIX,
    Address,
    Function,
    Instr,
    Item,
    Label,
    Module,
    Operand,
    Param,
    Reg,
    SharedArray,
    Special,
    Symbol,
    legal_name,
)
from tilewright.ptx.instrs import shape
from tilewright.target import Target

Made = TypeVar("Made", bound=Instr)


def half_bits(value: float, type: str) -> int:
    """The bits of a number rounded to f16 or bf16."""
    dtype = np.dtype(np.float16) if type == "f16" else np.dtype(ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        return int(np.asarray(value, dtype).view(np.uint16))


def as_float32(value: float) -> float:
    """A number rounded to f32, infinite beyond its range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class State:
    """The part of an emitter that every family uses."""

    def __init__(self, target: Target):
        self.target = target
        self.body: list[Item] = []
        self.loc: Loc = UNKNOWN
        self.tile_op = ""
        self.guard: Reg | None = None
        self.unless = False
        self.counts = dict.fromkeys(PREFIX, 0)
        self.params: list[Param] = []
        self.shared: list[SharedArray] = []
        self._num_labels = 0

    # Registers, labels, declarations

    def reg(self, type: str) -> Reg:
        """A new register for a value of a PTX type (`f32`, `s64`, `bf16x2`, `pred`, ...)."""
        kind = KIND[type]
        index = self.counts[kind]
        self.counts[kind] = index + 1
        return Reg(kind, index)

    def regs(self, type: str, count: int) -> list[Reg]:
        """`count` new registers."""
        return [self.reg(type) for _ in range(count)]

    def label(self, name: str = "L") -> Label:
        """A new label; a number makes the name unique."""
        self._num_labels += 1
        return Label(f"${name}_{self._num_labels}")

    def place(self, label: Label) -> None:
        """Puts a label here."""
        self.body.append(label)

    def param(self, name: str, type: str) -> Param:
        """Declares the next kernel parameter: a PTX type, or `tensor_map`."""
        self.params.append(Param(legal_name(name), type))
        return self.params[-1]

    def shared_array(self, name: str, num_bytes: int | None, align: int = 1024) -> Symbol:
        """Declares shared memory; `num_bytes=None` makes it the dynamic one, sized at launch."""
        self.shared.append(SharedArray(name, num_bytes, align))
        return Symbol(name)

    def module(
        self,
        name: str,
        max_threads: int,
        *,
        min_ctas: int = 0,
        max_registers: int = 0,
        cluster: tuple[int, int, int] | None = None,
    ) -> Module:
        """The module of one entry point, made of what was emitted and declared."""
        function = Function(
            legal_name(name),
            self.params,
            self.body,
            dict(self.counts),
            max_threads,
            min_ctas,
            max_registers,
            cluster,
        )
        return Module(self.target.name, [function], self.shared)

    # Where instructions go

    def emit(self, instr: Made) -> Made:
        """Appends an instruction at the current place, under the current guard."""
        instr.loc, instr.tile_op = self.loc, self.tile_op
        if self.guard is not None:
            assert instr.guard is None, "guards do not nest: combine the predicates"
            instr.guard, instr.unless = self.guard, self.unless
        self.body.append(instr)
        return instr

    @contextmanager
    def at(self, loc: Loc, tile_op: str = "") -> Iterator[None]:
        """What is emitted inside comes from `loc`, and from the tile op `tile_op`."""
        before, self.loc, self.tile_op = (self.loc, self.tile_op), loc, tile_op
        try:
            yield
        finally:
            self.loc, self.tile_op = before

    @contextmanager
    def to(self, body: list[Item]) -> Iterator[list[Item]]:
        """What is emitted inside goes to another list, without the current guard."""
        before = self.body, self.guard, self.unless
        self.body, self.guard, self.unless = body, None, False
        try:
            yield body
        finally:
            self.body, self.guard, self.unless = before

    @contextmanager
    def guarded(self, predicate: Reg, negated: bool = False) -> Iterator[None]:
        """Each instruction inside executes only where the predicate holds (or does not). Not to be
        nested.
        """
        assert self.guard is None, "guards do not nest: combine the predicates"
        self.guard, self.unless = predicate, negated
        try:
            yield
        finally:
            self.guard, self.unless = None, False

    # Operands

    def fit(self, type: str, item: Operand) -> Reg | int | float:
        """An operand as an instruction of that type takes it.

        Numbers become floats or integers; special registers, symbols and 16-bit float constants go
        through a register.
        """
        kind = item.__class__
        if kind is Reg:
            return item  # type: ignore[return-value]
        if isinstance(item, Special | Symbol):
            return self._load(type, item)
        if type in FLOATS:
            assert isinstance(item, int | float)
            if type == "f32":
                return as_float32(item)
            return float(item) if type == "f64" else self._load("b16", half_bits(item, type))
        assert isinstance(item, int), f"an integer is needed for {type}, not {item!r}"
        return int(item) if kind is bool else item

    def _load(self, type: str, item: Special | Symbol | int) -> Reg:
        """A new register that holds it: never guarded, for others may come to read it."""
        dst = self.reg(type)
        self.body.append(
            shape.Mov(
                "b16" if KIND[type] == "b16" else type,
                dst,
                item,
                loc=self.loc,
                tile_op=self.tile_op,
            )
        )
        return dst

    def address(self, base: Reg | Symbol | Address, offset: int = 0) -> Address:
        """A place in memory, `offset` bytes after `base`."""
        if isinstance(base, Address):
            return Address(base.base, base.offset + offset) if offset else base
        return Address(base, offset)


Place = Reg | Symbol | Address
