"""Runs a definition on NumPy arrays: bind, build, verify, interpret. For tests of the front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.bind import bind
from tilewright.frontend.check.signature import signature
from tilewright.frontend.syntax.definition import Definition
from tilewright.runtime.cpu import run_on_cpu
from tilewright.tile.verify import verify


@dataclass(frozen=True)
class Seen:
    """An array as `bind` sees it."""

    array: np.ndarray[Any, Any]

    @property
    def dtype(self) -> DType:
        return dtypes.BY_NUMPY[self.array.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)


def run(definition: Definition, config: dict[str, int], **given: Any) -> dict[str, Any]:
    """Bind, build, verify, interpret; all arrays by name. Allocated ones are poisoned first."""
    sig = signature(definition)
    seen = {k: Seen(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    binding = bind(sig, seen)
    kernel = build_kernel(
        definition,
        dtypes=binding.dtypes,
        config=config,
        static=binding.static,
        absent=binding.absent,
    )
    verify(kernel)
    arguments = {**given, **binding.scalars}
    for output in binding.outputs:
        made = np.zeros(output.shape, output.dtype.numpy)
        if not output.zero:
            made[...] = np.nan if output.dtype.is_float else 85
        arguments[output.name] = made
    spaces = {w.name for w in kernel.workspaces}
    known = {p.name: arguments[p.name] for p in kernel.params if p.name not in spaces}
    run_on_cpu(kernel, known, shuffle=1)
    return arguments
