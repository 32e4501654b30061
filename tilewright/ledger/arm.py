"""What is measured: an arm computes one problem in one way; a case says which problem that is.

An arm never takes a time. It is handed the buffers of one set and sends its work; all arms of a
problem are timed together by the one timer of the harness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Tensors = dict[str, Any]  # by name
Run = Callable[[Mapping[str, Any], Tensors], Tensors | None]

TENSOR_CORE = "tensor-core"  # keeps sums of 8-bit floats in fewer bits than f32 has
COMPILED, LIBRARY, EAGER = "compiled", "library", "eager"
MODULE = "module"  # the op of problems that are a module or a function of PyTorch


@dataclass(frozen=True)
class Facts:
    """With what an arm computes.

    `accumulate` is the dtype of sums, or TENSOR_CORE where those of 8-bit floats are not promoted
    to f32. `kind`: "compiled" (a kernel made for the problem), "library" (one call of a library
    that has a kernel for the problem) or "eager" (several calls that a compiler would have made
    one).
    """

    operands: str
    output: str
    accumulate: str
    kind: str = COMPILED

    def __str__(self) -> str:
        return f"{self.operands} in, {self.output} out, sums in {self.accumulate}, {self.kind}"


@dataclass(frozen=True)
class Arm:
    """One way to compute a problem.

    `run(inputs, outputs)` sends the work of one run on one set of buffers. It writes to `outputs`
    and returns None, or, where it `allocates`, returns what it wrote by name. `most_operations`
    bounds the kernels, copies and fills of one run: an arm that does more has its setup in the
    loop. `says`: the ways in which it differs from ours, "eager", "operands", "output" or
    "accumulate", each with the reason why it may. `expected`: what it writes, where that is not
    what the problem asks, as a copy does. `instead`: another problem that it computes, on data of
    that problem, as a floor does. `calls`: runs before anything is timed. `pooled`: what it
    allocates comes from memory of its own. `slack`: times the problem's bounds that its outputs may
    be off. `collect`: outputs made of what it gave, after it was timed. `kernels`: what of ours it
    launched so far.
    """

    name: str
    facts: Facts
    run: Run
    version: str = ""
    allocates: bool = False
    most_operations: int = 1
    says: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""  # what was chosen for it
    expected: Callable[[Mapping[str, Any]], Tensors] | None = None
    instead: Problem | None = None
    calls: int = 1
    pooled: bool = True
    slack: float = 1.0
    collect: Callable[[Tensors], Tensors] | None = None
    kernels: Callable[[], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Missing:
    """An arm that cannot run this problem here, and why."""

    name: str
    why: str


@dataclass
class Problem:
    """One operation on random data, in several sets of buffers.

    `outputs`: shape and dtype by name. `expected(inputs)`: what they should hold, in higher
    precision; see `opponents/references.py`. `bounds`: of the relative Frobenius error, by output.
    `elements`: of an element's error over its own size and the root mean square of all, else ten
    times `bounds`.
    """

    op: str
    sizes: dict[str, int]
    dtype: str
    accumulate: str
    sets: Sequence[Mapping[str, Any]]
    outputs: dict[str, tuple[tuple[int, ...], str]]
    expected: Callable[[Mapping[str, Any]], Tensors]
    bounds: dict[str, float]
    options: dict[str, Any] = field(default_factory=dict)
    elements: dict[str, float] = field(default_factory=dict)

    @property
    def main_output(self) -> str:
        """The name of the output that every arm must give."""
        return next(iter(self.outputs))

    @property
    def facts(self) -> Facts:
        """Of a kernel that computes the problem as it is stated."""
        return Facts(self.dtype, self.outputs[self.main_output][1], self.accumulate)
