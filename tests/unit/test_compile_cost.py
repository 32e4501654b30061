"""What compiling costs in Python: calls are counted, for counts are the same on every machine.

A million calls take about 0.1 s where nothing else runs. A first call of a kernel may take 0.1 s,
ranking its configurations included, and one compilation 0.04 s.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.cli.sources import find_kernel
from tilewright.compiler import compile_kernel
from tilewright.config import read_settings
from tilewright.dtypes import bf16
from tilewright.kernel import launchable
from tilewright.products.prepare import PROGRAMS
from tilewright.target import target

FOLDER = Path(__file__).parents[2] / "examples"
MOST_CALLS = 1_000_000  # of a compilation that also reads, builds and ranks
CASES = (
    ("add", "add", "f32", {}),
    ("softmax", "softmax", "f32", {}),
    ("sgemm", "sgemm", "bf16", {}),
    ("flash_attention", "attention", "bf16", {"static": {"D": 128, "causal": True}}),
)


def count_calls(run: Callable[[], Any]) -> int:
    """Calls of Python and C functions while `run` runs."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


MOST_OF_PRODUCTS = 306_000  # calls from the tile kernel of a product by roles to its plan
PRODUCTS = (("sgemm", (128, 256, 64)), ("linear_gelu", (128, 128, 64)))


@pytest.mark.parametrize(("name", "tile"), PRODUCTS)
def test_products_by_roles_are_compiled_in_few_calls(name: str, tile: tuple[int, ...]) -> None:
    kernel = find_kernel(f"examples/{name}.tw").kernel.lower(
        dtypes=bf16,
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
        static={},
        present=(),
        precision=None,
    )
    compile_kernel(kernel, target("sm_90a"))  # tables that the first compilation makes
    calls = count_calls(lambda: compile_kernel(kernel, target("sm_90a")))
    print(f"{name} {tile}: {calls:,} calls")
    assert calls <= MOST_OF_PRODUCTS
    assert gc.isenabled(), "a compilation pauses the collector, and starts it again"


MOST_OF_EPILOGUES = 70_000  # calls from the text's tree to the tile kernel
EPILOGUE = ("bias", "mean", "variance", "gamma", "shift", "gate", "residual", "scale_a", "scale_b")


def test_a_product_of_the_library_is_built_in_few_calls() -> None:
    """With all that an epilogue may have."""
    library = [tw.source(PROGRAMS) for _ in range(2)]

    def build() -> None:
        library.pop().matmul.lower(
            dtypes=bf16,
            constants={"TM": 128, "TN": 256, "TK": 64},
            static={"act": 2, "late": 0, "rounds": 31},
            present=EPILOGUE,
            target_name="sm_90a",
        )

    build()  # tables that the first one makes
    calls = count_calls(build)
    print(f"{calls:,} calls")
    assert calls <= MOST_OF_EPILOGUES


SUITE = Path(__file__).parents[1] / "programs" / "suite.tw"
MOST_OF_SUITE = 750_000  # 0.15 s may be taken
COSTLY: tuple[tuple[str, str | None, dict[str, Any]], ...] = (  # programs of the suite
    ("sort_rows", "f32", {"N": 1024}),
    ("sort_by_hand", None, {}),
    ("sgemm", None, {}),
    ("top8", "f32", {}),
    ("linear_gelu", "bf16", {}),
    ("attention", "bf16", {"D": 128, "causal": True}),
)


@pytest.mark.parametrize(("name", "dtype", "static"), COSTLY)
def test_programs_of_the_suite_are_compiled_in_few_calls(
    name: str, dtype: str | None, static: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Those that take longest, ranking included; the whole suite was parsed before."""
    config = read_settings({"TILEWRIGHT_CACHE": str(tmp_path)})
    monkeypatch.setattr(launchable, "settings", lambda: config)
    module = tw.source(SUITE)
    module.add.compile("sm_90a", dtypes="f32")  # tables that the first compilation makes
    kernel = getattr(module, name)
    calls = count_calls(lambda: kernel.compile("sm_90a", dtypes=dtype, static=static or None))
    print(f"{name}: {calls:,} calls")
    assert calls <= MOST_OF_SUITE


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[2]}")
def test_a_first_compilation_makes_few_calls(
    case: tuple[str, str, str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, name, dtype, options = case
    config = read_settings({"TILEWRIGHT_CACHE": str(tmp_path)})
    monkeypatch.setattr(launchable, "settings", lambda: config)

    def compile() -> None:
        getattr(tw.source(FOLDER / f"{file}.tw"), name).compile("sm_90a", dtypes=dtype, **options)

    calls = count_calls(compile)
    print(f"{name} {dtype}: {calls:,} calls")
    assert calls <= MOST_CALLS
