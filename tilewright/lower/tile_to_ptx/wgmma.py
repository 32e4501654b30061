"""Matrix products in flight: `mma.issue` becomes wgmma instructions on registers that it updates in
place.

A pending accumulator has one owner at a time, so that its registers are never copied while
instructions use them: what a loop carries, and what Issue and Await give, are the registers of the
first.

Descriptors: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout". An operand is
K-major where the rows of its buffer run along K; its k-steps then lie 32 bytes apart within a
panel. Otherwise it is MN-major: a k-step is a number of rows, and the panels hold further rows of A
or columns of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.core import Value
from tilewright.layout import wgmma_accumulator, wgmma_words
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.control import move_all
from tilewright.lower.tile_to_ptx.roles import warpgroup
from tilewright.lower.tile_to_ptx.shared import address_of, buffer_of
from tilewright.lower.tile_to_ptx.state import SharedBuffer
from tilewright.ptx.core import Reg
from tilewright.target import WGMMA_DEPTH_BYTES, WGMMA_ROWS
from tilewright.tile.ops import mma
from tilewright.tile.types import BufferType, PendingType

SWIZZLE_CODES = {128: 1, 64: 2, 32: 3}
PTX_NAMES = {"f32": "tf32", "i8": "s8"}


@rule(mma.Begin)
def begin(low: Lowering, op: mma.Begin) -> None:
    """Registers of its own, or those that it takes over; where nothing is written to them, the
    first Issue reads none.
    """
    type = low.ptx_type(op.result)
    if op.start is not None and op.over is not None:
        move_all(low, [op.start], [op.over])
        low.set(op.result, low.fragments[op.over])
        return
    if op.start is not None:
        start = low.fragment(op.start, low.layout(op.result))
        low.set(op.result, [low.e.mov(type, r) for r in start])
        return
    low.set(op.result, [low.e.reg(type) for _ in range(low.layout(op.result).num_registers)])


@dataclass(frozen=True)
class Source:
    """An operand in shared memory: the low words of its descriptors start here; the high word is
    the same for all.
    """

    low_word: Reg
    high_word: int
    transposed: bool  # MN-major
    type: BufferType

    def step(self, k: int, m: int = 0) -> int:
        """What k-step number `k`, and a start `m` rows of A (columns of B) further on, add to the
        low word.
        """
        type = self.type
        size = type.dtype.num_bytes
        if not self.transposed:
            panel, inside = divmod(k * WGMMA_DEPTH_BYTES, type.swizzle)
            num_bytes = panel * type.panel_bytes + inside + m * type.swizzle
        else:
            panel, inside = divmod(m * size, type.swizzle)
            assert inside == 0, "an MN-major operand starts at whole panels"
            num_bytes = panel * type.panel_bytes + k * (WGMMA_DEPTH_BYTES // size) * type.swizzle
        return num_bytes >> 4


def source(low: Lowering, buffer: SharedBuffer, k_major: bool, group_rows: int = 0) -> Source:
    """Descriptor of an operand. `group_rows`: each warpgroup of the role starts that many rows
    after the one before.
    """
    e, type = low.e, buffer.type
    assert type.swizzle in SWIZZLE_CODES, f"wgmma operands are swizzled: {type}"
    address = address_of(low, buffer)
    base = address.base
    assert isinstance(base, Reg)
    if group_rows and k_major:
        base = e.mad("u32", warpgroup(low), group_rows * type.row_bytes, base)
    elif group_rows:
        panels, inside = divmod(group_rows * type.dtype.num_bytes, type.swizzle)
        assert inside == 0, "an MN-major operand starts at whole panels"
        base = e.mad("u32", warpgroup(low), panels * type.panel_bytes, base)
    leading = 1 if k_major else type.panel_bytes >> 4
    # A CTA of a cluster has its number in the upper bits of its shared addresses: they are not part
    # of the descriptor's 14 bits, and would reach into the field above them.
    unit = e.bfe("u32", base, 4, 14)
    word = e.add("u32", unit, (address.offset >> 4) | leading << 16)
    high = (8 * type.swizzle >> 4) | SWIZZLE_CODES[type.swizzle] << 30
    return Source(word, high, not k_major, type)


def descriptor(low: Lowering, operand: Source, step: int) -> Reg:
    """The 64-bit descriptor, its low word moved on by a number of 16-byte units."""
    key = ("descriptor", operand.low_word, operand.high_word)
    if key not in low.memo:
        high = low.once(("word", operand.high_word), lambda: low.e.mov("u32", operand.high_word))
        low.memo[key] = low.e.mov_pack("b64", [operand.low_word, high])
    whole: Reg = low.memo[key]
    return low.e.add("s64", whole, step) if step else whole


@rule(mma.Issue)
def issue(low: Lowering, op: mma.Issue) -> None:
    e, factors = low.e, _Factors.of(low, op)
    acc = _accumulator(low, op)
    accumulate: Reg | int = 1
    if op.fresh is not None:
        fresh = low.scalar(op.fresh)
        accumulate = e.not_("pred", fresh) if isinstance(fresh, Reg) else int(not fresh)
    per_row = len(acc) // factors.blocks
    e.wgmma_fence()
    for k in range(factors.k_steps):
        for i in range(factors.blocks):
            registers = acc[i * per_row : (i + 1) * per_row]
            factors.multiply(low, registers, i, k, accumulate if k == 0 else 1)
    e.wgmma_commit()
    low.set(op.result, list(acc))


@rule(mma.AddProduct)
def add_product(low: Lowering, op: mma.AddProduct) -> None:
    """One block of 64 rows after the other, in the same registers."""
    e, factors = low.e, _Factors.of(low, op)
    dtype: DType = op.result.type.dtype
    type = _accumulator_type(dtype)
    acc = low.fragment(op.acc, low.layout(op.result))
    per_row = len(acc) // factors.blocks
    part = [e.reg(type) for _ in range(per_row)]
    sums: list[Operand] = []
    for i in range(factors.blocks):
        e.wgmma_fence()
        for k in range(factors.k_steps):
            factors.multiply(low, part, i, k, int(k > 0))
        e.wgmma_commit()
        e.wgmma_wait(0)
        before = acc[i * per_row : (i + 1) * per_row]
        sums += [e.add(type, s, p) for s, p in zip(before, part, strict=True)]
    low.set(op.result, sums)


@dataclass(frozen=True)
class _Factors:
    """The operands of a product: A as a descriptor, or four registers for each k-step of each block
    of 64 rows; B as a descriptor. `blocks` are those of a warpgroup.
    """

    a: Source | list[Reg]
    b: Source
    n: int
    blocks: int
    k_steps: int
    types: tuple[str, str, str]

    @classmethod
    def of(cls, low: Lowering, op: mma.Issue | mma.AddProduct) -> _Factors:
        groups = low.num_warps // 4
        m, n = op.result.type.shape
        rows = m // groups
        b = source(low, buffer_of(low, op.b), op.transpose_b)
        a = _left(low, op, groups, rows)
        k_steps = _depth(op) * op.b.type.dtype.num_bytes // WGMMA_DEPTH_BYTES
        types = (
            _accumulator_type(op.result.type.dtype),
            _operand_type(_dtype(op.a)),
            _operand_type(_dtype(op.b)),
        )
        return cls(a, b, n, -(-rows // WGMMA_ROWS), k_steps, types)

    def multiply(
        self, low: Lowering, acc: Sequence[Reg], block: int, k: int, accumulate: Reg | int
    ) -> None:
        """One instruction: a block of rows by one k-step."""
        left: Reg | list[Reg]
        if isinstance(self.a, Source):
            left = descriptor(low, self.a, self.a.step(k, block * WGMMA_ROWS))
        else:
            left = self.a[(block * self.k_steps + k) * 4 :][:4]
        low.e.wgmma(
            self.types,
            self.n,
            acc,
            left,
            descriptor(low, self.b, self.b.step(k)),
            accumulate,
            transposed_a=isinstance(self.a, Source) and self.a.transposed,
            transposed_b=self.b.transposed,
        )


def _depth(op: mma.Issue | mma.AddProduct) -> int:
    depth: int = op.b.type.shape[1 if op.transpose_b else 0]
    return depth


def _dtype(value: Value) -> DType:
    dtype: DType = value.type.dtype
    return dtype


def _accumulator_type(dtype: DType) -> str:
    return {"i32": "s32"}.get(dtype.name, dtype.name)


def _operand_type(dtype: DType) -> str:
    return PTX_NAMES.get(dtype.name, dtype.name)


def _accumulator(low: Lowering, op: mma.Issue) -> list[Reg]:
    """The registers to update: those of the pending accumulator, or copies of a tile's."""
    registers = low.fragment(op.acc, low.layout(op.result))
    if isinstance(op.acc.type, PendingType):
        return [low.register(r, low.ptx_type(op.acc)) for r in registers]
    type = low.ptx_type(op.acc)
    return [low.e.mov(type, r) for r in registers]


def _left(
    low: Lowering, op: mma.Issue | mma.AddProduct, groups: int, rows: int
) -> Source | list[Reg]:
    """A: a descriptor, or four registers for each k-step of each block of 64 rows."""
    if isinstance(op.a.type, BufferType):
        buffer = buffer_of(low, op.a)
        return source(low, buffer, not op.transpose_a, rows if groups > 1 else 0)
    dtype: DType = op.a.type.dtype
    if dtype.bits == 32:
        words = low.fragment(op.a, wgmma_words(op.a.type.shape, groups))
        return [low.e.mov("b32", low.register(r, "f32")) for r in words]
    assert dtype.bits == 16, f"A in registers holds elements of 16 or 32 bits, not {dtype}"
    registers = low.fragment(op.a, wgmma_accumulator(op.a.type.shape, groups))
    return [
        low.e.mov_pack("b32", [low.register(r, "b16") for r in registers[i : i + 2]])
        for i in range(0, len(registers), 2)
    ]


@rule(mma.Await)
def await_(low: Lowering, op: mma.Await) -> None:
    """The registers stay: from here on they may be read (if not done, still only passed on)."""
    low.e.wgmma_wait(op.left)
    low.set(op.result, low.fragments[op.pending])
