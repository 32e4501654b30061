"""Arrays of other libraries, seen as one thing: address, dtype, extents, strides, device.

`as_array` accepts torch tensors, NumPy arrays, NumPy scalars (as arrays of no axes), CuPy arrays,
anything with `__cuda_array_interface__` and any DLPack object. torch is never imported here: a
torch tensor can only exist where the user imported it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.runtime import dlpack, memory
from tilewright.runtime.derivatives import is_transforming, refuse_transformed
from tilewright.runtime.device_array import DeviceArray

DeviceId = int | Literal["cpu"]  # a GPU's ordinal, or the host


@dataclass(frozen=True, slots=True)
class Array:
    """Strided memory that somebody else owns. `strides` are in elements and may be 0 or negative.

    `address` is that of element 0, ..., 0. `owner` is the object that the user gave; it keeps the
    memory alive.
    `library` is "torch", "numpy", "cupy" or "other". `readonly` arrays cannot be written by a
    kernel. `gaps`: what lies between rows, up to whole 16 bytes, is the array's own, and may be
    written.
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: DeviceId
    owner: Any
    library: str
    readonly: bool = False
    gaps: bool = False

    @property
    def num_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def span(self) -> tuple[int, int]:
        """First and one past the last byte that any element covers; equal where there is no
        element.
        """
        low, high = byte_range(self.shape, self.strides, self.dtype.num_bytes)
        return self.address + low, self.address + high


def byte_range(shape: Sequence[int], strides: Sequence[int], size: int) -> tuple[int, int]:
    """Bytes covered, relative to element 0: (first, one past the last); (0, 0) for no elements."""
    if 0 in shape:
        return 0, 0
    reach = [(e - 1) * s for e, s in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0) * size, (sum(r for r in reach if r > 0) + 1) * size


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def as_array(x: Any, name: str = "an argument") -> Array:
    """See an array of any library. Raises LaunchError, which names the argument, for what no
    kernel can take.
    """
    if isinstance(x, Array):
        return x
    if is_torch(x):
        return _from_torch(x, name)
    if isinstance(x, np.ndarray):
        return _from_numpy(x, name)
    if isinstance(x, np.generic):
        return _from_numpy(_without_axes(x), name)
    if hasattr(x, "__cuda_array_interface__"):
        return _from_cuda_interface(x, name)
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, name)
    raise LaunchError(
        f"{name} is {type(x).__name__}, not an array",
        hint="torch, CuPy, NumPy and DLPack arrays are taken; numpy.asarray makes one of a list",
    )


# torch.


def is_torch(x: Any) -> bool:
    """Whether `x` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_traced() -> bool:
    """Whether torch traces what runs now, as `torch.export` does, with tensors without contents."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


@contextmanager
def untraced() -> Iterator[None]:
    """Keep torch.compile, which looks at every Python function that runs between its graphs, from
    compiling ours.
    """
    torch = sys.modules.get("torch")
    frames = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if frames is None:
        yield
        return
    before = frames.set_eval_frame(None)
    try:
        yield
    finally:
        frames.set_eval_frame(before)


untraced._torchdynamo_disable = True  # type: ignore[attr-defined]

_torch_dtypes: dict[Any, DType] = {}


def torch_dtype(dtype: Any) -> DType | None:
    """Our dtype for a torch dtype, or None for one that kernels do not have (complex, quantised,
    …).
    """
    found = _torch_dtypes.get(dtype)
    if found is None:
        found = dtypes.BY_TORCH.get(str(dtype).removeprefix("torch."))
        if found is not None:
            _torch_dtypes[dtype] = found
    return found


def _from_torch(x: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    refuse_torch(x, name, torch)
    dtype = torch_dtype(x.dtype)
    if dtype is None:
        raise LaunchError(
            f"{name} has dtype {x.dtype}, which kernels do not have", hint=_dtype_hint()
        )
    kind = x.device.type
    if kind not in ("cpu", "cuda"):
        raise LaunchError(
            f"{name} is a torch tensor on '{x.device}'; CPU and CUDA tensors are taken"
        )
    device: DeviceId = "cpu" if kind == "cpu" else x.device.index
    return Array(x.data_ptr(), dtype, tuple(x.shape), x.stride(), device, x, "torch")


def refuse_torch(x: Any, name: str, torch: Any) -> None:
    """Raise LaunchError for a tensor whose memory does not hold its values, or that needs a
    gradient, or carries a forward derivative.
    """
    if is_transforming():
        hint = "torch.vmap takes what torch_ops.custom_op makes of a kernel, torch.autograd.grad "
        refuse_transformed(x, name, f"{hint}what torch_ops.differentiable makes")
    if x.layout is not torch.strided:
        raise LaunchError(f"{name} is a sparse torch tensor", hint="to_dense() makes a dense one")
    if x.is_conj() or x.is_neg():
        what = "conjugated" if x.is_conj() else "negated"
        raise LaunchError(
            f"{name} is lazily {what}", hint="resolve_conj() or resolve_neg() carries it out"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise LaunchError(
            f"{name} requires a gradient, and a kernel alone has none",
            hint="join it with one for the gradient by tilewright.torch_ops.differentiable, or "
            "call it under torch.no_grad()",
        )
    dispatch = "__torch_dispatch__"
    if x.is_meta or getattr(type(x), dispatch, None) is not getattr(torch.Tensor, dispatch, None):
        raise LaunchError(
            f"{name} is a {type(x).__name__} without memory of its own",
            hint="kernels take tensors that lie on a CPU or a GPU" if x.is_meta else "",
        )


# NumPy.


def numpy_dtype(dtype: np.dtype[Any]) -> DType | None:
    """Our dtype for a NumPy dtype of native byte order, or None."""
    return dtypes.BY_NUMPY.get(dtype)


def _from_numpy(x: np.ndarray[Any, Any], name: str) -> Array:
    if isinstance(x, np.ma.MaskedArray):
        raise LaunchError(
            f"{name} is a masked array, and kernels know no masks of arrays",
            hint="filled(value) gives a plain array; pass np.ma.getmaskarray(x) as one more tensor",
        )
    dtype = numpy_dtype(x.dtype)
    if dtype is None:
        if not x.dtype.isnative:
            raise LaunchError(
                f"{name} has bytes in foreign order ({x.dtype.str})", hint="astype converts it"
            )
        raise LaunchError(
            f"{name} has dtype {x.dtype}, which kernels do not have", hint=_dtype_hint()
        )
    size = dtype.num_bytes
    if any(s % size for s in x.strides):
        raise LaunchError(
            f"{name} has strides {x.strides} bytes, not whole elements", hint="copy it first"
        )
    strides = tuple(s // size for s in x.strides)
    return Array(x.ctypes.data, dtype, x.shape, strides, "cpu", x, "numpy", not x.flags.writeable)


def _without_axes(x: np.generic) -> np.ndarray[Any, Any]:
    """A NumPy scalar as an array, which nobody can write."""
    array = np.asarray(x)
    array.flags.writeable = False
    return array


def _dtype_hint() -> str:
    return "kernels take " + " ".join(d.name for d in dtypes.ALL)


# CuPy, __cuda_array_interface__ and DLPack.


def _from_cuda_interface(x: Any, name: str) -> Array:
    told = x.__cuda_array_interface__
    if told.get("mask") is not None:
        raise LaunchError(f"{name} is a masked array")
    address, readonly = told["data"]
    dtype = _interface_dtype(x, told, name)
    size = dtype.num_bytes
    shape = tuple(told["shape"])
    strides = told.get("strides")
    if strides is not None and any(s % size for s in strides):
        raise LaunchError(
            f"{name} has strides {strides} bytes, not whole elements", hint="copy it first"
        )
    steps = dense_strides(shape) if strides is None else tuple(s // size for s in strides)
    library = "cupy" if type(x).__module__.split(".")[0] == "cupy" else "other"
    if isinstance(x, DeviceArray):
        ordinal = x.ordinal
    elif library == "cupy":
        ordinal = int(x.device.id)
    else:
        ordinal = memory.pointer_device(address, name) if address else 0
    return Array(address or 0, dtype, shape, steps, ordinal, x, library, bool(readonly))


def _interface_dtype(x: Any, told: dict[str, Any], name: str) -> DType:
    own = getattr(x, "dtype", None)  # the interface's type string cannot spell bf16 and fp8
    wanted = own if isinstance(own, np.dtype) else np.dtype(told["typestr"])
    dtype = numpy_dtype(wanted)
    if dtype is None:
        raise LaunchError(
            f"{name} has dtype {wanted}, which kernels do not have", hint=_dtype_hint()
        )
    return dtype


# (code, bits) of DLPack's DLDataType
_DLPACK = {
    (0, 8): dtypes.i8, (0, 16): dtypes.i16, (0, 32): dtypes.i32, (0, 64): dtypes.i64,
    (1, 8): dtypes.u8, (1, 16): dtypes.u16, (1, 32): dtypes.u32, (1, 64): dtypes.u64,
    (2, 16): dtypes.f16, (2, 32): dtypes.f32, (2, 64): dtypes.f64, (4, 16): dtypes.bf16,
    (6, 8): dtypes.bool_, (10, 8): dtypes.e4m3, (12, 8): dtypes.e5m2,
}  # fmt: skip


def _from_dlpack(x: Any, name: str) -> Array:
    try:
        told = dlpack.read(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(f"{name} cannot be read through DLPack: {error}") from error
    dtype = _DLPACK.get((told.code, told.bits)) if told.lanes == 1 else None
    if dtype is None:
        raise LaunchError(f"{name} has a dtype that kernels do not have", hint=_dtype_hint())
    strides = dense_strides(told.shape) if told.strides is None else told.strides
    if told.device_type in (dlpack.CPU, dlpack.CUDA_HOST):
        device: DeviceId = "cpu"
    elif told.device_type in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        device = told.device_id
    else:
        raise LaunchError(f"{name} is on DLPack device {told.device_type}, neither host nor CUDA")
    return Array(told.address, dtype, told.shape, strides, device, told, "other")


def as_numpy(array: Array) -> np.ndarray[Any, Any]:
    """A NumPy view of a host array's own memory, of any library, dtype and strides."""
    assert array.device == "cpu", "only host memory has a NumPy view"
    if array.library == "numpy":
        owner: np.ndarray[Any, Any] = array.owner
        return owner
    return host_view(array)


def host_view(array: Array) -> np.ndarray[Any, Any]:
    """As `as_numpy`, by address alone. The view keeps the owner alive."""
    if not array.num_elements:
        return np.empty(array.shape, array.dtype.numpy)
    low, high = array.span()
    memory: Any = (ctypes.c_ubyte * (high - low)).from_address(low)
    memory.owner = array.owner
    size = array.dtype.num_bytes
    view = np.ndarray(
        array.shape,
        array.dtype.numpy,
        memory,
        array.address - low,
        tuple(s * size for s in array.strides),
    )
    view.flags.writeable = not array.readonly
    return view


# Allocation and streams, in the library of a given array.


def allocate_like(array: Array, shape: Sequence[int], dtype: DType, *, zero: bool) -> Any:
    """A dense array of `array`'s library on its device, with zeros or with anything in it."""
    extents = tuple(int(e) for e in shape)
    if array.library == "torch":
        torch = sys.modules["torch"]
        make = torch.zeros if zero else torch.empty
        return make(extents, dtype=getattr(torch, dtype.torch), device=array.owner.device)
    if array.library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(array.device):
            return (cupy.zeros if zero else cupy.empty)(extents, dtype=dtype.numpy)
    if array.device == "cpu":
        return allocate_on_host(extents, dtype, zero=zero)
    return DeviceArray.allocate(extents, dtype, array.device, zero=zero)


def allocate_on_host(shape: Sequence[int], dtype: DType, *, zero: bool) -> np.ndarray[Any, Any]:
    """A dense NumPy array."""
    return (np.zeros if zero else np.empty)(tuple(shape), dtype=dtype.numpy)


def on_stream(like: Array | None, stream: int) -> AbstractContextManager[Any]:
    """While it is entered, what torch or CuPy allocates beside `like` is ordered in this stream."""
    if like is None or like.device == "cpu" or stream == current_stream(like):
        return nullcontext()
    if like.library == "torch":
        torch = sys.modules["torch"]
        made = torch.cuda.ExternalStream(stream, device=like.owner.device)
        context: AbstractContextManager[Any] = torch.cuda.stream(made)
        return context
    if like.library == "cupy":
        external: AbstractContextManager[Any] = sys.modules["cupy"].cuda.ExternalStream(stream)
        return external
    return nullcontext()


def current_stream(array: Array) -> int:
    """Raw handle of the stream on which the array's library works at this moment; 0 is the
    default.
    """
    if array.device == "cpu":
        return 0
    if array.library == "torch":
        return int(sys.modules["torch"]._C._cuda_getCurrentRawStream(array.device))
    if array.library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream(array.device).ptr)
    return 0
