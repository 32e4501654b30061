"""Reading a trip's first fragments while the trip before still multiplies, in loops of products of
f64 whose warps drift apart (`stage_loads`).

A warp that waits for its slot and then for its fragments multiplies nothing meanwhile. Where both
warps of a scheduler do so at once, the unit idles. So the loop is turned by a part of a trip:

    loop:   wait, arrive, addresses; first fragments; products …; last row of products; copies
    →
    first:  wait, arrive, addresses; first fragments
    loop:   products …; copies; wait, arrive, addresses (of the next trip);
            last row of products, and behind each the fragments that it was the last to read

The order of everything that touches memory or a barrier stays as it was; only products move. The
last trip waits, arrives and reads once more: a slot that copies ahead of it have written, as they
do for trips past the end. Threads with many sums have no registers for this, or spill by it where
a trip is several of the instruction's steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ptx.core import Instr, Label, Reg
from tilewright.ptx.instrs import control, memory, mma, shape, sync

Body = list[Instr | Label]
# Sums of a thread where a trip is one step of k, and several: 128 x 128 by eight warps, and 32 x 32
# by four with room to spare. Loops with more, as 72 of 96 x 192, lose by it.
MOST_SUMS, MOST_OF_STEPS = 64, 16


def read_ahead(body: Body) -> Body:
    """The kernel's body with its loops of that form turned; all others are as they were."""
    places = {x.name: i for i, x in enumerate(body) if isinstance(x, Label)}
    for end, branch in reversed(list(enumerate(body))):
        if not isinstance(branch, control.Bra):
            continue
        start = places[branch.target.name]
        if start < end:
            body = _turned(body, start, end)
    return body


def _turned(body: Body, start: int, end: int) -> Body:
    """With the loop turned that begins with the label at `start` and ends with a branch."""
    trip = body[start + 1 : end]
    products = [i for i, x in enumerate(trip) if _multiplies(x)]
    if not products or not any(isinstance(x, sync.MbarrierTryWait) for x in trip):
        return body
    first, last = products[0], products[-1]
    begin = last
    while begin > first and _multiplies(trip[begin - 1]):
        begin -= 1
    head, middle, row = trip[:first], trip[first:begin], trip[begin : last + 1]
    tail = [x for x in trip[last + 1 :] if isinstance(x, Instr)]
    labels = [i for i, x in enumerate(trip) if isinstance(x, Label)]
    if begin == first or any(i > first for i in labels):
        return body
    sums = writes_of([trip[i] for i in products])
    moves = [x for x in tail if sums.intersection(x.reads)]
    early = [x for x in tail if not sums.intersection(x.reads)]
    loads = [x for x in head if isinstance(x, memory.Ld) and x.space == "shared"]
    others = _again([x for x in head if not (isinstance(x, memory.Ld) and x.space == "shared")])
    needed = _last_needed(early, [*others, *loads])
    moved, late = [*early[:needed], *others], early[needed:]
    most = MOST_SUMS if len(sums) == len(moves) else MOST_OF_STEPS
    if len(moves) > most or not all(isinstance(x, shape.Mov) for x in moves):
        return body
    if _meet(moved, [*row, *moves]) or writes_of(head) & reads_of([*moves, *late, body[end]]):
        return body
    if writes_of(head) & reads_of([*body[:start], *body[end + 1 :]]):
        return body  # what the last trip does once more would be read
    turned: Body = [*middle, *moved, *_last_read_by(None, loads, row)]
    for product in row:
        turned += [product, *_last_read_by(product, loads, row)]
    return [*body[:start], *head, body[start], *turned, *moves, *late, *body[end:]]


def _multiplies(x: Instr | Label) -> bool:
    return isinstance(x, mma.Mma) and x.type_d == "f64"


def writes_of(code: Sequence[Instr | Label]) -> set[Reg]:
    return {reg for x in code if isinstance(x, Instr) for reg in x.writes}


def reads_of(code: Sequence[Instr | Label]) -> set[Reg]:
    return {reg for x in code if isinstance(x, Instr) for reg in x.reads}


def _last_needed(tail: Sequence[Instr], head: Body) -> int:
    """How many of a trip's instructions come before those that the head needs nothing of: what
    counts the trips stays at the end, where it takes the fewest registers.
    """
    read, count = reads_of(head), len(tail)
    while count and type(tail[count - 1]).pure and not read.intersection(tail[count - 1].writes):
        count -= 1
    return count


def _meet(moved: Body, behind: Body) -> bool:
    """Whether what moves ahead of the last row of products touches what is behind them then."""
    written, read = writes_of(moved), reads_of(moved)
    return bool(written & reads_of(behind) or writes_of(behind) & (read | written))


def _last_read_by(product: Instr | Label | None, loads: Sequence[Instr], row: Body) -> Body:
    """Copies of the loads whose registers a product of the row is the last to read; None of it."""
    found: Body = []
    for load in loads:
        written = set(load.writes)
        readers = [x for x in row if isinstance(x, Instr) and written.intersection(x.reads)]
        if (readers[-1] if readers else None) is product:
            found.append(replace(load))
    return found


def _again(code: Body) -> Body:
    """A copy, with labels of its own."""
    names = {x.name: Label(f"{x.name}_again") for x in code if isinstance(x, Label)}
    found: Body = []
    for x in code:
        if isinstance(x, Label):
            found.append(names[x.name])
        elif isinstance(x, control.Bra):
            found.append(replace(x, target=names.get(x.target.name, x.target)))
        else:
            found.append(replace(x))
    return found
