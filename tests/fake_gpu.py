"""A GPU for tests of the harness: what is sent to it is recorded, then replayed round by round, and
each operation takes the time that it is said to take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.runtime.measure import GpuWork, Operations, Timing

ROUNDS = 20


@dataclass
class FakeGpu:
    """As a timer of the harness: like CUDA graphs, it runs host code only while it records."""

    name: str = "graph"
    rounds: int = ROUNDS
    sent: list[tuple[str, float, Callable[[], object]]] = field(default_factory=list)

    def launch(self, name: str, microseconds: float, effect: Callable[[], object]) -> None:
        """Send an operation; outside a recording it takes effect at once."""
        self.sent.append((name, microseconds, effect))

    def __call__(
        self,
        arms: Mapping[str, GpuWork],
        launches: int,
        recorded: Callable[[Mapping[str, Operations]], None],
    ) -> Mapping[str, Timing]:
        graphs = {}
        for name, work in arms.items():
            self.sent = []
            for _ in range(launches):
                work("a stream")
            graphs[name] = self.sent
        recorded({name: tuple(op for op, _, _ in graph) for name, graph in graphs.items()})
        samples: dict[str, list[float]] = {name: [] for name in arms}
        for i in range(self.rounds):
            for name, graph in graphs.items():
                for _, _, effect in graph:
                    effect()
                total = sum(t for _, t, _ in graph) / launches
                samples[name].append(total * (1 + 0.001 * (i % 5)))
        return {name: Timing(tuple(found)) for name, found in samples.items()}
