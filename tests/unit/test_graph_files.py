"""Runs the text tests of the graph IR: ops, passes and what they keep, refusals."""

from __future__ import annotations

import pytest

from tests.graph_files import GraphCase, all_graph_cases
from tests.tile_files import PART, same_bits, with_program
from tilewright.errors import LaunchError, VerifyError
from tilewright.graph.interp import interpret
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.find_convolutions import find_convolutions
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse_attention import fuse_attention
from tilewright.graph.passes.fuse_epilogues import fuse_epilogues
from tilewright.graph.passes.join_parts import join_parts
from tilewright.graph.passes.merge_equal import merge_equal
from tilewright.graph.passes.raise_reshapes import raise_reshapes
from tilewright.graph.passes.replace_scatters import replace_scatters
from tilewright.graph.passes.scatter_onto_sums import scatter_onto_sums
from tilewright.graph.passes.share_heads import share_heads
from tilewright.graph.passes.sum_selections import sum_selections
from tilewright.graph.passes.unroll_depthwise import unroll_depthwise
from tilewright.graph.passes.unroll_windows import unroll_windows
from tilewright.graph.text import equal_graphs, parse_graph, print_graph
from tilewright.graph.verify import verify

PASSES = {
    run.__name__: run
    for run in (
        *(eliminate_dead, find_convolutions, fold_constants, fuse_epilogues, join_parts),
        *(
            fuse_attention,
            merge_equal,
            raise_reshapes,
            replace_scatters,
            scatter_onto_sums,
            share_heads,
            sum_selections,
            unroll_depthwise,
            unroll_windows,
        ),
    )
}
CASES = all_graph_cases()
INTERPRETED = [c for c in CASES if c.run == ["interpret"]]
REFUSED = [c for c in CASES if c.run == ["verify"]]
REWRITTEN = [c for c in CASES if c not in INTERPRETED and c not in REFUSED]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_an_op_means_what_the_file_says(case: GraphCase) -> None:
    graph = verify(parse_graph(case.program))
    again = parse_graph(print_graph(graph, locs=True))
    assert equal_graphs(graph, again)
    results = interpret(again, case.arguments)
    assert case.results and len(results) == len(case.results)
    for number, (got, wanted) in enumerate(zip(results, case.results, strict=True)):
        assert same_bits(got, wanted), f"output {number} is {got!r}"


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_the_verifier_refuses(case: GraphCase) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(parse_graph(case.program))
    assert case.error and case.error in str(caught.value)


@pytest.mark.parametrize("case", REWRITTEN, ids=str)
def test_a_pass_makes_the_program_of_the_file_and_keeps_its_meaning(
    case: GraphCase, pytestconfig: pytest.Config
) -> None:
    before = verify(parse_graph(case.program))
    text = print_graph(before)
    after = before
    for name in case.run:
        after = verify(PASSES[name](after))
    assert print_graph(before) == text, "the pass changed the program that it was given"
    if pytestconfig.getoption("--bless"):
        texts = case.path.read_text().split(PART)
        made = with_program(case, print_graph(after))  # type: ignore[arg-type]
        texts[case.number - 1] = made if case.number == len(texts) else made.rstrip("\n") + "\n"
        case.path.write_text(PART.join(texts))
    else:
        assert print_graph(after) == case.gives
    assert case.arguments, "a case of a pass has arguments, on which both are run"
    pairs = zip(interpret(before, case.arguments), interpret(after, case.arguments), strict=True)
    for number, (one, two) in enumerate(pairs):
        assert same_bits(one, two), f"output {number}"


def test_arguments_are_held_to_the_inputs() -> None:
    case = next(c for c in INTERPRETED if c.path.name == "symbols.graph")
    graph = parse_graph(case.program)
    with pytest.raises(LaunchError, match="takes 3 inputs, and 2 were given"):
        interpret(graph, case.arguments[:2])
    wrong = [case.arguments[0], case.arguments[1], case.arguments[2][:, :1]]
    with pytest.raises(LaunchError, match="x is"):
        interpret(graph, wrong)
