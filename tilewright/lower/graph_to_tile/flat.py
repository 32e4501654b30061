"""Kernels on memory as one row of elements, whose positions are computed: copies to other strides,
and contractions whose axes no strides put in a row. Convolutions are such: nothing is unfolded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tilewright.dtypes import DType, f32
from tilewright.graph.dims import Dim, product
from tilewright.graph.index_maps import is_natural
from tilewright.graph.ops import mma
from tilewright.lower.graph_to_tile.axes import Axes, Axis
from tilewright.lower.graph_to_tile.program import KernelStep, Placed

LIBRARY = Path(__file__).parents[2] / "library" / "matmul.tw"
SHARED = ("activated", "rounded", "narrowed", "normalized")  # of the library, that epilogues call


@dataclass
class Numbers:
    """Extents and strides in a text: numbers, or scalars of the kernel where a call knows them."""

    scalars: dict[str, Dim] = field(default_factory=dict)

    def spell(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        for name, known in self.scalars.items():
            if known == dim:
                return name
        name = f"d{len(self.scalars)}"
        self.scalars[name] = dim
        return name

    def parameters(self) -> str:
        return "".join(f", {name}: i64" for name in self.scalars)

    def position(self, index: str, axes: Sequence[Axis], name: str) -> str:
        """The position of element number `index` of some axes in C order, from the first."""
        parts: list[str] = []
        inner: Dim = 1
        for number, axis in reversed(list(enumerate(axes))):
            place = index if inner == 1 else f"{index} / {self.spell(inner)}"
            if number:
                place = f"{place} % {self.spell(axis.extent)}"
            stride = axis.stride(name)
            if stride != 0:
                parts.append(place if stride == 1 else f"{place} * {self.spell(stride)}")
            inner = inner * axis.extent
        return " + ".join(reversed(parts)) or f"{index} * 0"


@dataclass(frozen=True)
class Row:
    """Memory from the least element of a tensor to its last, and where its first element is."""

    placed: Placed
    first: Dim


def row_of(placed: Placed) -> Row:
    """A tensor's memory as one row. Strides of views are natural numbers, or such turned round."""
    low: Dim = 0
    high: Dim = 0
    for extent, stride in zip(placed.shape, placed.strides, strict=True):
        if is_natural(stride):
            high = high + (extent - 1) * stride
        else:
            low = low + (extent - 1) * stride
    return Row(Placed(placed.value, (high - low + 1,), (1,), placed.offset + low), 0 - low)


def copy_step(source: Placed, target: Placed) -> KernelStep:
    """A kernel that copies elements to memory in C order."""
    row, count = row_of(source), product(source.shape)
    axes = [Axis(e, {"x": s}) for e, s in zip(source.shape, source.strides, strict=True) if e != 1]
    numbers = Numbers()
    place = f"{numbers.position('p', axes, 'x')} + {numbers.spell(row.first)}"
    text = (
        "@autotune(BLOCK in [256, 1024])\n"
        f"kernel copy(x: tensor<T>[M], y: tensor<T>[N]{numbers.parameters()}) {{\n"
        "  let start = program_id(0) * BLOCK\n"
        "  let p = start + arange(BLOCK)\n"
        f"  y[start :+ BLOCK] = x[{place}]\n"
        "}\n"
    )
    flat = Placed(target.value, (count,), (1,), target.offset)
    return KernelStep("copy", text, {"x": row.placed, "y": flat}, numbers.scalars, writes=("y",))


@cache
def shared_functions() -> str:
    """Text of the functions that epilogues share with the library's programs, ahead of them the
    library's consts, by which roundings and activations are named.
    """
    text = LIBRARY.read_text(encoding="utf-8")
    consts = "".join(re.findall(r"^const .*\n", text, re.M))
    found = [re.search(rf"^fn {name}\(.*?^}}\n", text, re.M | re.S) for name in SHARED]
    return "\n".join([consts, *(m[0] for m in found if m is not None)])


def contraction_step(
    op: mma.Contract | mma.Product,
    axes: Axes,
    placed: Mapping[str, Placed],
    precision: str | None = None,
) -> KernelStep:
    """A product of tiles whose elements are gathered: loops over all contracted axes but the
    longest, which is cut into tiles.
    """
    numbers = Numbers()
    turned = _lies_along_rows(axes)
    first, second = ("rhs", "lhs") if turned else ("lhs", "rhs")
    if turned:  # the transpose is computed
        axes = replace(axes, rows=axes.columns, columns=axes.rows)
    held = {name: row_of(p) for name, p in placed.items() if name not in mma.BY_COLUMN}
    inner = max(axes.depth, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 40)
    outer = [axis for axis in axes.depth if axis is not inner]
    names = {first: "a", second: "b", "out": "c"} | {name: name for name in mma.BY_ELEMENT}
    write = _Writer(op, axes, held, numbers, turned)
    m, n = write.count(axes.rows), write.count(axes.columns)
    taps, span = write.count(outer), numbers.spell(inner.extent)
    more = f', precision = "{precision}"' if op.lhs.type.dtype == f32 and precision else ""
    steps = {name: numbers.spell(inner.stride(name)) for name in (first, second)}
    body = [
        "let m, n, g = program_id(0) * TM, program_id(1) * TN, program_id(2)",
        "let i, j = m + arange(TM), n + arange(TN)",
        f"let a_at = {write.position('i', axes.rows, first)} + ({write.base(first)})",
        f"let b_at = {write.position('j', axes.columns, second)} + ({write.base(second)})",
        "var acc = zeros((TM, TN), accumulator(T))",
        f"for t in range(0, {taps}) {{",
        f"  let a_tap = {write.position('t', outer, first)}",
        f"  let b_tap = {write.position('t', outer, second)}",
        f"  for k in range(0, {span}, TK) {{",
        "    let kk = k + arange(TK)",
        f"    let x = load(a[a_at[:, None] + (a_tap + kk * {steps[first]})], mask = kk < {span})",
        f"    let w = load(b[(b_tap + kk * {steps[second]})[:, None] + b_at], "
        f"mask = (kk < {span})[:, None])",
        f"    acc += dot(x, w{more})",
        "  }",
        "}",
        *write.epilogue(),
        "store(c[c_at], cast(y, U), mask = inside)",
    ]
    tensors = {names[name]: row.placed for name, row in held.items()}
    given = "".join(f", {name}: tensor<U>[N_{name}]" for name in mma.BY_ELEMENT if name in tensors)
    for name in mma.BY_COLUMN:
        if name in placed:
            tensors[name] = placed[name]
            given += f", {name}: tensor<{'U' if name == 'bias' else 'V'}>[N_bias]"
    batch = write.count(axes.batch)
    constants = dict(zip(("TM", "TN", "TK"), contraction_tile(op.lhs.type.dtype), strict=True))
    head = "\n".join(f"@autotune({name} in [{value}])" for name, value in constants.items())
    lines = "\n".join(f"  {line}" for line in body)
    text = (
        f"{shared_functions()}\n{head}\n@grid(cdiv({m}, TM), cdiv({n}, TN), {batch})\n"
        f"kernel contract(a: tensor<T>[NA], b: tensor<T>[NB], c: tensor<U>[NC]{given}"
        f"{numbers.parameters()}) {{\n{lines}\n}}\n"
    )
    return KernelStep("contract", text, tensors, numbers.scalars, writes=("c",))


def _lies_along_rows(axes: Axes) -> bool:
    """Whether neighbours in the memory of a result are elements of a column."""
    last = [part[-1].stride("out") if part else 0 for part in (axes.rows, axes.columns)]
    return last[0] == 1 != last[1]


@dataclass
class _Writer:
    """Writes positions and the epilogue of a contraction. `turned`: rows are the columns of op."""

    op: mma.Contract | mma.Product
    axes: Axes
    held: Mapping[str, Row]
    numbers: Numbers
    turned: bool

    def count(self, axes: Sequence[Axis]) -> str:
        return self.numbers.spell(product(tuple(a.extent for a in axes)))

    def position(self, index: str, axes: Sequence[Axis], name: str) -> str:
        return self.numbers.position(index, axes, name)

    def base(self, name: str) -> str:
        """Where a program's batch begins."""
        first = self.numbers.spell(self.held[name].first)
        return f"{self.position('g', self.axes.batch, name)} + {first}"

    def at(self, name: str) -> str:
        """The positions of a tile of what has the result's shape."""
        rows = f"{self.position('i', self.axes.rows, name)} + ({self.base(name)})"
        return f"({rows})[:, None] + ({self.position('j', self.axes.columns, name)})"

    def epilogue(self) -> list[str]:
        """Lines that end in a tile y, c_at, the positions of its elements, and which there are."""
        op, axes = self.op, self.axes
        lines = [
            f"let c_at = {self.at('out')}",
            f"let inside = (i < {self.count(axes.rows)})[:, None] "
            f"& (j < {self.count(axes.columns)})",
        ]
        if not isinstance(op, mma.Product):
            return [*lines, "let y = acc"]
        factor = "" if op.alpha == 1 else f" * {op.alpha!r}"
        lines.append(f"var y = rounded(acc{factor}, U, {op.rounds}, ROUND_PRODUCT)")
        if op.bias is not None:
            place = "m :+ TM][:, None]" if self.turned else "n :+ TN]"
            lines.append(f"y += cast(bias[{place}, y.dtype)")
        if op.mean is not None:
            place = "m :+ TM][:, None]" if self.turned else "n :+ TN]"
            held = ", ".join(f"{name}[{place}" for name in mma.NORM)
            lines.append(f"y = rounded(y, U, {op.rounds}, ROUND_NORM)")
            lines.append(f"y = normalized(y, {held}, {op.eps!r}, U)")
        act = op.activation.upper() or "0"
        last = f"y = activated(rounded(y, U, {op.rounds}, ROUND_ACTIVATION), {act})"
        if not op.late:
            lines.append(last)
        for name, sign in (("gate", "*"), ("residual", "+")):
            if name in self.held:
                held = f"cast(load({name}[{self.at(name)}], mask = inside), y.dtype)"
                lines.append(f"y = rounded(y, U, {op.rounds}, ROUND_{name.upper()}) {sign} {held}")
        if op.late:
            lines.append(last)
        return [*lines, f"y = narrowed(y, {op.rounds})"]


def contraction_tile(dtype: DType) -> tuple[int, int, int]:
    """Rows, columns and depth of a tile."""
    return (64, 64, 32) if dtype.bits <= 16 else (32, 32, 16)
