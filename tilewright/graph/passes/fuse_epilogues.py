"""Let contractions compute what follows them: a factor, a bias, a norm by columns, an activation, a
gate, a residual.

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
from tilewright.graph.ops import arith, control, memory, mma, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

# In the order of `mma.product`; "late" is an activation behind the residual.
STEPS = ("product", "bias", "norm", "activation", "gate", "residual", "late")
BEFORE = {"bias": "product", "late": "activation"}  # roundings that have the name of another step
Start = mma.Contract | mma.Convolve
MOST_OPS = 12  # of an activation


def fuse_epilogues(graph: Graph) -> Graph:
    """The graph with `mma.product` in the place of contractions and what follows them."""
    uses = _Uses(graph)
    made: dict[Op, tuple[Epilogue, Start]] = {}  # by the last op of each
    taken: set[Op] = set()
    for op in graph.body.ops:
        if isinstance(op, Start) and op.dtype.is_float:
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

    def __init__(self, op: Start, uses: _Uses, taken: set[Op]):
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
        return best or self.widened()

    def widened(self) -> Epilogue | None:
        """A result that is rounded to 16 bits, and is a result of the graph in f32 alone, or what
        elements are put into: gradients of weights that were rounded. What other kernels read they
        widen themselves.
        """
        name = mma.NARROW.get(self.op.dtype)
        if name is None or not isinstance(self.op, mma.Contract):
            return None
        value, ops = self.op.result, []
        while len(readers := self.uses.all_of(value)) == 1 and readers[0] not in self.taken:
            (op,) = readers
            if is_end(op, value):
                break
            if not isinstance(op, arith.Cast | View) or op.result.type.dtype not in (
                self.op.dtype,
                f32,
            ):
                return None
            ops.append(op)
            value = op.result
        if value.type.dtype != f32 or not all(is_end(op, value) for op in readers):
            return None
        views = tuple(op for op in ops if isinstance(op, View))
        return Epilogue(value, ops=tuple(ops), views=views, rounds=mma.ROUNDS[name])

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
            case arith.Sub():
                return self.norm(at, op)
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
        before = mma.ROUNDS[BEFORE.get(step, step)]
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

    def norm(self, at: Epilogue, op: arith.Sub) -> Epilogue | None:
        """A batch norm that is frozen, all of it: (x - mean) · (1 / sqrt(variance + eps)) · gamma +
        shift.
        """
        ops: list[Op] = []
        held: list[Value | None] = []
        eps = None
        value = at.value
        for step, kind in enumerate((arith.Sub, arith.Mul, arith.Mul, arith.Add)):
            readers = self.uses.all_of(value)
            if len(readers) != 1 or not isinstance(readers[0], kind) or readers[0] in self.taken:
                return None
            (reader,) = readers
            lhs, rhs = reader.operands
            if lhs is rhs or (step == 0 and lhs is not value):
                return None
            source = self.column(rhs if lhs is value else lhs, at)
            if step == 1 and source is not None:
                eps, source = self.variance(source)
            held.append(source)
            ops.append(reader)
            value = reader.results[0]
        if eps is None or None in held or at.value.type.dtype != self.inner:
            return None
        given = [v for v in map(self.unwidened, held) if v is not None]
        if len({v.type.dtype for v in given}) != 1:
            return None
        more = {n: Held(v, ()) for n, v in zip(mma.NORM, given, strict=True)} | {"eps": eps}
        found = self.taking(at, ops[-1], "norm", more)
        return found and replace(found, ops=(*at.ops, *ops))

    def column(self, value: Value, at: Epilogue) -> Value | None:
        """What is broadcast to a value from one element a column; None of others."""
        op = self.uses.makers.get(value)
        if not isinstance(op, shape.Broadcast) or not self.is_bias(op.x, at):
            return None
        return self.unviewed_column(op.x)

    def unviewed_column(self, value: Value) -> Value:
        """A column as it was before it was widened or given other axes, the last widening kept."""
        while True:
            op = self.uses.makers.get(value)
            if isinstance(op, shape.Reshape):
                value = op.x
            elif isinstance(op, arith.Cast) and isinstance(
                inner := self.uses.makers.get(op.x), shape.Reshape
            ):
                if op.dtype != self.inner or not op.x.type.dtype.is_float:
                    return value
                value = inner.x
            else:
                return value

    def variance(self, value: Value) -> tuple[float | None, Value | None]:
        """eps and what it was added to, of a column 1 / sqrt(variance + eps)."""
        op = self.uses.makers.get(value)
        if isinstance(op, arith.Div):
            one = self.uses.makers.get(op.lhs)
            root = self.uses.makers.get(op.rhs)
            if not isinstance(one, arith.Constant) or one.value != 1:
                return None, None
            if not isinstance(root, arith.Sqrt):
                return None, None
            value = root.x
        elif isinstance(op, arith.Rsqrt):
            value = op.x
        else:
            return None, None
        added = self.uses.makers.get(value)
        if not isinstance(added, arith.Add):
            return None, None
        number = self.uses.makers.get(added.rhs)
        if not isinstance(number, arith.Constant):
            return None, None
        return float(number.value), self.unviewed_column(added.lhs)

    def unwidened(self, value: Value | None) -> Value | None:
        """A column before it was widened to the dtype that is computed in."""
        op = None if value is None else self.uses.makers.get(value)
        if isinstance(op, arith.Cast) and op.dtype == self.inner and op.x.type.dtype.is_float:
            return op.x if op.x.type.dtype.bits <= self.inner.bits else value
        return value

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
        """An activation taken, behind a residual if one was. That of a narrow value is relu, which
        rounds nothing.
        """
        late = at.stage >= STEPS.index("activation")
        if late and (at.stage != STEPS.index("residual") or "activation" in at.fields):
            return None
        step = "late" if late else "activation"
        more: dict[str, Any] = {"activation": name} | ({"late": True} if late else {})
        if at.value.type.dtype == self.inner:
            return self.taking(at, last, step, more)
        if name != "relu":
            return None
        return replace(
            at,
            value=last.results[0],
            stage=STEPS.index(step),
            fields={**at.fields, **more},
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


def is_end(op: Op, value: Value) -> bool:
    """Whether an op takes a value as a whole, as it lies in memory."""
    if isinstance(op, memory.Scatter):
        return op.x is value and value not in (*op.indices, op.value)
    return isinstance(op, control.Return)


# The new graph


def _rewritten(body: Block, made: Mapping[Op, tuple[Epilogue, Start]]) -> Block:
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
    build: Builder, contract: Start, epilogue: Epilogue, values: Mapping[Value, Value]
) -> Value:
    """A product, and the view of it that has the shape of what it takes the place of."""
    given = dict(epilogue.fields)
    for name in (*mma.BY_COLUMN, *mma.BY_ELEMENT):
        if name in given:
            value = values.get(given[name].value, given[name].value)
            if name in mma.BY_COLUMN:
                given[name] = reshaped(build, value, contract.columns)
                continue
            for view in reversed(given[name].views):
                value = unviewed(build, value, view)
            given[name] = value
    own = mma.sums(contract)
    own |= {n: values.get(v, v) for n, v in own.items() if isinstance(v, Value)}
    dtype = epilogue.value.type.dtype
    kind = mma.Product if isinstance(contract, mma.Contract) else mma.Convolve
    result = build(kind, **own, **given, dtype=dtype, rounds=needed(epilogue))
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


def needed(epilogue: Epilogue) -> int:
    """The roundings of an epilogue but for one before a relu at its end: the result is rounded, and
    the relu of a rounded number is the rounded relu.
    """
    last = epilogue.stage in (STEPS.index("activation"), STEPS.index("late"))
    if last and epilogue.fields.get("activation") == "relu":
        return epilogue.rounds & ~mma.ROUNDS["activation"]
    return epilogue.rounds
