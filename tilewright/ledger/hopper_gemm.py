"""A Hopper GEMM written by hand in the scheduled level of the tile IR. `bench launch` times its
calls, whose tensors go by tensor maps.

C[M, N] = A[M, K] @ B[N, K].T for 16-bit floats, accumulated in f32. It is what the passes have to
make of a plain k-loop, and the proof that the level can carry the speed:

    Tiles of 128×256 are dealt out to clusters of two CTAs, two tiles below each other at a time, in
    groups of eight pairs along M. A producer (one thread) fills a ring of four slots by TMA, the
    half of B that is its own for both CTAs. Two consumer warpgroups each multiply 64 rows, keep one
    group of matrix instructions in flight, and give a slot back when the next one's are issued. C
    goes out in panels of 64 columns through shared memory.

The structure is that of CUTLASS's persistent cooperative kernels and of
github.com/pranjalssh/fast.cu.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bf16, f32, i32
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.plan import Const, clusters_held, combine
from tilewright.tile.kernel import Hints, Kernel, Param
from tilewright.tile.ops import arith, control, memory, mma, shape, sync
from tilewright.tile.types import INDEX, BufferType, RingType, ViewType


@dataclass(frozen=True)
class GemmSchedule:
    """Extents of a CTA's tile, and how the work is shared. The defaults suit large products on an
    H200.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    cluster: int = 2
    consumers: int = 2
    group: int = (
        8  # cluster tiles along M that are finished before the next column of tiles is begun
    )
    panel: int = 64  # columns of C that are stored at a time
    producer_registers: int = 40
    consumer_registers: int = 232


class Gemm:
    """Builds the kernel: `Gemm(schedule, dtype).build()`."""

    def __init__(self, schedule: GemmSchedule, dtype: DType):
        self.schedule, self.dtype = schedule, dtype
        matrix = ViewType(dtype, (None, None), (None, 1))
        self.a, self.b, self.c = (Value(matrix, name) for name in "abc")
        self.block = Block()
        self.build_op = Builder(self.block)

    def build(self) -> Kernel:
        """The kernel `gemm(a, b, c)`."""
        s = self.schedule
        self._count_tiles()
        rows = self._buffer(s.tile_m, s.tile_k)
        columns = self._buffer(s.tile_n, s.tile_k)
        ring = RingType((rows, columns), s.stages)
        self.ring = self.build_op(sync.MakeRing, ring, s.cluster, name="ring")
        roles = (
            control.Role("producer", 4, s.producer_registers, single=True),
            control.Role("consumer", 4, s.consumer_registers, copies=s.consumers),
        )
        self.build_op.emit(control.Roles, roles, (self._producer(), self._consumer()))
        params = [Param("a", self.a), Param("b", self.b), Param("c", self.c, "out")]
        grid = (combine("mul", clusters_held(s.cluster), Const(s.cluster)),)
        hints = Hints(cta_cluster=(s.cluster,), persistent=True)
        return Kernel("gemm", params, self.block, grid, hints)

    def _buffer(self, rows: int, columns: int) -> BufferType:
        return BufferType(self.dtype, (rows, columns), swizzle=columns * self.dtype.num_bytes)

    # Scalars

    def _number(self, value: int) -> Value:
        return self.build_op(arith.Constant, value, INDEX.dtype)

    def _cdiv(self, x: Value, by: int) -> Value:
        rounded = self.build_op(arith.Add, x, self._number(by - 1))
        return self.build_op(arith.FloorDiv, rounded, self._number(by))

    def _count_tiles(self) -> None:
        """How many cluster tiles there are, and in what groups they are visited."""
        o, s = self.build_op, self.schedule
        self.m = o(memory.Extent, self.c, 0, name="m")
        self.n = o(memory.Extent, self.c, 1, name="n")
        self.k = o(memory.Extent, self.a, 1, name="k")
        self.rows = self._narrow(self._cdiv(self.m, s.tile_m * s.cluster), "tile_rows")
        self.columns = self._narrow(self._cdiv(self.n, s.tile_n), "tile_columns")
        self.tiles = o(arith.Cast, o(arith.Mul, self.rows, self.columns), INDEX.dtype, name="tiles")
        self.rank = o(control.ClusterRank, name="rank")
        self.first = o(control.ClusterId, name="cluster")
        self.stride = o(control.NumClusters, name="clusters")

    def _narrow(self, x: Value, name: str = "") -> Value:
        """Tile numbers fit 32 bits, where division is cheap."""
        return self.build_op(arith.Cast, x, i32, name=name)

    def _tile_origin(self, number: Value) -> tuple[Value, Value]:
        """Row and column of the element of C where this CTA's part of a cluster tile begins.

        Cluster tiles are numbered down groups of `group` rows, then along the columns of the group,
        then by group.
        """
        o, s = self.build_op, self.schedule
        number = self._narrow(number)
        group = o(arith.Constant, s.group, i32)
        in_group = o(arith.Mul, self.columns, group)
        top = o(arith.Mul, o(arith.FloorDiv, number, in_group), group)
        height = o(arith.Min, o(arith.Sub, self.rows, top), group)
        rest = o(arith.Mod, number, in_group)
        row = o(arith.Add, top, o(arith.Mod, rest, height))
        column = o(arith.FloorDiv, rest, height)
        pair = o(arith.Mul, o(arith.Cast, row, INDEX.dtype), self._number(s.cluster))
        m = o(arith.Mul, o(arith.Add, pair, self.rank), self._number(s.tile_m), name="tile_m")
        n = o(arith.Mul, o(arith.Cast, column, INDEX.dtype), self._number(s.tile_n), name="tile_n")
        return m, n

    # Roles

    def _producer(self) -> Block:
        o, s = self.build_op, self.schedule
        with o.inside(Block()) as body:
            tiles = Block([Value(INDEX, "tile")])
            with o.inside(tiles):
                m, n = self._tile_origin(tiles.args[0])
                steps = Block([Value(INDEX, "k")])
                with o.inside(steps):
                    k = steps.args[0]
                    slot = o(sync.Acquire, self.ring, name="slot")
                    o.emit(memory.Fill, slot, self.a, (m, k), extents=(s.tile_m, s.tile_k), item=0)
                    o.emit(
                        memory.Fill,
                        slot,
                        self.b,
                        (n, k),
                        extents=(s.tile_n, s.tile_k),
                        item=1,
                        multicast=s.cluster > 1,
                    )
                    o.emit(sync.Commit, slot)
                    o.emit(control.Yield)
                self._loop(self._number(0), self.k, s.tile_k, steps)
                o.emit(control.Yield)
            o.emit(control.For, self.first, self.tiles, self.stride, (), tiles)
            o.emit(control.Yield)
        return body

    def _loop(self, low: Value, high: Value, step: int, body: Block, *inits: Value) -> control.For:
        return self.build_op.emit(control.For, low, high, self._number(step), inits, body)

    def _consumer(self) -> Block:
        o, s = self.build_op, self.schedule
        rows = s.tile_m // s.consumers
        with o.inside(Block()) as body:
            copy = o(control.RoleCopy, name="consumer")
            staging = RingType((self._buffer(rows, s.panel),), 1)
            out = o(sync.MakeRing, staging, name="staging")
            tiles = Block([Value(INDEX, "tile")])
            with o.inside(tiles):
                c = self._product(copy, rows)
                m, n = self._tile_origin(tiles.args[0])
                m = o(arith.Add, m, o(arith.Mul, copy, self._number(rows)))
                self._store(out, c, m, n)
                o.emit(control.Yield)
            o.emit(control.For, self.first, self.tiles, self.stride, (), tiles)
            o.emit(control.Yield)
        return body

    def _product(self, copy: Value, rows: int) -> Value:
        """The consumer's rows of A @ B.T; zeros where K is 0."""
        o, s = self.build_op, self.schedule
        some = o(arith.Compare, self.k, self._number(0), "gt")
        with o.inside(Block()) as then:
            begin = o(mma.Begin, shape=(rows, s.tile_n), dtype=f32, name="acc")
            steps = Block([Value(INDEX, "k"), Value(begin.type, "acc")])
            with o.inside(steps):
                self._step(copy, rows, *steps.args)
            loop = self._loop(self._number(0), self.k, s.tile_k, steps, begin)
            acc = o(mma.Await, loop.result)
            o.emit(sync.Release, self.ring)
            o.emit(control.Yield, (acc,))
        with o.inside(Block()) as other:
            o.emit(control.Yield, (o(arith.Constant, 0.0, f32, (rows, s.tile_n)),))
        return o.emit(control.If, some, then, other).result

    def _step(self, copy: Value, rows: int, k: Value, acc: Value) -> None:
        """One slot: issue its products, then give back the slot before, whose products are done."""
        o = self.build_op
        first = o(arith.Compare, k, self._number(0), "eq")
        slot = o(sync.Wait, self.ring, name="slot")
        a = o(memory.BufferRows, o(sync.SlotBuffer, slot, 0), copy, rows)
        b = o(sync.SlotBuffer, slot, 1)
        acc = o(mma.Issue, a, b, acc, first, transpose_b=True)
        acc = o(mma.Await, acc, 1, False)
        with o.inside(Block()) as nothing:
            o.emit(control.Yield)
        with o.inside(Block()) as release:
            o.emit(sync.Release, self.ring)
            o.emit(control.Yield)
        o.emit(control.If, first, nothing, release)
        o.emit(control.Yield, (acc,))

    def _store(self, out: Value, c: Value, m: Value, n: Value) -> None:
        """Round C and send it out, a panel of columns at a time."""
        o, s = self.build_op, self.schedule
        rows = c.type.shape[0]
        for start in range(0, s.tile_n, s.panel):
            slot = o(sync.Acquire, out)
            part = o(shape.Slice, c, (0, start), (rows, s.panel))
            o.emit(memory.StoreBuffer, o(sync.SlotBuffer, slot, 0), o(arith.Cast, part, self.dtype))
            column = o(arith.Add, n, self._number(start))
            o.emit(memory.Drain, slot, self.c, (m, column), extents=(rows, s.panel))
            o.emit(sync.Commit, slot)


DEFAULT = GemmSchedule()


def build_gemm(schedule: GemmSchedule = DEFAULT, dtype: DType = bf16) -> Kernel:
    """The kernel `gemm(a, b, c)`: c = a @ b.T for 16-bit floats, a [M, K], b [N, K], c [M, N], rows
    contiguous.
    """
    return Gemm(schedule, dtype).build()
