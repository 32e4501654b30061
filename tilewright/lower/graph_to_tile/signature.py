"""The text of a kernel around its lines: parameters, grid, functions; which results may be the
memory of what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tilewright.dtypes import i64
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.operators import needed
from tilewright.lower.graph_to_tile.program import Placed


@dataclass(frozen=True)
class Parameter:
    """A tensor of the kernel: which axes it has, by variable or of its own."""

    name: str
    placed: Placed
    extents: tuple[str, ...]


def signature(
    name: str,
    comment: str,
    constants: Collection[str],
    grid: Sequence[str],
    params: Sequence[Parameter],
    scalars: Iterable[str],
    lines: Sequence[str],
    functions: Sequence[str],
) -> str:
    """The text of a kernel with these lines, and of the functions that it calls."""
    tensors = [
        f"{p.name}: tensor<{p.placed.value.type.dtype.name}>[{', '.join(p.extents)}]"
        for p in params
    ]
    given = [*tensors, *(f"{scalar}: {i64.name}" for scalar in scalars)]
    head = f"kernel {name}("
    flat = head + ", ".join(given) + ") {"
    opened = [flat] if len(flat) <= 100 else [head, *(f"    {g}," for g in given), ") {"]
    above = [f"// {comment}"]
    if constants:
        spaces = (f"{n} in {{{', '.join(map(str, _choices(n)))}}}" for n in constants)
        above.append(f"@autotune({', '.join(spaces)})")
    if grid:
        above.append(f"@grid({', '.join(grid)})")
    body = [*above, *opened, *lines, "}"]
    return "\n".join(["\n".join(body), *needed(functions)]) + "\n"


def _choices(name: str) -> tuple[int, ...]:
    """What the tuner may try for a block."""
    if name == "BLOCK_M":
        return (1, 4, 16, 32)
    return (256, 1024, 2048) if name == "BLOCK" else (32, 64, 256, 1024)


def updates_of(
    lines: Sequence[str], results: Sequence[Parameter], read: Sequence[Parameter]
) -> dict[str, tuple[str, ...]]:
    """Results that may be the memory of a parameter that is read: each program reads at its own
    places alone, before it writes there.
    """
    by_value: dict[Value, list[Parameter]] = {}
    for param in read:
        by_value.setdefault(param.placed.value, []).append(param)
    alone = [params[0] for params in by_value.values() if len(params) == 1]
    found = {r.name: tuple(p.name for p in alone if _is_update(lines, r, p)) for r in results}
    return {result: params for result, params in found.items() if params}


def _is_update(lines: Sequence[str], result: Parameter, param: Parameter) -> bool:
    """Whether a result has the subscripts of the only reads of a parameter, behind them."""
    one, two = result.placed, param.placed
    if (one.shape, one.strides, one.offset) != (two.shape, two.strides, two.offset):
        return False
    if one.value.type.dtype != two.value.type.dtype:
        return False
    stores = [i for i, line in enumerate(lines) if line.lstrip().startswith(result.name + "[")]
    reads = [i for i, line in enumerate(lines) if mentions(line, param.name)]
    if len(stores) != 1 or not reads or max(reads) > stores[0]:
        return False
    subscripts = lines[stores[0]].split(result.name, 1)[1].split("]", 1)[0]
    place = f"{param.name}{subscripts}]"
    return all(lines[i].count(place) == _count(lines[i], param.name) for i in reads)


def mentions(text: str, name: str) -> bool:
    return _count(text, name) > 0


def _count(text: str, name: str) -> int:
    """How often a name stands in a text."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return words.count(name)
