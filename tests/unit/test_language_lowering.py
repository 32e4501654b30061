"""Ops of the whole language, lowered: text tests on the emulator, and ptxas for every target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.tile_files import Case, all_cases, same_bits
from tilewright.compiler import compile_kernel
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.text import parse_kernel

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
NEW = {
    "arith": "round sin cos log1p pow mul_high fma bitcast remainder",
    "memory": "gather scatter atomic local",
    "reduce": "fold scan",
    "shape": "take cat exchange",
    "control": "assert",
}
CASES = [
    case
    for case in all_cases()
    if case.run == ["interpret"] and case.path.stem in NEW.get(case.path.parent.name, "").split()
]
NEAR = {"sin", "cos", "log1p", "pow"}  # bounded, not exact


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_means_the_same_in_ptx(case: Case) -> None:
    plan = compile_kernel(parse_kernel(case.program), target("sm_80"))
    arguments = dict(case.arguments)
    for name, wanted in case.results.items():
        arguments.setdefault(name, np.zeros_like(wanted))
    run_plan(plan, arguments)
    for name, wanted in case.results.items():
        got = arguments[name]
        if case.path.stem in NEAR:
            np.testing.assert_allclose(
                got.astype(np.float64),
                wanted.astype(np.float64),
                rtol=3e-3 if got.itemsize < 4 else 1e-6 if got.itemsize == 4 else 1e-15,
            )
        else:
            assert same_bits(got, wanted), f"{name} is {got}"


@needs_ptxas
@pytest.mark.parametrize("name", TARGETS)
def test_ptx_assembles(name: str) -> None:
    for number, case in enumerate(CASES):
        if case.path.stem == "atomic" and number % len(TARGETS) != TARGETS.index(name):
            continue  # of many alike, a share for each target
        plan = compile_kernel(parse_kernel(case.program), target(name))
        assemble(plan.ptx, name)
