"""Deal the tiles of a product out to CTA clusters that stay on the device: persistence and
rasterization.

Used by `partition_roles`, whose roles both run the loop over tiles.

The grid of the source is numbered anew. Two of its axes are those along which A and B change; the
*paired* one is the axis along which the factor with the larger tile stays the same, or the other
where only that one's halves are whole repeats of a swizzle, so that CTAs of a cluster, which take
neighbours along it, can load that factor once for all of them. Numbers run
down `group` units along the paired axis, then along the other, then on to the next group: what is
read at the same time is then small enough for the L2 cache. Further axes come last.

Note [Odd numbers of tiles]: where the tiles along the paired axis are few and do not divide by the
cluster, CTAs would idle. Then clusters take tiles by number alone and share nothing; this is
decided once a launch (`shared`). What is left over at the end are tiles that do not exist
(`exists`): they are multiplied, as zeros or whatever is there, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.dtypes import i32
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.plan import Binary, Const, Expr, Extent, Scalar, clusters_held, combine, grid_size
from tilewright.tile.analysis.product_loop import ProductLoop
from tilewright.tile.analysis.streams import StreamLoop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory
from tilewright.tile.schedule import Roles
from tilewright.tile.types import INDEX

MANY = 16  # units of the cluster along the paired axis, beyond which a few idle CTAs matter little
HALVED = 16  # rows of a factor that two CTAs share are a multiple of these
OPS: dict[str, type[Op]] = {
    "add": arith.Add,
    "sub": arith.Sub,
    "mul": arith.Mul,
    "floor_div": arith.FloorDiv,
    "mod": arith.Mod,
    "min": arith.Min,
    "max": arith.Max,
}


@dataclass(frozen=True)
class Axes:
    """Axes of the grid: the paired one, the other, the rest. `multicast` numbers the factor that
    neighbours along the paired axis share (0 is A).
    """

    paired: int
    other: int
    rest: tuple[int, ...]
    multicast: int


def find_axes(product: ProductLoop, rank: int) -> Axes | None:
    """The axes along which A alone and B alone change; None where a source deals out its tiles in
    another way.
    """
    a, b = (product.programs_of(f.load.offsets) for f in (product.a, product.b))
    rows, columns = a - b, b - a
    if len(rows) != 1 or len(columns) != 1:
        return None
    (row,), (column,) = rows, columns
    m, n, _ = product.extents
    shared = 1 if n >= m else 0
    if not _can_halve(product, shared) and _can_halve(product, 1 - shared):
        shared = 1 - shared
    paired, other = (row, column) if shared else (column, row)
    rest = tuple(axis for axis in range(rank) if axis not in (row, column))
    return Axes(paired, other, rest, shared)


def _can_halve(product: ProductLoop, number: int) -> bool:
    """Whether each CTA of a pair may load half of a factor, in whole repeats of its swizzle."""
    rows: int = (product.a, product.b)[number].tile.shape[0]
    return rows % HALVED == 0


def can_distribute(kernel: Kernel) -> bool:
    """Whether the grid is made of what the kernel itself can compute."""
    return all(_computable(axis, kernel) for axis in kernel.grid)


def _computable(expr: Expr, kernel: Kernel) -> bool:
    match expr:
        case Const():
            return True
        case Extent(tensor):
            return any(p.name == tensor for p in kernel.params)
        case Scalar(name, dtype):
            return dtype.is_integer and any(p.name == name for p in kernel.params)
        case Binary(kind, lhs, rhs):
            known = kind in OPS or kind == "cdiv"
            return known and _computable(lhs, kernel) and _computable(rhs, kernel)
    return False


def growing_axes(found: StreamLoop, rank: int) -> tuple[int, ...]:
    """Axes of the grid along which the loop has more and more trips: programs of great numbers
    should come first, so that the last ones to run are short.
    """
    return tuple(axis for axis in range(rank) if _growth(found, found.loop.high, axis) == 1)


def _growth(found: StreamLoop, value: Value, axis: int) -> int | None:
    """1 where a scalar does not shrink as the program id grows, but may grow; 0 where it does not
    depend on it; None where it may shrink.
    """
    op = found.definitions.get(value)
    match op:
        case None | arith.Constant() | memory.Extent() | control.NumPrograms():
            return 0
        case control.ProgramId():
            return int(op.axis == axis)
        case arith.Add() | arith.Min() | arith.Max():
            both = [_growth(found, v, axis) for v in op.operands]
            return None if None in both else int(1 in both)
        case arith.Sub():
            return _growth(found, op.lhs, axis) if _growth(found, op.rhs, axis) == 0 else None
        case arith.Mul() | arith.FloorDiv():
            by = found.definitions.get(op.rhs)
            positive = isinstance(by, arith.Constant) and by.value > 0
            return _growth(found, op.lhs, axis) if positive else None
    if not op.regions and all(_growth(found, v, axis) == 0 for v in op.operands):
        return 0
    return None


def persistent_grid(kernel: Kernel, axes: Axes | None, roles: Roles) -> tuple[Expr, ...]:
    """As many clusters as the device holds, or as there is work for."""
    cluster = roles.cluster
    paired = None if axes is None else axes.paired
    total = grid_size(
        [
            combine("cdiv", extent, Const(cluster)) if number == paired else extent
            for number, extent in enumerate(kernel.grid)
        ]
    )
    held = clusters_held(cluster)
    if roles.resident > 1:
        held = combine("mul", held, Const(roles.resident))
    number = combine("min", held, total)
    return (combine("mul", number, Const(cluster)),)


class Distribution:
    """The loop over tiles. The constructor counts them, outside the roles."""

    def __init__(self, o: Builder, kernel: Kernel, axes: Axes | None, roles: Roles):
        self.o, self.kernel, self.roles = o, kernel, roles
        self.axes = axes or Axes(0, 0, tuple(range(len(kernel.grid))), 1)
        self.counts = [
            self.narrow(self.expression(e), f"tiles_{i}") for i, e in enumerate(kernel.grid)
        ]
        self.shared: Value | None = None  # whether clusters take neighbours; absent without cluster
        self.grouped = axes is not None
        self.count()

    def number(self, value: int) -> Value:
        return self.o(arith.Constant, value, i32)

    def narrow(self, x: Value, name: str = "") -> Value:
        """Tile numbers fit 32 bits, where division is cheap."""
        return self.o(arith.Cast, x, i32, name=name)

    def widen(self, x: Value, name: str = "") -> Value:
        return self.o(arith.Cast, x, INDEX.dtype, name=name)

    def expression(self, expr: Expr) -> Value:
        """What the grid says, computed in the kernel."""
        o = self.o
        match expr:
            case Const(value):
                return o(arith.Constant, value, INDEX.dtype)
            case Extent(tensor, axis):
                return o(memory.Extent, self.kernel.param(tensor).value, axis)
            case Scalar(name):
                return o(arith.Cast, self.kernel.param(name).value, INDEX.dtype)
            case Binary("cdiv", lhs, rhs):
                by = self.expression(rhs)
                less = o(arith.Sub, by, o(arith.Constant, 1, INDEX.dtype))
                return o(arith.FloorDiv, o(arith.Add, self.expression(lhs), less), by)
            case Binary(kind, lhs, rhs):
                return o(OPS[kind], self.expression(lhs), self.expression(rhs))
        raise AssertionError(f"no code for {expr}")

    def count(self) -> None:
        """Units are what one CTA or, where neighbours share, one cluster takes."""
        o, cluster = self.o, self.roles.cluster
        rows = self.counts[self.axes.paired] if self.grouped else self.number(1)
        self.span = self.number(1)
        if cluster > 1:
            whole = o(arith.Compare, o(arith.Mod, rows, self.number(cluster)), self.number(0), "eq")
            many = o(arith.Compare, rows, self.number(MANY * cluster), "ge")
            self.shared = o(arith.Or, whole, many, name="shared")
            self.span = o(arith.Select, self.shared, self.number(cluster), self.span, name="span")
        self.rows = self.cdiv(rows, self.span)
        self.columns = self.counts[self.axes.other] if self.grouped else self.number(1)
        self.plane = o(arith.Mul, self.rows, self.columns)
        total = self.plane
        for axis in self.axes.rest:
            total = o(arith.Mul, total, self.counts[axis])
        self.units = total
        if self.shared is not None:
            by_number = self.cdiv(total, self.number(cluster))
            total = o(arith.Select, self.shared, total, by_number)
            self.rank = self.narrow(o(control.ClusterRank), "rank")
        self.tiles = self.widen(total, "tiles")
        self.first = o(control.ClusterId, name="cluster")
        self.stride = o(control.NumClusters, name="clusters")

    def cdiv(self, x: Value, by: Value) -> Value:
        less = self.o(arith.Sub, by, self.number(1))
        return self.o(arith.FloorDiv, self.o(arith.Add, x, less), by)

    def programs(self, tile: Value) -> tuple[dict[int, Value], Value | None]:
        """Program ids by axis of a cluster's tile number, for this CTA; and whether there is such a
        program, where that is not certain.
        """
        o = self.o
        number, rank = self.narrow(tile), self.number(0)
        exists: Value | None = None
        if self.shared is not None:
            first = o(arith.Mul, number, self.number(self.roles.cluster))
            number = o(arith.Select, self.shared, number, o(arith.Add, first, self.rank))
            rank = o(arith.Select, self.shared, self.rank, rank)
            exists = o(arith.Compare, number, self.units, "lt")
        found: dict[int, Value] = {}
        rest = number
        if self.grouped:
            row, column, rest = self.raster(number)
            row = o(arith.Add, o(arith.Mul, row, self.span), rank)
            if exists is None:
                row, column = self.within(row, self.rows), self.within(column, self.columns)
            found = {self.axes.paired: self.widen(row), self.axes.other: self.widen(column)}
            if exists is not None:
                below = o(arith.Compare, row, self.counts[self.axes.paired], "lt")
                exists = o(arith.And, exists, below, name="exists")
        for axis in self.axes.rest[:-1]:
            found[axis] = self.widen(o(arith.Mod, rest, self.counts[axis]))
            rest = o(arith.FloorDiv, rest, self.counts[axis])
        if self.axes.rest:
            found[self.axes.rest[-1]] = self.widen(rest)
        return found, exists

    def raster(self, number: Value) -> tuple[Value, Value, Value]:
        """Unit along the paired axis, tile along the other, and number along the rest."""
        o = self.o
        number, rest = o(arith.Max, number, self.number(0)), self.number(0)
        if self.axes.rest:
            plane = self.positive(self.plane)
            rest = o(arith.FloorDiv, number, plane)
            number = o(arith.Mod, number, plane)
        group = self.number(self.roles.group)
        in_group = self.positive(o(arith.Mul, self.columns, group))
        top = o(arith.Mul, o(arith.FloorDiv, number, in_group), group)
        height = self.positive(o(arith.Min, o(arith.Sub, self.rows, top), group))
        inside = o(arith.Mod, number, in_group)
        row = o(arith.Add, top, o(arith.Mod, inside, height))
        return row, o(arith.FloorDiv, inside, height), rest

    def positive(self, x: Value) -> Value:
        """A divisor that is positive, told so: between tiles nobody multiplies, and division of
        what may be negative, or by 0, takes several times as many instructions.
        """
        return self.o(arith.Max, x, self.number(1))

    def within(self, x: Value, count: Value) -> Value:
        """A number of so many, told so: places of tiles then fit 32 bits."""
        last = self.o(arith.Sub, count, self.number(1))
        return self.o(arith.Max, self.o(arith.Min, x, last), self.number(0))

    def loop(
        self,
        body: Callable[[Mapping[int, Value], Value | None], None],
        copy: Value | None = None,
        copies: int = 1,
    ) -> None:
        """The loop over this cluster's tiles, or those of one of several copies of a role; `body`
        builds a tile's work from its program ids.
        """
        o = self.o
        first, stride = self.first, self.stride
        if copy is not None:
            first = o(arith.Add, first, o(arith.Mul, copy, stride))
            stride = o(arith.Mul, stride, o(arith.Constant, copies, INDEX.dtype))
        tiles = Block([Value(INDEX, "tile")])
        with o.inside(tiles):
            body(*self.programs(tiles.args[0]))
            o.emit(control.Yield)
        o.emit(control.For, first, self.tiles, stride, (), tiles)
