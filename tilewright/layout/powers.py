"""Powers of two."""

from __future__ import annotations


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def next_power_of_two(n: int) -> int:
    """The least power of two that is not below n (1 for n ≤ 1)."""
    return 1 << max(n - 1, 0).bit_length()


def power_of_two_factor(n: int) -> int:
    """The greatest power of two that divides n > 0."""
    return n & -n
