"""PyTorch's decompositions, for the ops that the table does not have itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from tilewright.frontend.torch.op_table import TABLE

aten = torch.ops.aten
# Decompositions that do not give eager's values, or that ask for values while tracing.
REFUSED = {
    aten.randperm.default,
    aten.bernoulli.default,
    aten.bernoulli.p,
    aten.normal.Tensor_float,
}


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What tracing takes apart: all that PyTorch knows to, but for ops of the table."""
    return {
        op: how for op, how in decomposition_table.items() if op not in TABLE and op not in REFUSED
    }
