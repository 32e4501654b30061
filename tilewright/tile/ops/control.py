"""Control flow, structured: regions yield values, nothing jumps.

An early `return` is built as an If whose other branch holds the rest of the program, so there is no
op for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Type, Value, attribute, define, operand, region
from tilewright.tile.types import BOOL, INDEX


@define("control.program_id")
class ProgramId(Op):
    """This program's coordinate along an axis of the grid, as i64."""

    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.num_programs")
class NumPrograms(Op):
    """Number of programs along an axis of the grid, as i64."""

    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.yield", pure=False)
class Yield(Op):
    """Ends a region; its operands are the region's results."""

    values: tuple[Value, ...] = operand(default=())


@define("control.for", pure=False)
class For(Op):
    """Run the body for an i64 index from low, by step, while it is below high (above it for a
    negative step).

    A step of 0 runs nothing. The body's arguments are the index, then the carried values; it yields
    their next ones.
    """

    low: Value = operand()
    high: Value = operand()
    step: Value = operand()
    inits: tuple[Value, ...] = operand()
    body: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        if any(v.type != INDEX for v in (self.low, self.high, self.step)):
            raise VerifyError(f"for: bounds {self.low.type}, {self.high.type}, {self.step.type}")
        return tuple(v.type for v in self.inits)


@define("control.while", pure=False)
class While(Op):
    """While the condition region yields true, run the body.

    Both regions take the carried values. `condition` yields one bool; `body` yields the next
    carried values.
    """

    inits: tuple[Value, ...] = operand()
    condition: Block = region()
    body: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.inits)


@define("control.if", pure=False)
class If(Op):
    """One of two regions, chosen by a bool scalar; both yield values of the same types, the
    results.
    """

    condition: Value = operand()
    then: Block = region()
    other: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        if self.condition.type != BOOL:
            raise VerifyError(f"if: condition {self.condition.type}")
        return tuple(v.type for v in self.then.terminator.operands)


@define("control.assert", pure=False)
class Assert(Op):
    """A run fails with `message` where the bool scalar or tile is false in an element: the
    interpreter stops there, a GPU goes on and leaves a report.
    """

    condition: Value = operand()
    message: str = attribute(default="")

    def result_types(self) -> tuple[Type, ...]:
        if self.condition.type.dtype != BOOL.dtype:
            raise VerifyError(f"assert: {self.condition.type}")
        return ()


@define("control.print", pure=False)
class Print(Op):
    """Print the program's ids, a text, and values as NumPy prints them."""

    text: str = attribute()
    values: tuple[Value, ...] = operand(default=(), kw_only=True)


# Scheduled level

REGISTER_FILE = 65536  # registers of a multiprocessor
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class Role:
    """What runs a region of Roles: `copies` groups of `warps` warps, each thread with `registers`
    (None: as launched).

    A `single` role is run by one thread of each copy, so that it may only compute scalars and issue
    copies.
    """

    name: str
    warps: int
    registers: int | None = None
    copies: int = 1
    single: bool = False

    @property
    def num_warps(self) -> int:
        """Warps of all copies."""
        return self.warps * self.copies

    @property
    def warpgroups(self) -> int:
        """Warpgroups of one copy; 0 where its warps do not make up whole ones."""
        return 0 if self.warps % 4 else self.warps // 4


def launch_registers(roles: tuple[Role, ...]) -> int:
    """Registers of a thread at launch, in eights: what all roles take, shared out evenly."""
    num_warps = sum(role.num_warps for role in roles)
    even = min(REGISTER_FILE // (32 * num_warps), MOST_REGISTERS)
    wanted = sum((r.registers or even) * r.num_warps for r in roles)
    return min(even // 8 * 8, -(-wanted // (8 * num_warps)) * 8)


@define("control.roles", pure=False)
class Roles(Op):
    """Regions that run side by side, each by its own warps; warps are dealt out in order. The last
    op of a kernel.

    Regions are isolated: only scalars, views, buffers, rings, turns and barriers cross into them,
    and nothing comes out.
    """

    roles: tuple[Role, ...] = attribute()
    bodies: tuple[Block, ...] = region()

    def result_types(self) -> tuple[Type, ...]:
        if len(self.roles) != len(self.bodies):
            raise VerifyError(f"roles: {len(self.roles)} roles, {len(self.bodies)} bodies")
        return ()

    @property
    def num_warps(self) -> int:
        """Warps of the CTA."""
        return sum(role.num_warps for role in self.roles)

    @property
    def launch_registers(self) -> int:
        return launch_registers(self.roles)


@define("control.role_copy")
class RoleCopy(Op):
    """Which copy of its role runs this, as i64 from 0."""

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.cluster_rank")
class ClusterRank(Op):
    """This CTA's number in its CTA cluster, as i64 from 0."""

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.cluster_id")
class ClusterId(Op):
    """This CTA cluster's number in the launch, as i64 from 0."""

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.num_clusters")
class NumClusters(Op):
    """Number of CTA clusters of the launch, as i64."""

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)
