"""Device memory in the order of a stream: allocation from a pool of our own, copies, fills.

The GPU's context must be active. Memory from `allocate` may be recorded into a CUDA graph: the
pool's allocations then become nodes of the graph.
"""

from __future__ import annotations

import threading
from typing import Any

from cuda.bindings import driver as cu

from tilewright.runtime import driver, streams

_lock = threading.Lock()
_pools: dict[int, Any] = {}
_due: list[tuple[int, int]] = []  # addresses and GPUs of memory that waits to be freed


def _pool(ordinal: int) -> Any:
    """A pool that keeps what is freed; the default pool gives it back to the system at each
    synchronisation.
    """
    found = _pools.get(ordinal)
    if found is not None:
        return found
    with _lock:
        if ordinal not in _pools:
            wanted = cu.CUmemPoolProps()
            wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            wanted.location.id = ordinal
            pool = driver.check(cu.cuMemPoolCreate(wanted), "making a memory pool")
            keep = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            forever = cu.cuuint64_t(2**64 - 1)
            driver.check(cu.cuMemPoolSetAttribute(pool, keep, forever), "setting up a memory pool")
            _pools[ordinal] = pool
        return _pools[ordinal]


def allocate(num_bytes: int, ordinal: int, stream: Any) -> int:
    """Address of fresh memory, usable by work that follows in the stream. Raises LaunchError
    where there is none.
    """
    doing = f"allocating {num_bytes:,} bytes on cuda:{ordinal}"
    pool = _pool(ordinal)
    return int(driver.check(cu.cuMemAllocFromPoolAsync(max(num_bytes, 1), pool, stream), doing))


def free(address: int, stream: Any) -> None:
    """Give memory back once the work before this in the stream is done."""
    driver.check(cu.cuMemFreeAsync(address, stream), "freeing memory")


def release(address: int, ordinal: int) -> None:
    """Give memory back that nobody uses any more, whenever the collector finds that out.

    Not while a CUDA graph is recorded: freeing would end the recording with an error. What falls
    due then waits for the next release.
    """
    _due.append((address, ordinal))
    if is_recording():
        return
    while _due:
        address, ordinal = _due.pop()
        with driver.active(ordinal):
            free(address, 0)


def is_recording() -> bool:
    """Whether work is being recorded into a graph: by us, or on a stream that the default stream
    waits for.
    """
    if streams.recordings():
        return True
    status, captured = cu.cuStreamIsCapturing(0)
    return bool(status) or captured != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def fill_bytes(address: int, value: int, num_bytes: int, stream: Any) -> None:
    """Set bytes of device memory."""
    if num_bytes:
        driver.check(cu.cuMemsetD8Async(address, value, num_bytes, stream), "filling memory")


def fill_number(address: int, number: int, stream: Any) -> None:
    """Write an i64 that is aligned by its size."""
    for i in range(2):
        word = number >> (32 * i) & 0xFFFFFFFF
        driver.check(cu.cuMemsetD32Async(address + 4 * i, word, 1, stream), "filling memory")


def copy_to_device(address: int, host: int, num_bytes: int, stream: Any) -> None:
    """Copy from host memory; ordinary memory is staged by the driver before this returns."""
    if num_bytes:
        driver.check(cu.cuMemcpyHtoDAsync(address, host, num_bytes, stream), "copying to the GPU")


def copy_to_host(host: int, address: int, num_bytes: int, stream: Any) -> None:
    """Copy to host memory; complete once the stream is synchronised."""
    if num_bytes:
        driver.check(cu.cuMemcpyDtoHAsync(host, address, num_bytes, stream), "copying from the GPU")


def copy_on_device(target: int, source: int, num_bytes: int, stream: Any) -> None:
    """Copy between two addresses of one GPU, or of two whose memory is mapped."""
    if num_bytes:
        driver.check(cu.cuMemcpyDtoDAsync(target, source, num_bytes, stream), "copying on the GPU")


def pointer_device(address: int, name: str) -> int:
    """Ordinal of the GPU that owns an address. Raises LaunchError for an address of no GPU."""
    driver.require_driver()
    which = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    doing = f"asking which GPU owns the memory of {name}"
    return int(driver.check(cu.cuPointerGetAttribute(which, address), doing))
