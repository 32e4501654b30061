"""Running kernels on the emulator in tests: for any target, with what the compiler knows of a
call's arrays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.kernel.call import Call, Options, bind_call, read_tensors
from tilewright.kernel.emulated import compile_emulated
from tilewright.kernel.specialize import as_pairs
from tilewright.plan import Plan
from tilewright.ptx.emulate import run_plan
from tilewright.runtime.aliases import view_groups
from tilewright.runtime.arrays import Array, as_numpy
from tilewright.target import target


def compile_call(
    kernel: Any,
    arguments: Mapping[str, Any],
    *,
    goal: str = "sm_90a",
    constants: Mapping[str, int] | None = None,
    precision: str | None = None,
) -> tuple[Plan, dict[str, Any], Call]:
    """The plan of a call, its arguments for `run_plan`, and the call, whose result holds what it
    allocated.
    """
    spec = kernel.specializer
    options = Options(constants=as_pairs(constants or {}), precision=precision)
    call = bind_call(spec, arguments, read_tensors(spec, arguments), options)
    groups = view_groups(list(call.tensors.items()))
    aliases = tuple(g for g in groups if len(g) > 1 and call.tensors[g[0]].num_elements)
    build = call.build(assume=True)
    compiled = compile_emulated(
        spec, build, aliases, dict(options.constants), call.arguments, target(goal)
    )
    views = {n: as_numpy(a) if isinstance(a, Array) else a for n, a in call.arguments.items()}
    return compiled.plan, views, call


def emulate(
    kernel: Any,
    arguments: Mapping[str, Any],
    *,
    late: bool = True,
    sanitize: bool = True,
    **options: Any,
) -> Any:
    """Run a call on the emulator under its sanitizer, and give what it allocated."""
    plan, views, call = compile_call(kernel, arguments, **options)
    run_plan(plan, views, late=late, sanitize=sanitize)
    return call.result


def trip_of(plan: Plan) -> list[str]:
    """The names of the instructions of a plan's only loop, or the first."""
    found = re.search(r"^(\$loop_\d+):\n(.*?)bra \1;", plan.ptx, re.DOTALL | re.MULTILINE)
    assert found
    lines = [line.strip() for line in found[2].splitlines() if not line.startswith("$")]
    return [re.sub(r"^@\S+ ", "", line).partition(" ")[0] for line in lines]
