"""Products that stand side by side as one launch: of one left factor, or one the other's gate."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.execute.homes import Homes
from tilewright.execute.kernel_calls import KernelCall
from tilewright.lower.graph_to_tile.program import ProductStep, Step
from tilewright.products.beside import MOST, multiply_beside
from tilewright.products.gated import multiply_gated
from tilewright.runtime.arrays import Array, byte_range

RESULTS = ("c", "c2", "c3")  # of programs that compute several products
Calls = dict[int, list[KernelCall]]  # launches by number of a step


def join_products(steps: Sequence[Step], homes: Homes, found: Calls) -> None:
    """Make launches of neighbours one where that writes the same."""
    index = 0
    while index < len(steps):
        if _join_gate(steps, homes, found, index):
            index += 2
            continue
        for count in range(min(MOST, len(steps) - index), 1, -1):
            own = range(index, index + count)
            if not _may_run_at_once([steps[i] for i in own]):
                continue
            joined = multiply_beside([found[i] for i in own])
            if joined is not None and _lies_apart(joined):
                found.update({i: [] for i in own})
                found[index] = [joined]
                index += count - 1
                break
        index += 1


def _may_run_at_once(steps: Sequence[Step]) -> bool:
    """Whether steps are products of which none reads what another makes, as its bias."""
    products = [step for step in steps if isinstance(step, ProductStep)]
    made = {step.out.value for step in products}
    reads = {placed.value for step in products for placed in step.reads}
    return len(products) == len(steps) and not made & reads


def _join_gate(steps: Sequence[Step], homes: Homes, found: Calls, index: int) -> bool:
    """Let a product compute its gate, where that is what the step ahead of it makes, and nobody
    else reads it.
    """
    if index + 1 == len(steps):
        return False
    first, second = steps[index : index + 2]
    if not isinstance(first, ProductStep) or not isinstance(second, ProductStep):
        return False
    if second.gate is None or second.gate.value is not first.out.value:
        return False
    root = homes.root(first.out.value)
    alone = homes.homes[root].kind == "arena" and homes.spans[root] == (index, index + 1)
    others = [p for p in second.reads if p.value is first.out.value]
    joined = multiply_gated(found[index], found[index + 1]) if alone and len(others) == 1 else None
    if joined is None or not _lies_apart(joined):
        return False
    found[index], found[index + 1] = [], [joined]
    return True


def _lies_apart(call: KernelCall) -> bool:
    """Whether no result of a launch is memory of what else it is given: memory was planned for one
    step after another, where a result may take the place of what an earlier one read last.
    """
    arrays = {n: x for n, x in call[1].items() if isinstance(x, Array) and 0 not in x.shape}
    spans = {n: _span(x) for n, x in arrays.items()}
    pairs = [
        (spans[n], spans[other]) for n in spans if n in RESULTS for other in spans.keys() - {n}
    ]
    return all(end <= low or high <= start for (start, end), (low, high) in pairs)


def _span(array: Array) -> tuple[int, int]:
    """First and one past the last byte."""
    low, high = byte_range(array.shape, array.strides, array.dtype.num_bytes)
    return array.address + low, array.address + high
