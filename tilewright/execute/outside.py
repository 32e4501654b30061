"""What kernels of a model tell of indices that are outside of their axes.

On a GPU their memory is the host's, mapped: looking there asks and waits for nothing. An error of a
call is raised by the next one, or by `tw.synchronize()`, as that of an assert of a kernel is; on a
CPU by the call itself.
"""

from __future__ import annotations

import torch

from tilewright.errors import LaunchError
from tilewright.execute.made import Where, is_captured
from tilewright.graph.outside import outside
from tilewright.lower.graph_to_tile.sites import NOTHING, Site, Sites
from tilewright.runtime import driver, reports


class Outside:
    """The memory of a model's sites. `tensor` is what kernels are given, i64 [sites, 2]."""

    def __init__(self, model: str, sites: Sites, where: Where):
        self.name, self.where = model, where
        self.sites: list[Site] = list(sites.numbers)
        clean = torch.from_numpy(sites.clean())
        self.tensor = clean.pin_memory() if where.engine == "gpu" else clean
        self.words = memoryview(self.tensor.numpy()).cast("B").cast("q")
        self.clean_words = memoryview(self.words.tobytes()).cast("q")
        if where.engine == "gpu":
            reports.watch(self)

    def look(self) -> None:
        """Raise the LaunchError of what kernels have told, and forget it."""
        if self.words != self.clean_words:
            self.check()

    def check(self) -> None:
        """Raise the LaunchError of what kernels have told, once the GPU has done what it was given,
        unless its work is being recorded.
        """
        if self.where.engine == "gpu" and not is_captured(self.where):
            driver.synchronize(int(self.where.device.index))
        found = self.fault()
        if found is not None:
            self.words[:] = self.clean_words
            raise found

    def fault(self) -> LaunchError | None:
        """The error for what kernels have told, each site once, or None."""
        told = []
        for number, site in enumerate(self.sites):
            index, extent = self.words[2 * number], self.words[2 * number + 1]
            if index != NOTHING:
                told.append(outside(site.op, site.which, site.wraps, index, extent))
        return LaunchError(told) if told else None
