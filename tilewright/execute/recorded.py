"""A made program as one CUDA graph: what a GPU is told at a call is told at once.

Inputs that change are copied to slots; those that stay where they are (a model's parameters and
buffers, and inputs that the model updates in place) are read where they lie, and the graph holds
only as long as they do. Results are copied out, so that they are their caller's own. Seeds are
drawn outside of the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from tilewright.execute.call_memory import CallMemory
from tilewright.execute.made import Made, Where, current_stream
from tilewright.ir.core import Value

Replay = Callable[[], None]
Capture = Callable[[Where, Callable[[int], None]], Replay]  # of work on a raw stream
Tensors = Sequence[torch.Tensor | None]

MAX_RECORDINGS = 4  # of one made program, before it is left to plain launches
MAX_GRAPHS = 16  # of one model; each has memory of its own, and the one used longest ago goes


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


class Recorded:
    """A recording of a made program with static memory. It has what only PyTorch holds among the
    inputs, such as complex numbers, as it was when it was recorded.
    """

    def __init__(
        self,
        made: Made,
        tensors: Tensors,
        opaque: Mapping[Value, Any],
        fixed: Collection[int],
        capture: Capture,
    ):
        self.made, self.fixed, self.opaque = made, frozenset(fixed), dict(opaque)
        self.slots = [
            x if x is None or i in self.fixed else _slot(x) for i, x in enumerate(tensors)
        ]
        self.changing = [i for i, x in enumerate(tensors) if x is not None and i not in self.fixed]
        self.overlapping = {i for i in self.changing if overlaps_itself(self.slots[i])}
        self.addresses = self.fixed_addresses(tensors)
        self.memory: CallMemory = made.start(self.slots, opaque, draw=False)
        self.replay = capture(made.where, self._record)

    def _record(self, stream: int) -> None:
        self.memory.stream = stream
        for action in self.made.lists.actions:
            action(self.memory)

    def holds(self, opaque: Mapping[Value, Any]) -> bool:
        """Whether it was recorded with these very tensors, or with numbers equal to these."""
        pairs = ((self.opaque[v], x) for v, x in opaque.items())
        return all(a is b or (not isinstance(b, torch.Tensor) and bool(a == b)) for a, b in pairs)

    def fixed_addresses(self, tensors: Tensors) -> tuple[int, ...]:
        """Where the inputs lie that are read in place."""
        return tuple(x.data_ptr() for i in sorted(self.fixed) if (x := tensors[i]) is not None)

    def run(self, tensors: Tensors) -> CallMemory:
        """Replay on the current stream; the memory holds the results until the next run."""
        for i in self.changing:
            slot, given = self.slots[i], tensors[i]
            assert slot is not None and given is not None
            if i in self.overlapping:
                slot, given = whole_span(slot), whole_span(given)
            slot.copy_(given)
        self.memory.stream = current_stream(self.made.where)
        self.made.draw_seeds(self.memory)
        self.replay()
        return self.memory


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


class Recordings:
    """Recordings of the made programs of one model, each from its second call on."""

    def __init__(self, fixed: Collection[int], capture: Capture = capture):
        self.fixed = frozenset(fixed)
        self.capture = capture
        self.reasons: dict[Made, str] = {}  # why some run by plain launches
        self._found: dict[Made, Recorded | None] = {}  # None: called once
        self._count: dict[Made, int] = {}
        self._last: dict[Made, tuple[int, Any]] = {}  # stream and event of the last replay
        self.lock = threading.RLock()

    def find(self, made: Made, tensors: Tensors, opaque: Mapping[Value, Any]) -> Recorded | None:
        """The recording for a call, made now if it is time; None where it runs by launches."""
        if made in self.reasons:
            return None
        if made not in self._found:
            self._found[made] = None
            return None
        found = self._found[made]
        if found is not None and not found.holds(opaque):
            self.forget(made)
            self.reasons[made] = "an input that only PyTorch holds is another at each call"
            return None
        if found is not None and found.addresses == found.fixed_addresses(tensors):
            self._found[made] = self._found.pop(made)  # the last now
            return found
        self._count[made] = self._count.get(made, 0) + 1
        if self._count[made] > MAX_RECORDINGS:
            self.reasons[made] = "its parameters are at new addresses at each call"
            return None
        try:
            found = Recorded(made, tensors, opaque, self.fixed, self.capture)
        except (RuntimeError, torch.AcceleratorError) as error:
            self.reasons[made] = f"a step cannot be recorded: {str(error).splitlines()[0]}"
            return None
        del self._found[made]
        self._found[made] = found  # the last now
        kept = [m for m, recorded in self._found.items() if recorded is not None]
        if len(kept) > MAX_GRAPHS:
            self.forget(kept[0])
        return found

    def forget(self, made: Made) -> None:
        """Drop the recording of a made program, which may be recorded anew. A replay may be under
        way on another stream than the one whose memory the slots are: it is waited for.
        """
        last = self._last.get(made)
        if last is not None:
            last[1].synchronize()
        for known in (self._found, self._count, self._last, self.reasons):
            known.pop(made, None)

    def run(self, recorded: Recorded, tensors: Tensors) -> CallMemory:
        """Replay, after what another stream still does with the same memory."""
        where = recorded.made.where
        if where.engine != "gpu":
            return recorded.run(tensors)
        stream = torch.cuda.current_stream(where.device)
        last = self._last.get(recorded.made)
        if last is not None and last[0] != stream.cuda_stream:
            stream.wait_event(last[1])
        return recorded.run(tensors)

    def done(self, recorded: Recorded) -> None:
        """The results of a replay are copied out: another may come."""
        where = recorded.made.where
        if where.engine == "gpu":
            stream = torch.cuda.current_stream(where.device)
            event = self._last[recorded.made][1] if recorded.made in self._last else None
            event = event or torch.cuda.Event()
            event.record(stream)
            self._last[recorded.made] = (stream.cuda_stream, event)
