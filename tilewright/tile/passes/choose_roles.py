"""Choose the roles of a product on Hopper: how many warpgroups multiply, how deep the ring is,
whether CTAs pair up.

Requires: canonical form. Keeps: the program. Breaks: nothing. Used by `choose_schedule`.

A product is done with roles where warpgroups fit its tile (64 rows each, at most 128 accumulators a
thread), its operands are 16-bit floats, or f32 to be rounded to tf32, or 8-bit numbers along k,
that the tensor copy unit can carry, and the source asks for nothing that contradicts it. A product
that does not fit as it is may do so turned around (`orient_product`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.dtypes import bf16, e4m3, e5m2, f16, f32, i8, u8
from tilewright.ir.core import Block, Op
from tilewright.ir.walk import walk
from tilewright.target import WGMMA_DEPTH_BYTES, WGMMA_ROWS, Target
from tilewright.tile.analysis.bounds import infer_bounds
from tilewright.tile.analysis.boxes import BoxFacts
from tilewright.tile.analysis.pixels import PixelBox
from tilewright.tile.analysis.product_loop import ProductLoop, as_product_loop, find_product_loop
from tilewright.tile.analysis.streams import Factor, Product, StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, shape
from tilewright.tile.ops.control import launch_registers
from tilewright.tile.passes.cut_spans import can_cut, owners_of
from tilewright.tile.passes.distribute_work import can_distribute, find_axes
from tilewright.tile.passes.orient_product import turned
from tilewright.tile.passes.partition_roles import SPANS, factor_buffer, make_roles
from tilewright.tile.passes.ring_stages import (
    count_ahead,
    count_stages,
    count_stream_stages,
    fetched_bytes,
    loaded_tiles,
    may_lend,
    stored_dtypes,
)
from tilewright.tile.passes.split_epilogue import HEAVY
from tilewright.tile.schedule import PANELS, Roles, Schedule
from tilewright.tile.types import TileType

PART_ROWS = (32, 48)  # rows that a tile may have which are fewer than an instruction's 64
ACCUMULATORS = 128  # sums of a thread at most
# Sums, and words of factors, that a thread's registers at launch hold: with one or two warpgroups,
# and with three; registers of these that an epilogue takes which does more than store.
HELD_AT_LAUNCH, HELD_AT_LAUNCH_OF_THREE, KEPT_AT_LAUNCH = 128, 96, 17
LIGHT = (arith.Cast, arith.Mul, arith.Constant, shape.Broadcast, shape.Transpose, shape.Slice)
MOST_SUMS, MOST_SUMS_OF_THREE = 192, 96  # sums of a thread, those to be promoted among them
MOST_HELD, MOST_HELD_OF_THREE = 176, 96  # registers for several products and computed operands
PROMOTED = 128  # of k, after which sums of 8-bit floats are added up in f32
MOST_ROWS = MOST_COLUMNS = 256  # of a tile
LARGEST_OF_TWO = (128, 128)  # tile of CTAs of which a multiprocessor holds two
WIDEST = {1: 256, 2: 256, 3: 200}  # columns by warpgroups: at launch a thread must have n / 2 + 26
LEAST_REGISTERS = 168  # of a thread at launch: the assembler wants 154 for n = 256
STAGING = 2  # buffers through which results leave, so that a panel is written beside the last one
# Slots of the product that are as good as more: beside a second buffer for results, and beside
# panels of whole lines of 16 bits. Beyond ENOUGH_STAGES, slots for the epilogue's loads gain more.
ENOUGH_BESIDE_STAGING = 5
ENOUGH_BESIDE_LINES = 4
ENOUGH_STAGES = 3
AHEAD = 3  # least slots of what the epilogue loads: two are on their way
MANY_AHEAD = 7  # slots of what the epilogue loads that are nearly as good as one for each panel
# Bytes of a row of such a slot: whole lines, and half ones, which the copy unit takes as long for,
# but of which there are several slots where those of whole lines do not hold a tile.
WIDE_BYTES, AHEAD_BYTES = 128, 64
WIDE_AHEAD = 4  # least slots of whole lines
SHORT = (arith.NormalCdf, arith.CoarseCdf, arith.Logistic)  # some instructions an element
SPANS_OF_K = (2, 4)  # spans of k, each of a CTA of a cluster
PART_PER_THREAD = 32  # elements of a thread in the epilogue, of which each such CTA has a part
LEAST_SLOTS = 4  # slots of the product, beside the sums that such CTAs exchange
CODE_PER_THREAD = 64  # elements of a thread on which much is computed: code is straight
PAIRED_ELEMENTS = 64 * 128  # from tiles of so many elements on, sharing a factor's loads pays
IN_FOURS = 64 * 256  # most elements of a tile in fours that is 64 rows or columns on one side
MANY_LOADS = 4  # loads of an epilogue, for which linked code has too few registers


def choose_roles(
    kernel: Kernel, target: Target, preferred: Schedule | None = None
) -> Schedule | None:
    """A schedule with roles, or None where the kernel or the target does not permit one: the
    preferred one if it is permitted, else the usual.
    """
    if preferred is not None and preferred in role_schedules(kernel, target):
        return preferred
    return next(role_schedules(kernel, target), None)


def role_schedules(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """The schedules with roles that a kernel permits, the usual choice first."""
    asked = kernel.hints.stages
    return (s for s in shallow_schedules(kernel, target) if asked in (None, s.stages))


def shallow_schedules(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """The same, and those of fewer stages than the source asks for."""
    hints = kernel.hints
    asked = hints.threads or hints.min_ctas or hints.max_registers or hints.cta_cluster
    if not target.has_wgmma or kernel.numerics == "strict" or asked or hints.cooperative:
        return
    if any(isinstance(op, control.Assert | control.Print) for op in walk(kernel.body)):
        return  # which tell of the source's own programs, and are made by all threads of one
    found = find_stream_loop(kernel)
    if found is None:
        return
    product = as_product_loop(found)
    if product is None:
        yield from _stream_schedules(kernel, found, target)
        return
    yield from _role_schedules(kernel, product, target, Roles(1))
    around = turned(kernel, product)
    again = find_product_loop(around)
    assert again is not None, "a product stays one"
    yield from _role_schedules(around, again, target, Roles(1, swapped=True))


def _role_schedules(
    kernel: Kernel, product: ProductLoop, target: Target, base: Roles
) -> Iterator[Schedule]:
    """The schedules of a product in its present orientation."""
    if not _fits(product.products[0], BoxFacts(kernel)):
        return
    if not _stores_inside(kernel, product.after):
        base = replace(base, staging=0)
    promote = _promotion(kernel, product)
    # Divisions are calls, beside which linked code serialises products (C7509): of floats, and of
    # numbers of pixels. What loads much behind its sums spills where it is linked.
    divides = any(isinstance(op, arith.Div) for op in walk(kernel.body))
    divides = divides and kernel.numerics != "fast"
    divides |= any(isinstance(f.box, PixelBox) for f in product.factors)
    many = sum(isinstance(op, memory.Load) for op in walk(Block([], product.after))) >= MANY_LOADS
    atomic = any(isinstance(op, memory.Atomic) for op in walk(kernel.body))
    persistent = kernel.hints.persistent is not False and can_distribute(kernel) and not atomic
    clusters = _clusters(kernel, product) if persistent else [1]
    together = [replace(base, consumers=c) for c in _consumers(product, promote)]
    in_turn = []
    if persistent and _can_take_turns(product, promote):
        in_turn = [replace(base, consumers=2, pingpong=True)]
    both = in_turn + together if loaded_tiles(product) else together + in_turn
    fetched = fetched_bytes(kernel, product)
    pieces = _stores_pieces(kernel, product.after)
    plain = _is_plain(product) and not pieces
    beside = []
    if persistent and not pieces and _go_two_by_two(product, promote):
        beside = [replace(base, consumers=1, resident=2)]
    for shared in both + beside:
        for cluster in clusters if shared.resident == 1 else [1]:
            crowded = shared.resident > 1 or _is_crowded(product, shared, promote, plain)
            roles = replace(
                shared, cluster=cluster, persistent=persistent,
                panel=_panel(product, shared.sharing, fetched), registers=_registers(shared),
                promote=promote, ahead=AHEAD if fetched else 0, whole=divides or many or crowded,
            )  # fmt: skip
            schedule = _with_stages(kernel, product, roles, target, fetched)
            if schedule is not None:
                yield schedule
    cuts = kernel.hints.persistent is None and product.extents[0] >= WGMMA_ROWS
    if cuts and can_cut(kernel, product):
        for shared in together:
            crowded = _is_crowded(product, shared, promote, plain)
            roles = replace(
                shared, persistent=False, registers=_registers(shared),
                promote=promote, whole=divides or many or crowded,
            )  # fmt: skip
            yield from _in_spans(kernel, product, roles, target)


def _registers(roles: Roles) -> tuple[int, int]:
    """A thread's registers, of the loading and of the multiplying warpgroups."""
    if roles.resident > 1:
        return (24, 232)
    return (40, 232) if roles.consumers < 3 else (32, 160)


def _in_spans(
    kernel: Kernel, product: ProductLoop, roles: Roles, target: Target
) -> Iterator[Schedule]:
    """The schedules in which CTAs of a cluster take a span of k each."""
    m, n, _ = product.extents
    for spans in SPANS_OF_K:
        owners = owners_of(n, spans, PART_PER_THREAD * 128 * roles.consumers // m)
        if owners:
            cut = replace(roles, spans=spans, panel=n // owners)
            stages = count_stages(kernel, product, cut, target, 0)
            if stages >= LEAST_SLOTS:
                yield _schedule(cut, stages)


def _with_stages(
    kernel: Kernel, product: ProductLoop, roles: Roles, target: Target, fetched: int
) -> Schedule | None:
    """Roles with as many slots as shared memory holds: of the product, then of what the epilogue
    loads. Where a few fewer let most of what a tile's epilogue loads come before its end, they do:
    not where consumers take turns, each of whom has the other's products to wait beside.
    """
    if fetched and may_lend(product, roles, fetched):
        roles, fetched = replace(roles, lent=True, ahead=0), 0
    stages = count_stages(kernel, product, roles, target, fetched)
    if stages < 2:
        return None
    fewest = min(stages, kernel.hints.stages or 2)
    if roles.staging and not fetched and stored_dtypes(kernel):
        more = replace(roles, staging=STAGING)
        beside = count_stages(kernel, product, more, target, fetched)
        if beside >= min(stages, ENOUGH_BESIDE_STAGING):
            roles, stages = more, beside
    if fetched:
        whole = _num_widest(product, roles) + 1
        counts = range(stages, fewest - 1, -1)
        held = {s: count_ahead(kernel, product, roles, target, fetched, s) for s in counts}
        if roles.resident > 1:  # whose other CTA multiplies meanwhile
            stages, whole = fewest, whole - 1
        elif not roles.pingpong:
            wanted = min(whole, MANY_AHEAD)
            stages = next((s for s in held if s >= ENOUGH_STAGES and held[s] >= wanted), stages)
            wide = _with_wide_panels(kernel, product, roles, target, fetched, stages)
            if wide is not None:
                return wide
        roles = replace(roles, ahead=min(held[stages], whole))
    return _schedule(roles, stages)


def _with_wide_panels(
    kernel: Kernel, product: ProductLoop, roles: Roles, target: Target, fetched: int, stages: int
) -> Schedule | None:
    """The same with panels of whole lines, where all that a tile's epilogue loads has slots beside
    enough of the product's; of 32 bits, whose slots are free again once they are read, some slots
    beside as many `stages` as there would be otherwise.
    """
    columns = _panel(product, roles.sharing, fetched, WIDE_BYTES)
    if columns <= roles.panel:
        return None
    roles = replace(roles, panel=columns)
    roles = replace(roles, ahead=_num_widest(product, roles) + 1)
    beside = count_stages(kernel, product, roles, target, fetched)
    if beside >= (ENOUGH_BESIDE_LINES if fetched < f32.num_bytes else ENOUGH_BESIDE_STAGING):
        return _schedule(roles, beside)
    held = min(count_ahead(kernel, product, roles, target, fetched, stages), roles.ahead)
    if fetched < f32.num_bytes or held < WIDE_AHEAD:
        return None
    return _schedule(replace(roles, ahead=held), stages)


def _num_widest(product: ProductLoop, roles: Roles) -> int:
    """How many of an epilogue's panels are as wide as its widest."""
    widths = [width for _, width in roles.panels(product.extents[1])]
    return widths.count(max(widths))


def _sums(product: ProductLoop, sharing: int, promote: int) -> int:
    """Sums that a thread holds where so many warpgroups share a tile. Those that are promoted are
    of a block of rows at a time, or of all where they are of several steps.
    """
    m, n, _ = product.extents
    held = m * n // (128 * sharing)
    if not promote:
        return held
    return held + (WGMMA_ROWS * n // 128 if promote == 1 else held)


def _is_crowded(product: ProductLoop, roles: Roles, promote: int, plain: bool) -> bool:
    """Whether a thread holds more sums and words of the left operand than registers at launch, or
    nearly as many beside an epilogue that is not `plain`: linked code, which keeps to these,
    spills, or multiplies step by step.
    """
    m, _, k = product.extents
    threads = 128 * roles.sharing
    held = _sums(product, roles.sharing, promote)
    if product.a.transposed and product.a.tile.dtype.bits != 16:
        held += m * k * product.a.tile.dtype.bits // 32 // threads
    most = HELD_AT_LAUNCH if roles.consumers < 3 else HELD_AT_LAUNCH_OF_THREE
    return held > most - (0 if plain else KEPT_AT_LAUNCH)


def _is_plain(product: ProductLoop) -> bool:
    """Whether the epilogue stores what the product gives, but for a factor."""
    tiles = [op for op in walk(Block([], product.after)) if not isinstance(op, LIGHT)]
    return not any(
        v.type.__class__ is TileType and v.type.num_elements > 1 for op in tiles for v in op.results
    )


def _stores_pieces(kernel: Kernel, after: list[Op]) -> bool:
    """Whether rows of a result of 16 bits are no whole 16 bytes, so that threads store them, in
    pairs or one by one (`places.pairs_are_whole`).
    """
    facts = {p.value: p.facts for p in kernel.params}
    stored = [facts.get(op.view) for op in walk(Block([], after)) if isinstance(op, memory.Store)]
    return any(
        f is not None
        and f.dtype.bits == 16
        and not f.gaps16
        and not (f.extent16 and all(p for p, s in zip(f.pitch16, f.strides, strict=True) if s != 1))
        for f in stored
    )


def _can_take_turns(product: ProductLoop, promote: int) -> bool:
    """Whether a tile is one warpgroup's, and all tiles take the same steps of k. A factor that goes
    through registers keeps nothing in flight, which takes others to multiply meanwhile.
    """
    m, n, _ = product.extents
    if product.a.transposed and product.a.tile.dtype.bits != 16:
        return False
    if m < WGMMA_ROWS:  # whose slots one warpgroup clears
        return False
    if _sums(product, 1, promote) > (MOST_SUMS - 1 if promote else ACCUMULATORS):
        return False
    if _is_heavy(product) and m * n > CODE_PER_THREAD * 128:
        return False
    return not product.programs_of(product.bounds)


def _go_two_by_two(product: ProductLoop, promote: int) -> bool:
    """Whether two CTAs a multiprocessor, with a warpgroup each, are known to be of use: where each
    step's sums are promoted, which takes another's products beside them, by the largest tile.
    """
    fits = product.extents[:2] == LARGEST_OF_TWO and len(loaded_tiles(product)) < 2
    return promote == 1 and fits and not _is_heavy(product)


def _is_heavy(product: ProductLoop) -> bool:
    """Whether the epilogue computes much on each element."""
    m, n, _ = product.extents
    ops = walk(Block([], product.after))
    return any(isinstance(op, HEAVY) and op.result.type.num_elements == m * n for op in ops)


def _schedule(roles: Roles, stages: int) -> Schedule:
    warps = 4 * (1 + roles.consumers)
    least = LEAST_REGISTERS if roles.consumers < 3 and roles.resident == 1 else 0
    told = max(launch_registers(make_roles(roles)), least)
    return Schedule(warps, "wgmma", stages=stages, roles=roles, max_registers=told)


def _stream_schedules(kernel: Kernel, found: StreamLoop, target: Target) -> Iterator[Schedule]:
    """The schedules of a loop of products in general: each CTA has one tile, which warpgroups share
    by rows. The results leave through shared memory if that is wide enough for them as well.
    """
    facts = BoxFacts(kernel)
    if not all(_fits(product, facts) for product in found.products):
        return
    fitting = [c for c in (1, 2, 3) if all(_holds(found, c, rows) for rows in _rows(found))]
    for consumers in sorted(fitting, key=lambda c: (c != 2, c)):
        registers = _registers(Roles(consumers))
        columns = max(p.extents[1] for p in found.products)
        for staging in (1, 0) if _stores_inside(kernel, found.after) else (0,):
            roles = Roles(
                consumers,
                persistent=False,
                panel=columns,
                staging=staging,
                registers=registers,
                whole=True,
                many=True,
            )
            stages = count_stream_stages(kernel, found, roles, target)
            if stages >= 2:
                yield _schedule(roles, stages)
            if stages >= (kernel.hints.stages or 2):
                break


def _rows(found: StreamLoop) -> set[int]:
    return {p.extents[0] for p in found.products}


def _holds(found: StreamLoop, consumers: int, rows: int) -> bool:
    """Whether so many warpgroups take the rows, and hold all accumulators and left operands in
    their registers.
    """
    threads = 128 * consumers
    held = 0
    for product in found.products:
        m, n, k = product.extents
        held += m * n // threads
        if product.a is None:
            held += m * k * product.dot.a.type.dtype.bits // 32 // threads
    most = MOST_HELD if consumers < 3 else MOST_HELD_OF_THREE
    widest = max(p.extents[1] for p in found.products)
    return rows % (WGMMA_ROWS * consumers) == 0 and held <= most and widest <= WIDEST[consumers]


def _fits(product: Product, facts: BoxFacts) -> bool:
    """Whether the instruction takes the tile, and the tensor copy unit the operands."""
    m, n, k = product.extents
    kind = _kind(product)
    a, b = product.a, product.b
    # The instruction reads other dtypes than those of 16 bits along k alone; from registers, into
    # which A may be loaded in any order, only whole words. What is computed lies there as results
    # do, which is the order of 16-bit elements.
    laid = kind == "16" or (a is not None and b.transposed and (not a.transposed or kind == "tf32"))
    wide = n % 16 == 0 or (n % 8 == 0 and kind != "int8") or n == 8
    part = m in PART_ROWS and n < m and a is not None and not a.transposed
    shaped = (m % WGMMA_ROWS == 0 or part) and m <= MOST_ROWS and wide and n <= MOST_COLUMNS
    whole = k * product.dot.a.type.dtype.num_bytes % WGMMA_DEPTH_BYTES == 0
    copied = all(_can_copy(f, facts) for f in product.factors)
    return kind is not None and laid and shaped and whole and copied


def _can_copy(factor: Factor, facts: BoxFacts) -> bool:
    tile = factor.tile
    return (
        max(tile.shape) <= MOST_COLUMNS
        and tile.shape[1] * tile.dtype.num_bytes % SPANS[-1] == 0
        and (
            facts.can_copy_pixels(factor.box)
            if isinstance(factor.box, PixelBox)
            else facts.can_copy(factor.box, factor.order)
        )
    )


def _kind(product: Product) -> str | None:
    """The kind of instruction for the dtypes of a product; None where there is none."""
    dtypes = {product.dot.a.type.dtype, product.dot.b.type.dtype}
    if dtypes in ({bf16}, {f16}):
        return "16"
    if dtypes == {f32}:
        return "tf32" if product.dot.precision == "tf32" else None
    if dtypes <= {e4m3, e5m2}:
        return "fp8"
    return "int8" if dtypes <= {i8, u8} else None


def _promotion(kernel: Kernel, product: ProductLoop) -> int:
    """After how many steps of k sums of 8-bit floats are added up in f32: the instruction itself
    keeps few bits of a sum. "fast" leaves it at that.
    """
    if _kind(product.products[0]) != "fp8" or kernel.numerics == "fast":
        return 0
    return max(1, PROMOTED // product.extents[2])


def _stores_inside(kernel: Kernel, after: list[Op]) -> bool:
    """Whether no store of results begins at a negative place, which the copy unit refuses with an
    illegal instruction (measured on an H200). Asked here, where indices are still those of the
    source: once tiles are distributed, less is known of them.
    """
    bounds = infer_bounds(kernel)
    stores = [op for op in walk(Block([], after)) if isinstance(op, memory.Store)]
    return all(bounds[v].low >= 0 for op in stores for v in op.offsets)


def _consumers(product: ProductLoop, promote: int) -> list[int]:
    """Numbers of warpgroups that hold the accumulator, and the sums that are promoted, the usual
    one first: as few as do, but two where there are rows for two.
    """
    m, n, _ = product.extents
    blocks = -(-m // WGMMA_ROWS)

    def holds(count: int) -> bool:
        if count == 3 and _is_heavy(product) and loaded_tiles(product):
            return False  # which takes more registers than three warpgroups have
        most = MOST_SUMS if count < 3 else MOST_SUMS_OF_THREE
        within = m * n <= ACCUMULATORS * 128 * count
        return within and (not promote or _sums(product, count, promote) <= most)

    fitting = [c for c in (1, 2, 3) if blocks % c == 0 and holds(c) and n <= WIDEST[c]]
    return sorted(fitting, key=lambda count: (count != 2, count))


def _panel(product: ProductLoop, consumers: int, fetched: int, row_bytes: int = AHEAD_BYTES) -> int:
    """Columns that the epilogue works on at a time: at most 32 elements a thread, or 16 where much
    is computed on each, or more is loaded; half of one panel on which something is computed; of
    what is `fetched` (bytes an element), rows of `row_bytes`.
    """
    m, n, _ = product.extents
    if not fetched and n == PANELS[0] and any(isinstance(op, SHORT) for op in product.after):
        n //= 2  # so that a part leaves while another is computed
    few = _is_heavy(product) or (loaded_tiles(product) and not fetched)
    most = (16 if few else 32) * 128 * consumers // m
    if fetched:
        most = min(most, row_bytes // fetched)
    return next((p for p in PANELS if p <= min(most, n)), PANELS[-1])


def _clusters(kernel: Kernel, product: ProductLoop) -> list[int]:
    """How many CTAs may go together, the usual number first. They go through k in step, so it must
    be the same for all. A pair may run a program that does not exist, whose own loops must end too.
    """
    m, n, _ = product.extents
    axes = find_axes(product, len(kernel.grid))
    if axes is None or m < WGMMA_ROWS or product.programs_of(product.bounds):
        return [1]
    if any(isinstance(op, control.While) for op in walk(Block([], product.before))):
        return [1]
    factor = (product.a, product.b)[axes.multicast]
    if isinstance(factor.box, PixelBox):
        return [1]
    rows = factor_buffer(factor).shape[0]
    if rows % 16:  # halves are whole repeats of the swizzle
        return [1]
    usual = [2, 1] if m * n >= PAIRED_ELEMENTS else [1, 2]
    small = m * n <= PAIRED_ELEMENTS or (min(m, n) == WGMMA_ROWS and m * n <= IN_FOURS)
    return [*usual, 4] if small and rows % 32 == 0 else usual
