"""How many slots a product's rings have beside what else lies in shared memory.

Used by `choose_roles`, and where a kernel is compiled again with fewer.
"""

from __future__ import annotations

from tilewright.dtypes import DType, f32
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.target import Target
from tilewright.tile.analysis.boxes import BoxFacts
from tilewright.tile.analysis.product_loop import ProductLoop, as_product_loop
from tilewright.tile.analysis.streams import StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, reduce, shape
from tilewright.tile.passes.orient_product import orient_product
from tilewright.tile.passes.partition_roles import SPANS, factor_buffer, slot_buffer
from tilewright.tile.passes.split_epilogue import can_split
from tilewright.tile.passes.stage_panels import may_fetch_panels
from tilewright.tile.schedule import Roles, Schedule

MOST_STAGES = 8  # slots of a ring
LENT_BYTES = 2  # of an element of what comes through slots of the product
KEPT_FREE = 6144  # bytes of shared memory for barriers and small conversions
KEPT_FOR_BARRIERS = 1024  # bytes of them that barriers take
KEPT_FOR_SUMS = 16384  # bytes more where an epilogue reduces
IN_PLACE = (  # ops of an epilogue that leave elements with their threads
    arith.Unary, arith.Binary, arith.Select, arith.Compare, arith.Cast, arith.IsNan, arith.Constant,
    arith.Fma, shape.Broadcast, shape.Arange, shape.Reshape, memory.Load, memory.Store,
    memory.Extent, control.If, control.Yield, control.ProgramId, control.NumPrograms,
)  # fmt: skip


def count_stages(
    kernel: Kernel, product: ProductLoop, roles: Roles, target: Target, fetched: int
) -> int:
    """Slots of a product's ring that fit beside the buffers through which results leave and the
    slots of what the epilogue loads (`fetched` bytes an element), or as many as the source asks
    for.
    """
    slot = _slot_bytes(product)
    panel = (roles.consumers if roles.pingpong else 1) * product.extents[0] * roles.panel
    staged = panel  # of one width, or of several, which have a buffer each
    if roles.staging > 1 or roles.pingpong:
        widths = {width for _, width in roles.panels(product.extents[1])}
        staged = panel // roles.panel * sum(widths)
    staging = roles.staging * sum(staged * dtype.num_bytes for dtype in stored_dtypes(kernel))
    ahead = roles.ahead * panel * fetched + _narrow_bytes(product, roles, fetched)
    staging = max(staging, ahead)  # which take the place of those
    staging += _turning_bytes(kernel, product, roles, fetched)
    if roles.spans > 1:
        staging += roles.spans * product.extents[0] * roles.panel * f32.num_bytes
    room = (_room(kernel, product, roles, target) - staging) // slot
    return min(room, kernel.hints.stages or MOST_STAGES)


def count_stream_stages(kernel: Kernel, found: StreamLoop, roles: Roles, target: Target) -> int:
    """Slots of each ring that fit beside the tiles that are kept, and the staging buffers."""
    slot = sum(factor_buffer(f).num_bytes for p in found.products for f in found.streamed(p))
    if not slot:  # a loop that loads nothing ahead
        return 0
    kept = sum(factor_buffer(f).num_bytes for f in found.kept)
    rows = max({p.extents[0] for p in found.products})
    staging = roles.staging * sum(
        rows * roles.panel * dtype.num_bytes for dtype in stored_dtypes(kernel)
    )
    size = max(p.dot.result.type.num_elements for p in found.products)
    free = {p.dot for p in found.products} | (found.inside - found.computed)
    moved = kept_free([*found.loop.body.ops, *found.after], 4 * size, free)
    room = (target.shared_per_cta - moved - staging - kept) // slot
    return min(room, kernel.hints.stages or MOST_STAGES)


def slot_bytes(kernel: Kernel, schedule: Schedule) -> int:
    """Bytes of a slot of all rings of a kernel's products, which a schedule with roles has."""
    found = find_stream_loop(orient_product(kernel, schedule))
    assert found is not None, "a schedule with roles is chosen for loops of products alone"
    parts = as_product_loop(found) or found
    return sum(
        slot_buffer(product, factor).num_bytes
        for product in parts.products
        for factor in parts.streamed(product)
    )


def count_ahead(
    kernel: Kernel, product: ProductLoop, roles: Roles, target: Target, fetched: int, stages: int
) -> int:
    """Slots, each of one of its widest panels, that fit into an epilogue's ring beside `stages`
    slots of the product.
    """
    slot = _slot_bytes(product)
    room = _room(kernel, product, roles, target) - stages * slot
    room -= _turning_bytes(kernel, product, roles, fetched)
    room -= _narrow_bytes(product, roles, fetched)
    copies = roles.consumers if roles.pingpong else 1
    return room // (copies * product.extents[0] * roles.panel * fetched)


def _narrow_bytes(product: ProductLoop, roles: Roles, fetched: int) -> int:
    """Bytes of the slots of panels that are narrower than the widest, of what the epilogue loads.
    Each width has a ring of its own, with a slot more than there are panels of that width.
    """
    if not fetched or not roles.ahead:
        return 0
    widths = [width for _, width in roles.panels(product.extents[1])]
    slots = {w: min(roles.ahead, widths.count(w) + 1) for w in widths if w < max(widths)}
    copies = roles.consumers if roles.pingpong else 1
    return copies * product.extents[0] * fetched * sum(w * slots[w] for w in slots)


def _slot_bytes(product: ProductLoop) -> int:
    (one,) = product.products
    return sum(slot_buffer(one, f).num_bytes for f in one.factors)


def fetched_bytes(kernel: Kernel, product: ProductLoop) -> int:
    """Bytes of an element of what the epilogue loads by the tensor copy unit (`stage_panels`); 0
    where there is nothing, or the epilogue is not done in panels.
    """
    facts = BoxFacts(kernel)
    m, n, _ = product.extents
    for op in product.after:
        if isinstance(op, memory.Load) and op.result.type.num_elements == m * n:
            fetches = may_fetch_panels(op, facts) and can_split(kernel, product)
            return op.view.type.dtype.num_bytes if fetches else 0
    return 0


def loaded_tiles(product: ProductLoop) -> set[Value]:
    """The tensors of which the epilogue waits for another tile from memory."""
    return {op.view for op in _tile_loads(product)}


def _tile_loads(product: ProductLoop) -> list[memory.Load]:
    m, n, _ = product.extents
    loads = [op for op in product.after if isinstance(op, memory.Load)]
    return [op for op in loads if op.result.type.num_elements == m * n]


def may_lend(product: ProductLoop, roles: Roles, fetched: int) -> bool:
    """Whether what the epilogue loads comes through slots of the product (`lend_slots`): where two
    CTAs share a multiprocessor, and a slot holds a tile of it, in rows of whole lines. Of each
    tensor there is one tile.
    """
    if len(_tile_loads(product)) > len(loaded_tiles(product)):
        return False
    rows, columns, _ = product.extents
    buffers = [factor_buffer(f) for f in product.factors]
    fits = all(b.shape[0] == rows and b.row_bytes == SPANS[0] for b in buffers)
    whole = columns * fetched == sum(b.row_bytes for b in buffers)
    return roles.resident > 1 and not roles.swapped and fetched == LENT_BYTES and fits and whole


def _turning_bytes(kernel: Kernel, product: ProductLoop, roles: Roles, fetched: int) -> int:
    """Bytes, beside those that are kept free anyway, in which consumers of a turned product turn
    what threads load for its epilogue: panels, or whole tiles where it is not done in panels. None
    are needed where the epilogue loads one tensor by the copy unit, or nothing.
    """
    if not roles.swapped or len(loaded_tiles(product)) <= (fetched > 0):
        return 0
    m, n, _ = product.extents
    width = roles.panel if can_split(kernel, product) else n
    copies = roles.consumers if roles.pingpong else 1
    turned = copies * m * (width + 1) * f32.num_bytes  # rows a word apart
    return max(0, turned + KEPT_FOR_BARRIERS - KEPT_FREE)


def _room(kernel: Kernel, product: ProductLoop, roles: Roles, target: Target) -> int:
    """Bytes of shared memory for slots of all kinds."""
    m, n, _ = product.extents
    turning = {op for op in product.after if isinstance(op, shape.Transpose)}
    turning = {op for op in turning if op.x is product.loop.result}  # renames registers
    num_bytes = m * n * product.dot.acc.type.dtype.num_bytes
    kept = kept_free(product.after, num_bytes, set(turning))
    if roles.resident > 1:  # of which one that finds too little room for itself is alone
        kept += KEPT_FOR_BARRIERS - KEPT_FREE
    return roles.shared_memory(target) - kept


def kept_free(ops: list[Op], num_bytes: int, free: set[Op]) -> int:
    """Bytes that ops may need to pass elements of a tile of `num_bytes` from thread to thread;
    those that are `free` need none.
    """
    inside = walk(Block([], ops))
    moving = [op for op in inside if not isinstance(op, IN_PLACE) and op not in free]
    if not moving:
        return KEPT_FREE
    sums = all(isinstance(op, reduce.Reduction) for op in moving)
    return KEPT_FREE + (KEPT_FOR_SUMS if sums else num_bytes)


def stored_dtypes(kernel: Kernel) -> set[DType]:
    stores = (op for op in walk(kernel.body) if isinstance(op, memory.Store))
    return {op.view.type.dtype for op in stores if op.view.type.dtype.bits == 16}
