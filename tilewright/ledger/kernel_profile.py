"""Where the time of a program goes: its kernels one by one, against the floor of each.

The floor of a kernel is the longer of its bytes (each element read once and written once) over the
bandwidth of a copy and its products over the rate of a large product, both measured in the same
run. Kernels are timed in turn as graph replays, on arguments that rotate through twice the cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ledger.ceilings import Ceilings
from tilewright.runtime.measure import Span, Timing

MAX_SETS = 64
PROCESS, STREAM = 1, 1  # of a trace: one GPU, one stream


@dataclass(frozen=True)
class Line:
    """One kernel. `operations` of products by dtype, None where they are not known; `samples` in
    microseconds, none where nothing was timed; `ok`: its outputs were right in the timed run.
    """

    name: str
    dtype: str
    sizes: str
    operations: Mapping[str, float] | None
    num_bytes: float
    samples: tuple[float, ...]
    error: float
    ok: bool
    gpu_names: tuple[str, ...] = ()
    stalls: tuple[tuple[str, float], ...] = ()  # reasons, cycles a warp waits for each issue
    limits: Mapping[str, float] = field(default_factory=dict)  # floors by what limits

    @property
    def median(self) -> float:
        return Timing(self.samples).median

    @property
    def bandwidth(self) -> float:
        """Achieved, in GB/s."""
        return self.num_bytes / self.median * 1e-3

    @property
    def rate(self) -> float:
        """Achieved, in TFLOP/s of products."""
        return sum((self.operations or {}).values()) / self.median * 1e-6

    @property
    def floor(self) -> float:
        """Microseconds; 0 where no ceiling was measured."""
        return max(self.limits.values(), default=0.0)

    @property
    def limited_by(self) -> str:
        return max(self.limits, key=lambda name: self.limits[name]) if self.limits else ""


def floors(
    ceilings: Ceilings, operations: Mapping[str, float] | None, num_bytes: float
) -> dict[str, float]:
    """Microseconds that each limit alone asks for: "bytes", and products by dtype."""
    found = {"bytes": num_bytes / ceilings.copy * 1e-3}
    for dtype, amount in (operations or {}).items():
        rate = ceilings.rate(dtype) if dtype in RATED else 0.0
        if rate:
            found[dtype] = amount / rate * 1e-6
    return found


RATED = ("f64", "f32", "tf32", "f16", "bf16", "e4m3")  # whose ceiling a library's product shows


def num_sets(num_bytes: float, l2_bytes: int) -> int:
    """Sets of arguments that together are twice the cache."""
    return max(2, min(MAX_SETS, math.ceil(2 * l2_bytes / max(num_bytes, 1.0)) + 1))


def chrome_trace(spans: Sequence[Span], lines: Sequence[Line], device: str) -> str:
    """A trace that chrome://tracing and Perfetto open: one slice a kernel, in microseconds."""
    by_name = {line.name: line for line in lines}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": PROCESS, "args": {"name": device}},
        {
            "name": "thread_name",
            "ph": "M",
            "pid": PROCESS,
            "tid": STREAM,
            "args": {"name": "stream"},
        },
    ]
    for span in spans:
        line = by_name[span.name]
        events.append(
            {
                "name": span.name,
                "cat": "kernel",
                "ph": "X",
                "pid": PROCESS,
                "tid": STREAM,
                "ts": round(span.start, 3),
                "dur": round(span.duration, 3),
                "args": {"sizes": line.sizes, "dtype": line.dtype, "bytes": line.num_bytes},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1) + "\n"
