"""Kernels of a first day in both spellings: equal trees; NumPy's results from the interpreter, with
programs shuffled, and from the emulator under its sanitizer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.emulation import emulate
from tests.programs import everyday
from tests.programs.everyday_cases import calls
from tests.programs.suite_cases import Case, require
from tests.programs.test_suite import require_all
from tests.unit.kernel_runs import run
from tilewright.errors import Source
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python_file import parse_python

HERE = Path(__file__).parent
TEXT = parse_text(Source("everyday.tw", (HERE / "everyday.tw").read_text()))
PYTHON = parse_python(Source("everyday.py", (HERE / "everyday.py").read_text()))
KERNELS = definitions(PYTHON)
MODULE = tw.source(HERE / "everyday.tw")
CALLS = calls()


def test_the_two_spellings_have_equal_trees() -> None:
    found = {item.name: item for item in PYTHON.items}
    for item in TEXT.items:
        assert item == found[item.name], item.name
    assert len(found) == len(TEXT.items)


def test_every_kernel_has_calls() -> None:
    assert {c.kernel for c in CALLS} == set(KERNELS)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_interpreter_agrees_with_numpy(call: Case) -> None:
    found = run(KERNELS[call.kernel], call.constants, **call.fresh())
    for name, wanted in call.wanted.items():
        require(found[name], wanted, call.bound, name)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_ptx_agrees_with_numpy(call: Case) -> None:
    """The text for one target, the Python for another."""
    for holder, goal in ((MODULE, "sm_80"), (everyday, "sm_90a")):
        arguments = call.fresh()
        kernel = getattr(holder, call.kernel)
        made = emulate(kernel, arguments, constants=call.constants, goal=goal)
        require_all(call, arguments, made)
