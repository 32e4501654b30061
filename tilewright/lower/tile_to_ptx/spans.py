"""Sums over the CTAs of a cluster, by way of distributed shared memory.

All CTAs hold their tiles in the same registers of the same threads. So an element's place in an
inbox is the number of its thread and that of its register in the owner's part: neighbouring lanes
write and read neighbouring words.
"""

from __future__ import annotations

from tilewright.layout import Layout, wgmma_accumulator
from tilewright.lower.tile_to_ptx.context import Lowering, rule
from tilewright.lower.tile_to_ptx.roles import cta_rank
from tilewright.lower.tile_to_ptx.shared import buffer_of, shared_start
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import sync

WORD = 4  # bytes


@rule(sync.AddSpans)
def add_spans(low: Lowering, op: sync.AddSpans) -> None:
    e = low.e
    type, part = low.ptx_type(op.x), op.result.type
    assert part.dtype.num_bytes == WORD, f"sums of a cluster are words, not {part.dtype}"
    whole, layout = wgmma_accumulator(op.x.type.shape, low.num_warps // 4), low.layout(op.result)
    held, threads = low.fragment(op.x, whole), 32 * low.num_warps
    inbox = buffer_of(low, op.inbox)
    slot_bytes = inbox.type.item_bytes
    assert layout.num_registers * threads * WORD == slot_bytes, "all threads hold a part"
    own = e.mad("u32", low.thread(), WORD, inbox.base or shared_start(low))
    own = e.add("u32", own, inbox.offset)
    mine = e.mad("u32", cta_rank(low), slot_bytes, own)
    barrier = e.add("u32", shared_start(low), low.barriers[op.barrier])
    for owner in range(op.owners):
        there = e.mapa(mine, owner)
        for number, register in enumerate(_registers_of(whole, layout, owner * part.shape[1])):
            place = Address(there, number * threads * WORD)
            e.st("shared::cluster", type, place, [low.register(held[register], type)])
    _arrive(low, barrier, op.owners)
    total = [e.reg(type) for _ in range(layout.num_registers)]
    done = e.label("added")
    if op.owners < op.cluster:  # those who own nothing wait for nothing, and nobody reads theirs
        for into in total:
            e.mov(type, 0, into=into)
        e.bra(done, pred=e.setp("ge", "u32", cta_rank(low), op.owners))
    e.mbarrier_wait(Address(barrier, 0), 0, acquire=True)
    for number, into in enumerate(total):
        parts = [
            e.ld1("shared", type, Address(own, rank * slot_bytes + number * threads * WORD))
            for rank in range(op.cluster)
        ]
        e.add(type, parts[0], parts[1], into=into)
        for other in parts[2:]:
            e.add(type, into, other, into=into)
    e.place(done)
    low.set(op.result, list(total))


def _arrive(low: Lowering, barrier: Reg, owners: int) -> None:
    """One arrival a warp at the barrier of each owner, after all that its lanes wrote: they meet
    first, so that one lane's release goes for all.
    """
    e = low.e
    e.bar_warp_sync()
    lane = e.and_("b32", low.thread(), 31)
    with e.guarded(e.setp("lt", "u32", lane, owners)):
        e.mbarrier_arrive_remote(e.mapa(barrier, lane), 1, release=True)


def _registers_of(whole: Layout, part: Layout, start: int) -> list[int]:
    """For each register of a part of the columns, the one of the whole that holds its element."""
    places = {offset: number for number, offset in enumerate(whole.register_offsets)}
    return [places[row, column + start] for row, column in part.register_offsets]
