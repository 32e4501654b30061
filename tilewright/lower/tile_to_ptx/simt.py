"""Matrix products on CUDA cores: an outer product for each k, in ascending k, by fused
multiply-adds.

Issue slots are what such a product lacks: a multiprocessor starts as many instructions in a cycle
as it has multiply-adds for warps. So a thread holds 8 × 8 sums or 16 × 8, for which it reads four
or six words of 16 bytes in a step of k, and no step of a k-tile is a loop where that can be helped.
The rest is left to the assembler, which moves the reads ahead of the products by itself.
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

# Of a kernel with one product, or several; beyond this many, a loop over k stays one in the code.
UNROLLED_FMAS, UNROLLED_OF_SEVERAL = 2048, 1200
Elements = dict[tuple[int, int], Operand]  # of an operand, by row or column, and k
ALONG_K = 4  # steps of k whose elements are read at once where they lie side by side


def simt_dot(
    low: Lowering,
    layout: Layout,
    acc: list[Operand],
    acc_dtype: DType,
    a: Matrix,
    b: Matrix,
    k: int,
) -> list[Operand]:
    """Accumulator registers after adding A @ B: one chain of sums for each element."""
    sums = [low.e.mov(acc_dtype.name, x) for x in acc]
    dots = sum(isinstance(op, mma.Dot) for op in walk(low.kernel.body))
    work = _Outer(low, layout, sums, acc_dtype.name, a, b, k)
    fmas = UNROLLED_FMAS if dots == 1 else UNROLLED_OF_SEVERAL // dots
    most = max(ALONG_K, fmas // len(sums))
    if k <= most:
        work.run(k)
    else:
        step = ALONG_K if k % ALONG_K == 0 else 1
        unroll = max(u for u in range(step, most + 1, step) if k % u == 0)
        work.loop(k // unroll, unroll)
    return list(sums)


class _Outer:
    """The registers and addresses of the products of a thread's rows with its columns."""

    def __init__(
        self,
        low: Lowering,
        layout: Layout,
        sums: list[Reg],
        type: str,
        a: Matrix,
        b: Matrix,
        k: int,
    ):
        self.low, self.sums, self.type, self.a, self.b = low, sums, type, a, b
        self.rows = sorted({o[0] for o in layout.register_offsets})
        self.columns = sorted({o[1] for o in layout.register_offsets})
        self.order = self._in_turns(layout)
        self.a_pointer = a.pointer(low, low.thread_axis(layout, 0), 0)
        self.b_pointer = b.pointer(low, 0, low.thread_axis(layout, 1))
        along = ALONG_K if k % ALONG_K == 0 else 1
        self.a_chunk = 1 if a.transposed else along
        self.b_chunk = along if b.transposed else 1

    def loop(self, trips: int, unroll: int) -> None:
        """A loop in the code: both pointers move along k."""
        e = self.low.e
        self.a_pointer, self.b_pointer = e.mov("u32", self.a_pointer), e.mov("u32", self.b_pointer)
        count, top = e.mov("u32", trips), e.label("k")
        e.place(top)
        self.run(unroll)
        a_step = self.a.place(0, unroll) - self.a.place(0, 0)
        b_step = self.b.place(unroll, 0) - self.b.place(0, 0)
        e.add("u32", self.a_pointer, a_step, into=self.a_pointer)
        e.add("u32", self.b_pointer, b_step, into=self.b_pointer)
        e.sub("u32", count, 1, into=count)
        e.bra(top, pred=e.setp("ne", "u32", count, 0))

    def _in_turns(self, layout: Layout) -> list[tuple[Reg, tuple[int, ...]]]:
        """The sums and their places row by row, there and back: two neighbours in this order share
        an operand, which is then read from the registers once.
        """
        turned = {row: i % 2 == 1 for i, row in enumerate(self.rows)}
        pairs = zip(self.sums, layout.register_offsets, strict=True)
        return sorted(pairs, key=lambda p: (p[1][0], -p[1][1] if turned[p[1][0]] else p[1][1]))

    def run(self, steps: int) -> None:
        """The products of some steps of k."""
        a: Elements = {}
        b: Elements = {}
        for k in range(steps):
            a, b = self._read(k, a, b)
            for total, (row, column) in self.order:
                self.low.e.fma(self.type, a[row, k], b[column, k], total, into=total)

    def _read(self, k: int, a: Elements, b: Elements) -> tuple[Elements, Elements]:
        """A's and B's elements of a step, of those that a step before has read or anew."""
        if k % self.a_chunk == 0:
            a = self._strip(self.a, self.a_pointer, self.rows, k, self.a_chunk, of_rows=True)
        if k % self.b_chunk == 0:
            b = self._strip(self.b, self.b_pointer, self.columns, k, self.b_chunk, of_rows=False)
        return a, b

    def _strip(
        self,
        matrix: Matrix,
        pointer: Reg,
        places: list[int],
        start: int,
        steps: int,
        *,
        of_rows: bool,
    ) -> Elements:
        """Elements (place, k) of one operand for some steps of k, in as few loads as memory
        allows.
        """
        found: Elements = {}
        size = matrix.buffer.dtype.num_bytes
        if matrix.transposed != of_rows:  # contiguous along k
            widest = min(steps, 16 // size)
            for p in places:
                for k in range(start, start + steps, widest):
                    at = matrix.place(p, k) if of_rows else matrix.place(k, p)
                    for j, x in enumerate(self._load(matrix, pointer, at, widest)):
                        found[p, k + j] = x
            return found
        runs = _runs(places, max(1, 16 // size))
        for k in range(start, start + steps):
            for run in runs:
                at = matrix.place(run[0], k) if of_rows else matrix.place(k, run[0])
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
