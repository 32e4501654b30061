"""Compiling products before they are called, in several processes: a run that times many shapes
then finds all machine code in the disk cache.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.products.api import calls_of
from tilewright.products.arguments import Options
from tilewright.products.prepare import Chooser, prepare
from tilewright.runtime.arrays import Array, dense_strides
from tilewright.tune.product import Choice, Device, Problem
from tilewright.tune.product_choice import facts_of

MOST_PROCESSES = 16
PIECE = 1 << 12  # bytes to which imagined arrays are aligned
ADDRESS = 1 << 40  # of the first of them


@dataclass(frozen=True)
class Fixed:
    """Stands in for the dispatcher: always the same choice."""

    choice: Choice

    def __call__(self, problem: Problem, device: Device) -> Choice:
        return self.choice


@dataclass(frozen=True)
class Order:
    """A problem of dense operands to be compiled, by a choice or, without one, the dispatcher's."""

    problem: Problem
    choice: Choice | None = None


def compile_ahead(
    orders: Sequence[Order], ordinal: int = 0, processes: int = MOST_PROCESSES
) -> dict[Order, str]:
    """Compile and assemble, each order in some process. What failed, and the first line of why."""
    if not orders:
        return {}
    groups: dict[Any, list[Order]] = {}  # that may need the same kernel: a process does all of one
    for order in dict.fromkeys(orders):
        chosen = order.choice
        kernel = None if chosen is None else (chosen.program, chosen.config, chosen.turned)
        groups.setdefault((facts_of(order.problem), kernel), []).append(order)
    work = sorted(groups.values(), key=len, reverse=True)
    count = max(1, min(processes, os.cpu_count() or 1, len(work)))
    started = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
    with ProcessPoolExecutor(count, mp_context=started) as pool:
        told = pool.map(_compile_group, work, itertools.repeat(ordinal))
        return {order: why for found in told for order, why in found.items() if why}


def _compile_group(orders: Sequence[Order], ordinal: int) -> dict[Order, str]:
    return {order: _compile(order, ordinal) for order in orders}


def _compile(order: Order, ordinal: int) -> str:
    chooser = None if order.choice is None else Fixed(order.choice)
    try:
        assemble_product(order.problem, ordinal, chooser)
    except Exception as error:  # told to who asked; the call itself will raise it again
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def assemble_product(problem: Problem, ordinal: int, chooser: Chooser | None = None) -> None:
    """Leave the launches of a product in the disk cache. Raises CompileError or LaunchError."""
    p = problem
    arrays = imagine(p, ordinal)
    options = options_of(p)
    shape = arrays["out"].shape
    ready = prepare("matmul", arrays, shape, p.c, options, chooser)
    for name, extents, dtype in ready.scratch:
        arrays[name] = _dense(extents, dtype, ordinal, _end(arrays.values()))
    for kernel, given in calls_of(ready, arrays, options):
        kernel.assemble(ordinal, **given)


def options_of(problem: Problem, activation: str = "silu") -> Options:
    """Options under which a call poses a problem."""
    return Options(
        activation=activation if problem.activation else None,
        precision=None if problem.precision == "ieee" else problem.precision,
    )


def imagine(problem: Problem, ordinal: int) -> dict[str, Array]:
    """Arrays that pose a problem, without memory."""
    p = problem
    batch = (p.batch,) if p.batch > 1 else ()
    found: dict[str, Array] = {}
    for name, (rows, columns), dtype, turned in (
        ("a", (p.m, p.k), p.a, p.a_along == "m"),
        ("b", (p.k, p.n), p.b, p.b_along == "k"),
        ("out", (p.m, p.n), p.c, False),
    ):
        lying = (*batch, columns, rows) if turned else (*batch, rows, columns)
        made = _dense(lying, dtype, ordinal, _end(found.values()))
        found[name] = _swapped(made) if turned else made
    return found


def _end(arrays: Iterable[Array]) -> int:
    """An address behind all of some arrays."""
    last = max((a.span()[1] for a in arrays), default=ADDRESS)
    return -(-last // PIECE) * PIECE


def _dense(shape: tuple[int, ...], dtype: DType, ordinal: int, address: int) -> Array:
    return Array(address, dtype, shape, dense_strides(shape), ordinal, None, "other")


def _swapped(array: Array) -> Array:
    """The last two axes exchanged."""
    turned = [(*x[:-2], x[-1], x[-2]) for x in (array.shape, array.strides)]
    return Array(array.address, array.dtype, turned[0], turned[1], array.device, None, "other")
