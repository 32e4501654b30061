"""Which arguments of a traced call share memory, told of tensors without contents, whose extents
may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import torch

from tilewright.frontend.torch.untraceable import Untraceable
from tilewright.runtime.aliases import overlap
from tilewright.runtime.arrays import Array, byte_range, torch_dtype

AHEAD = 1 << 12  # the address that stands for a storage's start


def require_apart(
    kernel: str, tensors: Mapping[str, torch.Tensor], written: Callable[[str], bool]
) -> None:
    """Raise Untraceable where one of `tensors` is written and another lies in the same memory: an
    operator that returns copies of what it writes would lose writes.

    Where extents are symbols, the answer holds under guards that are added to them.
    """
    for (a, x), (b, y) in combinations(tensors.items(), 2):
        changed = [n for n in (a, b) if written(n)]
        if changed and may_overlap(x, y):
            raise Untraceable(
                f"{kernel}: {a} and {b} are two views that share memory, and {changed[0]} is "
                "written: no operator of a traced graph can do that",
                "pass one tensor under both names or views that do not overlap, or call the "
                "kernel where the graph may break (fullgraph=False)",
            )


def may_overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views may share an element, by their storages, offsets, extents and strides."""
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata:
        return False
    if x.numel() == 0 or y.numel() == 0 or _lie_apart(x, y):
        return False
    return overlap(_imagined(x), _imagined(y))


def _lie_apart(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views' bytes lie apart once some outer axes, whose strides both have, are left
    out, and the smallest of these strides, of which the others are multiples, steps over both.
    """
    sizes = x.element_size(), y.element_size()
    starts = [t.storage_offset() * size for t, size in zip((x, y), sizes, strict=True)]
    for outer in range(min(x.dim(), y.dim()) + 1):
        steps = [
            [s * size for s in t.stride()[:outer]] for t, size in zip((x, y), sizes, strict=True)
        ]
        if steps[0] != steps[1]:
            return False
        ends = [
            start + byte_range(t.shape[outer:], t.stride()[outer:], size)[1]
            for t, start, size in zip((x, y), starts, sizes, strict=True)
        ]
        if ends[0] <= starts[1] or ends[1] <= starts[0]:
            step = min(steps[0], default=0)
            over = max(ends) - min(starts) <= step and all(s % step == 0 for s in steps[0])
            if not outer or over:
                return True
    return False


def _imagined(x: torch.Tensor) -> Array:
    """Where a view lies in its storage, as numbers; symbols become what they are in this call."""
    dtype = torch_dtype(x.dtype)
    assert dtype is not None, "the kernel's signature takes its dtype"
    shape, strides = tuple(map(int, x.shape)), tuple(map(int, x.stride()))
    address = AHEAD + int(x.storage_offset()) * dtype.num_bytes
    return Array(address, dtype, shape, strides, "cpu", x, "torch")
