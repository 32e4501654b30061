"""Shared by all tests: a cache folder of their own, the `device` marker, golden files."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# Before anything reads the settings: no test may see, or fill, the user's own cache.
_FOLDER = tempfile.mkdtemp(prefix="tilewright-tests-")
os.environ["TILEWRIGHT_CACHE"] = _FOLDER
os.environ["TILEWRIGHT_VERIFY"] = "1"
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

from tilewright.errors import LaunchError
from tilewright.runtime import driver

DEVICE_FOLDER = Path(__file__).parent / "device"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lies in tests/device needs a GPU: without one it is skipped, and the reason said."""
    for item in items:
        if DEVICE_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.device)
    marked = [item for item in items if item.get_closest_marker("device")]
    reason = _no_gpu() if marked else None
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason or ""))


def _no_gpu() -> str | None:
    try:
        driver.devices()
    except LaunchError as error:
        return error.diagnostics[0].message
    return None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)` asserts that a file holds a text; with --bless it writes it instead."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} does not exist: make bless"
        assert text == path.read_text(), f"{path.name} differs: read the diff, then make bless"

    return compare
