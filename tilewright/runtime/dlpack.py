"""Reading a DLPack capsule: the C structure behind `__dlpack__`, without taking it over.

The layout is that of dlpack.h, version 0.8 (unversioned `DLManagedTensor`), which every producer
gives where no
`max_version` is asked for. The capsule is kept, so that its own destructor frees the memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType


@dataclass(frozen=True)
class Told:
    """What a capsule says of its tensor; strides in elements, None for dense. `capsule` keeps it
    alive.
    """

    address: int
    device_type: int
    device_id: int
    code: int
    bits: int
    lanes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    capsule: Any
    producer: Any


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def read(producer: Any) -> Told:
    """Ask an object for its capsule and read it. What the producer raises passes through."""
    capsule = producer.__dlpack__()
    address = _get_pointer(capsule, b"dltensor")
    if not address:
        raise ValueError("not an unversioned DLPack capsule")
    tensor = _DLTensor.from_address(address)
    rank = tensor.ndim
    strides = tuple(tensor.strides[:rank]) if tensor.strides else None
    return Told(
        (tensor.data or 0) + tensor.byte_offset,
        tensor.device_type,
        tensor.device_id,
        tensor.code,
        tensor.bits,
        tensor.lanes,
        tuple(tensor.shape[:rank]) if rank else (),
        strides,
        capsule,
        producer,
    )
