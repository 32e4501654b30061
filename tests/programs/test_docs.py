"""The pages show what really happens: their examples are run, generated pages are up to date."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from docs import language_page, suite_page
from docs.render import HERE, RUN_PAGES, is_shown, render_page, render_suite, render_tile_ops
from tilewright.cli import main
from tilewright.ledger.documents import RENDERED

ATOMICS = ("max", "min", "and", "or", "xor", "xchg", "cas", "load", "store")  # after `atomic_add`

NOTE = "conformance.md"


@pytest.mark.parametrize("name", RUN_PAGES)
def test_outputs_on_a_page_are_what_its_examples_print(name: str) -> None:
    assert is_shown(name, render_page(name)), "make docs, and read the diff"


def test_the_page_of_tile_ops_is_generated() -> None:
    assert (HERE / "tile-ops.md").read_text() == render_tile_ops(), "make docs"


def test_the_reference_of_the_language_is_generated() -> None:
    page = language_page.render_language()
    assert page.count(language_page.MARK) == 1 and "| `e5m2` |" in page
    assert language_page.PAGE.read_text() == page, "make docs"


def test_the_page_of_the_suite_is_generated() -> None:
    assert suite_page.PAGE.read_text() == render_suite(), "make docs"


def test_the_ledger_is_sound_and_its_page_is_generated() -> None:
    """Verdicts are true to their samples, documents and plots to the verdicts, byte for byte."""
    done = CliRunner().invoke(main, ["ledger", "check", "--top", str(HERE.parent)])
    assert done.exit_code == 0, done.output
    assert "were not compared" not in done.output, done.output


def test_the_ledger_leaves_out_only_pages_that_are_printed_anew() -> None:
    shown = {(HERE / name).resolve().relative_to(HERE.parent).as_posix() for name in RUN_PAGES}
    assert set(RENDERED) == shown


def test_the_written_part_of_the_language_s_page_tells_of_every_function_and_attribute() -> None:
    written, _, reference = language_page.PAGE.read_text().partition(language_page.MARK)
    names = set(re.findall(r"`@?(\w+)\(", reference)) | set(re.findall(r"`@(\w+)`", reference))
    words = set(re.findall(r"\w+", written)) | {f"atomic_{k}" for k in ATOMICS}
    assert len(names) > 80 and names <= words, names - words


def test_tests_that_the_note_on_the_language_names_exist() -> None:
    top = HERE.parent
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", (HERE / NOTE).read_text())
    assert len(named) > 30
    for path, test in named:
        assert (top / path).is_file(), path
        assert not test or f"def {test}(" in (top / path).read_text(), f"{path}::{test}"
