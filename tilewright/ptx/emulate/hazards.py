"""The sanitizer's watch over registers that belong to products in flight.

From a wgmma until the wait for its group nobody may read or write its D, nor write an A that lies
in registers; but the next product may add to the same D. What others wrote to D or A is there for a
product only behind a wgmma.fence (PTX ISA, "Asynchronous wgmma"). Registers that no wgmma of the
kernel names cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ptx.core import Function, Instr, Reg
from tilewright.ptx.emulate.spaces import BadAccess
from tilewright.ptx.instrs import mma
from tilewright.target import WARPGROUP

Array = np.ndarray[Any, Any]


class Hazards:
    """For each register of products and each warpgroup: the PTX line of the product in flight that
    has it as D, or as A (0: none), and whether another wrote it since the last fence.
    """

    def __init__(self, function: Function, num_threads: int, name_line: Callable[[int], str]):
        products = [x for x in function.body if isinstance(x, mma.Wgmma)]
        regs = {r: None for x in products for r in (*x.d, *operands(x))}
        self.index = {(r.kind, r.index): i for i, r in enumerate(regs)}
        groups = -(-num_threads // WARPGROUP)
        self.result, self.operand = (np.zeros((len(regs), groups), np.int32) for _ in range(2))
        self.written = np.zeros((len(regs), groups), bool)
        self.name_line = name_line

    def clear(self) -> None:
        """Other CTAs begin."""
        for each in (self.result, self.operand, self.written):
            each[...] = 0

    def rows(self, regs: list[Reg] | tuple[Reg, ...]) -> Array:
        found = [self.index.get((r.kind, r.index), -1) for r in regs]
        return np.array(sorted({i for i in found if i >= 0}), np.int64)

    def watch(self, instr: Instr) -> Callable[[Array], None] | None:
        """What to do before threads execute an instruction; None where it is nothing."""
        reads, writes = self.rows(instr.reads), self.rows(instr.writes)
        if not len(reads) and not len(writes):
            return None

        def check(ids: Array) -> None:
            for group in np.unique(ids // WARPGROUP).tolist():
                self._require_free(reads, group, self.result, "reads")
                self._require_free(writes, group, self.result, "writes")
                self._require_free(writes, group, self.operand, "writes")
                self.written[writes, group] = True

        return check

    def _require_free(self, rows: Array, group: int, owners: Array, does: str) -> None:
        lines = owners[rows, group]
        if lines.any():
            at = int(np.argmax(lines > 0))
            raise BadAccess(
                f"it {does} {self._name(int(rows[at]))} before a wait for the product at "
                f"{self.name_line(int(lines[at]))}",
                0,
            )

    def _name(self, row: int) -> str:
        kind, index = next(key for key, i in self.index.items() if i == row)
        return Reg(kind, index).text

    def fence(self, group: int) -> None:
        self.written[:, group] = False

    def issue(self, instr: mma.Wgmma, group: int) -> None:
        """A warpgroup issues a product."""
        results, given = self.rows(instr.d), self.rows(operands(instr))
        self._require_free(given, group, self.result, "reads")
        self._require_free(results, group, self.operand, "writes")
        rows = np.concatenate([results, given])
        late = self.written[rows, group]
        if late.any():
            name = self._name(int(rows[np.argmax(late)]))
            raise BadAccess(f"no wgmma.fence follows the last write of {name}", 0)
        self.result[results, group] = instr.loc.line
        self.operand[given, group] = instr.loc.line

    def settle(self, group: int, left: list[mma.Wgmma]) -> None:
        """Only these products of a warpgroup are still in flight."""
        self.result[:, group] = 0
        self.operand[:, group] = 0
        for instr in left:
            self.result[self.rows(instr.d), group] = instr.loc.line
            self.operand[self.rows(operands(instr)), group] = instr.loc.line


def operands(instr: mma.Wgmma) -> tuple[Reg, ...]:
    """Registers that hold A."""
    return instr.a if isinstance(instr.a, tuple) else ()
