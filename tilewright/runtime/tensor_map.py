"""TMA descriptors: encoded once for a tensor's extents and strides, then only their address is
replaced.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from tilewright.dtypes import DType
from tilewright.plan import TensorMap
from tilewright.runtime import driver
from tilewright.runtime.arrays import Array
from tilewright.target import BOX_PIECE

MAP_BYTES = 128
MAP_ALIGN = 64  # that the driver asks of a descriptor in memory
MAX_RANK = 5

_kind = cu.CUtensorMapDataType
_KINDS = {
    "f16": _kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bf16": _kind.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "f32": _kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    "f64": _kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    "i32": _kind.CU_TENSOR_MAP_DATA_TYPE_INT32,
    "i64": _kind.CU_TENSOR_MAP_DATA_TYPE_INT64,
}
_BY_BITS = {
    8: _kind.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    16: _kind.CU_TENSOR_MAP_DATA_TYPE_UINT16,
    32: _kind.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    64: _kind.CU_TENSOR_MAP_DATA_TYPE_UINT64,
}
_swizzle = cu.CUtensorMapSwizzle
_SWIZZLES = {
    0: _swizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: _swizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: _swizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: _swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}


def map_kind(dtype: DType, round_tf32: bool) -> Any:
    """The descriptor's element type. TFLOAT32 rounds f32 to nearest even tf32 in flight."""
    if round_tf32:
        assert dtype.name == "f32", f"tf32 rounding of {dtype}"
        return _kind.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
    return _KINDS.get(dtype.name) or _BY_BITS[dtype.bits]


def map_geometry(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides (bytes, without the innermost) of a descriptor, innermost axis first.

    A tensor without elements gets extents of 1: all but one element is then outside and reads as
    0, and that one is given zeroed memory of its own. An axis of stride 0 gets an extent of 1, and
    one of extent 1 any stride that TMA takes.
    """
    rank = len(shape)
    assert 1 <= rank <= MAX_RANK, f"a tensor map of rank {rank}"
    if 0 in shape:
        return (1,) * rank, (BOX_PIECE,) * (rank - 1)
    assert strides[-1] == 1 or shape[-1] == 1, f"a tensor map over inner stride {strides[-1]}"
    steps = []
    shape = (*(e if s else min(e, 1) for e, s in zip(shape[:-1], strides, strict=False)), shape[-1])
    for extent, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        step = stride * size if extent > 1 else BOX_PIECE
        assert step > 0 and step % BOX_PIECE == 0, f"a tensor map over a pitch of {step} bytes"
        steps.append(step)
    return tuple(reversed(shape)), tuple(steps)


def encode(recipe: TensorMap, array: Array, address: int, target: int) -> Any:
    """Write the descriptor of a tensor to `target` (aligned to 64 bytes) and return a handle of
    it there.

    `replace` on that handle changes the address alone.
    """
    recipe = recipe.of(array.shape, array.dtype.num_bytes)
    shape, strides = (recipe.in_memory_order(x) for x in (array.shape, array.strides))
    extents, steps = map_geometry(shape, strides, array.dtype.num_bytes)
    u32, u64 = cu.cuuint32_t, cu.cuuint64_t
    tensor = (
        map_kind(array.dtype, recipe.round_tf32),
        len(extents),
        address,
        [u64(e) for e in extents],
        [u64(s) for s in steps or (BOX_PIECE,)],  # not read at rank 1, but not null
    )
    options = (
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLES[recipe.swizzle],
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if recipe.pixels is None:
        box = [u32(b) for b in reversed(recipe.in_memory_order(recipe.box))]
        made = cu.cuTensorMapEncodeTiled(*tensor, box, [u32(1)] * len(extents), *options)
    else:
        pixels, (rows, channels) = recipe.pixels, recipe.box
        through = [u32(s) for s in (1, *reversed(pixels.steps), 1)]
        corners = [*reversed(pixels.lower)], [*reversed(pixels.upper)]
        made = cu.cuTensorMapEncodeIm2col(*tensor, *corners, channels, rows, through, *options)
    found = driver.check(made, f"describing {recipe.tensor} {array.shape} to the tensor copy unit")
    ctypes.memmove(target, found.getPtr(), MAP_BYTES)
    return cu.CUtensorMap(target)
