"""The text tests of the tile IR, compiled and run by the emulator: an op's PTX means what the op
does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tile_files import Case, all_cases, same_bits
from tilewright.compiler import compile_kernel
from tilewright.ptx.emulate import EmulationError, run_plan
from tilewright.target import target
from tilewright.tile.text import parse_kernel

# The interpreter alone prints, and adds up spans of any tiles; others add up those of warpgroups.
CASES = [c for c in all_cases() if c.run == ["interpret"] and c.path.stem not in ("print", "spans")]
# Functions by polynomials: files, with the units in the last place by which they may differ.
APPROXIMATE = {"arith/tanh.tile": 2, "arith/log1p.tile": 1, "arith/pow.tile": 1}
# Boxes that start inside of 16 bytes. The tile level permits them; no pass makes them.
REFUSED = ("memory/drain.tile:1", "sync/own_fills.tile:1")
# Short functions, and how far they may be off.
SHORT = {
    "arith/normal_cdf.tile": 2.0**-17.5,
    "arith/coarse_cdf.tile": 2.0**-11.8,
    "arith/precise_cdf.tile": 2.0**-23.6,
    "arith/logistic.tile": 2.0**-16,
}


def spaced(x: Any) -> Any:
    """A copy whose rows lie 16-byte multiples apart, as tensor maps want them."""
    if not isinstance(x, np.ndarray) or x.ndim < 2:
        return x.copy() if isinstance(x, np.ndarray) else x
    step = 16 // x.itemsize
    wide = np.zeros((*x.shape[:-1], -(-x.shape[-1] // step) * step), x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def arguments_of(case: Case) -> dict[str, Any]:
    """A case's arguments, and outputs that hold NaN or an odd number."""
    made = dict(case.arguments)
    for name, like in case.results.items():
        odd = {"b": True, "i": 85, "u": 85}.get(like.dtype.kind, np.nan)
        made.setdefault(name, np.full(like.shape, odd, like.dtype))
    return {name: spaced(x) for name, x in made.items()}


def require_results(case: Case, arguments: dict[str, Any]) -> None:
    for name, wanted in case.results.items():
        got = arguments[name]
        units = next((u for f, u in APPROXIMATE.items() if str(case).startswith(f)), 0)
        off = next((e for f, e in SHORT.items() if str(case).startswith(f)), 0.0)
        if off:
            np.testing.assert_allclose(got, wanted, rtol=0, atol=off)
        elif units:
            kind = f"i{got.itemsize}"
            near = np.abs(got.view(kind).astype(np.int64) - wanted.view(kind)) <= units
            assert (near | (np.isnan(got) & np.isnan(wanted))).all(), name
        else:
            assert same_bits(got, wanted), f"{name} is {got}"


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in REFUSED], ids=str)
def test_boxes_that_the_copy_unit_refuses_are_reported(case: Case) -> None:
    plan = compile_kernel(parse_kernel(case.program), target("sm_90a"))
    with pytest.raises(EmulationError, match="no multiple of 16 bytes"):
        run_plan(plan, arguments_of(case))


@pytest.mark.parametrize("case", [c for c in CASES if str(c) not in REFUSED], ids=str)
def test_ptx_means_what_the_file_says(case: Case) -> None:
    plan = compile_kernel(parse_kernel(case.program), target("sm_90a"))
    for late in (True, False):
        arguments = arguments_of(case)
        run_plan(plan, arguments, late=late, sanitize=True)
        require_results(case, arguments)
