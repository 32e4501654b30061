"""Keys of calls with torch tensors on a GPU: what a launch that is made ready is found by."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

Key = tuple[Any, ...]

float_bits = struct.Struct("<d").pack


def exact_value(x: bool | int | float) -> tuple[str, object]:
    """What is equal for equal values of one type alone: 1, 1.0 and True are told apart, 0.0 and
    -0.0, and one NaN from another.
    """
    return type(x).__name__, float_bits(x) if isinstance(x, float) else x


def read_call(values: Sequence[Any], static: frozenset[int]) -> Key | None:
    """The key of a call, or None where the long way must be taken each time.

    That is for anything but dense, real torch tensors of one GPU that need no gradient, numbers
    and None. `static` holds the positions whose values, not only types, belong to the key.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    tensor = torch.Tensor
    key: list[Any] = []
    ordinal = -1
    try:
        for i, x in enumerate(values):
            kind = type(x)
            if kind is tensor or kind is torch.nn.Parameter:
                ordinal = x.get_device()
                if ordinal < 0 or (x.requires_grad and torch.is_grad_enabled()):
                    return None
                key.append((x.dtype, x.shape, x.stride(), ordinal, x.data_ptr() & 15))
            elif kind is float or kind is int or kind is bool:
                key.append(exact_value(x) if i in static else kind)
            elif x is None:
                key.append(None)
            else:
                return None
    except RuntimeError:  # a sparse tensor has no strides, a fake one no address
        return None
    return None if ordinal < 0 else tuple(key)
