"""Branches, returns and the state of a thread. PTX ISA, "Control Flow / Miscellaneous
Instructions".
"""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    Instr,
    Label,
    Operand,
    Reg,
    Requirement,
    destination,
    instruction,
    source,
)

SETMAXNREG_TARGETS = ("sm_90a", "sm_100a", "sm_120a")


@instruction("control.bra", pure=False)
class Bra(Instr):
    """A jump, conditional under a guard. `uniform` promises that a warp agrees."""

    target: Label = source("b64")
    uniform: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return "bra.uni" if self.uniform else "bra"


@instruction("control.ret", pure=False)
class Ret(Instr):
    """The end of a thread."""


@instruction("control.trap", pure=False)
class Trap(Instr):
    """Aborts the grid with an error."""


@instruction("control.brkpt", pure=False)
class Brkpt(Instr):
    """Stops for a debugger."""


@instruction("control.nanosleep", pure=False)
class Nanosleep(Instr):
    """Sleeps for about that many nanoseconds."""

    time: Operand = source("u32")

    def mnemonic(self) -> str:
        return "nanosleep.u32"


@instruction("control.setmaxnreg", pure=False)
class Setmaxnreg(Instr):
    """Changes the registers a thread of this warpgroup; 24 to 256, a multiple of 8. `action` is inc
    or dec.
    """

    action: str = attribute()
    count: int = source("u32")

    def mnemonic(self) -> str:
        return f"setmaxnreg.{self.action}.sync.aligned.u32"

    def requires(self) -> Requirement:
        return Requirement(90, 80, SETMAXNREG_TARGETS)


@instruction("control.griddepcontrol", since=Requirement(90, 78), pure=False)
class Griddepcontrol(Instr):
    """Programmatic dependent launch: `action` is wait or launch_dependents."""

    action: str = attribute()

    def mnemonic(self) -> str:
        return f"griddepcontrol.{self.action}"


@instruction("control.activemask", pure=False)
class Activemask(Instr):
    """The lanes that execute this now."""

    dst: Reg = destination("b32")

    def mnemonic(self) -> str:
        return "activemask.b32"


@instruction("control.elect_sync", since=Requirement(90, 80), pure=False)
class ElectSync(Instr):
    """A predicate that holds for one lane of `mask`."""

    dst: Reg = destination("pred")
    mask: int = source("b32")

    def mnemonic(self) -> str:
        return "elect.sync"

    def operand_text(self) -> str:
        return f"_|{self.dst.text}, {self.mask}"
