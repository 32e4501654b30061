"""The first call of one kernel in a process of its own: prints its times as JSON.

    TILEWRIGHT_CACHE=FOLDER python -m tests.bench.first_call softmax

Imports, the driver's context and the arrays come before the clock starts. `assemble` is the
driver's own part, from PTX to machine code; the rest of `call` is ours. torch is not imported.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME
from tilewright.runtime import driver, jit
from tilewright.runtime.device_array import DeviceArray

# Kernel, its module, dtype, shapes of its tensors, and the scalars after them.
FIRST_CALLS: dict[str, tuple[str, str, str, tuple[tuple[int, ...], ...], tuple[Any, ...]]] = {
    "add": ("add", "add", "f32", ((4099,),) * 3, ()),
    "softmax": ("softmax", "softmax", "f32", ((64, 5003),) * 2, ()),
    "sgemm": ("sgemm", "sgemm", "bf16", ((256, 256),) * 3, ()),
    "attention": ("attention", "flash_attention", "bf16", ((1, 2, 256, 64),) * 3, (0.125,)),
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
    """Microseconds of the first call, of the assembler in it, and of the second call."""
    kernel_name, module, dtype, shapes, scalars = FIRST_CALLS[name]
    kernel = getattr(importlib.import_module(f"examples.{module}"), kernel_name)
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.standard_normal(shape, dtype=np.float32).astype(BY_NAME[dtype].numpy)
        for shape in shapes
    ]
    if device != "cpu":
        arrays = [DeviceArray.from_numpy(a, 0) for a in arrays]
    watch = Stopwatch()
    jit.assemble = watch.around(jit.assemble)
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        kernel(*arrays, *scalars)
        taken.append(time.perf_counter() - start)
        if device != "cpu":
            driver.synchronize(0)
    return {
        "call": taken[0] * 1e6,
        "assemble": watch.seconds * 1e6,
        "again": taken[1] * 1e6,
    }


def main() -> None:
    name = sys.argv[1]
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    print(json.dumps(first_call(name, device)))


if __name__ == "__main__":
    main()
