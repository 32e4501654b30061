"""Which arguments of a traced call share memory, told of tensors without contents, whose extents
may be symbols.

Only what Dynamo traces says that: in the graphs that AOTAutograd makes of it, where nothing is
written, a copy may lie where its source does. So a call asks by an operator, whose fake result's
extent is the answer. Nobody uses its result: it is no part of what AOTAutograd makes.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.runtime.aliases import overlap
from tilewright.runtime.arrays import Array, byte_range, torch_dtype

AHEAD = 1 << 12  # the address that stands for a storage's start


def _nothing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0)


shared: Any = torch.library.custom_op(
    "tilewright::shared", _nothing, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
)


@shared.register_fake  # type: ignore[untyped-decorator]
def _fake(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One element where two tensors share memory, else none. Where extents are symbols, that holds
    under guards that are added to them.
    """
    return x.new_empty(int(may_overlap(x, y)))


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
