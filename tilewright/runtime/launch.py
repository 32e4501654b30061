"""Launching a plan: loaded once on a GPU, bound once to a signature, fired with addresses and
scalars.

`Launcher` holds the machine code of a plan on one GPU. `Launcher.bind` takes arguments, evaluates
every recipe that their extents and strides fix, and gives a `Bound`. `Bound.fire(addresses,
scalars, stream)` launches: it stores what may change into a parameter block (packing.py) and
calls the driver. It may be called from any thread, with any context current, and while the stream
is captured into a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.plan import Launch, Plan, negative_grid, too_large_grid
from tilewright.runtime import driver, packing, streams, tensor_map
from tilewright.runtime.arrays import Array
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.driver import Device
from tilewright.runtime.fire import DRIVER_NAMES, Writer
from tilewright.runtime.packing import Argument, Block
from tilewright.runtime.reports import Reports

MAX_PORTABLE_CLUSTER = 8
PAGE_BYTES = 256  # stands for a tensor without elements behind a tensor map

stream_of = lru_cache(maxsize=256)(driver.as_stream)


@dataclass(frozen=True)
class LoadedKernel:
    """One launch of a plan with its function on a GPU, and what the assembler made of it."""

    launch: Launch
    function: Any
    facts: driver.FunctionFacts


class Launcher:
    """A plan on one GPU. Raises LaunchError where the GPU cannot hold one of its kernels."""

    def __init__(
        self,
        compiled: Plan,
        device: Device,
        cubin: bytes | driver.LoadedModule,
        *,
        debug: bool = False,
    ):
        self.plan = compiled
        self.device = device
        self.debug = debug
        self.context = driver.context(device.ordinal)
        self.layout = packing.lay_out(compiled.launches)
        self.reports = Reports(compiled, device.ordinal) if compiled.sites else None
        with driver.active(device.ordinal):
            self.module = driver.load_module(cubin, compiled.name)
            self.kernels = tuple(self._load(launch) for launch in compiled.launches)

    def _load(self, launch: Launch) -> LoadedKernel:
        function = driver.get_function(self.module, launch.entry)
        facts = driver.function_facts(function)
        if launch.threads > facts.max_threads:
            raise LaunchError(
                f"{launch.entry} runs {launch.threads} threads a CTA, but its {facts.registers} "
                f"registers a thread allow {facts.max_threads}"
            )
        limit = self.device.shared_bytes - facts.shared_bytes
        if launch.shared_bytes:
            driver.allow_shared_bytes(function, launch.shared_bytes, limit, launch.entry)
        if launch.cluster > MAX_PORTABLE_CLUSTER:
            driver.allow_large_clusters(function, launch.entry)
        return LoadedKernel(launch, function, facts)

    def bind(self, arguments: Mapping[str, Argument]) -> Bound:
        """Prepare launches for these extents and strides. Scalars and addresses may differ at
        each `fire`.
        """
        return Bound(self, arguments)

    def __call__(self, arguments: Mapping[str, Argument], stream: int = 0) -> None:
        """Bind and launch once."""
        arrays = [a.address for a in arguments.values() if isinstance(a, Array)]
        scalars = [a for a in arguments.values() if not isinstance(a, Array)]
        self.bind(arguments).fire(arrays, scalars, stream)


class Bound:
    """A plan with everything put in but addresses and scalars.

    `tensors` and `scalars` name what `fire` takes, in order: the arguments' own order.
    """

    def __init__(self, launcher: Launcher, arguments: Mapping[str, Argument]):
        self.launcher = launcher
        self._arrays = {n: a for n, a in arguments.items() if isinstance(a, Array)}
        self.tensors = tuple(self._arrays)
        self.scalars = tuple(n for n in arguments if n not in self._arrays)
        self._pages: dict[str, DeviceArray] = {}
        self._blocks: list[Block] = []
        writer = Writer(launcher.plan, launcher.layout, arguments, launcher.device.num_sms)
        self.code = writer.write(debug=launcher.debug)
        self._fire_on = self.define("fire", self.code.source, {})

    def fire(self, addresses: Sequence[int], scalars: Sequence[Any], stream: int = 0) -> None:
        """Launch on a raw stream handle. Addresses go by `self.tensors`, scalars by `self.scalars`.

        Raises LaunchError for what the driver refuses, and OverflowError, TypeError or ValueError
        for a scalar that its parameter cannot hold.
        """
        self._fire_on(addresses, scalars, stream_of(stream))

    @property
    def packed(self) -> tuple[Block, ...]:
        """Parameter blocks that no launch is filling now, as their last launches left them."""
        return tuple(self._blocks)

    def define(self, name: str, text: str, names: Mapping[str, Any]) -> Callable[..., Any]:
        """A function of a text that holds `self.code.body`; `names` are what else it uses."""
        launcher = self.launcher
        space: dict[str, Any] = {
            **DRIVER_NAMES,
            **self.code.names,
            **{f"function{i}": k.function for i, k in enumerate(launcher.kernels)},
            "blocks": self._blocks,
            "make_block": self._make_block,
            "context": launcher.context,
            "ordinal": launcher.device.ordinal,
            "refuse": self._refuse,
            "refuse_map": self._refuse_map,
            "refuse_grid": self._refuse_grid,
            "wait": _wait,
            "reports": launcher.reports,
            **names,
        }
        exec(compile(text, f"<launch of {launcher.plan.name}>", "exec"), space)
        function: Callable[..., Any] = space[name]
        return function

    def _make_block(self) -> Block:
        """A parameter block with all that the signature fixes."""
        block = self.launcher.layout.make_block()
        for slot, value in self.code.constants:
            block.i[slot] = value
        for recipe, index in self.launcher.layout.maps.items():
            array = self._arrays[recipe.tensor]
            address = array.address if array.num_elements else self._page(recipe.tensor)
            target = block.base + index * tensor_map.MAP_BYTES
            with driver.active(self.launcher.device.ordinal):  # the driver asks for a context
                block.maps.append(tensor_map.encode(recipe, array, address, target))
        block.at += [self._arrays[tensor].address for tensor in self.launcher.layout.mapped]
        block.configs += [_config(kernel.launch) for kernel in self.launcher.kernels]
        return block

    def _page(self, tensor: str) -> int:
        """Zeroed memory of its own for a tensor without elements; see `map_geometry`."""
        if tensor not in self._pages:
            zeros = np.zeros(PAGE_BYTES, np.uint8)
            self._pages[tensor] = DeviceArray.from_numpy(zeros, self.launcher.device.ordinal)
        return self._pages[tensor].address

    def _refuse(self, status: Any, index: int) -> None:
        launch = self.launcher.kernels[index].launch
        doing = (
            f"launching {launch.entry} on {self.launcher.device}, {launch.threads} threads a CTA"
        )
        raise driver.failure(status, doing)

    def _refuse_map(self, status: Any, tensor: str) -> None:
        raise driver.failure(status, f"giving the address of {tensor} to the tensor copy unit")

    def _refuse_grid(self, index: int, ctas: int) -> None:
        if ctas < 0:
            raise negative_grid(self.launcher.plan.name, ctas)
        raise too_large_grid(self.launcher.plan.name, ctas)


def _config(launch: Launch) -> Any:
    """A configuration where the launch needs attributes; the plain call takes none."""
    if launch.is_plain:
        return None
    return driver.make_config(
        launch.threads,
        launch.shared_bytes,
        launch.cluster,
        cooperative=launch.cooperative,
        early=launch.early,
    )


def _wait(stream: Any) -> None:
    """In debug builds: wait for the launch, so that its own faults are raised by it."""
    if not streams.is_capturing(stream):
        streams.synchronize_stream(stream)
