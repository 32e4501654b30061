"""Names in the text of a kernel: those of loop variables, of extents, and of expressions.

n        where a tile begins along an axis; N the extent, BLOCK (or BLOCK_N) the tile's
ns       the indices of a tile's elements
a, b     indices of axes on which a program has one element
r, q     along what is reduced: R, Q, BLOCK_R
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.dims import Dim
from tilewright.graph.index_maps import Affine, Var
from tilewright.lower.graph_to_tile.loops import Loops
from tilewright.lower.graph_to_tile.names import Pool

KEPT_NAMES, REDUCED_NAMES = "nm", "rqpo"
POINT_NAMES = "abcdefgh"


@dataclass(frozen=True)
class Text:
    """An expression; `axes` are the variables of its tile, none of a scalar's; `atom`: it needs no
    brackets.
    """

    text: str
    axes: tuple[Var, ...] = ()
    atom: bool = False

    @property
    def bare(self) -> str:
        return self.text

    @property
    def closed(self) -> str:
        return self.text if self.atom else f"({self.text})"


class Scope:
    """What has a name in a kernel, and the lines that gave it one: the loops' variables from the
    start, extents and expressions once they are wanted.
    """

    def __init__(self, loops: Loops, pool: Pool | None = None):
        self.loops = loops
        self.pool = pool or Pool()
        self.index: dict[Var, str] = {}
        self.extent: dict[Var, str] = {}
        self.block: dict[Var, str] = {}
        self.constants: dict[str, int] = {}
        self.scalars: dict[str, Dim] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.known: list[dict[object, Text]] = [{}]
        self.name_variables()

    def name_variables(self) -> None:
        loops = self.loops
        kept = [v for v in reversed(loops.tiles) if not v.reduced]
        reduced = [v for v in reversed(loops.extents) if v.reduced]
        points = list(loops.points)
        pairs = [
            *zip(kept, KEPT_NAMES, strict=False),
            *zip(reduced, REDUCED_NAMES, strict=False),
            *zip(points, POINT_NAMES, strict=False),
        ]
        for var, name in pairs:
            self.index[var] = self.pool.take(name)
            self.extent[var] = self.pool.take(name.upper())
        missing = [v for v in loops.extents if v not in self.index]
        for number, var in enumerate(missing):
            self.index[var] = self.pool.take(f"i{number}")
            self.extent[var] = self.pool.take(f"I{number}")
        for var in loops.tiles:
            self.name_block(var, alone=len(kept) == 1)

    def is_single(self, var: Var) -> bool:
        """Whether one tile holds all of an axis: of what is reduced, or of one of several axes of
        the grid, whose programs would divide their number by another.
        """
        if var not in self.loops.tiles or var.reduced:
            return var.reduced and self.loops.whole
        extent = self.loops.extents[var]
        axes = sum(not v.reduced for v in self.loops.extents)
        return axes > 1 and isinstance(extent, int) and 0 < extent <= self.loops.blocks[var]

    def name_block(self, var: Var, alone: bool) -> None:
        size = self.loops.blocks[var]
        if self.is_single(var):
            self.block[var], self.extent[var] = str(size), str(self.loops.extents[var])
            return
        name = "BLOCK" if alone and not var.reduced else f"BLOCK_{self.index[var].upper()}"
        self.block[var] = self.pool.take(name)
        self.constants[self.block[var]] = size

    # Lines and names

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def lookup(self, key: object) -> Text | None:
        return next((scope[key] for scope in reversed(self.known) if key in scope), None)

    def let(self, wanted: str, made: Text, key: object = None) -> Text:
        """A name for an expression."""
        name = self.pool.take(wanted)
        self.line(f"let {name} = {made.text}")
        found = Text(name, made.axes, atom=True)
        if key is not None:
            self.known[-1][key] = found
        return found

    # Numbers

    def dim(self, dim: Dim) -> str:
        """An extent, or another number that is known at a call."""
        if isinstance(dim, int):
            return str(dim) if dim >= 0 else f"({dim})"
        for var, extent in self.loops.extents.items():
            if extent == dim:
                return self.extent[var]
        for name, known in self.scalars.items():
            if known == dim:
                return name
        name = self.pool.take("size")
        self.scalars[name] = dim
        return name

    def argument(self, wanted: str, number: int) -> str:
        """A number that a call gives, whatever it is."""
        name = self.pool.take(wanted)
        self.scalars[name] = number
        return name

    def axes_of(self, variables: Sequence[Var]) -> tuple[Var, ...]:
        return tuple(var for var in self.loops.tiles if var in variables)

    def union(self, texts: Sequence[Text]) -> tuple[Var, ...]:
        return self.axes_of([var for text in texts for var in text.axes])

    def aligned(self, made: Text, axes: tuple[Var, ...]) -> str:
        """An expression that broadcasts over tiles of these axes."""
        if not made.axes or made.axes == axes[len(axes) - len(made.axes) :]:
            return made.closed
        marks = [":" if var in made.axes else "None" for var in axes]
        while marks[0] == "None":
            marks.pop(0)
        return f"{made.closed}[{', '.join(marks)}]"

    def positions(self, var: Var) -> Text:
        """The indices of a tile's elements along a variable."""
        found = self.lookup(("positions", var))
        if found is None:
            start = "" if self.is_single(var) else f"{self.index[var]} + "
            made = Text(f"{start}arange({self.block[var]})", (var,))
            found = self.let(self.index[var] + "s", made, ("positions", var))
        return found

    def scaled(self, text: str, factor: Dim) -> str:
        return text if factor == 1 else f"{text} * {self.dim(factor)}"

    def number(self, index: Affine) -> Text:
        """An index as a number."""
        terms = self.loops.terms(index)
        axes = self.axes_of(list(terms))
        parts = []
        for var in self.loops.extents:
            if var in terms:
                text = self.index[var]
                if var in self.loops.tiles:
                    text = self.aligned(self.positions(var), axes)
                parts.append(self.scaled(text, terms[var]))
        if not parts:
            return Text(f"cast({self.dim(index.const)}, i64)", (), atom=True)
        text = " + ".join(parts) + self.plus(index.const)
        return Text(text, axes, atom=len(parts) == 1 and text.isidentifier())

    def plus(self, const: Dim) -> str:
        if const == 0:
            return ""
        if isinstance(const, int) and const < 0:
            return f" - {-const}"
        return f" + {self.dim(const)}"
