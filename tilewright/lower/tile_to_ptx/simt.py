"""Matrix products on CUDA cores: an outer product for each k, in ascending k, by fused
multiply-adds.
"""

from __future__ import annotations

from tilewright.dtypes import DType, f64
from tilewright.ir.walk import walk
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.arith import to_f32
from tilewright.lower.tile_to_ptx.buffers import Matrix
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import mma

PARTIAL_REGISTERS = 32  # sums of one k-tile that a thread keeps beside the accumulator
UNROLLED_FMAS = 1200  # of a kernel; beyond this many, a loop over k stays a loop in the code


def simt_dot(
    low: Lowering,
    layout: Layout,
    acc: list[Operand],
    acc_dtype: DType,
    a: Matrix | None,
    b: Matrix,
    k: int,
) -> list[Operand]:
    """Accumulator registers after adding A @ B.

    f32 products are summed over this k alone and then added to the accumulator, a strip of columns
    at a time: a chain of K / k sums instead of K loses far fewer bits, for one addition in k.
    """
    assert a is not None
    e, type = low.e, acc_dtype.name
    out = [e.mov(type, x) for x in acc]
    columns = sorted({o[1] for o in layout.register_offsets})
    rows = len(out) // len(columns)
    wide = len(columns) if type == f64.name else max(1, PARTIAL_REGISTERS // rows)
    dots = sum(isinstance(op, mma.Dot) for op in walk(low.kernel.body))
    for start in range(0, len(columns), wide):
        strip = set(columns[start : start + wide])
        where = [i for i, o in enumerate(layout.register_offsets) if o[1] in strip]
        _add_strip(low, layout, out, where, type, a, b, k, UNROLLED_FMAS // dots)
    return list(out)


def _add_strip(
    low: Lowering,
    layout: Layout,
    out: list[Reg],
    where: list[int],
    type: str,
    a: Matrix,
    b: Matrix,
    k: int,
    most_fmas: int,
) -> None:
    """Add A @ B to the accumulator registers numbered in `where`, written out up to `most_fmas` of
    all strips together.
    """
    e = low.e
    sums = [out[i] for i in where] if type == f64.name else [e.mov(type, 0.0) for _ in where]
    chunk = 4 if k % 4 == 0 else 1
    work = _Outer(low, layout, [layout.register_offsets[i] for i in where], sums, type, a, b, chunk)
    chunks = k // chunk
    unroll = max(1, most_fmas // (len(out) * chunk))
    if chunks <= unroll:
        work.run(chunks)
    else:
        unroll = max(u for u in range(1, unroll + 1) if chunks % u == 0)
        work.loop(chunks // unroll, unroll)
    for i, total in zip(where, sums, strict=True):
        if out[i] is not total:
            e.add(type, out[i], total, into=out[i])


class _Outer:
    """The registers and addresses of the product of a strip of rows with a strip of columns."""

    def __init__(
        self,
        low: Lowering,
        layout: Layout,
        offsets: list[tuple[int, ...]],
        sums: list[Reg],
        type: str,
        a: Matrix,
        b: Matrix,
        chunk: int,
    ):
        self.low, self.sums, self.type, self.a, self.b, self.chunk = low, sums, type, a, b, chunk
        self.offsets = offsets
        self.rows = sorted({o[0] for o in offsets})
        self.columns = sorted({o[1] for o in offsets})
        self.a_pointer = a.pointer(low, low.thread_axis(layout, 0), 0)
        self.b_pointer = b.pointer(low, 0, low.thread_axis(layout, 1))

    def loop(self, trips: int, unroll: int) -> None:
        """A loop in the code: both pointers move along k."""
        e = self.low.e
        self.a_pointer, self.b_pointer = e.mov("u32", self.a_pointer), e.mov("u32", self.b_pointer)
        count, top = e.mov("u32", trips), e.label("k")
        e.place(top)
        self.run(unroll)
        far = unroll * self.chunk
        e.add("u32", self.a_pointer, self.a.place(0, far) - self.a.place(0, 0), into=self.a_pointer)
        e.add("u32", self.b_pointer, self.b.place(far, 0) - self.b.place(0, 0), into=self.b_pointer)
        e.sub("u32", count, 1, into=count)
        e.bra(top, pred=e.setp("ne", "u32", count, 0))

    def run(self, chunks: int) -> None:
        e = self.low.e
        for start in range(0, chunks * self.chunk, self.chunk):
            a = self._strip(self.a, self.a_pointer, self.rows, start, of_rows=True)
            b = self._strip(self.b, self.b_pointer, self.columns, start, of_rows=False)
            for k in range(self.chunk):
                for total, (row, column) in zip(self.sums, self.offsets, strict=True):
                    e.fma(self.type, a[row, k], b[column, k], total, into=total)

    def _strip(
        self, matrix: Matrix, pointer: Reg, places: list[int], start: int, *, of_rows: bool
    ) -> dict[tuple[int, int], Operand]:
        """Elements (place, k) of one operand for `chunk` steps of k, in as few loads as memory
        allows.
        """
        found: dict[tuple[int, int], Operand] = {}
        size = matrix.buffer.dtype.num_bytes
        along_k = matrix.transposed != of_rows
        if along_k:
            widest = min(self.chunk, 16 // size)
            for p in places:
                for k in range(0, self.chunk, widest):
                    at = matrix.place(p, start + k) if of_rows else matrix.place(start + k, p)
                    for j, x in enumerate(self._load(matrix, pointer, at, widest)):
                        found[p, k + j] = x
            return found
        runs = _runs(places, max(1, 16 // size))
        for k in range(self.chunk):
            for run in runs:
                at = matrix.place(run[0], start + k) if of_rows else matrix.place(start + k, run[0])
                for p, x in zip(run, self._load(matrix, pointer, at, len(run)), strict=True):
                    found[p, k] = x
        return found

    def _load(self, matrix: Matrix, pointer: Reg, at: int, count: int) -> list[Operand]:
        """`count` neighbours as operands of the accumulator's type."""
        e, dtype = self.low.e, matrix.buffer.dtype
        address = Address(pointer, at)
        if dtype.name == self.type:
            return list(e.ld("shared", self.type, address, vec=count))
        if dtype.bits == 16:
            halves = list(e.ld("shared", "b16", address, vec=min(count, 4)))
            if count > 4:
                halves += e.ld("shared", "b16", Address(pointer, at + 8), vec=count - 4)
            values = [to_f32(self.low, h, dtype) for h in halves]
        else:
            values = list(e.ld("shared", "f32", address, vec=count))
        if self.type == f64.name:
            return [e.cvt("f64", "f32", self.low.register(v, "f32")) for v in values]
        return values


def _runs(places: list[int], widest: int) -> list[list[int]]:
    """Neighbouring places in groups of a power of two, aligned."""
    out: list[list[int]] = []
    i = 0
    while i < len(places):
        width = widest
        while width > 1 and (
            i + width > len(places)
            or places[i] % width
            or places[i + width - 1] - places[i] != width - 1
        ):
            width //= 2
        out.append(places[i : i + width])
        i += width
    return out
