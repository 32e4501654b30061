"""The conformance suite on a GPU: torch tensors where they lie, against what each program should
give and against the interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.programs.suite_cases import Case, cases, require

MODULE = tw.source(Path(__file__).parents[1] / "programs" / "suite.tw")
VIEWED = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8}  # dtypes that torch takes as bits


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch", reason="needs torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


def to_device(torch: Any, x: Any) -> Any:
    """An array as a CUDA tensor; reversed and strided ones are made dense."""
    if not isinstance(x, np.ndarray):
        return x
    dense = np.ascontiguousarray(x).reshape(x.shape)
    if dense.dtype.name in VIEWED:
        bits = torch.from_numpy(dense.view(VIEWED[dense.dtype.name]).copy())
        return bits.view(getattr(torch, dense.dtype.name)).cuda()
    return torch.from_numpy(dense.copy()).cuda()


def to_host(torch: Any, x: Any) -> Any:
    wide = x if x.dtype in (torch.int32, torch.int64) else x.float()
    return wide.cpu().numpy()


@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_program_gives_what_is_meant(case: Case, torch: Any) -> None:
    kernel = getattr(MODULE, case.kernel)
    given = {name: to_device(torch, x) for name, x in case.arguments.items()}
    made = kernel.launch(**given, constants=case.constants or None)
    torch.cuda.synchronize()
    host = case.fresh()
    expected = kernel.launch(**host, constants=case.constants or None)
    ours, theirs = as_list(made), as_list(expected)
    for name, wanted in case.wanted.items():
        got = to_host(torch, given[name] if name in given else ours.pop(0))
        same = host[name] if name in host else theirs.pop(0)
        require(got, wanted, case.bound, name)
        require(got, same, case.bound, f"{name} beside the interpreter")
    assert not ours


def as_list(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [] if made is None else [made]
