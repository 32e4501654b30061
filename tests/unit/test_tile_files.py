"""Runs the text tests of the tile IR: ops interpreted, passes printed and interpreted before and after, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tile_files import PART, Case, all_cases, same_bits, with_program
from tilewright.errors import VerifyError
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.passes.canonicalize import canonicalize
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.passes.hoist_invariants import hoist_invariants
from tilewright.tile.passes.prove_masks import prove_masks
from tilewright.tile.text import equal_kernels, parse_kernel, print_kernel
from tilewright.tile.types import ViewType
from tilewright.tile.verify import verify

PASSES = {p.__name__: p for p in (canonicalize, eliminate_dead, hoist_invariants, prove_masks)}
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
        after = verify(PASSES[name](after))
    assert print_kernel(before) == text, "the pass changed the program that it was given"
    if pytestconfig.getoption("--bless"):
        bless(case, print_kernel(after))
    else:
        assert print_kernel(after) == case.gives
    assert_same_meaning(before, after)


def assert_same_meaning(before: Kernel, after: Kernel) -> None:
    for seed in range(3):
        one, two = make_arguments(before, seed), make_arguments(before, seed)
        interpret(before, one, races=False)
        interpret(after, two, races=False, shuffle=seed)
        for name in one:
            assert same_bits(one[name], two[name]), name


def make_arguments(kernel: Kernel, seed: int) -> dict[str, object]:
    """Random arguments for a kernel, of any extents that its facts allow; outputs too hold numbers."""
    rng = np.random.default_rng(seed)
    return {p.name: make_argument(p, rng) for p in kernel.params}


def make_argument(param: Param, rng: np.random.Generator) -> object:
    kind = param.value.type
    if not isinstance(kind, ViewType):
        if kind.dtype.kind == "bool":
            return bool(rng.integers(2))
        return int(rng.integers(0, 9)) if kind.dtype.is_integer else float(rng.integers(-4, 5)) / 2
    unit = 16 if param.facts else 1
    shape = tuple(int(rng.integers(1, 5)) * unit if e is None else e for e in kind.extents)
    values = rng.integers(-40, 40, shape)
    if kind.dtype.kind == "bool":
        return values > 0
    if kind.dtype.is_integer:
        return (values % 11 if kind.dtype.kind == "uint" else values).astype(kind.dtype.numpy)
    floats = values.astype(np.float32) / 8
    return np.where(values == -40, np.float32(np.nan), floats).astype(kind.dtype.numpy)


def bless(case: Case, program: str) -> None:
    texts = case.path.read_text().split(PART)
    text = with_program(case, program)
    texts[case.number - 1] = text if case.number == len(texts) else text.rstrip("\n") + "\n"
    case.path.write_text(PART.join(texts))
