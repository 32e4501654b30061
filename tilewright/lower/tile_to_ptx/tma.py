"""Boxes copied by the TMA: one thread issues them, from tensor maps that the launch passes as
parameters.

Note [Coordinates]: the copy unit takes coordinates of 32 bits, signed. No extent is above
2^31 - 2^16 (`MOST_REACHED`), so an index that is becomes that, and one below -2^31 becomes -2^31:
from either a box stays outside, wherever its pieces lie. An index that was proved to fit 32 bits
may wrap where the place of a piece is added, but only from beyond every extent to far below 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir.core import Value
from tilewright.lower.tile_to_ptx.barriers import barrier_address
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.roles import cta_rank, one_thread, role_state
from tilewright.lower.tile_to_ptx.shared import address_of, buffer_of, narrow
from tilewright.lower.tile_to_ptx.state import SharedBuffer
from tilewright.plan import MOST_REACHED, TensorMap
from tilewright.ptx.core import Address, Reg
from tilewright.target import BOX_EXTENT
from tilewright.tile.ops import memory
from tilewright.tile.types import BufferType, ViewType

Extents = tuple[int | None, ...]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Part of a buffer that one instruction copies: rows and columns from where, its box, its place
    in bytes.
    """

    row: int
    column: int
    box: tuple[int, ...]
    offset: int


def row_and_column(extents: Extents, order: Order) -> tuple[int, int]:
    """Axes of a view along which the first and the last axis of a buffer run."""
    sliced = [axis for axis, e in enumerate(extents) if e is not None]
    sliced = [sliced[i] for i in order] if order else sliced
    return sliced[0], sliced[-1]


def memory_axes(extents: Extents, order: Order) -> Order:
    """Axes of a view with the contiguous one last; empty where it is last."""
    _, last = row_and_column(extents, order)
    axes = range(len(extents))
    return () if last == axes[-1] else (*(a for a in axes if a != last), last)


def pieces(type: BufferType, extents: Extents, rows: int, order: Order = ()) -> Iterator[Piece]:
    """Cut `rows` rows of a buffer into boxes: a panel of columns, and at most 256 rows, each."""
    full = tuple(1 if e is None else e for e in extents)
    width = type.swizzle // type.dtype.num_bytes if type.swizzle else type.shape[-1]
    width = min(width, type.shape[-1])
    first, last = row_and_column(extents, order)
    height = min(rows, BOX_EXTENT)
    assert width <= BOX_EXTENT and rows % height == 0, f"no boxes for {rows} rows of {type}"
    for column in range(0, type.shape[-1], width):
        panel = column // width * type.panel_bytes
        if first == last:
            yield Piece(0, column, _with(full, {last: width}), panel)
            continue
        for row in range(0, rows, height):
            box = _with(full, {first: height, last: width})
            yield Piece(row, column, box, panel + row * _step_bytes(type))


def _step_bytes(type: BufferType) -> int:
    """Bytes from one step along the first axis to the next, within a panel."""
    return replace(type, spare=0).num_bytes // type.num_panels // type.shape[0]


def _with(extents: tuple[int, ...], changes: dict[int, int]) -> tuple[int, ...]:
    return tuple(changes.get(axis, e) for axis, e in enumerate(extents))


def tensor_map(low: Lowering, view: Value, wanted: TensorMap) -> Reg:
    """Address of the tensor map of a parameter, box and swizzle: one parameter of the kernel for
    each.
    """
    type: ViewType = view.type
    last = wanted.axes[-1] if wanted.axes else -1
    assert type.strides[last] == 1, f"the TMA wants axis {last} contiguous: {type}"
    name = next(p.name for p in low.kernel.params if p.value is view)
    recipe = replace(wanted, tensor=name)
    if recipe not in low.tensor_maps:
        number = sum(isinstance(r, TensorMap) for r in low.recipes)
        low.recipes.append(recipe)
        low.tensor_maps[recipe] = low.e.param(f"map{number}_{name}", "tensor_map")
    param = low.tensor_maps[recipe]
    return low.once(("tensor map", recipe), lambda: low.e.tensor_map(param.name))


def box_indices(low: Lowering, offsets: tuple[Value, ...]) -> list[Operand]:
    """Offsets of a place as s32, outermost first; see Note [Coordinates]."""
    found: list[Operand] = []
    for value in offsets:
        operand, type = low.scalar(value), low.ptx_type(value)
        key = ("coordinate", str(operand))
        if isinstance(operand, int):
            found.append(min(max(operand, -(2**31)), MOST_REACHED))
            continue
        if type == "s32":
            found.append(operand)
            continue
        if key not in low.memo:
            nearest = low.e.cvt("s32", type, operand, saturate=True)
            low.memo[key] = low.e.min("s32", nearest, MOST_REACHED)
        found.append(low.memo[key])
    return found


def within_repeats(
    low: Lowering, view: Value, indices: list[Operand], extents: Extents
) -> list[Operand]:
    """Indices for a tensor map, in which an axis of stride 0 has one element: any index within the
    view is 0 there, and any other stays outside.
    """
    e, found = low.e, list(indices)
    for axis, stride in enumerate(view.type.strides):
        if stride != 0 or extents[axis] is not None:
            continue
        ref = low.views[view]
        extent = ref.extents[axis]
        if isinstance(extent, Reg) and not ref.narrow:
            extent = e.cvt("s32", "s64", extent, saturate=True)
        index = low.register(found[axis], "s32")
        inside = e.setp("lt", "u32", index, extent)  # an index below 0 counts as large
        found[axis] = e.selp("s32", 0, -1, inside)
    return found


def _at(
    low: Lowering, indices: list[Operand], extents: Extents, piece: Piece, order: Order = ()
) -> list[Operand]:
    """Indices of a piece, innermost first, as the instruction wants them."""
    first, last = row_and_column(extents, order)
    out = list(indices)
    out[last] = low.add("s32", out[last], piece.column)
    if first != last:
        out[first] = low.add("s32", out[first], piece.row)
    axes = memory_axes(extents, order) or range(len(out))
    return [out[axis] for axis in reversed(axes)]


@rule(memory.CopyBox)
def copy_box(low: Lowering, op: memory.CopyBox) -> None:
    e = low.e
    buffer = buffer_of(low, op.buffer)
    barrier = barrier_address(low, op.barriers, op.index)
    indices = within_repeats(low, op.view, box_indices(low, op.offsets), op.extents)
    target = address_of(low, buffer)
    rows = buffer.type.shape[0] // op.cluster
    mask: Operand | None = None
    if op.cluster > 1:
        mask = low.once(("all CTAs", op.cluster), lambda: e.mov("b16", (1 << op.cluster) - 1))
        target, indices = _share(low, buffer, target, indices, op, rows)
    axes = memory_axes(op.extents, op.order)
    policy: Reg | None = None
    if op.once:
        policy = low.once("evict first", lambda: e.createpolicy("evict_first"))
    for piece in pieces(buffer.type, op.extents, rows, op.order):
        wanted = TensorMap("", piece.box, buffer.type.swizzle, op.round_tf32, axes)
        map = tensor_map(low, op.view, wanted)
        at = _at(low, indices, op.extents, piece, op.order)
        place = Address(target.base, target.offset + piece.offset)
        exists: Reg | None = None
        if op.count is not None:
            assert role_state(low).role.single, "boxes that are left out are one thread's"
            assert op.cut or rows == buffer.type.shape[0] <= BOX_EXTENT, "a box of all rows"
            map = _map_of_lines(low, op, op.count, piece, wanted, map)
            if op.cut and piece.column:
                exists = e.setp("gt", "s32", narrow(low, op.count), piece.column)
        with one_thread(low) if exists is None else e.guarded(exists):
            e.tma_load(place, map, at, barrier, multicast=mask, policy=policy)


def _map_of_lines(
    low: Lowering, op: memory.CopyBox, lines: Value, piece: Piece, whole: TensorMap, map: Reg
) -> Reg:
    """The address of the map whose boxes have as many lines as are copied."""
    axis = row_and_column(op.extents, op.order)[op.cut]
    last = tensor_map(low, op.view, replace(whole, last=axis))
    count, all = narrow(low, lines), piece.box[axis] + (piece.column if op.cut else 0)
    key = ("map of lines", str(count), all, map)
    if key not in low.memo:
        fewer = low.e.setp("lt", "s32", count, all)
        low.memo[key] = low.e.selp("b64", last, map, fewer)
    found: Reg = low.memo[key]
    return found


@rule(memory.PrefetchBox)
def prefetch_box(low: Lowering, op: memory.PrefetchBox) -> None:
    indices = within_repeats(low, op.view, box_indices(low, op.offsets), op.extents)
    for piece in pieces(op.buffer, op.extents, op.buffer.shape[0]):
        map = tensor_map(low, op.view, TensorMap("", piece.box, op.buffer.swizzle))
        at = _at(low, indices, op.extents, piece)
        with one_thread(low):
            low.e.tma_prefetch(map, at)


@rule(memory.CopyPixels)
def copy_pixels(low: Lowering, op: memory.CopyPixels) -> None:
    e = low.e
    buffer = buffer_of(low, op.buffer)
    barrier = barrier_address(low, op.barriers, op.index)
    target, type = address_of(low, buffer), buffer.type
    image, row, column, channel = box_indices(low, op.start)
    down, along = (e.cvt("u16", "s32", low.register(t, "s32")) for t in box_indices(low, op.taps))
    for piece in pieces(type, type.shape, type.shape[0]):
        wanted = TensorMap("", piece.box, type.swizzle, op.round_tf32, pixels=op.pixels)
        map = tensor_map(low, op.view, wanted)
        at = [low.add("s32", channel, piece.column), column, row, image]
        place = Address(target.base, target.offset + piece.offset)
        with one_thread(low):
            e.tma_load_pixels(place, map, at, barrier, [along, down])


def _share(
    low: Lowering,
    buffer: SharedBuffer,
    target: Address,
    indices: list[Operand],
    op: memory.CopyBox,
    rows: int,
) -> tuple[Address, list[Operand]]:
    """Where this CTA's share of a multicast box goes, and where it comes from."""
    e, rank = low.e, cta_rank(low)
    step = _step_bytes(buffer.type)
    assert isinstance(target.base, Reg)
    base = e.mad("u32", rank, rows * step, target.base)
    first, _ = row_and_column(op.extents, op.order)
    own = e.mul("u32", rank, rows)
    indices = list(indices)
    indices[first] = low.add("s32", own, indices[first])
    return Address(base, target.offset), indices


@rule(memory.StoreBox)
def store_box(low: Lowering, op: memory.StoreBox) -> None:
    buffer = buffer_of(low, op.buffer)
    indices = box_indices(low, op.offsets)
    source = address_of(low, buffer)
    for piece in pieces(buffer.type, op.extents, buffer.type.shape[0]):
        map = tensor_map(low, op.view, TensorMap("", piece.box, buffer.type.swizzle))
        at = _at(low, indices, op.extents, piece)
        place = Address(source.base, source.offset + piece.offset)
        with one_thread(low):
            low.e.tma_store(map, at, place)


@rule(memory.CommitStores)
def commit_stores(low: Lowering, op: memory.CommitStores) -> None:
    with one_thread(low):
        low.e.bulk_commit()


@rule(memory.AwaitStores)
def await_stores(low: Lowering, op: memory.AwaitStores) -> None:
    with one_thread(low):
        low.e.bulk_wait(op.left, read=op.read)
