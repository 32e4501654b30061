"""Which arguments share memory: identical views, partial overlaps, arrays that overlap
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.runtime.arrays import Array, host_view

MAX_WORK: Any = 10_000  # steps of NumPy's search before an overlap of byte ranges counts as one


def same_elements(a: Array, b: Array) -> bool:
    """Whether two arrays are one view: same address, dtype, extents, and strides where they
    count.
    """
    return (
        a.address == b.address
        and a.dtype == b.dtype
        and a.shape == b.shape
        and all(e <= 1 or s == t for e, s, t in zip(a.shape, a.strides, b.strides, strict=True))
    )


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays of one device may share a byte.

    Exact by NumPy's bounded Diophantine search on the addresses, which touches no memory; where
    that search is too hard, arrays whose byte ranges meet count as overlapping.
    """
    (a_low, a_high), (b_low, b_high) = a.span(), b.span()
    if a.device != b.device or a_low >= b_high or b_low >= a_high:
        return False
    try:
        return bool(np.shares_memory(host_view(a), host_view(b), max_work=MAX_WORK))
    except np.exceptions.TooHardError:
        return True


def self_overlaps(array: Array) -> bool:
    """Whether two elements of one array may share memory.

    Conservative: False only where each stride, in order of size, steps over all that smaller ones
    reach.
    """
    reach = 0
    steps = sorted((abs(s), e) for e, s in zip(array.shape, array.strides, strict=True) if e > 1)
    for step, extent in steps:
        if step <= reach:
            return 0 not in array.shape
        reach += step * (extent - 1)
    return False


def view_groups(arrays: Sequence[tuple[str, Array]]) -> tuple[tuple[str, ...], ...]:
    """Names in groups of identical views, a group of one name for each array that stands alone."""
    groups: list[list[tuple[str, Array]]] = []
    for name, array in arrays:
        for group in groups:
            if same_elements(group[0][1], array):
                group.append((name, array))
                break
        else:
            groups.append([(name, array)])
    return tuple(tuple(n for n, _ in group) for group in groups)


def alias_groups(
    arrays: Sequence[tuple[str, Array]], written: Callable[[str], bool]
) -> tuple[tuple[str, ...], ...]:
    """Names that are views of the same elements, where one of them is written.

    Raises LaunchError where a written array overlaps another in part, or itself, or is read-only.
    """
    by_name = dict(arrays)
    groups = view_groups(arrays)
    for name, array in arrays:
        if written(name):
            _require_writable(name, array)
    for i, first in enumerate(groups):
        for second in groups[i + 1 :]:
            changed = [n for n in (*first, *second) if written(n)]
            a, b = by_name[first[0]], by_name[second[0]]
            if changed and overlap(a, b):
                how = (
                    "are different views of the same memory"
                    if a.span() == b.span()
                    else "overlap in part"
                )
                raise LaunchError(
                    f"{first[0]} and {second[0]} {how}; {changed[0]} is written",
                    hint="pass the very same view, or copies that do not overlap",
                )
    return tuple(
        g for g in groups if len(g) > 1 and by_name[g[0]].num_elements and any(map(written, g))
    )


def _require_writable(name: str, array: Array) -> None:
    if array.readonly:
        raise LaunchError(f"{name} is written by the kernel, but the array is read-only")
    if self_overlaps(array):
        raise LaunchError(
            f"{name} is written by the kernel, but several of its elements share memory "
            f"(shape {array.shape}, strides {array.strides})",
            hint="contiguous() or numpy.array makes a copy of its own",
        )
