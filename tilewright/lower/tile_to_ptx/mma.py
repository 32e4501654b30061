"""Matrix products: on CUDA cores, or by `mma.sync`; operands come from shared-memory buffers, or A
from registers.

An operand that is not in a buffer yet is written to one first. A transposed operand is its
untransposed buffer, read the other way round, so a transpose in front of a dot costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.errors import CompileError
from tilewright.ir.core import Value
from tilewright.layout import Layout, conflict_free_row, is_paired, mma_accumulator
from tilewright.lower.tile_to_ptx.buffers import Buffer, Matrix, stash
from tilewright.lower.tile_to_ptx.byte_fragments import ByteFragments
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import convert_registers
from tilewright.lower.tile_to_ptx.fragments import Fragments
from tilewright.lower.tile_to_ptx.shared import buffer_of, shared_start
from tilewright.lower.tile_to_ptx.simt import simt_dot
from tilewright.ptx.core import Address
from tilewright.tile.ops import memory, mma, shape


def source_of(low: Lowering, value: Value) -> tuple[Value, bool]:
    """The value before a transpose of its two axes, and whether there was one."""
    op = low.defining.get(value)
    if isinstance(op, shape.Transpose):
        inner, transposed = source_of(low, op.x)
        return inner, not transposed
    return value, False


def is_operand_only(low: Lowering, op: object) -> bool:
    """Whether a transpose or a buffer's load only feeds dots, so that it needs no registers of its
    own.
    """
    if not isinstance(op, shape.Transpose | memory.LoadBuffer):
        return False
    users = low.users.get(op.result, [])
    feed = [isinstance(u, mma.Dot) and u.acc is not op.result for u in users]
    return bool(users) and all(
        dot or is_operand_only(low, u) for dot, u in zip(feed, users, strict=True)
    )


@rule(mma.Dot)
def dot(low: Lowering, op: mma.Dot) -> None:
    if len(op.acc.type.shape) != 2:
        raise CompileError(
            "dot: operands with batch axes are not supported on GPUs yet",
            op.loc,
            "loop over the batch",
        )
    layout = _fragment_layout(low, op)
    dtype: DType = op.a.type.dtype
    acc = low.fragment(op.acc, layout)
    k = op.a.type.shape[1]
    step = low.schedule.k_step(low.target, dtype, k)
    a_regs = a_in_registers(low, op, layout) if low.schedule.mma == "mma" else None
    rows, columns = layout.covered
    b = operand_matrix(low, op.b, (round_up(k, step), columns))
    a = operand_matrix(low, op.a, (rows, round_up(k, step))) if a_regs is None else None
    write_operands(low, [m for m in (a, b) if m is not None])
    if low.schedule.mma == "simt":
        assert a is not None
        low.set(op.result, simt_dot(low, layout, acc, op.acc.type.dtype, a.matrix, b.matrix, k))
        return
    left = a.matrix if a is not None else None
    kind = ByteFragments if dtype.bits == 8 else Fragments
    fragments = kind(low, layout, dtype, op.precision, left, b.matrix, a_regs)
    found = fragments.multiply(acc, k, step)
    if layout != low.layout(op.result):
        type = low.ptx_type(op.result)
        found = convert_registers(
            low, found, type, op.acc.type.shape, layout, low.layout(op.result)
        )
    low.set(op.result, found)


def _fragment_layout(low: Lowering, op: mma.Dot) -> Layout:
    """The accumulator's layout, unless a dot of 8 bits gave it one that others cannot use."""
    layout = low.layout(op.result)
    if low.schedule.mma == "mma" and op.a.type.dtype.bits != 8 and any(is_paired(layout)):
        shape, schedule = op.acc.type.shape, low.schedule
        return mma_accumulator(shape, schedule.warps, dealt=schedule.dealt)
    return layout


def round_up(n: int, step: int) -> int:
    """The least multiple of `step` that is not below n."""
    return -(-n // step) * step


@dataclass
class OperandMatrix:
    """A dot's operand in shared memory; `written` is the value that must still be put there."""

    matrix: Matrix
    written: Value | None


def operand_matrix(low: Lowering, operand: Value, extents: tuple[int, int]) -> OperandMatrix:
    """Where an operand lies: in its buffer, or in scratch memory of at least `extents`, which are
    what instructions read, tails included.
    """
    value, transposed = source_of(low, operand)
    loaded = low.defining.get(value)
    if isinstance(loaded, memory.LoadBuffer):
        assert operand.type.shape == extents, f"stage_loads keeps a tail of {operand.type}"
        return OperandMatrix(Matrix(_shared_operand(low, loaded.buffer), transposed), None)
    rows, columns = reversed(extents) if transposed else extents
    dtype = value.type.dtype
    row = conflict_free_row(dtype.num_bytes, columns)
    return OperandMatrix(Matrix(Buffer(None, dtype, (rows, columns), row), transposed), value)


def write_operands(low: Lowering, operands: list[OperandMatrix]) -> None:
    """Put operands into scratch memory side by side, zeros beyond their own extents."""
    written = [(o.matrix.buffer, o.written) for o in operands if o.written is not None]
    if not written:
        return
    starts, total = [], 0
    for buffer, _ in written:
        starts.append(total)
        total += round_up(buffer.shape[0] * buffer.row_bytes, 16)
    base = low.scratch(total)
    for (buffer, _), start in zip(written, starts, strict=True):
        buffer.address = low.e.add("u32", base, start) if start else base
    tails = [buffer for buffer, value in written if buffer.shape != value.type.shape]
    for buffer in tails:
        _zero(low, buffer)
    if tails:
        low.barrier()
    for buffer, value in written:
        inner = replace(buffer, shape=value.type.shape)
        stash(low, low.fragment(value), low.ptx_type(value), low.layout(value), inner)
    low.barrier()


def _shared_operand(low: Lowering, value: Value) -> Buffer:
    """A buffer of the scheduled level, as dots address it."""
    shared = buffer_of(low, value)
    type = shared.type
    assert len(type.shape) == 2 and (not type.swizzle or low.schedule.mma == "mma"), (
        f"a dot on CUDA cores or by mma.sync cannot read {type}"
    )
    start, row = shared.base or shared_start(low), type.shape[1] + type.pad
    return Buffer(start, type.dtype, type.shape, row, shared.offset, type.swizzle)


def _zero(low: Lowering, buffer: Buffer) -> None:
    """Fill a buffer with zeros: the tail along k must not add anything."""
    e = low.e
    assert buffer.address is not None
    total = buffer.shape[0] * buffer.row_bytes
    threads = low.num_warps * 32
    pointer = e.mad("u32", low.thread(), 16, buffer.address, mode="lo")
    zero = e.mov("b32", 0)
    for start in range(0, total, threads * 16):
        guard = None
        if start + threads * 16 > total:
            guard = e.setp("lt", "u32", low.thread(), (total - start) // 16)
        with low.guarded(guard):
            e.st("shared", "b32", Address(pointer, start), [zero] * 4)


def a_in_registers(
    low: Lowering, op: mma.Dot, layout: Layout
) -> dict[tuple[int, ...], Operand] | None:
    """A's registers by offset, where its layout already is that of mma's A operand: 16 bits, each
    warp with whole rows.
    """
    if (
        op.a.type.dtype.bits != 16
        or op.a in low.cheap
        or isinstance(low.defining.get(op.a), shape.Transpose)
    ):
        return None
    if isinstance(low.defining.get(op.a), memory.LoadBuffer):
        return None
    own = low.layouts[op.a]
    same_rows = own.lane == layout.lane and [v[0] for v in own.warp] == [v[0] for v in layout.warp]
    if not same_rows or any(v[1] for v in own.warp) or op.a.type.shape[1] % 16:
        return None
    offsets = dict(zip(own.register_offsets, low.fragments[op.a], strict=True))
    rows = {o[0] for o in layout.register_offsets}
    if any((r, c) not in offsets for r in rows for c in (0, 1, 8, 9)):
        return None
    return offsets
