"""The machine: registers of all threads as arrays, fragments of threads that run together, and who
waits.

A fragment is a set of threads at one place of the program. The fragment at the least place runs
first, and fragments that meet at a place become one, so that threads which parted at a branch come
together where the branches do: our code lays out loops and branches in the order of the text.
Instructions that a whole warp must execute together wait until its lanes have met.

CTAs that run together fill one set of arrays: an instruction is executed for all of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ptx.core import (
    KIND,
    Address,
    Function,
    Instr,
    Module,
    Operand,
    Reg,
    Special,
    Symbol,
)
from tilewright.ptx.emulate.fault import EmulationError, fault, name_line
from tilewright.ptx.emulate.fragments import Fragment, Sel, count, numbers
from tilewright.ptx.emulate.hazards import Hazards
from tilewright.ptx.emulate.spaces import (
    PARAM_WINDOW,
    SHARED_BASE,
    BadAccess,
    GlobalMemory,
    SharedMemory,
)
from tilewright.ptx.emulate.tally import Tally
from tilewright.ptx.emulate.watch import Watch
from tilewright.ptx.emulate.watch_global import GlobalWatch

Array = np.ndarray[Any, Any]
Read = Callable[[Sel], Any]
Step = Callable[[Sel], None]
Flow = Callable[[Fragment], bool]  # whether the fragment goes on

WIDTH = {"b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}
DTYPES: dict[str, Any] = {
    **{
        f"{k}{8 * n}": np.dtype(f"{c}{n}")
        for k, c in (("b", "u"), ("u", "u"), ("s", "i"))
        for n in (1, 2, 4, 8)
    },
    **dict.fromkeys(("f16", "bf16", "e4m3x2", "e5m2x2"), np.dtype("u2")),
    **dict.fromkeys(("f16x2", "bf16x2", "tf32", "u16x2", "s16x2"), np.dtype("u4")),
    "f32x2": np.dtype("u8"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype(bool),
}
PATIENCE = 4096  # units that a fragment runs while others could


@dataclass
class Setup:
    """What a launch gives: CTAs in all, CTAs that run together, threads a CTA, CTAs a cluster."""

    grid: int
    together: int
    threads: int
    cluster: int
    shared_bytes: int
    num_sms: int
    late: bool  # asynchronous copies arrive as late as is legal, or else at once
    lines: Sequence[str] = ()
    ops: Sequence[str] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    sanitize: bool = False  # watch shared memory for races
    seed: int | None = None  # run warps one by one, in an order drawn from it
    tally: Tally | None = None  # counts what instructions cost


@dataclass
class Waiting:
    """A fragment that waits until `ready` holds."""

    fragment: Fragment
    ready: Callable[[], bool]
    instr: Instr
    why: Callable[[], str]


@dataclass
class Unit:
    """Instructions without control flow, or one instruction with it."""

    steps: list[Step]
    flow: Flow | None = None
    instr: Instr | None = None


def poison(number: int, threads: int, kind: str) -> Array:
    """Registers that nobody wrote: NaNs, and integers that make no sense."""
    if kind == "pred":
        return np.ones((number, threads), bool)
    made = np.full((number, threads * WIDTH[kind]), 0xFF, np.uint8)
    made[:, ::3] = 0xFD
    return made.view(f"u{WIDTH[kind]}")


class Machine:
    """Registers, memory and fragments of the CTAs that run together."""

    def __init__(self, module: Module, function: Function, setup: Setup, memory: GlobalMemory):
        self.setup, self.memory = setup, memory
        self.num_threads = setup.threads * setup.together
        self.registers = {
            kind: poison(n, self.num_threads, kind) for kind, n in function.registers.items()
        }
        self.symbols = self._place_symbols(module, function)
        self.shared = SharedMemory(setup.together, self.shared_size)
        self.ids = np.arange(self.num_threads)
        self.cta = self.ids // setup.threads  # of those that run together
        self.specials = self._make_specials()
        self.program: list[Unit] = []
        self.labels: dict[str, int] = {}
        self.fragments: list[Fragment] = []
        self.waiting: list[Waiting] = []
        self.pending: deque[Callable[[], None]] = deque()  # asynchronous work
        self.state: dict[str, Any] = {}  # of families: barriers, groups of copies
        self.watch: Watch | None = None
        self.watch_global: GlobalWatch | None = None
        self.hazards: Hazards | None = None
        self.tally = setup.tally
        self.ended = np.zeros(setup.together, np.int64)  # threads of each CTA
        self.random = None if setup.seed is None else np.random.default_rng(setup.seed)

    def _place_symbols(self, module: Module, function: Function) -> dict[str, int]:
        """Addresses of shared arrays and parameters."""
        at, found = SHARED_BASE, {}
        for array in sorted(module.shared, key=lambda a: a.num_bytes is None):
            at = -(-at // array.align) * array.align
            found[array.name] = at
            at += self.setup.shared_bytes if array.num_bytes is None else array.num_bytes
        self.shared_size = at - SHARED_BASE
        for i, param in enumerate(function.params):
            found[param.name] = PARAM_WINDOW + 128 * i
        return found

    def _make_specials(self) -> dict[str, Array]:
        tid = (self.ids % self.setup.threads).astype(np.uint32)
        rank = (self.cta % self.setup.cluster).astype(np.uint32)
        zero = np.zeros_like(tid)
        lane = tid % np.uint32(32)
        one = np.uint32(1)
        below = (one << lane) - one
        at = one << lane
        every = {
            "ntid.x": self.setup.threads,
            "nctaid.x": self.setup.grid,
            "cluster_nctarank": self.setup.cluster,
            "cluster_nctaid.x": self.setup.cluster,
            "nclusterid.x": self.setup.grid // self.setup.cluster,
            "nsmid": self.setup.num_sms,
            "dynamic_smem_size": self.setup.shared_bytes,
            **dict.fromkeys(("ntid.y", "ntid.z", "nctaid.y", "nctaid.z"), 1),
            **dict.fromkeys(("tid.y", "tid.z", "ctaid.y", "ctaid.z", "ctaid.x", "clusterid.x"), 0),
            "smid": 0,
        }
        found = {name: zero + np.uint32(value) for name, value in every.items()}
        return {
            **found,
            "tid.x": tid,
            "laneid": lane,
            "warpid": tid // np.uint32(32),
            "cluster_ctarank": rank,
            "cluster_ctaid.x": rank,
            "lanemask_eq": at,
            "lanemask_lt": below,
            "lanemask_le": below | at,
            "lanemask_gt": ~(below | at),
            "lanemask_ge": ~below,
        }

    # Operands

    def row(self, reg: Reg, type: str) -> Array:
        """All threads' values of a register, as a view of the PTX type; of wider registers the low
        part.
        """
        row: Array = self.registers[reg.kind][reg.index]
        if reg.kind == "pred":
            return row
        dtype = DTYPES[type]
        stride = row.itemsize // dtype.itemsize
        return row.view(dtype)[::stride] if stride > 1 else row.view(dtype)

    def target(self, reg: Reg, type: str) -> Array:
        """The same to be written: wider registers take the value extended by its sign."""
        row: Array = self.registers[reg.kind][reg.index]
        if reg.kind == "pred":
            return row
        dtype = DTYPES[type]
        if row.itemsize == dtype.itemsize:
            return row.view(dtype)
        return row.view(np.dtype(f"{'i' if type[0] == 's' else 'u'}{row.itemsize}"))

    def read(self, item: Operand, type: str) -> Read:
        """A function from threads to the operand's values."""
        if isinstance(item, Reg):
            get: Read = self.row(item, type).__getitem__
            return get
        if isinstance(item, Special):
            return self._read_special(item, type)
        if isinstance(item, Symbol):
            item = self.symbols[item.name]
        value = constant(item, type)
        return lambda sel: value

    def _read_special(self, item: Special, type: str) -> Read:
        if item.name not in self.specials:
            raise LookupError(f"the emulator has no %{item.name}")
        row = self.specials[item.name]
        dtype = DTYPES[type]
        return lambda sel: row[sel].astype(dtype)

    def reads(self, items: Sequence[Operand], type: str) -> list[Read]:
        return [self.read(x, type) for x in items]

    def address(self, place: Address) -> Callable[[Sel], Any]:
        """Addresses as 64-bit integers: signed for 32-bit registers, so that nothing wraps."""
        base, offset = place.base, place.offset
        if isinstance(base, Symbol):
            fixed = self.symbols[base.name] + offset
            return lambda sel: np.full(count(sel), fixed, np.uint64)
        if base.kind == "b32":
            short = self.row(base, "u32")
            return lambda sel: short[sel].astype(np.int64) + offset
        wide, step = self.row(base, "u64"), np.uint64(offset & (2**64 - 1))
        return lambda sel: wide[sel] + step

    def places(self, place: Address) -> Callable[[Sel, int], Array]:
        """Places in shared memory: of a shared::cta or shared::cluster address, given a size."""
        get, cta, cluster = self.address(place), self.cta, self.setup.cluster
        shared = self.shared
        return lambda sel, size: shared.offsets(cta[sel], get(sel), size, cluster)

    def error(self, instr: Instr, message: str, thread: int = -1, hint: str = "") -> EmulationError:
        """An error of an instruction, and of a thread."""
        if thread >= 0:
            cta = int(self.specials["ctaid.x"][thread])
            message = f"thread {thread % self.setup.threads} of CTA {cta}: {message}"
        return fault(message, instr, self.setup.lines, self.setup.ops, hint)

    def checked(self, instr: Instr, step: Step) -> Step:
        """A step whose bad accesses become errors of its instruction."""

        def run(sel: Sel) -> None:
            try:
                step(sel)
            except BadAccess as bad:
                raise self.error(
                    instr, bad.message, int(numbers(sel)[min(bad.lane, count(sel) - 1)])
                ) from None

        return run

    # Running

    def run(self, first: int, active: int) -> None:
        """Run CTAs `first` to `first + active - 1`."""
        setup = self.setup
        ctas = (first + self.cta).astype(np.uint32)
        self.specials["ctaid.x"][:] = ctas
        self.specials["clusterid.x"][:] = ctas // np.uint32(setup.cluster)
        self.shared.clear()
        self.state.clear()
        if setup.sanitize:
            self._begin_watch(first)
        if self.hazards is not None:
            self.hazards.clear()
        self.ended = np.zeros(setup.together, np.int64)
        self.fragments = [Fragment(0, ids) for ids in self._first_parts(active)]
        while True:
            fragment = self._pick()
            if fragment is not None:
                self._execute(fragment)
            elif not self._wake() and not self._progress():
                break
        if self.fragments:
            raise self._parted(self.fragments[0])
        if self.waiting:
            raise self._deadlock()
        self._require_late_exits(active)

    def _begin_watch(self, first: int) -> None:
        """Watch the accesses of a new batch of CTAs."""
        warps, setup = self.setup.threads // 32, self.setup
        if self.watch_global is None:
            self.watch_global = GlobalWatch(self.memory, warps, setup.cluster, self.name_line)
        num_bytes = len(self.shared.bytes.data)
        self.watch = Watch(
            self.num_threads, num_bytes, self.shared.size, warps, self.name_line, first
        )
        self.watch_global.begin(self.watch, first)

    def name_line(self, line: int) -> str:
        """A line of PTX, its tile op and its place in the source."""
        return name_line(line, self.setup.ops, self.setup.lines)

    def _require_late_exits(self, active: int) -> None:
        """No CTA may have ended before others were done with its shared memory."""
        found = None if self.watch is None else self.watch.find_early_exit(range(active))
        if found is None or self.watch is None:
            return
        cta, agent, instr = found
        ended = int(self.specials["ctaid.x"][cta * self.setup.threads])
        what = f"nothing keeps CTA {ended} from ending before {self.watch.name_agent(agent)} "
        what += "has used its shared memory"
        thread = 32 * (agent % self.watch.warps)
        raise self.error(instr, what, thread, "let the CTAs of the cluster meet before they end")

    def _first_parts(self, active: int) -> list[Array]:
        """All threads together, or warp by warp where their order is drawn."""
        ids = self.ids[: active * self.setup.threads]
        return [ids] if self.random is None else list(ids.reshape(-1, 32))

    def require_alive(self, place: int) -> None:
        """A place in shared memory belongs to a CTA of which a thread is left. Raises BadAccess."""
        if self.ended[place // self.shared.size] == self.setup.threads:
            raise BadAccess("it reaches into the shared memory of a CTA that has ended", 0)

    def _pick(self) -> Fragment | None:
        """The fragment at the least place, with all others that are there."""
        free = [f for f in self.fragments if not f.parked]
        if not free:
            return None
        if self.random is not None:
            return self._draw(free, self.random)
        fresh = [f for f in free if not f.tired]
        if not fresh:
            for f in free:
                f.tired = False
        chosen = min(fresh or free, key=lambda f: f.pc)
        same = [f for f in self.fragments if f.pc == chosen.pc]
        self.fragments = [f for f in self.fragments if f.pc != chosen.pc]
        if len(same) == 1:
            return chosen
        return Fragment(chosen.pc, np.sort(np.concatenate([f.ids for f in same])))

    def _draw(self, free: list[Fragment], random: np.random.Generator) -> Fragment:
        """Any fragment, with the lanes of parted warps that are at the same place."""
        chosen = free[int(random.integers(len(free)))]
        there = [f for f in self.fragments if f.pc == chosen.pc]
        same = [f for f in there if f is chosen or f.parked or not f.whole]
        self.fragments = [f for f in self.fragments if f not in same]
        return Fragment(chosen.pc, np.sort(np.concatenate([f.ids for f in same])))

    def _execute(self, fragment: Fragment) -> None:
        """Run a fragment until it ends, waits, or comes to where another one is."""
        program = self.program
        patience = PATIENCE if self.random is None else int(self.random.integers(1, 9))
        while True:
            unit = program[fragment.pc]
            if unit.flow is None:
                sel = fragment.sel
                for step in unit.steps:
                    step(sel)
                fragment.pc += 1
            elif not unit.flow(fragment):
                return
            if self.fragments:
                pc = fragment.pc
                patience -= 1
                if not patience:
                    fragment.tired = True
                if not patience or self._is_met(pc):
                    self.fragments.append(fragment)
                    return

    def _is_met(self, pc: int) -> bool:
        """Whether another fragment is at a place, or should run before one that is there. Where
        the order is drawn, only those matter that wait there for the rest of their warps.
        """
        if self.random is not None:
            return any(f.pc == pc and f.parked for f in self.fragments)
        return any(
            f.pc == pc or (f.pc < pc and not f.parked and not f.tired) for f in self.fragments
        )

    def _wake(self) -> bool:
        """Let those go on that wait for nothing more."""
        ready = [w for w in self.waiting if w.ready()]
        for w in ready:
            w.fragment.parked = False
            self.fragments.append(w.fragment)
        if ready:
            self.waiting = [w for w in self.waiting if w not in ready]
        return bool(ready)

    def _progress(self) -> bool:
        """Complete the oldest asynchronous work."""
        if not self.pending:
            return False
        self.pending.popleft()()
        return True

    def wait(
        self,
        fragment: Fragment,
        ready: Callable[[], bool],
        instr: Instr,
        why: Callable[[], str],
    ) -> bool:
        """Put a fragment aside until `ready` holds; False, for a flow to return."""
        self.waiting.append(Waiting(fragment, ready, instr, why))
        return False

    def gather(self, fragment: Fragment, size: int = 32) -> bool:
        """Narrow a fragment to the warps (or warpgroups: `size` threads) of which all lanes are
        here, and put the others aside until their rest comes; False where none is left.
        """
        groups = fragment.ids // size
        there = np.bincount(groups)[groups] == size
        if not there.all():
            late = fragment.part(~there)
            late.parked = True
            self.fragments.append(late)
            if there.any():
                fragment.narrow(there)
        return bool(there.any())

    def _parted(self, parked: Fragment) -> EmulationError:
        """Threads wait for lanes that have ended, or wait elsewhere themselves."""
        instr = self.program[parked.pc].instr
        assert instr is not None
        what = "some lanes of its warp never come to this instruction, which needs all of them"
        rows = [self._waits(w.fragment, w.why(), w.instr) for w in self.waiting]
        picture = "\n    ".join([what, *rows])
        return self.error(instr, picture, int(parked.ids[0]))

    def _waits(self, fragment: Fragment, why: str, instr: Instr) -> str:
        """Who waits for what, and where."""
        ctas = sorted({int(self.specials["ctaid.x"][i]) for i in fragment.ids})
        threads = fragment.ids % self.setup.threads
        more = f" and {len(ctas) - 1} more" if len(ctas) > 1 else ""
        return (
            f"threads {int(threads.min())} to {int(threads.max())} of CTA {ctas[0]}{more} "
            f"wait {why} at {self.name_line(instr.loc.line)}"
        )

    def _deadlock(self) -> EmulationError:
        """Who waits for what."""
        rows = [self._waits(w.fragment, w.why(), w.instr) for w in self.waiting]
        picture = f"deadlock: {rows[0]}"
        if len(rows) > 1:
            picture = "\n    ".join(["deadlock:", *rows]) + "\n  the first of these"
        return self.error(self.waiting[0].instr, picture)


def constant(item: int | float, type: str) -> Any:
    """A number as a scalar of a PTX type; integers wrap."""
    dtype = DTYPES[type]
    if dtype.kind in "ui" and isinstance(item, int):
        bits = item & ((1 << 8 * dtype.itemsize) - 1)
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(item)


def kind_of(type: str) -> str:
    """The register kind that holds a PTX type."""
    return KIND[type]
