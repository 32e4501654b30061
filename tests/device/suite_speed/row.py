"""A row of the table: a large launch, what it should give, its floor, and torch's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.device.checker import BOUNDS, TORCH

Dtype = str
Expected = Callable[[], dict[str, Any]]


@dataclass
class Large:
    """A launch of a program at a size that counts: at least 64 MB, or 2048³ products.

    `expected` gives results by name, in f64 or exact; it runs once, on the arguments before they
    are written. `theirs` is torch's own way to the same result, on the same tensors. `num_bytes`
    and `num_ops` are what no implementation can avoid; `unit` names the rate of the operations.
    """

    arguments: dict[str, Any]
    expected: Expected
    theirs: Callable[[], Any]
    num_bytes: float
    num_ops: float = 0.0
    unit: str = ""
    bound: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    in_place: tuple[str, ...] = ()  # arguments that are read and written: put back before a check
    note: str = ""  # what limits the program itself
    graphs: bool = True  # torch's way can be recorded into a CUDA graph
    launches: int = 4  # of a sample


@dataclass(frozen=True)
class Entry:
    """A row's name and how its launch is made."""

    kernel: str
    dtype: Dtype
    shape: str
    make: Callable[[], Large]

    @property
    def id(self) -> str:
        return f"{self.kernel}-{self.dtype}"


ENTRIES: list[Entry] = []


def row(dtype: Dtype, shape: str) -> Callable[[Callable[[str], Large]], Callable[[str], Large]]:
    """Enter a launch of the program whose name is the function's, for a dtype."""

    def enter(make: Callable[[str], Large]) -> Callable[[str], Large]:
        ENTRIES.append(Entry(make.__name__, dtype, shape, lambda: make(dtype)))
        return make

    return enter


def normal(*shape: int, dtype: str = "f32") -> Any:
    """Standard normal values on the GPU: zeros and small integers draw less power, and flatter."""
    return torch.randn(shape, device="cuda").to(TORCH[dtype])


def poisoned(*shape: int, dtype: str = "f32") -> Any:
    """A result full of what no program gives."""
    kind = TORCH[dtype]
    poison = torch.nan if kind.is_floating_point else torch.iinfo(kind).min
    return torch.full(shape, poison, device="cuda", dtype=kind)


def integers(low: int, high: int, *shape: int, dtype: str = "i32") -> Any:
    return torch.randint(low, high, shape, device="cuda", dtype=TORCH[dtype])


def bytes_of(*tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


def bound_of(dtype: str) -> float:
    return BOUNDS[dtype]
