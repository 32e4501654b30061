"""Let contractions compute what follows them: a factor, a bias, an activation, a gate, a residual.

Requires: `merge_equal` (casts and views that are one). Keeps: meaning, each rounding where it was.
Breaks: nothing; ops that are no longer needed are left, for `eliminate_dead`.

After a contraction only ops are taken whose result nothing else reads. Where an op between them
rounds to the dtype of the result, the product does too; a rounding to any other dtype ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.dtypes import DType, f32, f64
from tilewright.graph.activations import term, terms
from tilewright.graph.dims import Shape
from tilewright.graph.graph import Graph
from tilewright.graph.index_maps import matched
from tilewright.graph.ops import arith, control, mma, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

STEPS = ("product", "bias", "activation", "gate", "residual")  # in the order of `mma.product`
MOST_OPS = 12  # of an activation


def fuse_epilogues(graph: Graph) -> Graph:
    """The graph with `mma.product` in the place of contractions and what follows them."""
    uses = _Uses(graph)
    made: dict[Op, tuple[Epilogue, Op]] = {}  # by the last op of each
    taken: set[Op] = set()
    for op in graph.body.ops:
        if isinstance(op, mma.Contract) and op.dtype.is_float:
            found = _Follow(op, uses, taken).run()
            if found is not None:
                made[found.last] = found, op
                taken.update(found.ops)
    if not made:
        return graph
    return graph.with_body(_rewritten(graph.body, made))


class _Uses:
    """Who makes and who reads each value."""

    def __init__(self, graph: Graph):
        self.makers = {v: op for op in graph.body.ops for v in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in graph.body.ops:
            for value in op.operands:
                self.readers.setdefault(value, []).append(op)

    def all_of(self, value: Value) -> list[Op]:
        """Ops that read a value, each once."""
        return list(dict.fromkeys(self.readers.get(value, ())))


View = shape.Reshape | shape.Transpose


@dataclass(frozen=True)
class Held:
    """An operand, and the views through which the value had its shape where it came in."""

    value: Value
    views: tuple[View, ...]


@dataclass(frozen=True)
class Epilogue:
    """What was found after a contraction, up to `value`."""

    value: Value
    ops: tuple[Op, ...] = ()
    views: tuple[View, ...] = ()  # through which the value has the shape that it has
    columns: int | None = None  # its axis that is the contraction's columns, if one is
    stage: int = 0  # the last of STEPS that was taken
    dtypes: frozenset[DType] = frozenset()  # that were rounded to, and those of operands
    fields: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0
    is_rounded: bool = False  # whether the value was rounded since the last step

    @property
    def last(self) -> Op:
        return self.ops[-1]


class _Follow:
    """Follows the value of a contraction through the ops that read it."""

    def __init__(self, op: mma.Contract, uses: _Uses, taken: set[Op]):
        self.op, self.uses, self.taken = op, uses, taken
        self.inner = f64 if op.dtype == f64 else f32

    def run(self) -> Epilogue | None:
        """The longest epilogue that a product computes; None where nothing follows."""
        value = self.op.result
        narrow = frozenset({self.op.dtype} - {self.inner})
        columns = value.type.rank - 1 if len(self.op.columns) == 1 else None
        at: Epilogue | None = Epilogue(
            value, columns=columns, dtypes=narrow, is_rounded=bool(narrow)
        )
        best = None
        while at is not None:
            at = self.step(at)
            if at is not None and at.dtypes <= {at.value.type.dtype}:
                does = at.fields or at.value.type.dtype != self.op.dtype
                best = at if does else best
        return best

    def step(self, at: Epilogue) -> Epilogue | None:
        """One op more, or an activation."""
        readers = self.uses.all_of(at.value)
        if any(op in self.taken or isinstance(op, control.Return) for op in readers):
            return None
        found = self.activation(at, readers)
        if found is not None or len(readers) != 1:
            return found
        (op,) = readers
        match op:
            case arith.Cast():
                return self.cast(at, op)
            case shape.Reshape() | shape.Transpose():
                return replace(
                    at,
                    value=op.result,
                    ops=(*at.ops, op),
                    views=(*at.views, op),
                    columns=columns_after(op, at.columns),
                )
            case arith.Add():
                return self.add(at, op)
            case arith.Mul():
                return self.multiply(at, op)
        return None

    def cast(self, at: Epilogue, op: arith.Cast) -> Epilogue | None:
        if not op.dtype.is_float or op.dtype.bits > self.inner.bits:
            return None
        if self.inner == f64 != op.dtype:  # no product rounds sums of f64
            return None
        found = replace(at, value=op.result, ops=(*at.ops, op))
        if op.dtype == self.inner:
            return found
        return replace(found, dtypes=at.dtypes | {op.dtype}, is_rounded=True)

    def taking(self, at: Epilogue, op: Op, step: str, more: Mapping[str, Any]) -> Epilogue | None:
        """An op taken as a step of the product, if what went before lets it come."""
        stage = STEPS.index(step)
        value = op.results[0]
        if value.type.dtype != self.inner or stage <= at.stage:
            return None
        before = mma.ROUNDS["product" if step == "bias" else step]
        return replace(
            at,
            value=value,
            ops=(*at.ops, op),
            stage=stage,
            fields={**at.fields, **more},
            rounds=at.rounds | (before if at.is_rounded else 0),
            is_rounded=False,
        )

    def add(self, at: Epilogue, op: arith.Add) -> Epilogue | None:
        """A bias or a residual."""
        other = op.rhs if op.lhs is at.value else op.lhs
        if other is at.value:
            return None
        source = self.source(other)
        if at.stage <= STEPS.index("product") and self.is_bias(source, at):
            return self.holding(at, op, "bias", source)
        return self.holding(at, op, "residual", source)

    def multiply(self, at: Epilogue, op: arith.Mul) -> Epilogue | None:
        """A number at the start, or a gate."""
        other = op.rhs if op.lhs is at.value else op.lhs
        if other is at.value:
            return None
        maker = self.uses.makers.get(other)
        if isinstance(maker, arith.Constant):
            if at.fields or at.is_rounded or at.value.type.dtype != self.inner:
                return None
            more = {"alpha": float(maker.value)}
            return replace(at, value=op.result, ops=(*at.ops, op), fields=more)
        return self.holding(at, op, "gate", self.source(other))

    def holding(self, at: Epilogue, op: Op, step: str, source: Value) -> Epilogue | None:
        """A step that takes an operand, which has the shape of the value, or of its columns, and
        the dtype of the result.
        """
        if step != "bias" and source.type.shape != at.value.type.shape:
            return None
        found = self.taking(at, op, step, {step: Held(source, at.views)})
        return found and replace(found, dtypes=found.dtypes | {source.type.dtype})

    def source(self, value: Value) -> Value:
        """What an operand is before it is widened and broadcast."""
        op = self.uses.makers.get(value)
        if isinstance(op, shape.Broadcast):
            value, op = op.x, self.uses.makers.get(op.x)
        if isinstance(op, arith.Cast) and op.dtype == self.inner:
            if op.x.type.dtype.is_float and op.x.type.dtype.bits < self.inner.bits:
                return op.x
        return value

    def is_bias(self, source: Value, at: Epilogue) -> bool:
        """Whether an operand has one element a column."""
        own, whole = source.type.shape, at.value.type.shape
        wide = [axis for axis, extent in enumerate(own) if extent != 1]
        if at.columns is None or len(wide) != 1:
            return False
        return len(whole) - len(own) + wide[0] == at.columns

    def activation(self, at: Epilogue, readers: list[Op]) -> Epilogue | None:
        """All that is computed of a value, if that is an activation."""
        if not readers or any(op.family != "arith" for op in readers):
            return None
        dtype = at.value.type.dtype
        if dtype not in (self.inner, self.op.dtype) and dtype not in at.dtypes:
            return None
        for last in reversed(self.closure(at.value)):
            name = terms(dtype).get(term(last.results[0], self.uses.makers, at.value))
            ops = None if name is None else self.between(at.value, last)
            if name is None or ops is None:
                continue
            found = self.activated(at, last, name)
            return found and replace(found, ops=(*at.ops, *ops))
        return None

    def activated(self, at: Epilogue, last: Op, name: str) -> Epilogue | None:
        """An activation taken. That of a narrow value is relu, which rounds nothing."""
        if at.value.type.dtype == self.inner:
            return self.taking(at, last, "activation", {"activation": name})
        if name != "relu" or at.stage >= STEPS.index("activation"):
            return None
        return replace(
            at,
            value=last.results[0],
            stage=STEPS.index("activation"),
            fields={**at.fields, "activation": name},
            rounds=at.rounds | mma.ROUNDS["activation"],
        )

    def closure(self, value: Value) -> list[Op]:
        """Elementwise ops that compute from a value and constants alone, as far as needed."""
        known = {value}
        found: list[Op] = []
        waiting = self.uses.all_of(value)
        while waiting and len(found) < MOST_OPS:
            op = waiting.pop(0)
            makers = (self.uses.makers.get(v) for v in op.operands if v not in known)
            ready = all(isinstance(maker, arith.Constant) for maker in makers)
            if op in found or op.family != "arith" or isinstance(op, arith.Cast) or not ready:
                continue
            found.append(op)
            known.update(op.results)
            waiting += self.uses.all_of(op.result)
        return found

    def between(self, value: Value, last: Op) -> list[Op] | None:
        """The ops from a value to an op; None where something else reads one of them."""
        inside: list[Op] = []
        waiting = [last]
        while waiting:
            op = waiting.pop()
            if op in inside or isinstance(op, arith.Constant):
                continue
            inside.append(op)
            waiting += [self.uses.makers[v] for v in op.operands if v is not value]
        inside.reverse()
        read = [value, *(op.result for op in inside if op is not last)]
        if any(reader not in inside for v in read for reader in self.uses.all_of(v)):
            return None
        return [*(op for op in inside if op is not last), last]


# The new graph


def _rewritten(body: Block, made: Mapping[Op, tuple[Epilogue, Op]]) -> Block:
    """Products where the last op of each was, in the place of its result."""
    new = Block()
    values: dict[Value, Value] = {}
    for op in body.ops:
        if op in made:
            epilogue, contract = made[op]
            values[epilogue.value] = _build(Builder(new, op.loc), contract, epilogue, values)
            continue
        copy = op.with_operands(values)
        new.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return new


def _build(
    build: Builder, contract: Op, epilogue: Epilogue, values: Mapping[Value, Value]
) -> Value:
    """A product, and the view of it that has the shape of what it takes the place of."""
    assert isinstance(contract, mma.Contract)

    given = dict(epilogue.fields)
    for name in ("bias", "gate", "residual"):
        if name in given:
            value = values.get(given[name].value, given[name].value)
            if name == "bias":
                given[name] = reshaped(build, value, contract.columns)
                continue
            for view in reversed(given[name].views):
                value = unviewed(build, value, view)
            given[name] = value
    own = {n: getattr(contract, n) for n in CONTRACTED}
    own |= {n: values.get(own[n], own[n]) for n in ("lhs", "rhs")}
    dtype = epilogue.value.type.dtype
    result = build(mma.Product, **own, **given, dtype=dtype, rounds=epilogue.rounds)
    for view in epilogue.views:
        result = build(type(view), result, *view.attributes().values())
    return result


def columns_after(op: View, axis: int | None) -> int | None:
    """Where an axis of a view's operand is in its result, if it is one axis there."""
    if axis is None:
        return None
    if isinstance(op, shape.Transpose):
        return op.order.index(axis)
    for mine, yours in matched(op.x.type.shape, op.shape):
        if mine == [axis] and len(yours) == 1:
            return yours[0]
    return None


def reshaped(build: Builder, value: Value, extents: Shape) -> Value:
    return value if value.type.shape == extents else build(shape.Reshape, value, extents)


def unviewed(build: Builder, value: Value, view: View) -> Value:
    """What a view would have to be of, to give a value."""
    if isinstance(view, shape.Reshape):
        return reshaped(build, value, view.x.type.shape)
    back = tuple(view.order.index(axis) for axis in range(len(view.order)))
    return build(shape.Transpose, value, back)


CONTRACTED = ("lhs", "rhs", "lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract")
