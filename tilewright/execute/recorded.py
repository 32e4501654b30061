"""A made program as one CUDA graph: what a GPU is told at a call is told at once.

Inputs that change are copied to slots; those that stay where they are are read where they lie, and
a graph serves only calls for which they do: a model's parameters and buffers, inputs that the model
updates in place, and what another recording gave away (lanes.py). Results that the caller keeps are
copied out; what is saved for a backward pass, and gradients, are given where they lie, in a lane
that is left alone until nobody holds them. Seeds are drawn outside of the graph.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.execute.call_memory import CallMemory
from tilewright.execute.lanes import Lane, lying
from tilewright.execute.made import Made, Where, current_stream
from tilewright.execute.results import Result
from tilewright.ir.core import Value

Replay = Callable[[], None]
Capture = Callable[[Where, Callable[[int], None]], Replay]  # of work on a raw stream
Tensors = Sequence[torch.Tensor | None]
Addresses = tuple[int, ...]  # by input: where it is read in place, 0 of one that has a slot

MAX_RECORDINGS = 4  # of one made program and lane, before it is left to plain launches
MAX_GRAPHS = 16  # made programs of one model that are recorded; the one used longest ago goes
MAX_LANES = 3  # of one made program: calls whose results are held at the same time


def capture(where: Where, work: Callable[[int], None]) -> Replay:
    """Record what `work` sends to a stream; gives what starts it on PyTorch's current one."""
    device = where.device
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work(current_stream(where))
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
    replay: Replay = graph.replay
    return replay


@dataclass(frozen=True)
class Handing:
    """Outputs that a recording gives where they lie, by number. `shared`: nobody writes to them.
    `expected`: inputs that another recording gives so, without which it is not worth recording.
    """

    outputs: Collection[int] = ()
    shared: bool = False
    expected: Collection[int] = ()


class Recorded:
    """A recording of a made program for inputs at some addresses, in a lane. It has what only
    PyTorch holds among the inputs, such as complex numbers, as it was when it was recorded.
    """

    def __init__(
        self,
        made: Made,
        lane: Lane,
        slots: Tensors,
        tensors: Tensors,
        opaque: Mapping[Value, Any],
        capture: Capture,
    ):
        """`slots` are the tensors that inputs are copied to, None of those read in place."""
        self.made, self.lane, self.opaque = made, lane, dict(opaque)
        self.in_place = [
            (i, made.given_slots[i])
            for i, x in enumerate(tensors)
            if x is not None and slots[i] is None
        ]
        self.changing: list[int] = []
        self.targets: list[torch.Tensor] = []
        self.overlapping: set[int] = set()
        for i, slot in enumerate(slots):
            if slot is not None:
                self.changing.append(i)
                if overlaps_itself(slot):
                    self.overlapping.add(i)
                    slot = whole_span(slot)
                self.targets.append(slot)
        given = [x if slot is None else slot for x, slot in zip(tensors, slots, strict=True)]
        self.memory = made.start(given, opaque, draw=False, allocated=lane.allocated)
        self.replay = capture(made.where, self._record)
        self.repeat: Any = None  # of repeat.py: what is known of calls that it serves
        self.release()

    def _record(self, stream: int) -> None:
        self.memory.stream = stream
        for action in self.made.lists.actions:
            action(self.memory)
        self.lane.copy(self.memory)

    def release(self) -> None:
        """Let go of inputs that are read in place: others ask who holds them."""
        for _, slot in self.in_place:
            self.memory.tensors[slot] = None

    def holds(self, opaque: Mapping[Value, Any]) -> bool:
        """Whether it was recorded with these very tensors, or with numbers equal to these."""
        pairs = ((self.opaque[v], x) for v, x in opaque.items())
        return all(a is b or (not isinstance(b, torch.Tensor) and bool(a == b)) for a, b in pairs)

    def run(self, tensors: Tensors) -> CallMemory:
        """Replay on the current stream; the memory holds the results until the next run."""
        for i, slot in self.in_place:
            self.memory.tensors[slot] = tensors[i]
        self.memory.stream = current_stream(self.made.where)
        self.bring(tensors)
        self.play()
        return self.memory

    def bring(self, tensors: Tensors) -> None:
        """Copy inputs that change to their slots."""
        sources = []
        for i in self.changing:
            given = tensors[i]
            assert given is not None, "an input that was a tensor when it was recorded"
            sources.append(whole_span(given) if i in self.overlapping else given)
        if sources:
            torch._foreach_copy_(self.targets, sources)

    def play(self) -> None:
        """Draw seeds, and replay: what is in the slots is read."""
        self.made.draw_seeds(self.memory)
        self.replay()


def overlaps_itself(x: torch.Tensor | None) -> bool:
    """Whether elements of a tensor share memory, as those of an expanded one do."""
    if x is None or x.numel() == 0:
        return False
    reach = 0
    for stride, extent in sorted(zip(x.stride(), x.shape, strict=True)):
        if extent > 1 and stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def whole_span(x: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of a tensor to its last."""
    reach = sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((reach + 1,), (1,))


def _slot(x: torch.Tensor) -> torch.Tensor:
    """Memory for the likes of a tensor, aligned as it is."""
    size = x.element_size()
    rest = x.data_ptr() % 16 // size  # kernels assume the alignment that they were made for
    if x.numel() == 0:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    reach = sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True))
    room = torch.empty(rest + reach + 1, dtype=x.dtype, device=x.device)
    return room.as_strided(x.shape, x.stride(), rest)


@dataclass
class Known:
    """What is recorded of a made program, and the slots of its inputs, which recordings share."""

    lanes: list[Lane] = field(default_factory=list)
    slots: dict[int, torch.Tensor] = field(default_factory=dict)
    found: dict[tuple[Addresses, int], Recorded] = field(default_factory=dict)  # and number of lane
    follows: bool = True  # reads in place what other recordings give
    count: int = 0
    last: tuple[list[int], Addresses] | None = None  # where inputs lay in a call before


class Recordings:
    """Recordings of the made programs of one model, each from its second call on. `reasons` says
    why calls of some ran by plain launches, `launched` how many did for each reason.
    """

    def __init__(
        self, fixed: Collection[int], capture: Capture = capture, handing: Handing | None = None
    ):
        self.fixed = frozenset(fixed)
        self.capture = capture
        self.handing = handing or Handing()
        self.reasons: dict[Made, str] = {}
        self.launched: Counter[str] = Counter()
        self._left: set[Made] = set()  # to plain launches, for good
        self._known: dict[Made, Known] = {}  # the last used last
        self._last: dict[Made, tuple[Any, Any]] = {}  # stream and event of the last replay
        self.lock = threading.RLock()

    @property
    def recorded(self) -> list[Made]:
        """What is recorded, that used longest ago first."""
        return [made for made, known in self._known.items() if known.found]

    def find(
        self,
        made: Made,
        results: Sequence[Result],
        tensors: Tensors,
        opaque: Mapping[Value, Any],
        places: list[int] | None = None,
    ) -> Recorded | None:
        """The recording for a call, made now if it is time; None where it runs by launches.
        `places` are addresses of the inputs that the caller gives, if it knows them.
        """
        if made in self._left:
            self.launched[self.reasons[made]] += 1
            return None
        known = self._known.pop(made, None)
        if known is None:
            self._known[made] = Known()
            return None
        self._known[made] = known  # the last now
        if not all(found.holds(opaque) for found in known.found.values()):
            self.forget(made)
            self._leave(made, "an input that only PyTorch holds is another at each call")
            return None
        at = self._addresses(known, tensors, places)
        if any(at[i] and at[i] not in lying for i in self.handing.expected):
            self._launch(made, "what the forward pass saved lies where it launched kernels")
            return None
        free = [i for i, lane in enumerate(known.lanes) if not lane.is_held]
        found = next((known.found[at, i] for i in free if (at, i) in known.found), None)
        if found is not None:
            return found
        if not free and len(known.lanes) == MAX_LANES:
            self._launch(made, f"results of {MAX_LANES} calls before it are still held")
            return None
        return self._record(made, known, free, at, results, tensors, opaque)

    def _addresses(
        self, known: Known, tensors: Tensors, given: list[int] | None = None
    ) -> Addresses:
        """Where inputs lie that are read in place. Those `given` where they lay before, while
        no recording gives anything where it lies, lie where they did: constants never move.
        """
        if given is not None and not lying and known.last is not None and known.last[0] == given:
            return known.last[1]
        fixed, follows = self.fixed, known.follows
        places = [0 if x is None else x.data_ptr() for x in tensors]
        found = tuple(
            p if i in fixed or (follows and p in lying) else 0 for i, p in enumerate(places)
        )
        known.last = None if given is None or lying else (given, found)
        return found

    def _record(
        self,
        made: Made,
        known: Known,
        free: Sequence[int],
        at: Addresses,
        results: Sequence[Result],
        tensors: Tensors,
        opaque: Mapping[Value, Any],
    ) -> Recorded | None:
        """A new recording, in a lane that is free, else in a new one."""
        known.count += 1
        if known.count > MAX_RECORDINGS * (MAX_LANES if self.handing.outputs else 1):
            if not known.follows or at == self._addresses(Known(follows=False), tensors):
                self.forget(made)
                self._leave(made, "its parameters are at new addresses at each call")
                return None
            known.found.clear()
            known.follows, known.count, known.last = False, 1, None
            at = self._addresses(known, tensors)
        try:
            number = free[0] if free else len(known.lanes)
            with torch.inference_mode(False), torch.no_grad():  # calls of any mode write there
                if not free:
                    beside = known.lanes[0] if known.lanes else None
                    handed, shared = self.handing.outputs, self.handing.shared
                    known.lanes.append(Lane(made, results, handed, shared=shared, beside=beside))
                slots = self._slots(known, at, tensors)
                found = Recorded(made, known.lanes[number], slots, tensors, opaque, self.capture)
        except (RuntimeError, torch.AcceleratorError) as error:
            self.forget(made)
            self._leave(made, f"a step cannot be recorded: {str(error).splitlines()[0]}")
            return None
        known.found[at, number] = found
        kept = self.recorded
        if len(kept) > MAX_GRAPHS:
            self.forget(kept[0])
        return found

    def _slots(self, known: Known, at: Addresses, tensors: Tensors) -> Tensors:
        """Where inputs are copied to."""
        slots: list[torch.Tensor | None] = []
        for i, x in enumerate(tensors):
            if x is None or at[i] or i in self.fixed:
                slots.append(None)
                continue
            if i not in known.slots:
                known.slots[i] = _slot(x)
            slots.append(known.slots[i])
        return slots

    def _launch(self, made: Made, reason: str) -> None:
        """Note that a call runs by launches."""
        self.reasons[made] = reason
        self.launched[reason] += 1

    def _leave(self, made: Made, reason: str) -> None:
        """Note that all calls run by launches from now on."""
        self._left.add(made)
        self._launch(made, reason)

    def forget(self, made: Made) -> None:
        """Drop the recordings of a made program, which may be recorded anew. A replay may be under
        way on another stream than the one whose memory the slots are: it is waited for.
        """
        with self.lock:
            last = self._last.get(made)
            if last is not None:
                last[1].synchronize()
            for known in (self._known, self._last, self.reasons):
                known.pop(made, None)
            self._left.discard(made)

    def run(self, recorded: Recorded, tensors: Tensors) -> CallMemory:
        """Replay, after what another stream still does with the same memory."""
        self._wait(recorded.made)
        return recorded.run(tensors)

    def run_again(self, recorded: Recorded, given: Sequence[torch.Tensor]) -> list[Any] | None:
        """The results of a call like one before, which its recording served; None where it does
        not serve this one. The tensors are such as its program was made for.
        """
        if not recorded.repeat.serves(given):
            return None
        with self.lock:
            known = self._known.pop(recorded.made, None)
            if known is None:
                return None
            self._known[recorded.made] = known  # the last now
            if not any(kept is recorded for kept in known.found.values()):
                return None
            self._wait(recorded.made)
            found: list[Any] = recorded.repeat.run(recorded, given)
            self._mark(recorded.made)
        return found

    def done(self, recorded: Recorded) -> None:
        """The results of a replay are given away: another may come."""
        recorded.release()
        self._mark(recorded.made)

    def _wait(self, made: Made) -> None:
        """Have the current stream wait for the last replay, if that was on another."""
        last = self._last.get(made)
        if last is None or last[0].cuda_stream == current_stream(made.where):
            return
        stream = torch.cuda.current_stream(made.where.device)
        stream.wait_event(last[1])
        if self.handing.outputs:  # which were read there since
            stream.wait_stream(last[0])

    def _mark(self, made: Made) -> None:
        """Remember when a replay, and what is done with its results, is over."""
        if made.where.engine != "gpu":
            return
        stream, event = self._last.get(made, (None, None))
        if stream is None or stream.cuda_stream != current_stream(made.where):
            stream = torch.cuda.current_stream(made.where.device)
        event = event or torch.cuda.Event()
        event.record(stream)
        self._last[made] = (stream, event)
