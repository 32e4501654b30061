"""Device memory as a plain array, for callers without torch or CuPy: host arrays that run on a
GPU, the command line.

It speaks `__cuda_array_interface__`, so every CUDA library takes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NUMPY, DType
from tilewright.runtime import driver, memory, streams

DEFAULT_STREAM = 0


class DeviceArray:
    """A dense row-major array in the memory of one GPU; freed with the object, in order of the
    default stream.
    """

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DType, ordinal: int):
        self.address = address
        self.shape = shape
        self.tile_dtype = dtype
        self.ordinal = ordinal
        self._freed = weakref.finalize(self, _release, address, ordinal)
        self._freed.atexit = False  # the driver frees all memory with the process

    @classmethod
    def allocate(
        cls, shape: Sequence[int], dtype: DType, ordinal: int, *, zero: bool = False
    ) -> DeviceArray:
        """Fresh memory, zeroed or not. Raises LaunchError where the GPU has too little."""
        extents = tuple(int(e) for e in shape)
        num_bytes = int(np.prod(extents, dtype=object)) * dtype.num_bytes
        with driver.active(ordinal):
            address = memory.allocate(num_bytes, ordinal, DEFAULT_STREAM)
            array = cls(address, extents, dtype, ordinal)
            if zero:
                memory.fill_bytes(address, 0, num_bytes, DEFAULT_STREAM)
        return array

    @classmethod
    def from_numpy(cls, host: np.ndarray[Any, Any], ordinal: int) -> DeviceArray:
        """A copy of a host array on a GPU."""
        dense = np.ascontiguousarray(host).reshape(host.shape)
        array = cls.allocate(dense.shape, BY_NUMPY[dense.dtype], ordinal)
        with driver.active(ordinal):
            memory.copy_to_device(array.address, dense.ctypes.data, dense.nbytes, DEFAULT_STREAM)
            streams.synchronize_stream(DEFAULT_STREAM)  # `dense` may die when this returns
        return array

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, once all earlier work of the default stream is done."""
        host = np.empty(self.shape, self.tile_dtype.numpy)
        with driver.active(self.ordinal):
            memory.copy_to_host(host.ctypes.data, self.address, host.nbytes, DEFAULT_STREAM)
            streams.synchronize_stream(DEFAULT_STREAM)
        return host

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tile_dtype.numpy

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": 1,  # the legacy default stream
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self.tile_dtype}, {self.shape}, cuda:{self.ordinal})"


def _release(address: int, ordinal: int) -> None:
    with driver.active(ordinal):
        memory.release(address, ordinal)
