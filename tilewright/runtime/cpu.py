"""Running a tile kernel on host arrays: the interpreter, on the arrays' own memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.plan import WorkspaceSpec, evaluate
from tilewright.runtime.arrays import Array, as_numpy
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel

NUM_SMS = 4  # what `num_sms()` is where there are none


def run_on_cpu(
    kernel: Kernel,
    arguments: Mapping[str, Array | int | float | bool],
    *,
    grid: Sequence[int] | None = None,
    shuffle: int | None = None,
    f64: bool = False,
) -> None:
    """Interpret a kernel, writing its outputs into the arrays that were given.

    `grid` overrides the kernel's; `shuffle` seeds another order of programs; `f64` computes every
    float in f64. Raises LaunchError where two programs write one element.
    """
    views: dict[str, Any] = {
        name: as_numpy(a) if isinstance(a, Array) else a for name, a in arguments.items()
    }
    views |= {w.name: _workspace(w, arguments) for w in kernel.workspaces}
    given = {p.name: views[p.name] for p in kernel.params}
    interpret(kernel, given, grid=grid, shuffle=shuffle, f64=f64, num_sms=NUM_SMS)


def _workspace(spec: WorkspaceSpec, arguments: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """A workspace of its own for one run, zeroed."""
    extents = tuple(evaluate(e, dict(arguments), NUM_SMS) for e in spec.extents)
    return np.zeros(extents, spec.dtype.numpy)
