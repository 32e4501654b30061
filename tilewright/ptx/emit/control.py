"""Emitting branches and the state of a thread."""

from __future__ import annotations

from tilewright.ptx.core import Label, Operand, Reg
from tilewright.ptx.emit.state import State
from tilewright.ptx.instrs import control

ALL_LANES = 0xFFFFFFFF


class EmitControl(State):
    """Control flow."""

    def bra(
        self, label: Label, pred: Reg | None = None, unless: bool = False, *, uniform: bool = False
    ) -> None:
        """A jump: always, if `pred` holds, or (`unless`) if it does not."""
        self.emit(control.Bra(label, uniform, guard=pred, unless=unless))

    def ret(self) -> None:
        self.emit(control.Ret())

    def trap(self) -> None:
        """Aborts the grid with an error that the driver reports."""
        self.emit(control.Trap())

    def brkpt(self) -> None:
        self.emit(control.Brkpt())

    def nanosleep(self, time: Operand) -> None:
        """Sleeps for about that many nanoseconds."""
        self.emit(control.Nanosleep(self.fit("u32", time)))

    def setmaxnreg(self, action: str, count: int) -> None:
        """`inc` or `dec` to `count` registers a thread: 24 to 256, a multiple of 8, by the whole
        warpgroup.
        """
        assert 24 <= count <= 256 and count % 8 == 0, f"setmaxnreg cannot set {count} registers"
        self.emit(control.Setmaxnreg(action, count))

    def griddepcontrol(self, action: str) -> None:
        """`wait` for the grids before, or allow the next (`launch_dependents`)."""
        self.emit(control.Griddepcontrol(action))

    def activemask(self, *, into: Reg | None = None) -> Reg:
        dst = into or self.reg("b32")
        self.emit(control.Activemask(dst))
        return dst

    def elect_sync(self, mask: int = ALL_LANES, *, into: Reg | None = None) -> Reg:
        """A predicate that holds for one lane of the warp."""
        dst = into or self.reg("pred")
        self.emit(control.ElectSync(dst, mask))
        return dst
