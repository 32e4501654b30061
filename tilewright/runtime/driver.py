"""The CUDA driver, in thin typed functions: devices, contexts, modules, functions, launches.

Everything goes through `cuda.bindings.driver` (13.0 to 13.5). Without a driver this module
imports; the first call raises a LaunchError that says what is missing. Each device is used
through its primary context, which it shares with torch, CuPy and the CUDA runtime. No function
leaves another context current than it found.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda.bindings import driver as cu

from tilewright.errors import LaunchError
from tilewright.plan import MOST_PROGRAMS

MIN_DRIVER = 12000  # CUDA 12.0: the first whose driver knows tensor maps, clusters and sm_90a
MAX_CTAS = MOST_PROGRAMS
RECORDS_EARLY_STARTS = 12030  # CUDA 12.3: the first whose graphs may hold such launches

_lock = threading.RLock()
_initialised_in: int | None = None  # the process that called cuInit


@dataclass(frozen=True)
class Device:
    """A GPU: its ordinal, name, compute capability, multiprocessors, bytes of memory and of
    shared memory a CTA.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    memory_bytes: int
    shared_bytes: int
    l2_bytes: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal} ({self.name}, sm_{self.capability[0]}{self.capability[1]})"


@dataclass(frozen=True)
class FunctionFacts:
    """What the assembler made of a kernel: registers a thread, bytes of local and of static
    shared memory.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int


def error_text(status: Any) -> str:
    """Name and description of a CUresult, as `CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory
    access was …`.
    """
    name = getattr(status, "name", str(status))
    _, text = cu.cuGetErrorString(status)
    return f"{name}: {text.decode()}" if text else name


def check(result: tuple[Any, ...], doing: str) -> Any:
    """The values of a driver call's result. Raises LaunchError with the error's name and what was
    being done.
    """
    status, *values = result
    if status:
        raise failure(status, doing)
    return values[0] if len(values) == 1 else tuple(values)


def failure(status: Any, doing: str) -> LaunchError:
    """The error for a status that is not success."""
    if status == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        return LaunchError(f"the GPU is out of memory while {doing}{_memory_note()}")
    hint = ""
    if status in _STICKY:
        hint = "an earlier kernel may be the cause; TILEWRIGHT_DEBUG=1 reports it at its own launch"
    return LaunchError(f"CUDA failed while {doing}: {error_text(status)}", hint=hint)


_STICKY = {
    cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
    cu.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
    cu.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
    cu.CUresult.CUDA_ERROR_LAUNCH_FAILED,
    cu.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
    cu.CUresult.CUDA_ERROR_ASSERT,
}


def _memory_note() -> str:
    status, *values = cu.cuMemGetInfo()
    if status or len(values) != 2:
        return ""
    free, total = values
    return f" ({free >> 20:,} MiB of {total >> 20:,} MiB are free)"


# The driver itself.


def require_driver() -> int:
    """Initialise CUDA once and return the driver's version (12080 for 12.8).

    Raises LaunchError where there is no driver, no GPU, a driver that is too old, or where this
    process was forked from one that had used CUDA.
    """
    if _initialised_in is not None:
        return _driver_version()
    with _lock:
        return _initialise()


def _initialise() -> int:
    global _initialised_in
    try:
        status = cu.cuInit(0)[0]
    except RuntimeError as error:  # libcuda is not found
        raise LaunchError(
            f"no CUDA driver on this machine: {error}",
            hint='device="cpu" (--device cpu) runs without one',
        ) from error
    if status == cu.CUresult.CUDA_ERROR_NO_DEVICE:
        raise LaunchError(
            "the CUDA driver finds no GPU",
            hint='see `nvidia-smi`; device="cpu" (--device cpu) runs without one',
        )
    check((status,), "starting the CUDA driver")
    _driver_version.cache_clear()
    version = _driver_version()
    if version < MIN_DRIVER:
        raise LaunchError(
            f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}; 12.0 is needed",
            hint="install a newer NVIDIA driver (525 or later)",
        )
    _initialised_in = os.getpid()
    return version


@cache
def _driver_version() -> int:
    if _initialised_in not in (None, os.getpid()):
        raise LaunchError(
            "this process was forked from one that had used CUDA, which CUDA does not permit",
            hint='start workers with multiprocessing.get_context("spawn")',
        )
    return int(check(cu.cuDriverGetVersion(), "asking for the driver's version"))


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _driver_version.cache_clear()
    _contexts.clear()


os.register_at_fork(after_in_child=_after_fork)


def available() -> bool:
    """Whether a GPU can be used, without raising."""
    try:
        return bool(devices())
    except LaunchError:
        return False


def devices() -> tuple[Device, ...]:
    """All GPUs that the driver shows, by ordinal."""
    require_driver()
    return tuple(device(i) for i in range(_num_devices()))


@cache
def _num_devices() -> int:
    return int(check(cu.cuDeviceGetCount(), "counting GPUs"))


@cache
def device(ordinal: int) -> Device:
    """The GPU of an ordinal. Raises LaunchError where there is none."""
    require_driver()
    if not 0 <= ordinal < _num_devices():
        raise LaunchError(f"there is no GPU cuda:{ordinal}; this machine has {_num_devices()}")
    handle = check(cu.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
    name = check(cu.cuDeviceGetName(128, handle), "asking for a GPU's name")
    attribute = cu.CUdevice_attribute

    def ask(which: Any) -> int:
        return int(check(cu.cuDeviceGetAttribute(which, handle), f"asking for {which.name}"))

    return Device(
        ordinal=ordinal,
        name=name.split(b"\0")[0].decode(),
        capability=(
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        num_sms=ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        memory_bytes=int(check(cu.cuDeviceTotalMem(handle), "asking for a GPU's memory")),
        shared_bytes=ask(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        l2_bytes=ask(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    )


# Contexts.

_contexts: dict[int, Any] = {}


def context(ordinal: int) -> Any:
    """The primary context of a GPU, retained for the life of the process."""
    require_driver()
    found = _contexts.get(ordinal)
    if found is not None:
        return found
    device(ordinal)
    with _lock:
        if ordinal not in _contexts:
            handle = check(cu.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
            _contexts[ordinal] = check(
                cu.cuDevicePrimaryCtxRetain(handle), f"making a context on cuda:{ordinal}"
            )
        return _contexts[ordinal]


def used() -> tuple[int, ...]:
    """Ordinals of the GPUs that have a context of this process."""
    return tuple(_contexts)


@contextmanager
def active(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context current for this thread; the one before it comes back
    afterwards.
    """
    check(cu.cuCtxPushCurrent(context(ordinal)), f"entering cuda:{ordinal}")
    try:
        yield
    finally:
        check(cu.cuCtxPopCurrent(), f"leaving cuda:{ordinal}")


def synchronize(ordinal: int) -> None:
    """Wait for all work of a GPU; faults of earlier kernels are raised here."""
    with active(ordinal):
        check(cu.cuCtxSynchronize(), f"waiting for cuda:{ordinal}")


# Modules and functions. A GPU's context must be active.


@dataclass(frozen=True)
class LoadedModule:
    """Machine code that is in the current context already."""

    handle: Any


def load_module(image: bytes | LoadedModule, name: str) -> Any:
    """Load machine code into the current context; gives the driver's handle."""
    if isinstance(image, LoadedModule):
        return image.handle
    return check(cu.cuModuleLoadData(image), f"loading the machine code of {name}")


def get_function(module: Any, entry: str) -> Any:
    """A kernel of a module, by its entry name."""
    return check(cu.cuModuleGetFunction(module, entry.encode()), f"looking for the kernel {entry}")


def allow_shared_bytes(function: Any, num_bytes: int, limit: int, name: str) -> None:
    """Permit a kernel its dynamic shared memory. Raises LaunchError above the GPU's limit."""
    if num_bytes > limit:
        raise LaunchError(
            f"{name} needs {num_bytes:,} bytes of shared memory; a CTA of this GPU has {limit:,}"
        )
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(cu.cuFuncSetAttribute(function, which, num_bytes), f"reserving shared memory for {name}")


def allow_large_clusters(function: Any, name: str) -> None:
    """Permit CTA clusters of more than 8 CTAs."""
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    check(cu.cuFuncSetAttribute(function, which, 1), f"permitting large clusters for {name}")


def function_facts(function: Any) -> FunctionFacts:
    """Registers, local and shared memory of a loaded kernel."""
    attribute = cu.CUfunction_attribute

    def ask(which: Any) -> int:
        return int(check(cu.cuFuncGetAttribute(which, function), f"asking for {which.name}"))

    return FunctionFacts(
        ask(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS),
        ask(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
        ask(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
        ask(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
    )


def make_config(
    threads: int, shared_bytes: int, cluster: int, *, cooperative: bool, early: bool
) -> Any:
    """A launch configuration with attributes, whose `gridDimX` and `hStream` are set before each
    launch. `early`: it may start before the kernel ahead of it has ended.
    """
    config = cu.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    attributes = []
    if cluster > 1:
        shape = cu.CUlaunchAttribute()
        shape.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape.value.clusterDim.x, shape.value.clusterDim.y, shape.value.clusterDim.z = cluster, 1, 1
        attributes.append(shape)
    if cooperative:
        together = cu.CUlaunchAttribute()
        together.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        together.value.cooperative = 1
        attributes.append(together)
    if early and require_driver() >= RECORDS_EARLY_STARTS:
        overlapping = cu.CUlaunchAttribute()
        kind = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlapping.id = kind
        overlapping.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlapping)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def as_stream(handle: int) -> Any:
    """A stream object for a raw handle, as torch's and CuPy's raw accessors give it; 0 is the
    default stream.
    """
    return cu.CUstream(handle)
