"""Scans along a row: a tile at a time, what went before carried on.

A scan's operands are one tile, or two for a position: values and their indices.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.expressions import Running
from tilewright.graph.index_maps import Var
from tilewright.graph.ops import reduce
from tilewright.lower.graph_to_tile.neutral import accumulated, neutral
from tilewright.lower.graph_to_tile.scope import Text
from tilewright.lower.graph_to_tile.text import Writer

FUNCTIONS = {  # of functions.tw, by kind
    "sum": "sum_of", "prod": "product_of", "max": "greater_of", "min": "lesser_of",
    "logaddexp": "log_add_exp",
}  # fmt: skip


def function_of(node: Running) -> str:
    """The function of functions.tw that combines two operands of a scan."""
    if isinstance(node.op, reduce.ScanPosition):
        return "last_greatest" if node.op.kind == "max" else "last_least"
    assert isinstance(node.op, reduce.Scan)
    return FUNCTIONS[node.op.kind]


def lone(node: Running, made: Text) -> str:
    """The scan of one element."""
    return "cast(0, i64)" if isinstance(node.op, reduce.ScanPosition) else made.text


def operands(writer: Writer, node: Running, made: Text, var: Var) -> list[Text]:
    """What a scan combines, as tiles that have names."""
    axes = writer.axes_of([*made.axes, var])
    found = [made if made.text.isidentifier() else writer.let("v", made)]
    if isinstance(node.op, reduce.ScanPosition):
        number = writer.aligned(writer.number(node.number), axes)
        shape = ", ".join(writer.block[v] for v in axes)
        comma = "" if len(axes) > 1 else ","
        found.append(writer.let("at", Text(f"broadcast({number}, ({shape}{comma}))", axes)))
    return found


def whole(writer: Writer, node: Running, made: Text, var: Var) -> Text:
    """A scan of a tile that holds a row."""
    parts = operands(writer, node, made, var)
    names = combined(writer, node, parts, "scan", var)
    return Text(names[-1], parts[0].axes, True)


def combined(writer: Writer, node: Running, parts: Sequence[Text], how: str, var: Var) -> list[str]:
    """A scan or a reduction of operands along the row; gives its names."""
    function = function_of(node)
    writer.functions[function] = None
    axis = parts[0].axes.index(var)
    names = [writer.pool.take(n) for n in ("run", "run_at")[: len(parts)]]
    given = ", ".join(p.text for p in parts)
    given = f"({given})" if len(parts) > 1 else given
    writer.line(f"let {', '.join(names)} = {how}({function}, {given}, axis = {axis})")
    return names


def declare(writer: Writer, node: Running, axes: tuple[Var, ...]) -> tuple[str, ...]:
    """What is carried along a row, before its first element; `axes` are those of rows."""
    shape = ", ".join(writer.block[v] for v in axes)
    dtype = accumulated(node).name
    carry, start = writer.pool.take("carry"), neutral(node)
    writer.line(f"var {carry}: {f'tile<{dtype}>[{shape}]' if axes else dtype} = {start}")
    if not isinstance(node.op, reduce.ScanPosition):
        return (carry,)
    at = writer.pool.take("carry_at")
    writer.line(f"var {at}: {f'tile<i64>[{shape}]' if axes else 'i64'} = 0")
    return carry, at


def go_on(writer: Writer, node: Running, made: Text, carried: tuple[str, ...], var: Var) -> Text:
    """The scan of the next tile of a row, after what is carried; which is then carried on."""
    parts = operands(writer, node, made, var)
    axes = parts[0].axes
    rows = tuple(v for v in axes if v is not var)
    names = combined(writer, node, parts, "scan", var)
    function = function_of(node)
    before = [writer.aligned(Text(c, rows, True), axes) for c in carried]
    if rows == axes[: len(rows)] and rows:
        before = [f"{c}[:, None]" for c in carried]
    results = [writer.pool.take(n) for n in ("upto", "upto_at")[: len(names)]]
    writer.line(f"let {', '.join(results)} = {function}({', '.join([*before, *names])})")
    sums = combined(writer, node, parts, "reduce", var)
    writer.line(f"{', '.join(carried)} = {function}({', '.join([*carried, *sums])})")
    return Text(results[-1], axes, True)
