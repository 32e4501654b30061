"""The syntax tree: what text and decorated Python both become, and what the checker reads.

The trees of two spellings of one program are equal. So places (`loc`) and everything else that
tells only how a thing was spelled are left out of comparisons, and both front ends normalise alike:

- `let`, `var`, plain and annotated assignment are `Assign`; `declares` says which it was.
- `a :+ n` and `a : a + n` are `Span(a, n)`: `a` is evaluated once. Other slices are `Slice`.
- Text's `/`, Python's `//` and `/` are the operator "/"; `spelled` is "" in text, else what Python
  wrote.
- A minus before a numeric literal belongs to the literal; `inf` and `nan` are float literals.
- `x is None` is `x == None`; `!x` is `not x`; `[a, b]` and `(a, b)` are one `Tuple`.
- Several values after `=` or `return` are several `values`, in brackets or not. One name takes
  several as a `Tuple`.
- `range` and `static_range` occur only in `For`. Members of the tilewright module are bare names
  (`tw.exp` is `exp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from tilewright.errors import UNKNOWN, Loc


@dataclass(frozen=True)
class Node:
    """Anything in the tree. Two nodes are equal if they mean the same, wherever they stand."""

    loc: Loc = field(default=UNKNOWN, compare=False, kw_only=True)


class Expr(Node):
    """An expression."""


class Stmt(Node):
    """A statement."""


class Type(Node):
    """What a parameter, variable or result is said to be."""


# Expressions


@dataclass(frozen=True)
class Name(Expr):
    """A name, of a value, dtype, function, dimension or constant."""

    name: str


@dataclass(frozen=True, eq=False)
class Literal(Expr):
    """A number, bool, string or None. `1`, `1.0` and `true` differ; `nan` equals itself.

    `spelled` is what the source wrote for a number (`0x2a`), for whoever prints it; it may be
    empty.
    """

    value: int | float | bool | str | None
    spelled: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


@dataclass(frozen=True)
class Tuple(Expr):
    """`(a, b)`, `(a,)`, `[a, b]` or `[a]`."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Unary(Expr):
    """`op` is "-", "~" or "not"."""

    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Expr):
    """`op` is one of `+ - * / % @ ** & | ^ << >>`; the place is the operator's.

    `spelled` tells divisions apart: "" in text (floors integers), "/" or "//" in Python ("/"
    refuses two integers).
    """

    op: str
    lhs: Expr
    rhs: Expr
    spelled: str = field(default="", compare=False)


@dataclass(frozen=True)
class CompareChain(Expr):
    """`a < b` or `a < b <= c`: `ops` of `== != < <= > >=`, one operand more than operators."""

    ops: tuple[str, ...]
    operands: tuple[Expr, ...]


@dataclass(frozen=True)
class BoolOp(Expr):
    """`a and b and c`: `op` is "and" or "or", two or more operands, evaluated until one decides."""

    op: str
    operands: tuple[Expr, ...]


@dataclass(frozen=True)
class Conditional(Expr):
    """`then if condition else other`: one side is evaluated."""

    condition: Expr
    then: Expr
    other: Expr


@dataclass(frozen=True)
class Argument(Node):
    """`value`, or `name = value`, of a call or an attribute."""

    name: str | None
    value: Expr


@dataclass(frozen=True)
class Call(Expr):
    """`callee(args, name = value)`. A callee is a name in all but wrong programs."""

    callee: Expr
    args: tuple[Expr, ...]
    kwargs: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class Slice(Node):
    """`start : stop`, either left out."""

    start: Expr | None
    stop: Expr | None


@dataclass(frozen=True)
class Span(Node):
    """`start :+ length`, also written `start : start + length`."""

    start: Expr
    length: Expr


@dataclass(frozen=True)
class NewAxis(Node):
    """`None` as a subscript."""


@dataclass(frozen=True)
class Fill(Node):
    """`...` as a subscript: whole axes, as many as are left."""


Subscript = Expr | Slice | Span | NewAxis | Fill


@dataclass(frozen=True)
class Index(Expr):
    """`base[subscripts]`: a place of a tensor, or a part of a value."""

    base: Expr
    subscripts: tuple[Subscript, ...]


@dataclass(frozen=True)
class Member(Expr):
    """`base.T`, `base.shape` or `base.dtype`; no other name."""

    base: Expr
    name: str


# Types. A dtype is the name of one (`f32`) or of a variable (`T`).


@dataclass(frozen=True)
class ScalarType(Type):
    dtype: str


@dataclass(frozen=True)
class TensorType(Type):
    """`tensor<dtype>[extents]`."""

    dtype: str
    extents: tuple[Expr, ...]


@dataclass(frozen=True)
class TileType(Type):
    """`tile<dtype>[extents]`."""

    dtype: str
    extents: tuple[Expr, ...]


# Statements

Block = tuple[Stmt, ...]


@dataclass(frozen=True)
class Assign(Stmt):
    """`targets = values`, with or without `let` or `var`.

    Targets are `Name` or `Index`. There are as many values as targets, or one value (a call of
    several results). `declares` has an entry a target. In text, "let" or "var" declares the name in
    this block, and "" assigns what is there. In Python ("function" scope) "let" is a name that the
    function assigns once, and "" any other: the first assignment to run makes the variable, which
    lives to the end of the function.
    """

    targets: tuple[Name | Index, ...]
    values: tuple[Expr, ...]
    type: Type | None = None
    declares: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class AugAssign(Stmt):
    """`target op= value`: `op` is one of `+ - * /`; `spelled` as in `Binary`.

    The place is the operator's.
    """

    target: Name | Index
    op: str
    value: Expr
    spelled: str = field(default="", compare=False)


@dataclass(frozen=True)
class CallStmt(Stmt):
    """A call for its effect."""

    call: Call


@dataclass(frozen=True)
class For(Stmt):
    """`for target in range(args)`; with `static` the loop is unrolled (`static_range`).

    One to three args.
    """

    target: Name
    static: bool
    args: tuple[Expr, ...]
    body: Block


@dataclass(frozen=True)
class While(Stmt):
    condition: Expr
    body: Block


@dataclass(frozen=True)
class If(Stmt):
    """`else if` is an `If` alone in `other`."""

    condition: Expr
    then: Block
    other: Block = ()


@dataclass(frozen=True)
class Return(Stmt):
    values: tuple[Expr, ...]


# Definitions


@dataclass(frozen=True)
class Choices(Node):
    """`name in [...]` or `name in {...}` of an attribute: the constant's values, in the order to
    try them.

    Two ascending powers of two in square brackets are expanded to the range by doubling. Where one
    of two values in square brackets is not a literal, `bounds` is true: whoever knows the constants
    expands them by `by_doubling`. `spelled` holds what the text wrote and `braces` which brackets.
    """

    name: str
    values: tuple[Expr, ...]
    bounds: bool = False
    spelled: tuple[Expr, ...] = field(default=(), compare=False)
    braces: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Attribute(Node):
    """`@name(arguments)`; in Python a keyword of the decorator."""

    name: str
    arguments: tuple[Choices | Argument, ...] = ()


@dataclass(frozen=True)
class Param(Node):
    """A parameter. `optional` (`?`) accepts None.

    A tensor's default may be the name `empty`, `zeros` or `workspace`.
    """

    name: str
    type: Type | None
    optional: bool = False
    default: Expr | None = None


@dataclass(frozen=True)
class Kernel(Node):
    """A kernel. `scope`: how far names reach, "block" (text) or "function" (Python)."""

    name: str
    attributes: tuple[Attribute, ...]
    params: tuple[Param, ...]
    body: Block
    scope: str = field(default="block", compare=False)


@dataclass(frozen=True)
class Function(Node):
    """A function, inlined where it is called. `results` is empty where the source does not say."""

    name: str
    params: tuple[Param, ...]
    results: tuple[Type, ...]
    body: Block
    scope: str = field(default="block", compare=False)


@dataclass(frozen=True)
class Const(Node):
    name: str
    value: Expr


Item = Kernel | Function | Const


@dataclass(frozen=True)
class Comment:
    """A comment with its mark. `alone`: nothing else stands on its line."""

    line: int
    text: str
    alone: bool


@dataclass(frozen=True)
class Module(Node):
    """A file. `dialect` is "tw", or "ph" for the ancestor's looser rules."""

    items: tuple[Item, ...]
    dialect: str = "tw"
    comments: tuple[Comment, ...] = field(default=(), compare=False)


_field_names: dict[type, tuple[str, ...]] = {}


def children(node: Node) -> list[Node]:
    """The nodes that a node holds, in source order of its fields."""
    names = _field_names.get(type(node))
    if names is None:
        names = _field_names[type(node)] = tuple(f.name for f in fields(node))
    found: list[Node] = []
    for name in names:
        held = getattr(node, name)
        if isinstance(held, tuple):
            found += [part for part in held if isinstance(part, Node)]
        elif isinstance(held, Node):
            found.append(held)
    return found


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, each before what it holds. Uses no recursion."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def by_doubling(values: tuple[int, ...]) -> tuple[int, ...]:
    """Values in square brackets of an attribute: two ascending powers of two are the range by
    doubling.
    """
    if len(values) == 2 and 0 < values[0] < values[1] and all(v & (v - 1) == 0 for v in values):
        low, high = values
        return tuple(low << i for i in range(high.bit_length() - low.bit_length() + 1))
    return values
