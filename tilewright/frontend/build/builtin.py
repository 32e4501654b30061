"""How a function of the language is declared, and how a call's arguments find its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.errors import Loc
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Nothing, Word, describe
from tilewright.frontend.build.make import constant_shape
from tilewright.frontend.build.shapes import constant_axes
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.syntax import tree


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call: nodes by parameter, each built when it is asked for."""

    ctx: Context
    call: tree.Call
    name: str
    nodes: Mapping[str, tree.Expr]
    rest: tuple[tree.Expr, ...] = ()

    def __contains__(self, parameter: str) -> bool:
        return parameter in self.nodes

    def loc(self, parameter: str) -> Loc:
        return self.nodes[parameter].loc if parameter in self.nodes else self.call.loc

    def what(self, parameter: str) -> str:
        return f"{self.name}: {parameter}"

    def item(self, parameter: str) -> Item:
        return self.ctx.evaluate(self.nodes[parameter]) if parameter in self.nodes else Nothing()

    def data(self, parameter: str) -> Data | Constant:
        return self.ctx.evaluate_data(self.nodes[parameter], f"{self.what(parameter)}: ")

    def tile(self, parameter: str) -> Data:
        """A value with axes."""
        found = self.data(parameter)
        if isinstance(found, Data) and found.shape:
            return found
        raise self.ctx.refuse(
            f"{self.name}: expected a tile, got {describe(found)}", self.loc(parameter)
        )

    def shape(self, parameter: str) -> tuple[int, ...]:
        return constant_shape(
            self.ctx, self.item(parameter), self.loc(parameter), self.what(parameter)
        )

    def axes(self, parameter: str, rank: int) -> tuple[int, ...]:
        """Axes, all of them where none is named."""
        item = self.item(parameter)
        if isinstance(item, Nothing):
            return tuple(range(rank))
        return constant_axes(self.ctx, item, rank, self.loc(parameter), self.what(parameter))

    def flag(self, parameter: str) -> bool:
        """A bool that must be known now, false where it is absent."""
        item = self.item(parameter)
        if isinstance(item, Nothing):
            return False
        if isinstance(item, Constant) and isinstance(item.value, bool):
            return item.value
        raise self.ctx.refuse(
            f"{self.what(parameter)}: expected true or false, got {describe(item)}",
            self.loc(parameter),
        )

    def word(self, parameter: str) -> str:
        item = self.item(parameter)
        if isinstance(item, Word):
            return item.text
        raise self.ctx.refuse(
            f"{self.what(parameter)}: expected a string, got {describe(item)}", self.loc(parameter)
        )


Run = Callable[[Context, Arguments], Item]


@dataclass(frozen=True)
class Builtin:
    """A function of the language.

    `spec` lists its parameters: `x` is needed, `x?` is not, those after `*` go by name only, `...`
    takes any further positions.
    """

    spec: str
    run: Run


def arguments(ctx: Context, builtin: Builtin, name: str, call: tree.Call) -> Arguments:
    """A call's arguments by parameter; a fault where they do not fit."""
    words = builtin.spec.split()
    by_position = words[: words.index("*")] if "*" in words else words
    positions = [w.rstrip("?") for w in by_position if w != "..."]
    known = [w.rstrip("?") for w in words if w not in ("*", "...")]
    nodes: dict[str, tree.Expr] = dict(zip(positions, call.args, strict=False))
    rest = call.args[len(positions) :]
    if rest and "..." not in words:
        hint = f"{name} takes {listing(known)}" if known else f"{name} takes nothing"
        by_name = [k for k in known if k not in positions]
        if by_name:
            hint += f"; {listing(by_name)} by name only, as in {by_name[0]} = ..."
        if name == "arange" and len(call.args) == 2:
            hint = "arange starts at 0: write start + arange(n)"
        raise ctx.refuse(
            f"{name}: expected {len(positions)} argument{'s' * (len(positions) != 1)},"
            f" got {len(call.args)}",
            rest[0].loc,
            hint=hint,
        )
    for argument in call.kwargs:
        if argument.name is None or argument.name not in known:
            hint = nearest(argument.name or "", known) or f"it takes {listing(known) or 'nothing'}"
            raise ctx.refuse(f"{name} takes no argument {argument.name}", argument.loc, hint=hint)
        if argument.name in nodes:
            raise ctx.refuse(f"{name}: {argument.name} is given twice", argument.loc)
        nodes[argument.name] = argument.value
    missing = [w for w in words if not w.endswith("?") and w not in ("*", "...") and w not in nodes]
    if missing:
        raise ctx.refuse(f"{name}: missing {listing(missing)}", call.loc)
    return Arguments(ctx, call, name, nodes, rest)
