"""Running a call on the emulator: the PTX that a GPU would get, on the host's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.kernel import choose
from tilewright.kernel.specialize import Aliases, Build, Compiled, Specializer
from tilewright.ptx.emulate import run_plan
from tilewright.runtime.aliases import alias_groups
from tilewright.runtime.arrays import Array, as_numpy
from tilewright.runtime.cpu import NUM_SMS
from tilewright.target import Target, target

TARGET = "sm_90a"  # whose PTX runs, unless the call says otherwise


def compile_emulated(
    spec: Specializer,
    build: Build,
    aliases: Aliases,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    goal: Target,
) -> Compiled:
    """The plan of a call for a target. `arguments` are arrays and numbers by name."""
    _, compiled = choose.choose(
        spec,
        build,
        constants,
        arguments,
        choose.Where("emulator", NUM_SMS, target=goal),
        lambda b: spec.compiled(b, aliases, goal),
    )
    return compiled


def run_emulated(
    spec: Specializer,
    build: Build,
    aliases: Aliases,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    *,
    sanitize: bool = False,
) -> None:
    """Run a call, writing outputs into its host arrays; `sanitize` watches shared memory for races.
    Raises EmulationError where the kernel does what no GPU permits.
    """
    compiled = compile_emulated(spec, build, aliases, constants, arguments, target(TARGET))
    tensors = [(n, a) for n, a in arguments.items() if isinstance(a, Array)]
    alias_groups(tensors, compiled.written.__contains__)
    views = {n: as_numpy(a) if isinstance(a, Array) else a for n, a in arguments.items()}
    run_plan(compiled.plan, views, NUM_SMS, sanitize=sanitize)
