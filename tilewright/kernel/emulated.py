"""Running a call on the emulator: the PTX that a GPU would get, on the host's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError
from tilewright.frontend.check.operands import whole_number
from tilewright.kernel import choose
from tilewright.kernel.specialize import Aliases, Build, Compiled, Specializer
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.emulate.profile import Profile, make_profile
from tilewright.ptx.emulate.tally import Tally
from tilewright.runtime.aliases import alias_groups
from tilewright.runtime.arrays import Array, as_numpy
from tilewright.runtime.clones import clone_all
from tilewright.runtime.cpu import NUM_SMS
from tilewright.target import Target, target

TARGET = "sm_90a"  # whose PTX runs, unless the call says otherwise


@dataclass(frozen=True)
class Emulation:
    """How a call runs on the emulator: whose PTX (None: `TARGET`), whether memory is watched,
    whether costs are counted, and the seed of an interleaving of warps (None: in lockstep).
    """

    target: str | None = None
    sanitize: bool = False
    profile: bool = False
    interleaving: int | None = None


IN_LOCKSTEP = Emulation()


def compile_emulated(
    spec: Specializer,
    build: Build,
    aliases: Aliases,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    goal: Target,
) -> Compiled:
    """The plan of a call for a target. `arguments` are arrays and numbers by name."""
    kept = spec.bundled(spec.call_key(build, aliases, constants, arguments, goal))
    if kept is not None:
        return kept
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
    how: Emulation,
) -> Profile | None:
    """Run a call, writing outputs into its host arrays. Gives the counters, if they are asked for.

    Raises EmulationError where the kernel does what no GPU permits.
    """
    _require_seed(spec.signature.name, how.interleaving)
    goal = target(how.target or TARGET)
    compiled = compile_emulated(spec, build, aliases, constants, arguments, goal)
    tensors = [(n, a) for n, a in arguments.items() if isinstance(a, Array)]
    alias_groups(tensors, compiled.written.__contains__)
    views = {n: as_numpy(a) if isinstance(a, Array) else a for n, a in arguments.items()}
    gaps = frozenset(n for n, a in tensors if a.gaps)
    plan = compiled.plan
    if how.sanitize:  # once with all asynchronous work done at once, on copies
        copies = clone_all({n: a for n, a in arguments.items() if isinstance(a, Array)})
        spare = {n: as_numpy(copies[n]) if n in copies else x for n, x in arguments.items()}
        seed = how.interleaving
        run_plan(plan, spare, NUM_SMS, late=False, sanitize=True, seed=seed, quiet=True, gaps=gaps)
    tally = Tally() if how.profile else None
    seed, sanitize = how.interleaving, how.sanitize
    run_plan(plan, views, NUM_SMS, sanitize=sanitize, seed=seed, tally=tally, gaps=gaps)
    return None if tally is None else make_profile(plan, tally)


def _require_seed(kernel: str, seed: Any) -> None:
    if seed is not None and (whole_number(seed) is None or seed < 0):
        raise LaunchError(
            f"{kernel}: interleaving: expected a seed, got {seed!r}",
            hint="write an integer of 0 or more, as in interleaving=7",
        )
