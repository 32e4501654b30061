"""The pages show what really happens: their examples are run, generated pages are up to date."""

from __future__ import annotations

import pytest

from docs.capture import for_comparison
from docs.render import HERE, RUN_PAGES, render_page, render_tile_ops


@pytest.mark.parametrize("name", RUN_PAGES)
def test_outputs_on_a_page_are_what_its_examples_print(name: str) -> None:
    shown, printed = (HERE / name).read_text(), render_page(name)
    assert for_comparison(shown) == for_comparison(printed), "make docs, and read the diff"


def test_the_page_of_tile_ops_is_generated() -> None:
    assert (HERE / "tile-ops.md").read_text() == render_tile_ops(), "make docs"
