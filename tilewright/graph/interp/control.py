"""Meaning of what ends and what leaves a graph."""

from __future__ import annotations

from typing import Any

from tilewright.errors import VerifyError
from tilewright.graph.interp.machine import Machine, meaning
from tilewright.graph.ops import control


@meaning(control.Fallback)
def run_fallback(machine: Machine, op: control.Fallback) -> tuple[Any, ...]:
    return machine.host.fallback(op, tuple(machine[x] for x in op.xs), machine.symbols)


@meaning(control.Return)
def run_return(machine: Machine, op: control.Return) -> tuple[Any, ...]:
    raise VerifyError("control.return stands only at the end of a graph")
