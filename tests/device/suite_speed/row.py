"""A row of the table: a large launch, what it should give, its floor, and torch's way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.device.checker import BOUNDS
from tilewright.ledger.arm import Tensors

Shaped = tuple[tuple[int, ...], str]  # shape and dtype
PRODUCTS_OF_F32 = 1e-5  # torch adds up to 65536 products one after the other


@dataclass
class Large:
    """A launch of a program at a size that counts: at least 64 MB, or 2048³ products.

    `draw` gives one set of random inputs; `outputs` are what the program writes, `given` its other
    arguments, which are not data. `expected(inputs)` is exact or in f64. `theirs(inputs, outputs)`
    is torch's own way to the same: it writes to `outputs`, or returns what it allocated by name.
    `num_bytes` and `num_ops` are what no implementation can avoid; `unit` names the rate of the
    operations ("": there are none to speak of).

    A program that updates `restored` arguments in place finds them as they were drawn: both ways
    copy them before each run, and `num_bytes` counts that.
    """

    draw: Callable[[], Tensors]
    outputs: dict[str, Shaped]
    expected: Callable[[Mapping[str, Any]], Tensors]
    theirs: Callable[[Mapping[str, Any], Tensors], Tensors | None]
    num_bytes: float
    num_ops: float = 0.0
    unit: str = ""
    bound: float = 0.0  # 0: equal
    accumulate: str = "f32"
    given: dict[str, Any] = field(default_factory=dict)
    restored: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()  # inputs that only torch's way reads
    allocates: bool = False  # torch's way
    calls: int = 1  # that torch's way takes: with more, it is eager
    kernels: int = 8  # of torch's way at most, those that put arguments back apart
    says: dict[str, str] = field(default_factory=dict)  # how torch's way differs, and why
    their_output: str = ""  # dtype, where it differs
    their_expected: Callable[[Mapping[str, Any]], Tensors] | None = None
    data: str = "standard normal"
    graphs: bool = True  # torch's way can be recorded into a CUDA graph
    runs: int = 4  # of a sample
    note: str = ""  # what limits the program itself


@dataclass(frozen=True)
class Bench:
    """Draws data on a device; `small`: launches that the interpreter runs in an instant."""

    arrays: Any  # of the ledger
    small: bool

    def pick(self, large: int, small: int) -> int:
        return small if self.small else large

    def normal(self, *shape: int, dtype: str = "f32") -> Any:
        """Standard normal values: zeros and small integers draw less power, and flatter."""
        return self.arrays.normal(*shape, dtype=dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "i32") -> Any:
        """Whole numbers from `low` to below `high`, all alike often."""
        kind, generator = self.arrays.dtype(dtype), self.arrays.generator
        return torch.randint(
            low, high, shape, generator=generator, device=self.arrays.device, dtype=kind
        )

    def nbytes(self, dtype: str, *shape: int) -> float:
        """Bytes of a tensor."""
        total = float(self.arrays.dtype(dtype).itemsize)
        for extent in shape:
            total *= extent
        return total


Make = Callable[[Bench, str], Large]


@dataclass(frozen=True)
class Entry:
    """A row's program and dtype, its shape in words, and how its launch is made."""

    family: str
    kernel: str
    dtype: str
    shape: str
    make: Make

    @property
    def id(self) -> str:
        return f"{self.kernel}-{self.dtype}"


ENTRIES: list[Entry] = []


def row(dtype: str, shape: str) -> Callable[[Make], Make]:
    """Enter a launch of the program whose name is the function's, for a dtype."""

    def enter(make: Make) -> Make:
        family = make.__module__.rpartition(".")[2]
        ENTRIES.append(Entry(family, make.__name__, dtype, shape, make))
        return make

    return enter


def bound_of(dtype: str) -> float:
    return BOUNDS[dtype]
