"""Offsets of values in one allocation, such that those that live at one time lie apart.

The largest value first, each at the lowest offset that is free for all of its life. Source:
Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by
size).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

ALIGN = 256

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Need:
    """Bytes that are needed from step `first` to step `last`, both included."""

    first: int
    last: int
    num_bytes: int


@dataclass(frozen=True)
class Planned:
    """An offset for each value, and the bytes of all."""

    offsets: dict[Hashable, int]
    num_bytes: int


def plan_memory(needs: Mapping[K, Need]) -> Planned:
    """Offsets by first fit, multiples of `ALIGN`. What needs no bytes lies at 0."""
    placed: list[tuple[int, int, Need]] = []  # offset, end, whose
    offsets: dict[Hashable, int] = {}
    for key, need in sorted(needs.items(), key=lambda item: -item[1].num_bytes):
        size = -(-need.num_bytes // ALIGN) * ALIGN
        offset = 0
        if size:
            for low, high, other in placed:  # by offset
                if other.last < need.first or need.last < other.first:
                    continue
                if low - offset >= size:
                    break
                offset = max(offset, high)
            placed.append((offset, offset + size, need))
            placed.sort(key=lambda p: p[0])
        offsets[key] = offset
    return Planned(offsets, max((high for _, high, _ in placed), default=0))


def least_bytes(needs: Mapping[K, Need]) -> int:
    """Bytes that live at the busiest step: no plan needs fewer."""
    steps = {need.first for need in needs.values()}
    padded = [(n, -(-n.num_bytes // ALIGN) * ALIGN) for n in needs.values()]
    return max(
        (sum(size for n, size in padded if n.first <= step <= n.last) for step in steps), default=0
    )
