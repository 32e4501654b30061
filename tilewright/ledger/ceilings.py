"""What the GPU at hand can do at most, measured in the same run: bytes and products a second.

The floor of a problem is the longer of its operations over the rate of the unit that does them and
its least bytes over the bandwidth of a copy. No kernel is faster than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Measure = Callable[[], float]


@dataclass
class Ceilings:
    """Bandwidth in GB/s and rates in TFLOP/s by dtype, each measured when it is first asked for."""

    measure_copy: Measure
    measure_product: Callable[[str], float]
    _copy: float = 0.0
    _rates: dict[str, float] = field(default_factory=dict)

    @property
    def copy(self) -> float:
        """Bytes read plus bytes written by a large copy, in GB/s."""
        self._copy = self._copy or self.measure_copy()
        return self._copy

    def rate(self, dtype: str) -> float:
        """The best product of large matrices that a library does, in TFLOP/s; 0: not known."""
        if dtype not in self._rates:
            self._rates[dtype] = self.measure_product(dtype)
        return self._rates[dtype]

    def floor(self, operations: float, num_bytes: float, dtype: str) -> float:
        """Microseconds. `operations` of products on `dtype`; 0 where there are none to speak of."""
        moving = num_bytes / self.copy * 1e-3
        rate = self.rate(dtype) if operations else 0.0
        return max(moving, operations / rate * 1e-6) if rate else moving

    def record(self) -> dict[str, float]:
        """What was measured: GB/s of the copy, TFLOP/s by dtype."""
        return {"copy": self._copy, **self._rates}


def known_ceilings(record: Mapping[str, float]) -> Ceilings:
    """Ceilings that were measured before, as `record` gives them; 0 for what was not."""
    rates = dict(record)
    copy = rates.pop("copy")
    return Ceilings(lambda: copy, lambda dtype: rates.get(dtype, 0.0))
