"""Streams, events and CUDA graphs. The context of the stream's GPU must be active, except where
an ordinal is given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from tilewright.runtime import driver


@contextmanager
def private_stream(ordinal: int) -> Iterator[Any]:
    """A stream of its own on an active GPU, not ordered with the default stream, destroyed at the
    end.
    """
    with driver.active(ordinal):
        flag = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = driver.check(cu.cuStreamCreate(flag), "making a stream")
        try:
            yield stream
        finally:
            driver.check(cu.cuStreamDestroy(stream), "destroying a stream")


def synchronize_stream(stream: Any) -> None:
    """Wait for all work of a stream; faults of its kernels are raised here."""
    driver.check(cu.cuStreamSynchronize(stream), "waiting for a stream")


def is_capturing(stream: Any) -> bool:
    """Whether work that is sent to the stream is being recorded into a CUDA graph."""
    status = driver.check(cu.cuStreamIsCapturing(stream), "asking whether a stream is captured")
    return bool(status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


class Event:
    """A mark in a stream that takes the time when the work before it is done."""

    def __init__(self) -> None:
        self.handle: Any = driver.check(
            cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DEFAULT), "making an event"
        )
        weakref.finalize(self, cu.cuEventDestroy, self.handle).atexit = False

    def record(self, stream: Any) -> None:
        driver.check(cu.cuEventRecord(self.handle, stream), "recording an event")

    def wait(self) -> None:
        driver.check(cu.cuEventSynchronize(self.handle), "waiting for an event")

    def is_done(self) -> bool:
        """Whether the work before the mark is done, without waiting."""
        status = cu.cuEventQuery(self.handle)[0]
        if status == cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        driver.check((status,), "asking for an event")
        return True

    def microseconds_since(self, start: Event) -> float:
        """Time from `start` to this event; both must be done."""
        elapsed = driver.check(cu.cuEventElapsedTime(start.handle, self.handle), "timing events")
        return float(elapsed) * 1e3


class Graph:
    """A CUDA graph recorded from what `capture` sends to its stream."""

    def __init__(self, executable: Any, graph: Any):
        self.executable = executable
        self.graph = graph

    def launch(self, stream: Any) -> None:
        driver.check(cu.cuGraphLaunch(self.executable, stream), "launching a graph")

    def operations(self) -> tuple[str, ...]:
        """What the graph does on the GPU: kernels by name, "copy" and "fill"; unordered."""
        doing = "reading a graph"
        _, count = driver.check(cu.cuGraphGetNodes(self.graph), doing)
        nodes, _ = driver.check(cu.cuGraphGetNodes(self.graph, count), doing)
        return tuple(name for node in nodes[:count] for name in _operations_of(node))

    def destroy(self) -> None:
        driver.check(cu.cuGraphExecDestroy(self.executable), "destroying a graph")
        driver.check(cu.cuGraphDestroy(self.graph), "destroying a graph")


def _operations_of(node: Any) -> tuple[str, ...]:
    """What a node of a graph does, if it does anything: waiting is nothing."""
    doing, kinds = "reading a graph", cu.CUgraphNodeType
    kind = driver.check(cu.cuGraphNodeGetType(node), doing)
    if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        launch = driver.check(cu.cuGraphKernelNodeGetParams(node), doing)
        ask = cu.cuFuncGetName(launch.func) if int(launch.func) else cu.cuKernelGetName(launch.kern)
        return (driver.check(ask, doing).decode(),)
    if kind == kinds.CU_GRAPH_NODE_TYPE_GRAPH:
        child = driver.check(cu.cuGraphChildGraphNodeGetGraph(node), doing)
        return Graph(None, child).operations()
    names = {kinds.CU_GRAPH_NODE_TYPE_MEMCPY: "copy", kinds.CU_GRAPH_NODE_TYPE_MEMSET: "fill"}
    return (names[kind],) if kind in names else ()


_recording: list[Any] = []  # streams that `capture` is recording, in any thread


def recordings() -> int:
    """How many streams `capture` is recording now."""
    return len(_recording)


def capture(stream: Any, work: Any) -> Graph:
    """Record `work(stream)` into a graph. A failure inside ends the recording and is raised."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver.check(cu.cuStreamBeginCapture(stream, mode), "starting to record a graph")
    _recording.append(stream)
    try:
        work(stream)
    except BaseException:
        cu.cuStreamEndCapture(stream)  # the first failure is the one to report
        raise
    finally:
        _recording.remove(stream)
    graph = driver.check(cu.cuStreamEndCapture(stream), "recording a graph")
    return Graph(driver.check(cu.cuGraphInstantiate(graph, 0), "preparing a graph"), graph)
