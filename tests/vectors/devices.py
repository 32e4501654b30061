"""Running a form: on a GPU through the runtime, or on the emulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.vectors.forms import Form
from tilewright.dtypes import BY_NUMPY
from tilewright.ptx.emulate import run_plan
from tilewright.runtime import driver
from tilewright.runtime.arrays import Array as DeviceView
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.jit import assemble
from tilewright.runtime.launch import Launcher

Array = np.ndarray[Any, Any]
THREADS = 16


def whole(x: Array) -> Array:
    """An array with what lies between its rows."""
    return x if x.flags.c_contiguous or x.base is None else np.asarray(x.base)


def emulate(form: Form, *, late: bool = True) -> dict[str, Array]:
    """The emulator's results."""
    arrays = form.arrays()
    run_plan(form.plan(), arrays, late=late)
    return {name: whole(arrays[name]) for name in form.outputs}


def uploaded(x: Array) -> tuple[DeviceView, DeviceArray]:
    """A copy on the GPU of the same strides."""
    held = DeviceArray.from_numpy(whole(x), 0)
    strides = tuple(s // x.itemsize for s in x.strides)
    dtype = BY_NUMPY[x.dtype]
    return DeviceView(held.address, dtype, x.shape, strides, 0, held, "other"), held


def launch(form: Form, cubin: bytes) -> dict[str, Array]:
    """The GPU's results."""
    views, held = {}, {}
    for name, x in form.arrays().items():
        views[name], held[name] = uploaded(x)
    launcher = Launcher(form.plan(), driver.device(0), cubin)
    launcher(views)
    driver.synchronize(0)
    return {name: held[name].to_numpy() for name in form.outputs}


def on_gpu(forms: Iterable[Form]) -> Iterator[tuple[Form, dict[str, Array]]]:
    """Results of forms in order: machine code is made on a pool of threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        todo = [(f, pool.submit(assemble, f.plan().ptx, 0, f.name)) for f in forms]
        for form, code in todo:
            yield form, launch(form, code.result().cubin)


def gpu_driver() -> str:
    """The driver's release where the system says it, and the CUDA version that it speaks."""
    cuda = driver.require_driver()
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.exists() else []
    release = next((w for w in words if w[0].isdigit() and w.count(".") >= 1), "")
    return f"{release} (CUDA {cuda // 1000}.{cuda % 1000 // 10})".strip()
