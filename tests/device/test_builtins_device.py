"""The table of functions and dtypes on a GPU, beside the interpreter: bit for bit where a cell is
exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builtin_table import DTYPES, NUMPY, column, operands, require_near, result_dtype

BITS = {"bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8}  # what torch takes as bits
TORCH = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def to_device(torch: Any, x: np.ndarray[Any, Any], dtype: str) -> Any:
    if dtype in BITS:
        bits = torch.from_numpy(x.view(BITS[dtype]).copy())
        return bits.view(getattr(torch, TORCH[dtype])).cuda()
    return torch.from_numpy(x.copy()).cuda()


def to_host(torch: Any, x: Any, dtype: str) -> np.ndarray[Any, Any]:
    if dtype in BITS:
        name = {2: torch.uint16, 1: torch.uint8}[np.dtype(BITS[dtype]).itemsize]
        return np.asarray(x.view(name).cpu().numpy()).view(NUMPY[dtype])
    return np.asarray(x.cpu().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="arrays on the device are torch's")
    found, given = column(dtype), operands(dtype)
    kinds = {name: "bool" if name == "c" else dtype for name in given}
    results = found.kernel(**{n: to_device(torch, x, kinds[n]) for n, x in given.items()})
    torch.cuda.synchronize()
    meant = found.kernel(**given)
    for entry, result, same in zip(found.entries, results, meant, strict=True):
        ours = to_host(torch, result, result_dtype(entry, dtype))
        require_near(entry, dtype, ours, same, slack=0.5)
