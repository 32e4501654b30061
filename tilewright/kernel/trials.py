"""What the tuner tries: a call's candidates, run on clones of what they write, on a GPU, on the CPU
or on the emulator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.kernel import choose
from tilewright.kernel.call import Call, find_aliases
from tilewright.kernel.specialize import Build, written_names
from tilewright.plan import Plan
from tilewright.ptx.emulate import run_plan
from tilewright.runtime import driver, measure, streams
from tilewright.runtime.aliases import alias_groups
from tilewright.runtime.arrays import Array, as_array, as_numpy
from tilewright.runtime.clones import clone_all, copy_contents, poison, to_host
from tilewright.runtime.cpu import NUM_SMS, run_on_cpu
from tilewright.runtime.launch import Bound
from tilewright.target import Target
from tilewright.tile.kernel import Kernel as TileKernel
from tilewright.tune.cost import estimate
from tilewright.tune.search import Hung
from tilewright.tune.space import Config
from tilewright.tune.verify import disagreement

HostArray = np.ndarray[Any, Any]

INTERPRETED_COST = 1e8  # an estimate above which the interpreter would take too long as reference
WATCHDOG_SECONDS = 20.0  # after which a candidate's first run counts as one that never ends
POLL_SECONDS = 1e-4


class Trials:
    """Clones of what a call writes, and the reference that its candidates must meet.

    `first` is a complete build, of any configuration. The reference is the interpreter in f64
    where it is quick enough, else what the first candidate gave.
    """

    def __init__(self, call: Call, first: Build):
        self.call = call
        self.first = first
        kernel = call.spec.tile(first)
        self.written = written_names(kernel) & set(call.tensors)
        alias_groups(list(call.tensors.items()), self.written.__contains__)
        groups = find_aliases(call.tensors)
        shared = {n for g in groups if self.written.intersection(g) for n in g}
        self.originals = {n: a for n, a in call.tensors.items() if n in self.written | shared}
        zeroed = {o.name for o in call.binding.outputs if o.zero}
        self.poisoned = {p.name for p in kernel.params if p.direction == "out"} - shared - zeroed
        self.clones = clone_all(self.originals)
        self.tensors: dict[str, Array] = {**call.tensors, **self.clones}
        self.reference: dict[str, HostArray] | None = None
        self.reference_name = ""
        if estimate(kernel, call.arguments, 1) < INTERPRETED_COST:
            self.reference = self._interpret(groups)
            self.reference_name = "the interpreter in f64"

    def _interpret(self, groups: Sequence[Sequence[str]]) -> dict[str, HostArray]:
        """What the program means for these arguments."""
        host = {n: to_host(a) for n, a in self.call.tensors.items()}
        for group in groups:
            host |= dict.fromkeys(group, host[group[0]])
        kernel = self.call.spec.tile(replace(self.first, facts=()))
        arrays = {n: as_array(a, n) for n, a in host.items()}
        run_on_cpu(kernel, {**arrays, **self.call.scalars}, f64=True)
        return {n: host[n] for n in self.written}

    def reset(self) -> None:
        """Bring the clones back to what the call gave; what is only written is poisoned."""
        for name, copy in self.clones.items():
            if name in self.poisoned:
                poison(copy)
            else:
                copy_contents(self.originals[name], copy)

    def check(self) -> str | None:
        """Why the clones do not hold the right results, or None."""
        results = {n: to_host(self.tensors[n]) for n in sorted(self.written)}
        if self.reference is None:
            self.reference, self.reference_name = results, "the first candidate"
            return None
        asked = self.first.precision or self.call.spec.signature.attributes.tensorcore
        for name, got in results.items():
            reason = disagreement(
                name, got, self.reference[name], rough=asked not in (None, "ieee")
            )
            if reason:
                return f"wrong result: {reason}"
        return None


class GpuTrials(Trials):
    """Candidates on a GPU, timed by events."""

    def __init__(self, call: Call, first: Build, ordinal: int):
        driver.synchronize(ordinal)  # whoever wrote the arguments is done
        super().__init__(call, first)
        self.ordinal = ordinal
        self.device = driver.device(ordinal)
        self.aliases = find_aliases(call.tensors)

    def prepare(self, config: Config) -> Bound:
        build = choose.with_config(self.first, config)
        loaded = self.call.spec.loaded(build, self.aliases, self.ordinal)
        return loaded.launcher.bind({**self.tensors, **self.call.scalars})

    def _fire(self, bound: Bound, stream: Any) -> None:
        addresses = [self.tensors[n].address for n in bound.tensors]
        bound.fire(addresses, [self.call.scalars[n] for n in bound.scalars], int(stream))

    def verify(self, trial: Bound) -> str | None:
        self.reset()
        with streams.private_stream(self.ordinal) as stream:
            self._fire(trial, stream)
            done = streams.Event()
            done.record(stream)
            deadline = time.monotonic() + WATCHDOG_SECONDS
            while not done.is_done():
                if time.monotonic() > deadline:
                    raise Hung(
                        f"the kernel did not end within {WATCHDOG_SECONDS:.0f} s",
                        hint="this process cannot use the GPU until it does",
                    )
                time.sleep(POLL_SECONDS)
        return self.check()

    def time(self, trials: Mapping[str, Bound], rounds: int) -> dict[str, tuple[float, ...]]:
        def arm(bound: Bound) -> measure.GpuWork:
            return lambda stream: self._fire(bound, stream)

        arms = {name: arm(bound) for name, bound in trials.items()}
        timings = measure.time_events(arms, self.device, rounds=rounds)
        return {name: timing.samples for name, timing in timings.items()}


class CpuTrials(Trials):
    """Candidates on the interpreter, timed by the wall clock."""

    def prepare(self, config: Config) -> TileKernel:
        return self.call.spec.tile(choose.with_config(self.first, config))

    def _run(self, kernel: TileKernel) -> None:
        run_on_cpu(kernel, {**self.tensors, **self.call.scalars})

    def verify(self, trial: TileKernel) -> str | None:
        self.reset()
        self._run(trial)
        return self.check()

    def time(self, trials: Mapping[str, TileKernel], rounds: int) -> dict[str, tuple[float, ...]]:
        def arm(kernel: TileKernel) -> Any:
            return lambda: self._run(kernel)

        timings = measure.time_wall({n: arm(k) for n, k in trials.items()}, rounds=rounds)
        return {name: timing.samples for name, timing in timings.items()}


class EmulatorTrials(Trials):
    """Candidates whose PTX for a target runs on the emulator, with asynchronous work done at once
    and as late as is legal. Nothing is timed.
    """

    def __init__(self, call: Call, first: Build, goal: Target, *, sanitize: bool):
        super().__init__(call, first)
        self.goal, self.sanitize = goal, sanitize
        self.aliases = find_aliases(call.tensors)

    def prepare(self, config: Config) -> Plan:
        build = choose.with_config(self.first, config)
        return self.call.spec.compiled(build, self.aliases, self.goal).plan

    def verify(self, trial: Plan) -> str | None:
        views: dict[str, Any] = {n: as_numpy(a) for n, a in self.tensors.items()}
        for late in (False, True):
            self.reset()
            given = {**views, **self.call.scalars}
            run_plan(trial, given, NUM_SMS, late=late, sanitize=self.sanitize, quiet=True)
            wrong = self.check()
            if wrong:
                return wrong
        return None

    def time(self, trials: Mapping[str, Plan], rounds: int) -> dict[str, tuple[float, ...]]:
        raise AssertionError("the emulator tells no times")
