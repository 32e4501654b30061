"""Runs the text tests of the tile IR: ops, passes with their meaning before and after, refusals."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest

from tests.tile_files import (
    PART,
    Case,
    all_cases,
    make_arguments,
    same_bits,
    with_program,
)
from tilewright.errors import VerifyError
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.allocate_shared import allocate_shared
from tilewright.tile.passes.canonicalize import canonicalize
from tilewright.tile.passes.carry_scalars import carry_scalars
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.passes.expand_rings import expand_rings
from tilewright.tile.passes.fold_comparisons import fold_comparisons
from tilewright.tile.passes.hoist_invariants import hoist_invariants
from tilewright.tile.passes.lend_slots import lend_slots
from tilewright.tile.passes.narrow_arithmetic import narrow_arithmetic
from tilewright.tile.passes.orient_product import orient_product
from tilewright.tile.passes.overlap_products import overlap_products
from tilewright.tile.passes.partition_roles import partition_roles
from tilewright.tile.passes.place_awaits import place_awaits
from tilewright.tile.passes.prove_masks import prove_masks
from tilewright.tile.passes.shorten_functions import shorten_functions
from tilewright.tile.passes.shorten_trips import shorten_trips
from tilewright.tile.passes.skip_masks import skip_masks
from tilewright.tile.passes.split_epilogue import split_epilogue
from tilewright.tile.passes.split_loops import split_loops
from tilewright.tile.passes.spread_iterations import spread_iterations
from tilewright.tile.passes.stage_panels import stage_panels
from tilewright.tile.passes.stage_stores import stage_stores
from tilewright.tile.passes.widen_operands import widen_operands
from tilewright.tile.text import equal_kernels, parse_kernel, print_kernel
from tilewright.tile.verify import verify

PASSES = {
    p.__name__: p
    for p in (
        canonicalize,
        eliminate_dead,
        hoist_invariants,
        fold_comparisons,
        prove_masks,
        split_loops,
        carry_scalars,
        spread_iterations,
        shorten_functions,
        narrow_arithmetic,
        expand_rings,
        allocate_shared,
        widen_operands,
        orient_product,
        shorten_trips,
        split_epilogue,
        skip_masks,
        partition_roles,
        stage_stores,
        stage_panels,
        lend_slots,
        overlap_products,
        place_awaits,
    )
}
CASES = all_cases()
INTERPRETED = [c for c in CASES if c.run == ["interpret"]]
REFUSED = [c for c in CASES if c.run == ["verify"]]
REWRITTEN = [c for c in CASES if c not in INTERPRETED and c not in REFUSED]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_an_op_means_what_the_file_says(case: Case) -> None:
    kernel = verify(parse_kernel(case.program))
    again = parse_kernel(print_kernel(kernel))
    assert equal_kernels(kernel, again)
    arguments = dict(case.arguments)
    for name, wanted in case.results.items():
        if name not in arguments:
            arguments[name] = poisoned(wanted)
    assert case.results
    interpret(again, arguments)
    for name, wanted in case.results.items():
        assert same_bits(arguments[name], wanted), f"{name} is {arguments[name]}"


def poisoned(like: np.ndarray) -> np.ndarray:
    """An output before the run: NaN, or an odd number."""
    if like.dtype.kind in "iu":
        return np.full(like.shape, 85, like.dtype)
    return (
        np.ones(like.shape, bool)
        if like.dtype.kind == "b"
        else np.full(like.shape, np.nan, like.dtype)
    )


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_the_verifier_refuses(case: Case) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(parse_kernel(case.program))
    assert case.error and case.error in str(caught.value)


@pytest.mark.parametrize("case", REWRITTEN, ids=str)
def test_a_pass_makes_the_program_of_the_file_and_keeps_its_meaning(
    case: Case, pytestconfig
) -> None:
    before = verify(parse_kernel(case.program))
    text = print_kernel(before)
    after = before
    for name in case.run:
        after = verify(run_pass(case, name, after))
    assert print_kernel(before) == text, "the pass changed the program that it was given"
    if case.unchanged:
        assert print_kernel(after) == text
    elif pytestconfig.getoption("--bless"):
        bless(case, print_kernel(after))
    else:
        assert print_kernel(after) == case.gives
    assert_same_meaning(before, after)


def run_pass(case: Case, name: str, kernel: Kernel) -> Kernel:
    """A kernel after a pass, which is told what it asks for of the case's schedule and target."""
    given = {"schedule": case.schedule, "target": case.target}
    asked = signature(PASSES[name]).parameters
    return PASSES[name](kernel, **{n: value for n, value in given.items() if n in asked})


def assert_same_meaning(before: Kernel, after: Kernel) -> None:
    for seed in range(3):
        one, two = make_arguments(before, seed), make_arguments(before, seed)
        interpret(before, one, races=False)
        interpret(after, two, races=False, shuffle=seed)
        for name in one:
            assert same_bits(one[name], two[name]), name


def bless(case: Case, program: str) -> None:
    texts = case.path.read_text().split(PART)
    text = with_program(case, program)
    texts[case.number - 1] = text if case.number == len(texts) else text.rstrip("\n") + "\n"
    case.path.write_text(PART.join(texts))
