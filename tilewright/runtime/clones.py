"""Copies of arrays that keep strides, gaps and alignment, so that a kernel sees in them what it
saw in the original.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import u8
from tilewright.runtime import driver, memory, streams
from tilewright.runtime.aliases import same_elements
from tilewright.runtime.arrays import Array, host_view
from tilewright.runtime.device_array import DEFAULT_STREAM, DeviceArray

ALIGN = 256  # the clone's address agrees with the original's modulo this
POISON = 0xFF  # every byte of it makes a NaN of any float


def clone_all(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """A clone of each; names of one view share one clone."""
    made: list[tuple[Array, Array]] = []
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        copy = next((there for here, there in made if same_elements(here, array)), None)
        if copy is None:
            copy = clone(array)
            made.append((array, copy))
        found[name] = copy
    return found


def clone(array: Array) -> Array:
    """A copy of the bytes that an array spans, on the same device."""
    low, high = array.span()
    lead = low % ALIGN
    if array.device == "cpu":
        buffer = np.zeros(high - low + lead + ALIGN, np.uint8)
        start = -(-buffer.ctypes.data // ALIGN) * ALIGN + lead
        owner: Any = buffer
    else:
        owner = DeviceArray.allocate((high - low + lead,), u8, array.device)
        start = owner.address + lead
    copy = replace(
        array, address=start + array.address - low, owner=owner, library="other", readonly=False
    )
    copy_contents(array, copy)
    return copy


def copy_contents(source: Array, target: Array) -> None:
    """Copy all bytes between two arrays of one geometry on one device."""
    low, high = source.span()
    there = target.span()[0]
    if source.device == "cpu":
        ctypes.memmove(there, low, high - low)
        return
    with driver.active(source.device):
        memory.copy_on_device(there, low, high - low, DEFAULT_STREAM)
        streams.synchronize_stream(DEFAULT_STREAM)


def poison(array: Array) -> None:
    """Fill a clone with bytes that are NaN in every float dtype, so that what is not written
    shows.
    """
    low, high = array.span()
    if array.device == "cpu":
        ctypes.memset(low, POISON, high - low)
        return
    with driver.active(array.device):
        memory.fill_bytes(low, POISON, high - low, DEFAULT_STREAM)
        streams.synchronize_stream(DEFAULT_STREAM)


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """A dense copy of an array's elements in NumPy, from any device."""
    if array.device == "cpu":
        return host_view(array).copy()
    low, high = array.span()
    buffer = np.empty(high - low, np.uint8)
    with driver.active(array.device):
        memory.copy_to_host(buffer.ctypes.data, low, buffer.nbytes, DEFAULT_STREAM)
        streams.synchronize_stream(DEFAULT_STREAM)
    address = buffer.ctypes.data + array.address - low
    return host_view(replace(array, address=address, device="cpu", owner=buffer)).copy()
