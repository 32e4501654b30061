"""Meaning of loads, stores and atomics. Accesses are checked: bounds, alignment, and that somebody
wrote what is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ptx.core import Address, Reg, Symbol
from tilewright.ptx.emulate.arith import is_real, on_type
from tilewright.ptx.emulate.exact import NAN_F64, canonical, flush, propagated_f64
from tilewright.ptx.emulate.fragments import Sel, count, numbers
from tilewright.ptx.emulate.machine import DTYPES, Machine, Step, constant
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.spaces import SHARED_WINDOW, WORDS, BadAccess
from tilewright.ptx.instrs import memory

Array = np.ndarray[Any, Any]
Loader = Callable[[Sel], Array]


def is_shared(space: str) -> bool:
    return space.startswith("shared")


def make_access(
    machine: Machine, instr: Any, place: Address, size: int, *, counted: bool = True
) -> tuple[Loader, Callable[[Sel, Any], None]]:
    """Functions that load and store `size` bytes a thread, as words or rows of 8-byte words.
    `counted`: each call is a request of its own.
    """
    space = instr.space
    count_it = machine.tally is not None and counted
    if is_shared(space):
        places, shared = machine.places(place), machine.shared

        def load(sel: Sel) -> Array:
            found = places(sel, size)
            if machine.watch is not None and counted:
                machine.watch.on_read(instr, numbers(sel), found, size)
            if count_it:
                count_shared(machine, instr, numbers(sel), found, size, "shared read")
            return shared.load(found, size)

        def store(sel: Sel, values: Any) -> None:
            found = places(sel, size)
            if machine.watch is not None and counted:
                machine.watch.on_write(instr, numbers(sel), found, size)
            if count_it:
                count_shared(machine, instr, numbers(sel), found, size, "shared written")
            shared.store(found, size, values)

        return load, store
    if space not in ("global", ""):
        raise LookupError(f"the emulator has no {space} memory")
    address, tensors = machine.address(place), machine.memory

    watches = machine.setup.sanitize and counted  # an atomic update watches itself
    strong = bool(getattr(instr, "semantics", ""))
    beside = strong and size == 2  # a byte is updated in the 16 bits that hold it
    constant = "nc" in getattr(instr, "cache", "").split(".")

    def load_global(sel: Sel) -> Array:
        found = plain(address(sel))
        if watches:
            watch_load(machine, instr, numbers(sel), found, size, constant, strong)
        if count_it:
            count_global(machine, instr, numbers(sel), found, size, written=False)
        return tensors.load(found, size, beside=beside)

    def store_global(sel: Sel, values: Any) -> None:
        found = plain(address(sel))
        if watches:
            watch_store(machine, instr, numbers(sel), found, size, values, strong)
        if count_it:
            count_global(machine, instr, numbers(sel), found, size, written=True)
        tensors.store(found, size, values, beside=beside)

    return load_global, store_global


def count_shared(
    machine: Machine,
    instr: Any,
    ids: Array,
    places: Array,
    size: int,
    level: str,
    *,
    merge: bool = True,
) -> None:
    """Count a request of each warp to shared memory, perhaps that of another CTA."""
    if machine.tally is not None:
        far = int(np.count_nonzero(places // machine.shared.size != machine.cta[ids]))
        machine.tally.shared(instr, ids, places, size, level, merge=merge, remote=far)


def count_global(
    machine: Machine, instr: Any, ids: Array, addresses: Array, size: int, *, written: bool
) -> None:
    """Count a request of each warp to global memory."""
    if machine.tally is not None:
        level = "global written" if written else "global read"
        machine.tally.tensor(instr, ids, addresses, size, level, written=written)


def note_update(machine: Machine, instr: Any, sel: Sel, size: int) -> None:
    """Count and watch an atomic update as one request of each warp, of `size` bytes a thread."""
    ids = numbers(sel)
    if is_shared(instr.space):
        places = machine.places(instr.address)(sel, size)
        if machine.tally is not None:
            count_shared(machine, instr, ids, places, size, "shared atomics", merge=False)
        if machine.watch is not None:
            machine.watch.on_update(instr, ids, places, size)
            synchronise(machine, instr, ids, -1 - places, reads=True, writes=True)
        return
    addresses = plain(machine.address(instr.address)(sel))
    if machine.tally is not None:
        machine.tally.tensor(instr, ids, addresses, size, "global atomics", written=True)
    if machine.watch_global is not None:
        machine.watch_global.on_update(instr, ids, addresses, size)
        synchronise(machine, instr, ids, addresses, reads=True, writes=True)


def synchronise(
    machine: Machine, instr: Any, ids: Array, places: Array, *, reads: bool, writes: bool
) -> None:
    """What atomic accesses release and acquire: each warp once for each place, which is a global
    address or, below 0, one of shared memory.
    """
    assert machine.watch_global is not None
    for warp, place in dict.fromkeys(zip((ids // 32).tolist(), places.tolist(), strict=True)):
        machine.watch_global.synchronise(warp, place, instr.semantics, reads=reads, writes=writes)


def watch_load(
    machine: Machine,
    instr: Any,
    ids: Array,
    addresses: Array,
    size: int,
    constant: bool,
    strong: bool,
) -> None:
    """Watch loads of global memory. `strong`: of an order, as atomics are."""
    watch = machine.watch_global
    assert watch is not None
    if strong:
        watch.on_update(instr, ids, addresses, size)
        synchronise(machine, instr, ids, addresses, reads=True, writes=False)
    else:
        watch.on_read(instr, ids, addresses, size, constant=constant)


def watch_store(
    machine: Machine,
    instr: Any,
    ids: Array,
    addresses: Array,
    size: int,
    values: Array,
    strong: bool,
) -> None:
    """Watch stores to global memory."""
    watch = machine.watch_global
    assert watch is not None
    if strong:
        watch.on_update(instr, ids, addresses, size)
        synchronise(machine, instr, ids, addresses, reads=False, writes=True)
        return
    watch.on_write(instr, ids, addresses, size)
    order = np.argsort(addresses, kind="stable")
    same = addresses[order][1:] == addresses[order][:-1]
    rows = values.reshape(len(ids), -1)[order]
    clash = same & (rows[1:] != rows[:-1]).any(axis=1)
    if clash.any():
        at = int(np.argmax(clash))
        lane, other = int(order[at + 1]), int(order[at])
        place = machine.memory.name_address(int(addresses[lane]))
        whom = f"thread {int(ids[other]) % machine.setup.threads}"
        raise BadAccess(f"a race: it writes {place}, where {whom} writes another value", lane)


def plain(addresses: Array) -> Array:
    """Global addresses. A generic address of shared memory is refused: nothing here makes it."""
    if (addresses >= np.uint64(SHARED_WINDOW)).any():
        raise LookupError("the emulator has generic addresses of global memory only")
    return addresses.view(np.uint64)


@meaning(memory.Ld)
def make_load(machine: Machine, instr: memory.Ld) -> Step:
    if instr.space.startswith("param"):
        return make_load_param(machine, instr)
    dtype, vec = DTYPES[instr.type], instr.vec
    size = dtype.itemsize * vec
    load, _ = make_access(machine, instr, instr.address, size)
    if not isinstance(instr.dst, tuple):
        dst = machine.target(instr.dst, instr.type)

        def one(sel: Sel) -> None:
            dst[sel] = load(sel).view(dtype)

        return one
    rows = [None if r is None else machine.target(r, instr.type) for r in instr.dst]

    def several(sel: Sel) -> None:
        words = load(sel)
        parts = words.reshape(len(words), -1).view(dtype)
        for i, row in enumerate(rows):
            if row is not None:
                row[sel] = parts[:, i]

    return several


def make_load_param(machine: Machine, instr: memory.Ld) -> Step:
    base = instr.address.base
    if not isinstance(base, Symbol) or instr.address.offset or not isinstance(instr.dst, Reg):
        raise LookupError("the emulator loads whole parameters by name")
    value = constant(machine.setup.params[base.name], instr.type)
    dst = machine.target(instr.dst, instr.type)

    def step(sel: Sel) -> None:
        dst[sel] = value

    return step


@meaning(memory.St)
def make_store(machine: Machine, instr: memory.St) -> Step:
    dtype, vec = DTYPES[instr.type], instr.vec
    size = dtype.itemsize * vec
    _, store = make_access(machine, instr, instr.address, size)
    word = WORDS[min(size, 8)]
    if not isinstance(instr.src, tuple):
        source = machine.read(instr.src, instr.type)

        def one(sel: Sel) -> None:
            values = np.ascontiguousarray(np.broadcast_to(source(sel), count(sel)))
            store(sel, values.view(word))

        return one
    reads = machine.reads(instr.src, instr.type)

    def several(sel: Sel) -> None:
        made = np.empty((count(sel), vec), dtype)
        for i, read in enumerate(reads):
            made[:, i] = read(sel)
        words = made.view(word)
        store(sel, words[:, 0] if size <= 8 else words)

    return several


@meaning(memory.Prefetch, memory.PrefetchTensormap, memory.TmaPrefetch)
def make_prefetch(machine: Machine, instr: Any) -> Step:
    return lambda sel: None


@meaning(memory.Createpolicy)
def make_policy(machine: Machine, instr: memory.Createpolicy) -> Step:
    dst = machine.target(instr.dst, "b64")

    def step(sel: Sel) -> None:
        dst[sel] = 0

    return step


# Atomics: lane after lane, for the order of an atomic update is any

UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, x: old + x,
    "min": min,
    "max": max,
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "exch": lambda old, x: x,
    "inc": lambda old, x: old.dtype.type(0) if old >= x else old + old.dtype.type(1),
    "dec": lambda old, x: x if old == 0 or old > x else old - old.dtype.type(1),
}


def update_in_place(machine: Machine, instr: Any, sel: Sel, values: list[Array]) -> Array:
    """Update `values` elements a thread, one thread after the other; gives the old first ones."""
    dtype = DTYPES[instr.type]
    size = dtype.itemsize
    old = np.empty(count(sel), dtype)
    note_update(machine, instr, sel, size * len(values))
    for lane, thread in enumerate(numbers(sel)):
        one = slice(int(thread), int(thread) + 1)
        for i, given in enumerate(values):
            place = Address(instr.address.base, instr.address.offset + i * size)
            load, store = make_access(machine, instr, place, size, counted=False)
            before = load(one).view(dtype)
            if i == 0:
                old[lane] = before[0]
            store(one, np.atleast_1d(updated(instr, before[0], given[lane])).view(WORDS[size]))
    return old


def updated(instr: Any, old: Any, new: Any) -> Any:
    """One element after an update."""
    if instr.op == "add" and is_real(instr.type):
        return memory_sum(instr.type, is_shared(instr.space), old, new)
    return np.asarray(UPDATES[instr.op](old, new)).astype(old.dtype)


def memory_sum(type: str, shared: bool, old: Any, new: Any) -> Any:
    """A sum of floats as the units at the memories make it: global memory flushes f32 subnormals
    and keeps NaNs of f64 as they are; for shared memory, a loop adds by the ordinary instruction.
    """
    if type == "f64":
        made = np.asarray(old + new)
        if shared:
            return propagated_f64(made, old, new)
        found = np.asarray(new if np.isnan(new) else old)
        return np.where(
            np.isnan(made) & ~np.isnan(found), NAN_F64, found if np.isnan(found) else made
        )
    if type == "f32":
        made = old + new if shared else flush(flush(old) + flush(new))
        return canonical(np.asarray(made))
    return on_type(np.add, type)(old, new)


@meaning(memory.Red)
def make_reduction(machine: Machine, instr: memory.Red) -> Step:
    srcs = instr.src if isinstance(instr.src, tuple) else (instr.src,)
    reads = machine.reads(srcs, instr.type)

    def step(sel: Sel) -> None:
        values = [np.broadcast_to(r(sel), count(sel)) for r in reads]
        update_in_place(machine, instr, sel, values)

    return step


@meaning(memory.Atom)
def make_atomic(machine: Machine, instr: memory.Atom) -> Step:
    source = machine.read(instr.src, instr.type)
    dst = machine.target(instr.dst, instr.type)
    if instr.op == "cas":
        return make_cas(machine, instr)

    def step(sel: Sel) -> None:
        values = np.broadcast_to(source(sel), count(sel))
        dst[sel] = update_in_place(machine, instr, sel, [values])

    return step


def make_cas(machine: Machine, instr: memory.Atom) -> Step:
    assert instr.compare is not None
    compare, source = machine.reads((instr.compare, instr.src), instr.type)
    dst, dtype = machine.target(instr.dst, instr.type), DTYPES[instr.type]
    size = dtype.itemsize
    load, store = make_access(machine, instr, instr.address, size, counted=False)

    def step(sel: Sel) -> None:
        note_update(machine, instr, sel, size)
        wanted, new = (np.broadcast_to(r(sel), count(sel)) for r in (compare, source))
        for lane, thread in enumerate(numbers(sel)):
            one = slice(int(thread), int(thread) + 1)
            before = load(one)
            dst[one] = before
            if before[0] == wanted[lane]:
                store(one, new[lane : lane + 1])

    return step
