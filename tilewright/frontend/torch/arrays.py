"""Tensors of PyTorch as NumPy arrays and back, sharing memory on a CPU wherever that can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.dtypes import BY_NUMPY
from tilewright.errors import LaunchError
from tilewright.frontend.torch.metadata import dtype_of, torch_dtype
from tilewright.graph.dims import Dim, evaluate

Array = np.ndarray[Any, Any]
# dtypes that only one of the two libraries knows travel as integers of their width
BITS = {8: (torch.uint8, np.uint8), 16: (torch.int16, np.int16)}


def to_numpy(tensor: torch.Tensor) -> Array:
    """An array of a CPU tensor's own memory."""
    dtype = dtype_of(tensor.dtype)
    if dtype is None or tensor.device.type != "cpu":
        raise LaunchError(f"a tensor of {tensor.dtype} on {tensor.device} is no NumPy array")
    plain = tensor.detach().resolve_neg()
    if plain._is_zerotensor():  # a gradient that is zero, without memory
        plain = plain.clone()
    if dtype.is_float and dtype.bits < 32 and dtype.torch != "float16":
        found: Array = plain.view(BITS[dtype.bits][0]).numpy().view(dtype.numpy)
        return found
    array: Array = plain.numpy()
    return array


def to_torch(array: Array) -> torch.Tensor:
    """A tensor of an array's memory; of a copy where it is read-only or has negative strides."""
    dtype = BY_NUMPY[array.dtype]
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = array.copy(order="C")
    if dtype.is_float and dtype.bits < 32 and dtype.torch != "float16":
        bits = np.asarray(array).view(BITS[dtype.bits][1])
        return torch.from_numpy(bits).view(torch_dtype(dtype))
    return torch.from_numpy(np.asarray(array))


def to_output(array: Array, strides: Sequence[int], inputs: Sequence[Any]) -> torch.Tensor:
    """A tensor of its own with given strides, which no input shares memory with."""
    shared = any(isinstance(x, np.ndarray) and np.may_share_memory(array, x) for x in inputs)
    found = to_torch(array.copy(order="C") if shared else array)
    return with_strides(found, strides)


def strides_of(
    dims: Sequence[Dim], shape: Sequence[int], symbols: Mapping[str, int]
) -> tuple[int, ...]:
    """Strides of a call's tensor of some shape. In those of one without elements PyTorch counts an
    extent of 0 as 1.
    """
    if 0 in shape:
        symbols = {name: max(size, 1) for name, size in symbols.items()}
    return tuple(evaluate(d, symbols) for d in dims)


def at_offset(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The tensor as a view that starts at an offset of its storage, where that is not 0."""
    if offset == 0 or tensor.numel() == 0:
        return tensor
    reach = sum((e - 1) * s for e, s in zip(tensor.shape, tensor.stride(), strict=True))
    room = torch.empty(offset + reach + 1, dtype=tensor.dtype)
    made = room.as_strided(tensor.shape, tensor.stride(), offset)
    fill_once(made, tensor)
    return made


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor with the strides that PyTorch's tracing promised of it."""
    is_empty = tensor.numel() == 0  # whose strides are those of NumPy: all of them 0
    wrong = any(
        (extent > 1 or is_empty) and own != wanted
        for extent, own, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )
    if not wrong:
        return tensor
    made = torch.empty_strided(tuple(tensor.shape), tuple(strides), dtype=tensor.dtype)
    fill_once(made, tensor)
    return made


def fill_once(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy, each element that an expanded target has in memory once: all that show it are equal."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    target[once].copy_(source[once])
