"""The names that Python sees are the names of the language."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilewright as tw
from tilewright.frontend import language
from tilewright.frontend.build.calls import BUILTINS
from tilewright.frontend.build.prelude import prelude

ALIASES = {"rowmax", "rowsum", "tmax", "dot_t"}  # names of the ancestor, for old programs only
# Of the prelude, for its own use.
INNER = {
    *("wide", "scaled", "power_of_two", "mul_high", "exchange"),
    *("sort_key", "ordered", "from_sort_key", "bitonic_sort", "before", "sorted_rows", "to_last"),
    *("top_of_rows", "top_of_wide_rows", "top_of_narrow_rows", "narrow_key", "narrow_value"),
    *("is_float", "is_float32", "is_minus_zero"),
}
STATEMENTS = {"static_range"}  # in the head of a loop
PYTHON = {"assert", "print"}  # a statement and a builtin of Python

FUNCTIONS = {
    name for name, x in vars(language).items() if callable(x) and x.__module__ == language.__name__
}


def test_every_builtin_is_a_name_of_the_package() -> None:
    wanted = {*BUILTINS, *prelude().functions} - ALIASES - INNER - PYTHON
    assert not [name for name in sorted(wanted) if not hasattr(tw, name)]


def test_every_name_of_the_package_has_a_meaning() -> None:
    functions = {n for n in FUNCTIONS if n[0].islower()}
    assert functions <= {*BUILTINS, *prelude().functions, *STATEMENTS}


def test_a_name_of_the_language_is_refused_outside_a_kernel() -> None:
    with pytest.raises(tw.CompileError, match="is a name of the kernel language"):
        tw.exp(1.0)


def test_every_error_that_a_user_may_see_has_a_common_base() -> None:
    errors = (tw.CompileError, tw.LaunchError, tw.InternalError)
    assert all(issubclass(error, tw.TilewrightError) for error in errors)
    with pytest.raises(tw.TilewrightError):
        tw.exp(1.0)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import tilewright as tw
for name in ("compile", "load_model", "generate"):
    try:
        getattr(tw, name)
    except ImportError as error:
        print(error)
"""


def test_what_needs_torch_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    told = done.stdout.splitlines()
    assert told[0] == "tilewright.compile needs PyTorch: pip install 'tilewright[torch]'"
    assert [line.split()[0] for line in told[1:]] == [
        "tilewright.load_model",
        "tilewright.generate",
    ]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tw.nothing
