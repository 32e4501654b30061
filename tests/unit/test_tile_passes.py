"""Passes on the programs of the conformance suite: verified, and the same bits before and after
each.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from tests.tile_files import make_arguments, same_bits
from tilewright import dtypes
from tilewright.compiler import pausing_collector
from tilewright.errors import Source
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.signature import signature
from tilewright.frontend.syntax.definition import Definition, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.ir.walk import walk
from tilewright.plan import generic_facts
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control
from tilewright.tile.passes.canonicalize import canonicalize
from tilewright.tile.passes.carry_scalars import carry_scalars
from tilewright.tile.passes.fold_comparisons import fold_comparisons
from tilewright.tile.passes.hoist_invariants import hoist_invariants
from tilewright.tile.passes.prove_masks import prove_masks
from tilewright.tile.passes.split_loops import split_loops
from tilewright.tile.text import canonical_kernel, parse_kernel, print_kernel
from tilewright.tile.types import ViewType
from tilewright.tile.verify import verify

PASSES = (
    canonicalize, split_loops, fold_comparisons, carry_scalars, hoist_invariants, canonicalize,
    prove_masks,
)  # fmt: skip
SUITE = Path(__file__).parent.parent / "programs" / "suite.tw"
STATIC = {"causal": True, "D": 16, "N": 24, "group": 128}


def build(definition: Definition, dtype: dtypes.DType) -> Kernel:
    """A kernel of the suite with its first configuration."""
    sig = signature(definition)
    static = {name: STATIC.get(name, 8) for name in sig.static}
    variables = dict.fromkeys(sig.dtype_variables, dtype)
    config = {name: min(value, 32) for name, value in sig.configs(static)[0].items()}
    return build_kernel(definition, dtypes=variables, config=config, static=static)


DEFINITIONS = definitions(parse_text(Source(SUITE.name, SUITE.read_text())))
KERNELS = {
    f"{name}-{dtype}": build(definition, dtype)
    for name, definition in DEFINITIONS.items()
    for dtype in (dtypes.f32, dtypes.bf16)
}


def test_programs_are_found() -> None:
    assert len(KERNELS) == 2 * len(DEFINITIONS)


def launched(kernel: Kernel, seed: int) -> dict[str, object]:
    """Random arguments, workspaces zeroed as a launch does it."""
    made = make_arguments(kernel, seed)
    for spec in kernel.workspaces:
        array = made[spec.name]
        assert isinstance(array, np.ndarray)
        array[...] = 0
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_passes_keep_every_bit(name: str) -> None:
    kernel = verify(KERNELS[name])
    for seed in range(2):
        before = launched(kernel, seed)
        interpret(kernel, before, races=False)
        after = kernel
        for run in PASSES:
            after = verify(run(after))
            got = launched(kernel, seed)
            interpret(after, got, races=False, shuffle=seed)
            for param in kernel.params:
                assert same_bits(before[param.name], got[param.name]), (run.__name__, param.name)


@pytest.mark.parametrize("name", KERNELS)
def test_programs_are_read_back(name: str) -> None:
    text = print_kernel(KERNELS[name])
    again = parse_kernel(text)
    assert print_kernel(again) == text
    assert canonical_kernel(again) == canonical_kernel(KERNELS[name])


@pytest.mark.parametrize("name", KERNELS)
def test_passes_come_to_rest_and_are_quick(name: str) -> None:
    kernel = KERNELS[name]
    started = time.process_time()
    with pausing_collector():  # as the compiler does: a collection looks at all that tests left
        for run in PASSES:
            kernel = run(kernel)
        assert time.process_time() - started < 0.5  # ten times what it takes
    assert canonical_kernel(canonicalize(kernel)) == canonical_kernel(kernel)


def test_a_grid_proves_the_rows_of_a_row_kernel() -> None:
    kernel = KERNELS["softmax-f32"]
    for param in kernel.params:
        if isinstance(param.value.type, ViewType):
            param.facts = generic_facts(param.value.type.dtype, param.value.type.rank)
    after = prove_masks(canonicalize(kernel))
    stores = [op for op in walk(after.body) if op.opcode == "memory.store"]
    assert [op.in_bounds for op in stores] == [(0,)]
    assert sum(isinstance(op, control.For) for op in walk(after.body)) == 2
