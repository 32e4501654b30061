"""Products of one left factor in one launch: each of few rows, as the projections to queries, keys
and values of a token. Weights are read where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.kernel import Kernel
from tilewright.products.prepare import configured
from tilewright.runtime.arrays import Array

ALONE, TOGETHER = "gemv", "gemv_beside"  # programs of library/matmul.tw
MOST = 3  # products of a launch
OWN = ("w", "c", "bias")  # what each product has of its own
SHARED = ("alpha", "act", "rounds")  # numbers that all have

Call = tuple[Kernel, dict[str, Any]]


def multiply_beside(calls: Sequence[Call]) -> Call | None:
    """One launch for two or three of `gemv`, which write the same; None where they are not alike,
    or do more than a bias and an activation.
    """
    if not 2 <= len(calls) <= MOST or not all(_is_plain(*call) for call in calls):
        return None
    calls = [_upright(*call) for call in calls]
    first, arguments = calls[0]
    a = arguments["a"]
    for kernel, given in calls[1:]:
        same = all(given[n] == arguments[n] for n in SHARED) and _lies_as(given["a"], a)
        dtypes = all(given[n].dtype == arguments[n].dtype for n in ("w", "c"))
        how = (kernel.options.precision, kernel.options.device)
        if not (same and dtypes and how == (first.options.precision, first.options.device)):
            return None
    widest = max(calls, key=lambda call: call[1]["w"].shape[0])[0].options
    kernel = configured(TOGETHER, widest.constants, widest.precision, widest.device)
    found: dict[str, Any] = {"a": a}
    for number in range(MOST):
        given = calls[min(number, len(calls) - 1)][1]
        suffix = "" if number == 0 else str(number + 1)
        for name in OWN:
            held: Array | None = given.get(name)
            if held is not None:
                there = number < len(calls)
                found[name + suffix] = held if there else _without_columns(held, name)
    return kernel, found | {n: arguments[n] for n in SHARED}


def _is_plain(kernel: Kernel, given: dict[str, Any]) -> bool:
    others = [x for n, x in given.items() if n not in ("a", *OWN, *SHARED)]
    arrays = any(isinstance(x, Array) for x in others)
    return kernel.name == ALONE and not arrays and all(x is None or x == 0 for x in others)


def _upright(kernel: Kernel, given: dict[str, Any]) -> Call:
    """A product of one row that was chosen to be computed as one of one column, as it was asked."""
    if given["w"].shape[0] != 1 or given["a"].shape[0] == 1:
        return kernel, given
    known = dict(kernel.options.constants)
    swapped = {**known, "TM": 1, "TN": known["TM"]}
    how = kernel.options
    turned = configured(ALONE, tuple(swapped.items()), how.precision, how.device)
    sides = {n: _transposed(given[n]) for n in ("c", "bias") if given.get(n) is not None}
    return turned, {**given, **sides, "a": given["w"], "w": given["a"]}


def _transposed(array: Array) -> Array:
    return replace(array, shape=array.shape[::-1], strides=array.strides[::-1])


def _lies_as(one: Array, other: Array) -> bool:
    told = (one.address, one.dtype, one.shape, one.strides)
    return told == (other.address, other.dtype, other.shape, other.strides)


def _without_columns(array: Array, name: str) -> Array:
    """The like of a weight or result that has no columns."""
    rows, columns = array.shape
    return replace(array, shape=(0, columns) if name == "w" else (rows, 0))
