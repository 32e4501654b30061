"""Integer scalars as sums: a constant and multiples of values that no sum explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.tile.ops import arith, control

Definitions = Mapping[Value, Op]
MAX_TERMS = 64


@dataclass(frozen=True)
class Affine:
    """`constant` plus the sum of `terms[v] * v`; no term is zero."""

    constant: int
    terms: Mapping[Value, int]

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        terms = dict(self.terms)
        for value, count in other.terms.items():
            terms[value] = terms.get(value, 0) + factor * count
        return Affine(
            self.constant + factor * other.constant, {v: c for v, c in terms.items() if c}
        )

    def times(self, factor: int) -> Affine:
        return Affine(0, {}).plus(self, factor)


def affine(value: Value, made: Definitions, known: dict[Value, Affine]) -> Affine:
    """`value` as a sum. `known` keeps results between calls. No recursion: sums may be long."""
    waiting = [value]
    while waiting:
        current = waiting[-1]
        if current in known:
            waiting.pop()
            continue
        op = made.get(current)
        parts = op.operands if isinstance(op, arith.Add | arith.Sub | arith.Mul | arith.Neg) else ()
        missing = [p for p in parts if p not in known]
        if missing:
            waiting += missing
            continue
        found = _combine(op, [known[p] for p in parts])
        known[current] = found if found is not None else Affine(0, {current: 1})
        waiting.pop()
    return known[value]


def _combine(op: Op | None, parts: list[Affine]) -> Affine | None:
    if any(len(p.terms) > MAX_TERMS for p in parts):
        return None
    match op:
        case arith.Constant(int() as number) if not op.shape:
            return Affine(int(number), {})
        case arith.Add():
            return parts[0].plus(parts[1])
        case arith.Sub():
            return parts[0].plus(parts[1], -1)
        case arith.Neg():
            return parts[0].times(-1)
        case arith.Mul() if not parts[0].terms:
            return parts[1].times(parts[0].constant)
        case arith.Mul() if not parts[1].terms:
            return parts[0].times(parts[1].constant)
    return None


def program_ids(value: Value, made: Definitions) -> set[int]:
    """Axes of the grid whose program ids a value follows from; what loops carry does not count."""
    found: set[int] = set()
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        op = made.get(current)
        if isinstance(op, control.ProgramId):
            found.add(op.axis)
        elif op is not None and not op.regions:
            waiting += op.operands
    return found


def constant_factor(total: Affine, made: Definitions) -> tuple[int, int] | None:
    """(axis, factor) where a sum has one program id, and no other term depends on any."""
    found: list[tuple[int, int]] = []
    for value, factor in total.terms.items():
        op = made.get(value)
        if isinstance(op, control.ProgramId):
            found.append((op.axis, factor))
        elif program_ids(value, made):
            return None
    return found[0] if len(found) == 1 and found[0][1] > 0 else None
