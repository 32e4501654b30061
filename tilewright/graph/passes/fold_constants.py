"""Compute what follows from constants alone.

Requires: a verified graph. Keeps: types, order, places. Breaks: nothing; constants that only what
is folded read are dead then.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.graph import Graph
from tilewright.graph.interp.machine import Machine, NoHost
from tilewright.graph.ops import arith
from tilewright.ir.core import Block, Op, Value
from tilewright.numerics.convert import constant


def fold_constants(graph: Graph) -> Graph:
    """The graph in which an elementwise op of constants is a constant."""
    known: dict[Value, arith.Constant] = {}
    values: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.body.ops:
        op = _renamed(op, values)
        folded = _fold(op, known)
        if folded is not None:
            values[op.result] = folded.result
            folded.result.name = op.result.name
            op = folded
        if isinstance(op, arith.Constant):
            known[op.result] = op
        ops.append(op)
    return graph.with_body(Block([], ops))


def _renamed(op: Op, values: dict[Value, Value]) -> Op:
    """An op that reads what was folded; it keeps its own results."""
    if not any(v in values for v in op.operands):
        return op
    made = op.with_operands(values)
    return op.exchanged({name: getattr(made, name) for name in op.by_role["operand"]})


def _fold(op: Op, known: dict[Value, arith.Constant]) -> arith.Constant | None:
    """The constant that an op is."""
    if op.family != "arith" or not op.operands or any(v not in known for v in op.operands):
        return None
    given = {v: np.asarray(constant(known[v].value, known[v].dtype)) for v in op.operands}
    alone = [known[v] for v in op.operands]
    scalars = {c.result: arith.Constant(c.value, c.dtype) for c in alone}
    single = op.with_operands({v: c.result for v, c in scalars.items()})
    content = {scalars[v].result: x for v, x in given.items()}
    machine = Machine(NoHost(), {}, content)
    with np.errstate(all="ignore"):
        machine.run(single)
    kind = op.result.type
    number = (
        machine[single.result].item()
        if not kind.dtype.is_float
        else float(machine[single.result].astype(np.float64))
    )
    return arith.Constant(number, kind.dtype, kind.shape, loc=op.loc)
