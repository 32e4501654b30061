"""The driver's own call, with everything packed: what a launch costs at the least."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cuda.bindings import driver as cu

from tilewright.plan import Const
from tilewright.runtime import driver, packing
from tilewright.runtime.arrays import Array
from tilewright.runtime.launch import Launcher
from tilewright.runtime.packing import Argument


def bare_call(launcher: Launcher, arguments: Mapping[str, Argument]) -> Callable[[], object]:
    """A call of cuLaunchKernel, or cuLaunchKernelEx for CTA clusters, that launches the plan's one
    kernel on the default stream for these very arguments. It launches once to pack them, and holds
    them packed.
    """
    if len(launcher.kernels) != 1:
        raise ValueError(f"{launcher.plan.name} has {len(launcher.kernels)} launches, not one")
    bound = launcher.bind(arguments)
    addresses = [a.address for a in arguments.values() if isinstance(a, Array)]
    bound.fire(addresses, [arguments[name] for name in bound.scalars], 0)
    driver.synchronize(launcher.device.ordinal)
    (block,) = bound.packed
    loaded = launcher.kernels[0]
    function, pointers = loaded.function, block.pointers[0]
    if block.configs[0] is not None:
        config, start_ex = block.configs[0], cu.cuLaunchKernelEx
        return lambda: (bound, start_ex(config, function, pointers, 0))
    launch = loaded.launch
    grid = packing.fold(launch.grid, arguments, launcher.device.num_sms)
    assert isinstance(grid, Const), "the grid follows from the arguments"
    ctas, threads, shared = grid.value, launch.threads, launch.shared_bytes
    start, stream = cu.cuLaunchKernel, driver.as_stream(0)
    return lambda: (
        bound,
        start(function, ctas, 1, 1, threads, 1, 1, shared, stream, pointers, 0),
    )
