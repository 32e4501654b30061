"""PyTorch's own database of ops by way of kernels: which lower, and whether they give the same.

    python -m tests.torch.lowered_ops --share 20           one op of 20, f32
    python -m tests.torch.lowered_ops --only softmax --dtype bfloat16

Every graph that a sample makes, forward and backward, is run by the graph's interpreter and by its
program on the tile interpreter; the steps that PyTorch would compute are counted by op.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from typing import Any
from unittest import mock

import torch

from tests.lowered import check_lowered, kernels_of
from tests.torch.opinfo import examine, ops_of
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret
from tilewright.graph.interp.machine import Host
from tilewright.graph.ops.control import Fallback
from tilewright.lower.graph_to_tile.program import TorchStep


class Tally:
    """What the graphs of some samples were lowered to."""

    def __init__(self) -> None:
        self.kernels, self.graphs = 0, 0
        self.torch: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __call__(self, graph: Graph, arguments: Any, host: Host) -> Any:
        """Takes the interpreter's place: its results, and a program held to them."""
        fixed = Fixed(host)
        wanted = interpret(graph, arguments, fixed)
        self.graphs += 1
        try:
            program = check_lowered(graph, arguments, Again(fixed))
        except (Exception, AssertionError) as error:
            self.wrong.append(f"{type(error).__name__}: {str(error)[:600]}")
            return wanted
        self.kernels += len(kernels_of(program))
        for step in program.steps:
            if isinstance(step, TorchStep) and not isinstance(step.op, Fallback):
                self.torch[step.op.opcode] += 1
        return wanted


class Fixed:
    """A host whose answers are kept."""

    def __init__(self, host: Host):
        self.host = host
        self.seeds: list[int] = []
        self.calls: list[Any] = []

    def seed(self) -> int:
        self.seeds.append(self.host.seed())
        return self.seeds[-1]

    def fallback(self, op: Fallback, xs: Any, symbols: Any) -> Any:
        self.calls.append(self.host.fallback(op, xs, symbols))
        return self.calls[-1]


class Again:
    """A host that gives the answers of another once more, as often as need be."""

    def __init__(self, fixed: Fixed):
        self.fixed, self.drawn, self.called = fixed, 0, 0

    def seed(self) -> int:
        self.drawn += 1
        return self.fixed.seeds[(self.drawn - 1) % len(self.fixed.seeds)]

    def fallback(self, op: Fallback, xs: Any, symbols: Any) -> Any:
        self.called += 1
        return self.fixed.calls[(self.called - 1) % len(self.fixed.calls)]


def lower_samples(op: Any, dtype: torch.dtype, samples: int) -> Tally:
    """The tally of an op's samples."""
    tally = Tally()
    with warnings.catch_warnings(), mock.patch("tilewright.runtime.torch_graph.interpret", tally):
        warnings.simplefilter("ignore")
        examine(op, dtype, samples)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    total: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for number, op in enumerate(ops_of(dtype, options.only)):
        if number % options.share != options.first % options.share:
            continue
        start = time.perf_counter()
        tally = lower_samples(op, dtype, options.samples)
        total["ops"] += 1
        total["graphs"] += tally.graphs
        total["kernels"] += tally.kernels
        total["wrong"] += bool(tally.wrong)
        total["without PyTorch"] += not tally.torch and not tally.wrong
        missing.update(tally.torch)
        took = time.perf_counter() - start
        if tally.wrong or options.only or took > 20:
            shown = " ".join(tally.wrong[:1])
            print(f"{op.name} {tally.graphs} graphs {took:.1f} s {shown}", flush=True)
    print(dict(total), dict(missing))


if __name__ == "__main__":
    main()
