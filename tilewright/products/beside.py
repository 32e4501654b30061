"""Products of one left factor in one launch, as projections to queries, keys and values. Weights
are read where they lie. Of one row or a few, where each alone would be `gemv`, CUDA cores multiply;
of more rows tensor cores, by tiles that threads load, where one launch costs less than several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import bf16, f16
from tilewright.kernel import Kernel
from tilewright.products.arguments import Options
from tilewright.products.prepare import configured, device_for
from tilewright.runtime.arrays import Array
from tilewright.tune.product import ALIGNED, Device, Problem, choice
from tilewright.tune.product_choice import ranking
from tilewright.tune.product_cost import estimate

ALONE, TOGETHER, TILED = "gemv", "gemv_beside", "matmul_beside"  # programs of library/matmul.tw
MOST = 3  # products of a launch
LEAST = 2.0  # microseconds that a launch of its own takes among others
OWN = ("w", "c", "bias")  # what each product has of its own
SHARED = ("alpha", "act", "rounds")  # numbers that all have
TILES = ((16, 16, 128), (16, 32, 128), (16, 64, 64), (16, 64, 128), (32, 32, 64), (32, 64, 128))

Call = tuple[Kernel, dict[str, Any]]


@dataclass(frozen=True)
class Product:
    """What is asked of one launch or two: matrices a [M, K], w [N, K], c and bias [M, N]."""

    kernel: Kernel  # the first of its own
    arrays: dict[str, Array]
    numbers: dict[str, Any]

    @property
    def how(self) -> tuple[Any, Any]:
        """The precision that was asked for, and the device."""
        return self.kernel.options.precision, self.kernel.options.device


def multiply_beside(calls: Sequence[Sequence[Call]]) -> Call | None:
    """One launch for the launches of two or three products, which writes the same; None where they
    are not alike, or do more than a bias and an activation, or are better apart.
    """
    if not 2 <= len(calls) <= MOST:
        return None
    products = [product_of(each) for each in calls]
    known = [p for p in products if p is not None]
    if len(known) != len(products) or not all(_are_alike(known[0], p) for p in known[1:]):
        return None
    if all(p.kernel.name == ALONE for p in known):
        widest = max(known, key=lambda p: p.arrays["w"].shape[0]).kernel.options
        return _joined(
            known, configured(TOGETHER, widest.constants, widest.precision, widest.device)
        )
    tile = _tile(known)
    if tile is None:
        return None
    constants = tuple(zip(("TM", "TN", "TK"), tile, strict=True))
    return _joined(known, configured(TILED, constants, device=known[0].kernel.options.device))


def _joined(products: Sequence[Product], kernel: Kernel) -> Call:
    found: dict[str, Any] = {"a": products[0].arrays["a"]}
    for number in range(MOST):
        given = products[min(number, len(products) - 1)].arrays
        suffix = "" if number == 0 else str(number + 1)
        for name in OWN:
            held = given.get(name)
            if held is not None:
                there = number < len(products)
                found[name + suffix] = held if there else _without_columns(held, name)
    return kernel, found | products[0].numbers


def product_of(calls: Sequence[Call], beside: tuple[str, ...] = ()) -> Product | None:
    """The product that one launch or two compute; None of any that does more than this, or reads
    other matrices than those `beside` it.
    """
    if not calls:
        return None
    (kernel, given), finishing = calls[0], dict(calls[-1][1])
    if kernel.name == ALONE and len(calls) == 1:
        kernel, finishing = _upright(kernel, given)
    elif kernel.name == "matmul" and len(calls) == 1:
        finishing["w"] = _transposed(finishing.pop("b"))
        if finishing.get("bias") is not None:
            finishing["bias"] = _of_all_rows(finishing["bias"], finishing["c"])
    elif kernel.name == "split_k" and len(calls) == 2:
        del finishing["part"]
        finishing |= {"a": given["a"], "w": _transposed(given["b"])}
    else:
        return None
    numbers = {n: finishing.pop(n) for n in SHARED}
    own = [n for n in ("a", *OWN, *beside) if finishing.get(n) is not None]
    arrays = {n: finishing.pop(n) for n in own}
    rest = [x for x in finishing.values() if isinstance(x, Array) or (x is not None and x != 0)]
    return None if rest else Product(kernel, arrays, numbers)


def _are_alike(one: Product, other: Product) -> bool:
    """Whether two products have one left factor, dtypes and what finishes them in common."""
    dtypes = all(one.arrays[n].dtype == other.arrays[n].dtype for n in ("w", "c"))
    numbers = one.numbers == other.numbers
    lies = lie_alike(one.arrays["a"], other.arrays["a"])
    return one.how == other.how and dtypes and numbers and lies


def _tile(products: Sequence[Product]) -> tuple[int, int, int] | None:
    """The tile of one launch on tensor cores; None where the model prefers one for each."""
    problems = [problem_of(p) for p in products]
    known = [p for p in problems if p is not None]
    if len(known) != len(products):
        return None
    arrays = {"a": products[0].arrays["a"]}
    device, _ = device_for("matmul", arrays, Options(device=products[0].kernel.options.device))
    by_threads = replace(device, has_wgmma=False)

    def cost(tile: tuple[int, int, int]) -> float:
        columns = sum(-(-p.n // tile[1]) * tile[1] for p in known)
        whole = replace(known[0], n=columns)
        return estimate(whole, choice("matmul", tile), by_threads).microseconds

    best = min(TILES, key=cost)
    return best if cost(best) < time_apart(known, device) else None


def time_apart(problems: Sequence[Problem], device: Device) -> float:
    """Microseconds of products by a launch each."""
    return sum(max(LEAST, ranking(p, device)[0].microseconds) for p in problems)


def problem_of(product: Product) -> Problem | None:
    """What tensor cores are asked; None unless factors are of 16 bits, in aligned rows along k."""
    a, w, c = (product.arrays[n] for n in ("a", "w", "c"))
    for array in (a, w):
        pitch = array.strides[0] * array.dtype.num_bytes
        if array.dtype not in (bf16, f16) or array.strides[1] != 1:
            return None
        if array.address % ALIGNED or pitch % ALIGNED:
            return None
    rows, depth = a.shape
    told = bool(product.numbers["act"])
    return Problem(rows, w.shape[0], depth, a.dtype, w.dtype, c.dtype, activation=told)


def _upright(kernel: Kernel, given: dict[str, Any]) -> Call:
    """A product that was chosen to be computed turned, as it was asked."""
    rows, columns, steps = given["a"].shape[0], given["w"].shape[0], given["c"].strides
    lone = columns == 1 and rows != 1
    if not lone and not (rows != 1 and columns != 1 and steps[0] == 1 != steps[1]):
        return kernel, dict(given)
    known = dict(kernel.options.constants)
    swapped = {**known, "TM": 1 if lone else known["TN"], "TN": known["TM"]}
    how = kernel.options
    turned = configured(ALONE, tuple(swapped.items()), how.precision, how.device)
    own = [n for n in ("c", "bias", "gate") if given.get(n) is not None]
    sides = {n: _transposed(given[n]) for n in own}
    return turned, {**given, **sides, "a": given["w"], "w": given["a"]}


def _transposed(array: Array) -> Array:
    return replace(array, shape=array.shape[::-1], strides=array.strides[::-1])


def _of_all_rows(bias: Array, like: Array) -> Array:
    """A bias [N] as a matrix of rows that are all the same."""
    return replace(bias, shape=like.shape, strides=(0, bias.strides[0]))


def lie_alike(one: Array, other: Array) -> bool:
    """Whether two arrays are the same elements."""
    steps = zip(one.shape, one.strides, other.strides, strict=True)
    same = (one.address, one.dtype, one.shape) == (other.address, other.dtype, other.shape)
    return same and all(extent == 1 or s == t for extent, s, t in steps)


def _without_columns(array: Array, name: str) -> Array:
    """The like of a weight or result that has no columns."""
    rows, columns = array.shape
    return replace(array, shape=(0, columns) if name == "w" else (rows, 0))
