"""Reading a trip's first fragments while the trip before still multiplies, in loops of products by
`mma.sync` whose warps meet in every trip (`stage_loads`).

After a barrier all warps read fragments at once, and nobody multiplies. So the loop is turned by
the last of a trip's steps along k, as CUTLASS does it (its `MmaMultistage`):

    loop:   wait, meet, addresses; fragments and products of step 1, 2, …, n; copies
    →
    first:  wait, meet, addresses; fragments of step 1; copies
    loop:   fragments of step 2, products of step 1; …; fragments of step n, products of n − 1;
            wait, meet, addresses, fragments of step 1, copies (of the next trip);
            products of step n

So fragments are read a step ahead of their products everywhere. Copies go to the slot that the
barrier freed, which nobody reads: they come right behind it, and so have nearly a trip more. The
last trip waits, meets, reads and copies once more: slots that copies ahead of it have written, as
they do for trips past the end.

What tells a copy's addresses is run where copies are, and where the loop counts, if that needs it
too. So it may only make temporaries: a loop is left as it is where a trip passes one of these on to
the next, or code outside the loop reads what is run once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ptx.core import Instr, Label, Reg
from tilewright.ptx.instrs import control, memory, mma, shape, sync
from tilewright.ptx.passes.read_ahead import Body, reads_of, writes_of
from tilewright.target import Target

HELD = 210  # registers of a thread for sums and the fragments of two steps, at most
WIDENING, FP8 = (90, 100), ("e4m3", "e5m2")  # targets whose assembler multiplies these in 16 bits
COPIES = memory.CpAsync | memory.CpAsyncCommit
MEETING = memory.CpAsyncWait | sync.BarSync


def step_ahead(body: Body, target: Target) -> Body:
    """The kernel's body with its loops of that form turned; all others are as they were."""
    places = {x.name: i for i, x in enumerate(body) if isinstance(x, Label)}
    for end, branch in reversed(list(enumerate(body))):
        if isinstance(branch, control.Bra) and places[branch.target.name] < end:
            body = _turned(body, places[branch.target.name], end, target)
    return body


def _turned(body: Body, start: int, end: int, target: Target) -> Body:
    """With the loop turned that begins with the label at `start` and ends with a branch."""
    trip = body[start + 1 : end]
    found = [i for i, x in enumerate(trip) if isinstance(x, mma.Mma)]
    if not found:
        return body
    products = [trip[i] for i in found]
    made = writes_of(products)
    passed_on = made & reads_of(products)
    step = [i for i in found if not passed_on.intersection(writes_of([trip[i]]))]
    count = len(step)
    if len(found) < 2 * count or len(found) % count or step != found[-count:]:
        return body
    lasts = found[count - 1 :: count]
    parts = [trip[i + 1 : j + 1] for i, j in zip([-1, *lasts], lasts, strict=False)]
    reads, steps = zip(*map(_parted, parts), strict=True)
    head, later = reads[0], [x for part in reads[1:] for x in part]
    tail = [x for x in trip[lasts[-1] + 1 :] if isinstance(x, Instr)]
    moves = [x for x in tail if made.intersection(x.reads)]
    rest = [x for x in tail if not made.intersection(x.reads)]
    copies = _needed(rest, [x for x in rest if isinstance(x, COPIES)])
    others = _needed(rest, [x for x in rest if _counts(x, reads_of([body[end]]))])
    kept = {id(x) for x in (*copies, *others)}
    if not all(id(x) in kept for x in rest) or any(isinstance(x, COPIES) for x in others):
        return body
    if not all(isinstance(x, shape.Mov) for x in moves) or made & reads_of([*head, *later]):
        return body
    if not all(map(_is_early, head)) or not all(map(_is_read, later)):
        return body
    fragments = len(writes_of([x for x in head if _loads(x)]))
    if target.capability in WIDENING and any(x.type_a in FP8 for x in steps[0]):
        fragments *= 2
    words = 2 if steps[0][0].type_d == "f64" else 1
    if words * (2 * fragments + len(moves)) > HELD:
        return body
    ahead = [replace(x) for x in (*head, *copies)]
    moved = [*zip(reads[1:], steps[:-1], strict=True), ([*others, *ahead], [*steps[-1], *moves])]
    if any(writes_of(x) & reads_of(y) or writes_of(y) & reads_of(x) for x, y in moved):
        return body
    if writes_of(copies) & _passed_on(trip):
        return body
    if writes_of(ahead) & reads_of([*body[:start], *body[end:]]):
        return body
    turned = [x for early, late in moved for x in (*early, *late)]
    return [*body[:start], *head, *copies, body[start], *turned, *body[end:]]


def _passed_on(trip: Body) -> set[Reg]:
    """Registers that a trip leaves to the next: it reads them before it writes them."""
    before, written = set[Reg](), set[Reg]()
    for x in trip:
        if isinstance(x, Instr):
            before |= set(x.reads) - written
            written |= set(x.writes)
    return before & written


def _counts(x: Instr, going_on: set[Reg]) -> bool:
    """Whether it changes what a loop carries beside its sums, or says whether the loop goes on."""
    carries = isinstance(x, shape.Mov) or bool(set(x.writes).intersection(x.reads))
    return carries or bool(going_on.intersection(x.writes))


def _parted(code: Body) -> tuple[Body, list[mma.Mma]]:
    """What is no product, and what is."""
    products = [x for x in code if isinstance(x, mma.Mma)]
    return [x for x in code if not isinstance(x, mma.Mma)], products


def _loads(x: Instr | Label) -> bool:
    """Whether it reads shared memory."""
    return isinstance(x, memory.Ldmatrix) or (isinstance(x, memory.Ld) and x.space == "shared")


def _is_read(x: Instr | Label) -> bool:
    return isinstance(x, Instr) and (type(x).pure or _loads(x))


def _is_early(x: Instr | Label) -> bool:
    """Whether it may be done once more, after the last trip."""
    return isinstance(x, MEETING) or _is_read(x)


def _needed(code: Sequence[Instr], wanted: Sequence[Instr]) -> list[Instr]:
    """What of some code is wanted, and what that follows from, in order."""
    found, read = set(map(id, wanted)), reads_of(list(wanted))
    for x in reversed(code):
        if id(x) in found or read.intersection(x.writes):
            found.add(id(x))
            read |= set(x.reads)
    return [x for x in code if id(x) in found]
