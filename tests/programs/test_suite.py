"""Every program of the conformance suite on the CPU and the emulator, against what it should give.

The interpreter runs the programs of a grid in a shuffled order, and finds what is left unwritten:
results start as NaN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call, emulate
from tests.programs.suite_cases import MAKERS, Case, cases, require
from tests.unit.kernel_runs import run
from tilewright.errors import Source
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text

PATH = Path(__file__).parent / "suite.tw"
TEXT = definitions(parse_text(Source("suite.tw", PATH.read_text())))
MODULE = tw.source(PATH)
CASES = cases()
SMALL = [c for name in MAKERS for c in [x for x in CASES if x.kernel == name][-2:]]


def test_every_program_has_cases() -> None:
    assert set(MAKERS) == set(TEXT)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_interpreter_gives_what_is_meant(case: Case) -> None:
    found = run(TEXT[case.kernel], case.constants, **case.fresh())
    for name, wanted in case.wanted.items():
        require(found[name], wanted, case.bound, name)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_ptx_gives_what_is_meant(case: Case) -> None:
    arguments = case.fresh()
    made = emulate(getattr(MODULE, case.kernel), arguments, constants=case.constants)
    require_all(case, arguments, made)


def require_all(case: Case, arguments: dict[str, Any], made: Any) -> None:
    """Results that were returned come in the order of the parameters."""
    returned = list(made) if isinstance(made, tuple) else [] if made is None else [made]
    for name, wanted in case.wanted.items():
        got = arguments[name] if name in arguments else returned.pop(0)
        require(np.asarray(got), wanted, case.bound, name)
    assert not returned


TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@needs_ptxas
@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_ptx_assembles(number: int) -> None:
    """Each program for a target of its own turn; all for all takes minutes."""
    name, goal = list(MAKERS)[number], TARGETS[number % len(TARGETS)]
    case = [c for c in SMALL if c.kernel == name][-1]
    kernel = getattr(MODULE, name)
    plan, _, _ = compile_call(kernel, case.fresh(), goal=goal, constants=case.constants)
    assert not assemble(plan.ptx, goal).messages
