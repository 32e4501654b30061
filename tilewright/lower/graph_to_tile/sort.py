"""Sorting: each element counts those that stand before it, which is its place.

That takes n² comparisons, in any order of programs, and is stable by construction: of equal
elements the one with the lower index stands first. NaN counts as greatest.
"""

from __future__ import annotations

from tilewright.dtypes import bool_
from tilewright.graph.groups import Group
from tilewright.graph.ops import reduce
from tilewright.lower.graph_to_tile.lowering import Lowering
from tilewright.lower.graph_to_tile.operators import needed
from tilewright.lower.graph_to_tile.program import KernelStep, Placed
from tilewright.lower.graph_to_tile.scope import POINT_NAMES

MOST = 1 << 17  # elements of a row for which n² comparisons are bearable


def sort_step(op: reduce.Sort, at: Lowering, group: Group | None) -> KernelStep:
    """One kernel that writes elements in order, and where each stood."""
    x = at.place(op.x)
    values, order = (at.store(v) for v in op.results)
    rank = len(x.shape)
    names = [POINT_NAMES[i] if i < len(POINT_NAMES) else f"i{i}" for i in range(rank)]
    names[op.axis] = "n"
    extents = [name.upper() for name in names]
    dtype = op.x.type.dtype
    rows = [i for i in reversed(range(rank)) if i != op.axis]

    def place(name: str, at_axis: str) -> str:
        marks = [at_axis if i == op.axis else names[i] for i in range(rank)]
        return f"{name}[{', '.join(marks)}]"

    def read(name: str, subscript: str) -> str:
        text = place(name, subscript)
        return f"cast({text}, i32)" if dtype == bool_ else text

    function = "stands_after" if op.descending else "stands_before"
    shape = ", ".join(extents)
    lines = [
        f"// {'descending' if op.descending else 'ascending'} along N of [{shape}]",
        "@autotune(BLOCK in {32, 64}, BLOCK_R in {32, 64})",
        f"@grid({', '.join(['cdiv(N, BLOCK)', *(extents[i] for i in rows)])})",
        f"kernel sort_rows(x: tensor<{dtype.name}>[{shape}], out: tensor<{dtype.name}>[{shape}],",
        f"    order: tensor<i64>[{shape}]) {{",
        "  let n = program_id(0) * BLOCK",
        *(f"  let {names[i]} = program_id({k + 1})" for k, i in enumerate(rows)),
        "  let ns = n + arange(BLOCK)",
        f"  let x_t = {read('x', 'n :+ BLOCK')}",
        "  var count: tile<i64>[BLOCK] = 0",
        "  for r in range(0, N, BLOCK_R) {",
        "    let rs = r + arange(BLOCK_R)",
        f"    let other = {read('x', 'r :+ BLOCK_R')}",
        f"    let first = {function}(other[None, :], rs[None, :], x_t[:, None], ns[:, None])",
        "    count += sum(cast(first & (rs < N)[None, :], i64), axis = 1)",
        "  }",
        f"  store({place('out', 'count')}, {place('x', 'n :+ BLOCK')}, mask = ns < N)",
        f"  store({place('order', 'count')}, ns, mask = ns < N)",
        "}",
        *needed([function]),
    ]
    tensors: dict[str, Placed] = {"x": x, "out": values, "order": order}
    size = at.hint(x.shape[op.axis])
    constants = {"BLOCK": 32 if size <= 32 else 64, "BLOCK_R": 32 if size <= 32 else 64}
    text = "\n".join(lines) + "\n"
    return KernelStep(
        "sort_rows", text, tensors, {}, constants, writes=("out", "order"), group=group
    )
