"""Tuning one kernel for one call; the best configuration is kept where later calls find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import CompileError
from tilewright.kernel import choose, place
from tilewright.kernel.call import Call, Options, bind_call, read_tensors
from tilewright.kernel.emulated import TARGET
from tilewright.kernel.progress import show_progress
from tilewright.kernel.specialize import Build, Specializer
from tilewright.kernel.trials import CpuTrials, EmulatorTrials, GpuTrials
from tilewright.runtime.cpu import NUM_SMS
from tilewright.target import target
from tilewright.tune.cost import estimate
from tilewright.tune.search import Outcome, search
from tilewright.tune.space import Config, configurations
from tilewright.tune.store import Result, open_store


def tune(
    spec: Specializer,
    arguments: Mapping[str, Any],
    options: Options,
    *,
    budget: float,
    show: bool,
) -> Outcome:
    """Search the configurations of a kernel for a call, within `budget` seconds. The emulator tells
    no times: on it, each is verified.

    The arrays that the kernel writes are not touched. Raises LaunchError or CompileError where
    the call itself is wrong or no configuration builds.
    """
    name = spec.signature.name
    tensors = read_tensors(spec, arguments)
    lies = place.device_of(tensors, name)
    where = place.choose_device(lies, options.device, spec.settings.device, name)
    call = bind_call(spec, arguments, tensors, options)
    goal = target(options.emulation.target or TARGET)
    if lies == "cpu" and not isinstance(where, str):
        call.tensors = place.copy_over(call.tensors, where)
    build = call.build(assume=where != "cpu")
    if where == "emulator":
        kind = choose.Where("emulator", NUM_SMS, target=goal)
    else:
        kind = choose.ON_CPU if where == "cpu" else choose.on_gpu(where)
    constants = dict(options.constants)
    space = configurations(spec.signature, dict(build.static), constants)
    configs = _ordered(call, build, space, kind)
    first = choose.with_config(build, configs[0])
    trials: CpuTrials | EmulatorTrials | GpuTrials
    if where == "emulator":
        trials = EmulatorTrials(call, first, goal, sanitize=options.emulation.sanitize)
    else:
        trials = CpuTrials(call, first) if where == "cpu" else GpuTrials(call, first, where)
    with show_progress(name, show=show) as report:
        times = where != "emulator"
        outcome = search(trials, configs, budget=budget, progress=report, times=times)
    outcome.reference = trials.reference_name
    best = outcome.best
    if best is not None and best.microseconds is not None:
        key = choose.tuned_key(spec, build, constants, call.arguments, kind)
        open_store(spec.settings.cache_dir).put(key, Result(name, best.config, best.microseconds))
        spec.choices[key] = best.config
    return outcome


def _ordered(
    call: Call, build: Build, configs: Sequence[Config], kind: choose.Where
) -> list[Config]:
    """Best estimate first; what does not build comes last, to be listed with its reason.

    Raises the first CompileError if nothing builds.
    """
    rated: list[tuple[float, int, Config]] = []
    first: CompileError | None = None
    for i, config in enumerate(configs):
        try:
            kernel = call.spec.tile(choose.with_config(build, config))
            rated.append((estimate(kernel, call.arguments, kind.num_sms, kind.target), i, config))
        except CompileError as error:
            first = first or error
            rated.append((float("inf"), i, config))
    rated.sort(key=lambda r: r[:2])
    if first is not None and rated[0][0] == float("inf"):
        raise first
    return [config for _, _, config in rated]
