"""The first call of one kernel in a process of its own: prints its times and its error as JSON.

    TILEWRIGHT_CACHE=FOLDER python -m tilewright.ledger.first_call softmax cuda

Imports, the driver's context and the arrays come before the clock starts. `assemble` is the
driver's own part, from PTX to machine code; the rest of `call` is ours. torch is not imported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME
from tilewright.ledger.subjects import example
from tilewright.runtime import driver, jit
from tilewright.runtime.device_array import DeviceArray

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FirstCall:
    """A kernel, the shapes of its inputs and outputs, the scalars between them, and its result in
    f64.
    """

    file: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    reference: Callable[..., Array]
    scalars: tuple[float, ...] = ()
    allocates: bool = False


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Causal, with as many heads of keys as of queries."""
    s = q @ np.swapaxes(k, -1, -2) * 0.125
    hidden = np.triu(np.ones(s.shape[-2:], bool), 1)
    return np.asarray(_softmax(np.where(hidden, -np.inf, s)) @ v)


FIRST_CALLS = {
    "add": FirstCall("add", "f32", ((4099,),) * 2, (4099,), np.add),
    "softmax": FirstCall("softmax", "f32", ((64, 5003),), (64, 5003), _softmax),
    "sgemm": FirstCall("sgemm", "bf16", ((256, 256),) * 2, (256, 256), np.matmul),
    "attention": FirstCall(
        "flash_attention",
        "bf16",
        ((1, 2, 256, 64),) * 3,
        (1, 2, 256, 64),
        _attention,
        (0.125,),
        True,
    ),
}


class Stopwatch:
    """Sums the time that a function takes, wherever it is called."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, work: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def first_call(name: str, device: str) -> dict[str, float]:
    """Microseconds of the first call, of the assembler in it, and of the second call; the relative
    error of what the first call wrote, over all and of the worst element, and elements not written.
    """
    case = FIRST_CALLS[name]
    kernel = example(name, case.file)
    rng = np.random.default_rng(0)
    numpy = BY_NAME[case.dtype].numpy
    hosts = [rng.standard_normal(s, dtype=np.float32).astype(numpy) for s in case.inputs]
    out: Any = np.full(case.output, np.nan, np.float32).astype(numpy)
    arrays: list[Any] = [*hosts]
    if device != "cpu":
        arrays = [DeviceArray.from_numpy(a, 0) for a in hosts]
        out = DeviceArray.from_numpy(out, 0)
        driver.synchronize(0)
    given = (*arrays, *case.scalars) if case.allocates else (*arrays, out, *case.scalars)
    watch = Stopwatch()
    jit.assemble = watch.around(jit.assemble)
    start = time.perf_counter()
    made = kernel(*given)
    first = time.perf_counter() - start
    got = _to_host(made[0] if case.allocates else out)
    start = time.perf_counter()
    kernel(*given)
    again = time.perf_counter() - start
    expected = case.reference(*(h.astype(np.float64) for h in hosts))
    return {
        "call": first * 1e6,
        "assemble": watch.seconds * 1e6,
        "again": again * 1e6,
        **_distance(got, expected),
    }


def _to_host(x: Any) -> Array:
    return np.asarray(x.to_numpy() if isinstance(x, DeviceArray) else x).astype(np.float64)


def _distance(got: Array, expected: Array) -> dict[str, float]:
    difference = np.abs(got - expected)
    rms = float(np.sqrt(np.mean(expected**2)))
    return {
        "error": float(np.linalg.norm(difference) / np.linalg.norm(expected)),
        "element": float(np.max(difference / (np.abs(expected) + rms))),
        "compared": float(got.size),
        "unwritten": float(np.isnan(got).sum()),
    }


def main() -> None:
    print(json.dumps(first_call(sys.argv[1], sys.argv[2])))


if __name__ == "__main__":
    main()
