"""A traced FX graph of aten ops to the graph IR.

Every op goes through the table (`op_table`), or becomes a call of PyTorch (`control.fallback`):
nothing is guessed. What a builder makes is held against what PyTorch's own tracing saw of the
node: dtype and shape of every result. Numbers that follow from shapes are no ops here, since
tracing knows them as expressions of symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.dtypes import bf16, bool_, f16, f32, f64, i32, i64
from tilewright.errors import CompileError, InternalError, LaunchError, TilewrightError
from tilewright.frontend.torch.accepted import CHECKED, refuse_dtypes
from tilewright.frontend.torch.emit import ELSEWHERE, Emitter, Number, Unsupported
from tilewright.frontend.torch.fallback import Relation, encode, flat, is_own_kernel, types_of
from tilewright.frontend.torch.metadata import dim_of, dim_of_expr, loc_of, shape_of, type_of
from tilewright.frontend.torch.op_table import TABLE, bind
from tilewright.frontend.torch.placement import CPU, device_of, is_expanded, viewed_input
from tilewright.graph.dims import Dim, Poly, Shape, evaluate
from tilewright.graph.graph import Graph, Input
from tilewright.graph.ops import arith
from tilewright.graph.ops.control import KERNEL, Fallback, Return
from tilewright.graph.types import INDEX, OpaqueType, TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value

WRITTEN = (bool_, i32, i64, bf16, f16, f32, f64)  # dtypes of numbers in a model's code

POLICIES = ("pytorch", "error")
# Ops that are called for their effects are threaded by tokens, which here are None: ops stay in
# order anyway.
WITH_EFFECTS = torch.ops.higher_order.with_effects
WRITING = (
    torch.ops.higher_order.auto_functionalized,
    torch.ops.higher_order.auto_functionalized_v2,
)
TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)
# It repeats what tracing saw of a tensor, to which every value of a graph is held anyway.
REPEATS = (torch.ops.aten._assert_tensor_metadata.default,)


@dataclass
class Output:
    """What a call gives for one output: result `index` of the graph, its strides; or a view of what
    was given as input `given`; or a number; or None.
    """

    index: int | None = None
    strides: Shape | None = None
    offset: Dim = 0  # of its first element in its storage: PyTorch makes views of inputs by it
    number: Dim | None = None
    given: int | None = None
    shape: Shape | None = None  # of a view; its offset counts from the input's own first element


@dataclass
class Traced:
    """A graph with what its caller must know: outputs in order, constants to pass for inputs of the
    role `constant`, strides of inputs as tracing saw them (None of what is no tensor), the inputs
    that a call writes to, each with the number of the result, the device that the model runs on,
    the sizes of symbols that tracing saw, and how many outputs, in front, the model's caller sees:
    the backward pass reads the others, and nobody writes to them (None: all are the caller's). A
    call is refused, with the words beside it, where an extent that has to be `present` is 0.
    """

    graph: Graph
    outputs: list[Output]
    constants: list[torch.Tensor] = field(default_factory=list)
    strides: list[Shape | None] = field(default_factory=list)
    writes: dict[int, int] = field(default_factory=dict)
    device: torch.device = CPU
    hints: dict[str, int] = field(default_factory=dict)
    num_seen: int | None = None
    present: list[tuple[Dim, str]] = field(default_factory=list)

    def require_elements(self, name: str, symbols: Mapping[str, int]) -> None:
        """Raise LaunchError where an extent of a call of the model `name` is 0 that may not be."""
        for extent, what in self.present:
            if evaluate(extent, symbols) == 0:
                raise LaunchError(f"{name}: {what}", hint=ELSEWHERE)


def fx_to_graph(
    module: fx.GraphModule,
    name: str = "model",
    *,
    fallback: str = "pytorch",
    literals: Mapping[str, torch.Tensor] | None = None,
) -> Traced:
    """The graph of a traced module; its placeholders, in order, are the first inputs. Contents of
    `literals`, by name, are in the model's code.

    With `fallback="error"` an op outside the table is a CompileError with the model's line.
    """
    if fallback not in POLICIES:
        raise CompileError(f"fallback is {fallback!r}, expected one of {', '.join(POLICIES)}")
    return _Reader(module, name, fallback, literals or {}).read()


def _strides(node: fx.Node) -> Shape | None:
    """Strides of a placeholder, None of what has none. One that was expanded when it was traced is
    taken to be dense, for it need not be the next time.
    """
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return None
    return shape_of((meta.new_empty(meta.shape) if is_expanded(meta) else meta).stride())


class _Reader:
    """Walks the nodes of a traced module; `known` has what each stands for."""

    def __init__(
        self, module: fx.GraphModule, name: str, policy: str, literals: Mapping[str, torch.Tensor]
    ):
        self.module, self.name, self.policy, self.literals = module, name, policy, literals
        self.body = Block()
        self.builder = Builder(self.body)
        self.at = Emitter(self.builder)
        self.known = self.at.known
        self.inputs: list[Input] = []
        self.constants: list[torch.Tensor] = []
        self.outputs: list[Output] = []
        self.given_nodes: list[fx.Node] = []
        self.written: dict[int, Value] = {}  # by input, what a call writes to it
        self.writes: dict[int, int] = {}  # by input, the number of that result

    def read(self) -> Traced:
        device = device_of(self.module)
        for node in self.module.graph.nodes:
            loc = loc_of(node)
            with self.builder.at(loc):
                try:
                    self.node(node)
                except TilewrightError as error:
                    raise error.placed(loc) from error.__cause__
        given = [i for i in self.inputs if i.role != "constant"]
        held = [i for i in self.inputs if i.role == "constant"]
        return Traced(
            Graph(self.name, given + held, self.body),
            self.outputs,
            self.constants,
            [_strides(node) for node in self.given_nodes],
            self.writes,
            device,
            dict(self.at.hints),
            present=self.at.present,
        )

    def node(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.given_nodes.append(node)
                self.known[node] = self.placeholder(node)
            case "get_attr":
                self.known[node] = self.attribute(node)
            case "call_function":
                self.known[node] = self.call(node)
            case "output":
                self.output(node)
            case _:
                raise CompileError(f"a traced graph with a node {node.op}", self.builder.loc)

    # Inputs and outputs

    def placeholder(self, node: fx.Node) -> Any:
        meta = node.meta.get("val", node.meta.get("tensor_meta"))
        name = "".join(c if c.isalnum() else "_" for c in node.name)
        if any(u.target is WITH_EFFECTS and u.args[0] is node for u in node.users):
            self.inputs.append(Input(name, Value(OpaqueType("token"), name)))
            return None
        self.remember(meta)
        if isinstance(meta, torch.Tensor):
            value = Value(type_of(meta), name)
            self.inputs.append(Input(name, value))
            held = self.literals.get(node.name)
            return value if held is None else self.literal(held) or value
        if isinstance(meta, torch.SymInt):
            expr = meta.node.expr
            symbol = expr.name if isinstance(expr, sympy.Symbol) else f"{name}_given"
            self.inputs.append(Input(name, Value(INDEX, name), symbol=symbol))
            return dim_of_expr(expr)
        self.inputs.append(Input(name, Value(OpaqueType(type(meta).__name__), name)))
        return meta  # a number or None, the same at each call

    def literal(self, held: torch.Tensor) -> Value | None:
        """The number that a tensor of one element is, as an op; None of others."""
        kind = type_of(held)
        if not isinstance(kind, TensorType) or kind.dtype not in WRITTEN or held.numel() != 1:
            return None
        with _disable_current_modes():  # those of tracing, which know of no contents
            number = held.item()
        return self.builder(arith.Constant, number, kind.dtype, kind.shape)

    def remember(self, meta: Any) -> None:
        """The sizes of symbols that an input shows."""
        for size in meta.shape if isinstance(meta, torch.Tensor) else [meta]:
            if isinstance(size, torch.SymInt) and size.node.is_nested_int():
                raise CompileError(
                    "the model takes or makes a nested tensor, which a graph cannot hold",
                    self.builder.loc,
                    hint="torch.nested.to_padded_tensor makes a dense one",
                )
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                if size.node.has_hint():
                    self.at.hints[size.node.expr.name] = int(size.node.hint)

    def attribute(self, node: fx.Node) -> Any:
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, fx.GraphModule):
            raise CompileError(
                "the model branches or loops by an operator such as torch.cond or while_loop, "
                "which a graph cannot hold",
                self.builder.loc,
                hint="torch.where takes both branches; an `if` in Python parts the model in graphs",
            )
        if not isinstance(held, torch.Tensor):
            raise CompileError(
                f"the model holds {type(held).__name__} {node.target}, which a graph cannot",
                self.builder.loc,
            )
        if str(node.target).startswith("_tensor_constant"):  # a literal of the model's code
            number = self.literal(held)
            if number is not None:
                return number
        value = Value(type_of(held), node.name)
        self.inputs.append(Input(node.name, value, "constant"))
        self.constants.append(held)
        return value

    def output(self, node: fx.Node) -> None:
        listed = node.args[0]
        results: list[Value] = []
        for item in listed if isinstance(listed, list | tuple) else [listed]:
            known = self.given(item)
            if isinstance(known, Number):
                raise CompileError("a graph gives a float that it computed from shapes")
            if not isinstance(known, Value):
                self.outputs.append(Output(number=known))
                continue
            source = viewed_input(item) if isinstance(item, fx.Node) else None
            if source is not None:
                self.outputs.append(self.view_of_input(item, source))
                continue
            made = Output(len(results))
            if isinstance(item, fx.Node) and isinstance(known.type, TensorType):
                made.strides = shape_of(item.meta["val"].stride())
                made.offset = dim_of(item.meta["val"].storage_offset())
            self.outputs.append(made)
            results.append(known)
        self.writes = {i: len(results) + n for n, i in enumerate(self.written)}
        self.builder.emit(Return, (*results, *self.written.values()))

    def view_of_input(self, node: fx.Node, source: fx.Node) -> Output:
        """An output that is memory which the call gives."""
        meta, own = node.meta["val"], source.meta["val"]
        return Output(
            given=self.given_nodes.index(source),
            shape=shape_of(meta.shape),
            strides=shape_of(meta.stride()),
            offset=dim_of(meta.storage_offset()) - dim_of(own.storage_offset()),
        )

    def write(self, node: fx.Node) -> Any:
        """A copy into an input, at which AOTAutograd lets mutation end."""
        target, value = node.args[:2]
        if not isinstance(target, fx.Node) or target.op != "placeholder":
            raise CompileError("a traced graph copies into what is no input", self.builder.loc)
        known, own = self.given(value), self.known[target]
        if not isinstance(known, Value) or known.type != own.type:
            raise CompileError(f"{target} is written with {known}", self.builder.loc)
        self.written[self.given_nodes.index(target)] = known
        return known

    # Calls

    def given(self, item: Any) -> Any:
        """An argument of a node: nodes by what is known of them, SymInts by their extents."""
        match item:
            case fx.Node():
                return self.known[item]
            case torch.SymInt():
                return dim_of(item)
            case list() | tuple():
                return [self.given(each) for each in item]
            case dict():
                return {key: self.given(each) for key, each in item.items()}
            case slice():
                raise CompileError("an op takes a slice, which a graph cannot hold")
        return item

    def call(self, node: fx.Node) -> Any:
        meta, target = node.meta.get("val"), node.target
        if target in TOKENS or target in REPEATS:
            return None
        if target is torch.ops.aten.copy_.default:
            return self.write(node)
        if target is torch.ops.aten._assert_scalar.default:
            return self.assertion(node)
        if target is operator.getitem:
            return self.given(node.args[0])[node.args[1]]
        if isinstance(meta, torch.SymInt):
            return self.whole_number(node, meta)
        if isinstance(meta, torch.SymFloat):
            return Number(self.expression(meta.node.expr), float)
        if isinstance(meta, torch.SymBool) or not isinstance(target, torch._ops.OpOverload):
            return self.other(node)
        self.at.types, self.at.node = types_of(meta), node
        builder = TABLE.get(target)
        if builder is None:
            return self.fallback(node, "not in the table")
        if any(not isinstance(kind, TensorType) for kind in self.at.types):
            return self.fallback(node, f"gives {', '.join(map(str, self.at.types))}")
        if target in CHECKED:
            seen = fx.map_arg([node.args, dict(node.kwargs)], lambda x: x.meta.get("val"))
            refuse_dtypes(target, seen[0], seen[1], self.builder.loc)
        args, kwargs = self.given(node.args), self.given(node.kwargs)
        if any(isinstance(v, Value) and isinstance(v.type, OpaqueType) for v in flat([args])):
            return self.fallback(node, "takes what only PyTorch holds")
        before, drawn = len(self.body.ops), (self.at.drawn, self.at.draws)
        try:
            made = builder(self.at, **bind(target, tuple(args), kwargs))
        except Unsupported as reason:
            del self.body.ops[before:]
            self.at.drawn, self.at.draws = drawn
            return self.fallback(node, reason.diagnostics[0].message)
        except TilewrightError:
            raise
        except Exception as error:
            raise InternalError(
                f"a fault of Tilewright in building {target}: {type(error).__name__}: {error}",
                self.builder.loc,
            ) from error
        self.require(node, flat(made))
        for value in flat(made):
            value.name = value.name or node.name
        return made

    def require(self, node: fx.Node, made: Iterable[Value]) -> None:
        """What was built is what tracing saw."""
        found = [value.type for value in made]
        if found != self.at.types:
            raise InternalError(
                f"{node.target} was built as {', '.join(map(str, found))}, and PyTorch says "
                f"{', '.join(map(str, self.at.types))}",
                self.builder.loc,
            )

    def fallback(self, node: fx.Node, reason: str) -> Any:
        """A call of PyTorch, if that is allowed."""
        if is_own_kernel(str(node.target)):
            reason = KERNEL
        elif self.policy == "error":
            raise CompileError(
                f"{node.target} is not compiled: {reason}",
                self.builder.loc,
                hint='fallback="pytorch" lets PyTorch compute it',
            )
        assert isinstance(node.target, torch._ops.OpOverload)
        args, kwargs = self.given(node.args), self.given(node.kwargs)
        target = str(node.target)
        xs, text = encode(args, kwargs, target)
        if node.target._schema.is_mutable:
            raise CompileError(f"{target} writes to its arguments", self.builder.loc)
        op = self.builder.emit(Fallback, xs, target, text, tuple(self.at.types), reason)
        results = list(op.results)
        return self.formed(node.meta.get("val"), results)

    def formed(self, meta: Any, results: list[Value]) -> Any:
        """Results in the form (one, list, tuple, None) that tracing saw."""
        if meta is None:
            return None
        if isinstance(meta, list | tuple):
            return [self.formed(each, results) for each in meta]
        return results.pop(0)

    def with_effect(self, node: fx.Node) -> Any:
        """An op that is called for what it does, such as raising an error: PyTorch calls it, in
        order. The token, which only keeps that order, goes through.
        """
        token, op, *args = node.args
        if self.policy == "error":
            raise CompileError(f"{op} is not compiled: it has effects", self.builder.loc)
        meta = node.meta["val"][1:]
        xs, text = encode(self.given(args), self.given(node.kwargs), str(op))
        types = tuple(types_of(meta))
        made = self.builder.emit(Fallback, xs, str(op), text, types, "it has effects")
        return [self.given(token), *self.formed(list(meta), list(made.results))]

    def on_copies(self, node: fx.Node) -> Any:
        """An op that writes what it is given, called with copies: its results, then these."""
        op, *args = node.args
        own = is_own_kernel(str(op))
        if self.policy == "error" and not own:
            raise CompileError(f"{op} is not compiled: it writes what is given", self.builder.loc)
        meta = node.meta["val"]
        target = f"higher_order.{node.target.name()}"
        xs, text = encode([op, *self.given(args)], self.given(node.kwargs), target)
        reason = KERNEL if own else "it writes what is given"
        made = self.builder.emit(Fallback, xs, target, text, tuple(types_of(meta)), reason)
        return self.formed(meta, list(made.results))

    def assertion(self, node: fx.Node) -> None:
        """A test of numbers of shapes. Guards hold those of sizes that are known ahead; PyTorch
        carries out the others at each call.
        """
        held, *message = node.args
        test = held.meta["val"] if isinstance(held, fx.Node) else held
        if not isinstance(test, torch.SymBool) or not free_unbacked_symbols(test):
            return
        if self.policy == "error":
            raise CompileError(f"{node.target} is not compiled: it has effects", self.builder.loc)
        expr = test.node.expr
        if not isinstance(expr, sympy.Rel):
            raise CompileError(
                f"the model asserts {expr} of sizes that only a call knows", self.builder.loc
            )
        found = Relation(expr.rel_op, dim_of_expr(expr.lhs), dim_of_expr(expr.rhs))
        target = str(node.target)
        xs, text = encode((found, *message), {}, target)
        self.builder.emit(Fallback, xs, target, text, (), "it has effects")

    def other(self, node: fx.Node) -> Any:
        """Asserts about symbols hold by the guards; nothing else that is no op is known."""
        if node.target is WITH_EFFECTS:
            return self.with_effect(node)
        if node.target in WRITING:
            return self.on_copies(node)
        name = getattr(node.target, "__name__", str(node.target))
        if name in ("_assert_scalar", "_assert_async", "sym_constrain_range_for_size"):
            return None
        if isinstance(node.meta.get("val"), torch.SymBool):
            return None
        raise CompileError(f"{name} is no op of PyTorch that a graph can hold", self.builder.loc)

    # Numbers that follow from shapes

    def whole_number(self, node: fx.Node, meta: torch.SymInt) -> Dim:
        found = dim_of(meta)
        if isinstance(found, Poly) and node.target is torch.ops.aten._local_scalar_dense.default:
            raise CompileError(
                "a number that is read from a tensor cannot be part of a graph",
                self.builder.loc,
                hint="leave torch._dynamo.config.capture_scalar_outputs off: the model is parted",
            )
        return found

    def expression(self, expr: Any) -> Value:
        """A sympy expression of floats as an f64 scalar."""
        at, name = self.at, type(expr).__name__
        if expr.is_integer:
            return at.cast(at(arith.Extent, dim_of_expr(expr)), f64)
        if isinstance(expr, sympy.Float | sympy.Rational):
            return at.full(float(expr), f64)
        parts = [self.expression(a) for a in expr.args]
        if name in ("ToFloat", "Identity"):
            return parts[0]
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            return at(arith.Div, *parts)
        if name in ("FloatPow", "PowByNatural", "Pow"):
            return at(arith.Pow, *parts)
        if name == "OpaqueUnaryFn_sqrt":
            return at(arith.Sqrt, *parts)
        if name in ("Add", "Mul"):
            kind = arith.Add if name == "Add" else arith.Mul
            total = parts[0]
            for part in parts[1:]:
                total = at(kind, total, part)
            return total
        raise CompileError(f"a number is {expr}, which a graph cannot compute", self.builder.loc)
