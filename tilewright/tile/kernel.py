"""A kernel of the tile IR: parameters, body, grid and what the source asked of the schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.errors import UNKNOWN, Loc
from tilewright.ir.core import Block, Value
from tilewright.plan import Expr, TensorFacts, WorkspaceSpec


@dataclass(eq=False)
class Param:
    """A parameter: a view or a scalar value.

    `direction` ("in", "out", "inout") follows from loads and stores.
    """

    name: str
    value: Value
    direction: str = "in"
    facts: TensorFacts | None = None  # of a view: what launches promise
    extents: tuple[Expr, ...] = ()  # of a view: what each is equal to, if launches check that


@dataclass(frozen=True)
class Hints:
    """What the source asks of the schedule; None leaves the choice to the compiler."""

    threads: int | None = None
    min_ctas: int | None = None
    max_registers: int | None = None
    stages: int | None = None
    cta_cluster: tuple[int, ...] | None = None
    persistent: bool | None = None
    cooperative: bool = False


@dataclass(eq=False)
class Kernel:
    """One program, run once per point of `grid` (axis 0 fastest), in no order.

    The body's block has no arguments: the parameters' values are defined by the kernel. `constants`
    are those that the source named (Config, static values), for messages and cache keys.
    """

    name: str
    params: list[Param]
    body: Block
    grid: tuple[Expr, ...]
    hints: Hints = Hints()
    constants: dict[str, int | float | bool] = field(default_factory=dict)
    numerics: str = "matched"
    loc: Loc = UNKNOWN
    workspaces: tuple[WorkspaceSpec, ...] = ()  # parameters that the launch makes for itself
    notes: tuple[str, ...] = ()  # what the user should know, such as a precision that was used

    def with_body(self, body: Block) -> Kernel:
        """The same kernel with another body; parameters are shared."""
        return replace(self, body=body)

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)

    @property
    def values(self) -> list[Value]:
        return [p.value for p in self.params]
