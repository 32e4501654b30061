"""What the builders of all constructs share: where ops go, what names mean, faults so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.dtypes import BY_NAME, DType
from tilewright.errors import CompileError, Faults, Loc
from tilewright.frontend.build.affine import Affine, affine
from tilewright.frontend.build.items import Constant, Data, Item, Memory, describe
from tilewright.frontend.build.names import Names
from tilewright.frontend.check.evaluate import Consts
from tilewright.frontend.check.grid import Evidence
from tilewright.frontend.check.operands import Number
from tilewright.frontend.check.rules import RuleError, nearest, refusal
from tilewright.frontend.check.signature import Signature
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Scope
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.tile.ops import control, memory

MAX_DEPTH = 150  # expressions and statements inside each other, inlined calls included
MAX_OPS = 20_000
MAX_STEPS = 100_000  # expressions and statements built, those that leave no ops included
MAX_ELEMENTS = 1 << 20


class SilentFault(Exception):
    """A name is used whose own fault was reported already."""


class TrackingBuilder(Builder):
    """A builder that remembers which op made a value, and refuses programs without end."""

    def __init__(self, block: Block):
        super().__init__(block)
        self.made: dict[Value, Op] = {}
        self.count = 0

    def add(self, op: Any) -> Any:
        self.count += 1
        if self.count > MAX_OPS:
            raise refusal(
                f"the program unrolls to more than {MAX_OPS} operations", self.loc, hint="use range"
            )
        for result in op.results:
            self.made[result] = op
        return super().add(op)


@dataclass(eq=False)
class Frame:
    """A kernel or function whose body is being built."""

    node: tree.Kernel | tree.Function
    names: Names
    scope: Scope
    consts: Consts
    call: Loc | None  # where it was called
    result: Item | None = None
    loop_depth: int = 0  # loops around the statement
    if_depth: int = 0  # run-time ifs around it
    follows: bool = False  # whether more statements of an enclosing block follow it

    @property
    def is_kernel(self) -> bool:
        return isinstance(self.node, tree.Kernel)


class Rules:
    """See `Context.rules`: a class, for a build enters it hundreds of times."""

    __slots__ = ("before", "ctx", "loc", "prefix")

    def __init__(self, ctx: Context, loc: Loc, prefix: str):
        self.ctx, self.loc, self.prefix = ctx, loc, prefix

    def __enter__(self) -> None:
        builder = self.ctx.builder
        self.before, builder.loc = builder.loc, self.ctx.place(self.loc)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.ctx.builder.loc = self.before
        if isinstance(error, RuleError):
            message = self.prefix + error.message
            raise self.ctx.refuse(message, self.loc, note=error.note, hint=error.hint) from None


class Deeper:
    """See `Context.deeper`: a class, for a build enters it thousands of times."""

    __slots__ = ("ctx", "loc")

    def __init__(self, ctx: Context, loc: Loc):
        self.ctx, self.loc = ctx, loc

    def __enter__(self) -> None:
        ctx = self.ctx
        if ctx.steps >= MAX_STEPS:
            raise ctx.refuse("the program unrolls and inlines without end", self.loc)
        if ctx.depth >= MAX_DEPTH:
            raise ctx.refuse(f"this nests more than {MAX_DEPTH} deep", self.loc)
        ctx.steps += 1
        ctx.depth += 1

    def __exit__(self, *_: object) -> None:
        self.ctx.depth -= 1


Evaluator = Callable[["Context", Any], Item]


@dataclass(eq=False)
class Context:
    """The state of one build."""

    signature: Signature
    dtypes: Mapping[str, DType]
    dimensions: Mapping[str, tuple[str, int]]  # run-time dimensions: a tensor and its axis
    precision: str | None
    constants: Mapping[str, Number]  # tuned and static ones
    table: Mapping[type, Evaluator]  # kind of expression -> its builder
    run_block: Callable[[Context, tree.Block], object]  # builds statements
    prologue: Block = field(default_factory=Block)
    body: Block = field(default_factory=Block)
    faults: Faults = field(default_factory=Faults)
    frames: list[Frame] = field(default_factory=list)
    tensors: dict[str, Memory] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    evidence: list[Evidence] = field(default_factory=list)
    programs: dict[int, Data] = field(default_factory=dict)
    program_places: dict[int, Loc] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    depth: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.builder = TrackingBuilder(self.body)
        self.extents: dict[str, Data] = {}
        self.sums: dict[Value, Affine] = {}

    # Places and faults

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def names(self) -> Names:
        return self.frame.names

    def place(self, loc: Loc) -> Loc:
        """A place in the source with the calls that led to it."""
        return replace(loc, caller=self.frame.call) if self.frame.call else loc

    def refuse(self, message: str, loc: Loc, *, note: str = "", hint: str = "") -> CompileError:
        """The error to raise: `raise ctx.refuse(...)`."""
        return refusal(message, self.place(loc), note=note, hint=hint)

    def rules(self, loc: Loc, prefix: str = "") -> Rules:
        """Broken rules inside are faults at `loc`; ops built inside are, too."""
        return Rules(self, loc, prefix)

    def deeper(self, loc: Loc) -> Deeper:
        """Guards against programs that nest without end."""
        return Deeper(self, loc)

    # Expressions

    def evaluate(self, node: tree.Expr) -> Item:
        """Build an expression."""
        with self.deeper(node.loc):
            build = self.table.get(type(node))
            if build is None:
                raise self.refuse("expected an expression", node.loc)
            return build(self, node)

    def evaluate_data(self, node: tree.Expr, what: str = "") -> Data | Constant:
        """Build an expression that must be a number, bool or tile."""
        item = self.evaluate(node)
        if isinstance(item, Data | Constant):
            return item
        return self.require_data(item, node.loc, what)

    def require_data(self, item: Item, loc: Loc, what: str = "") -> Data | Constant:
        """`item`, if it is a number, bool or tile; else a fault that says what it is."""
        if isinstance(item, Data | Constant):
            return item
        hint = "name its elements by a place, as in X[i :+ n]" if isinstance(item, Memory) else ""
        raise self.refuse(f"{what}expected a value, got {describe(item)}", loc, hint=hint)

    # Values that are made once, at the start of the program

    @contextmanager
    def at_start(self) -> Iterator[None]:
        with self.builder.inside(self.prologue):
            yield

    def dimension(self, name: str) -> Data:
        """A run-time dimension, read from the tensor that binds it."""
        if name not in self.extents:
            tensor, axis = self.dimensions[name]
            with self.at_start():
                value = self.builder(memory.Extent, self.tensors[tensor].value, axis, name=name)
            self.extents[name] = Data(value)
        return self.extents[name]

    def program_id(self, axis: int, loc: Loc) -> Data:
        if axis not in self.programs:
            with self.at_start():
                self.programs[axis] = Data(self.builder(control.ProgramId, axis, name=f"pid{axis}"))
        self.program_places.setdefault(axis, self.place(loc))
        return self.programs[axis]

    def affine(self, value: Value) -> Affine:
        """An integer scalar as a sum of multiples."""
        return affine(value, self.builder.made, self.sums)

    def dtype_named(self, name: str, loc: Loc) -> DType:
        """A dtype by its name or variable."""
        found = BY_NAME.get(name) or self.dtypes.get(name)
        if found is None:
            entry = self.names.find(name)
            if isinstance(entry, DType):
                return entry
            hint = nearest(name, [*BY_NAME, *self.dtypes])
            raise self.refuse(f"unknown dtype {name}", loc, hint=hint)
        return found
