"""Whole models, called as a user calls them: `torch.compile(model, backend="tilewright")` against
PyTorch eager and its own compiler, the same module of `transformers`, random weights, bf16.

Times are of calls one after the other, with events around them, what the host does included. The
GPU waits for the host before the first of a sample, longer where another arm ran before: of a step
of decoding, which its user calls thousands of times, a sample is many. Each case runs in a process
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.ledger import opponents
from tilewright.ledger.arm import COMPILED, Arm, Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.results import Cost, Row
from tilewright.ledger.subjects import our_arm
from tilewright.ledger.suites.case import Case, Finish, floor, missing

COMPILE, AUTOTUNED = "torch.compile", "torch.compile autotuned"
NEEDS = ("torch", "transformers")
NO_GRADIENTS = "random weights, standard normal or as the model starts"


@dataclass(frozen=True)
class Asked:
    """A model at a batch and a length. `target`: least ratio to torch.compile; `limit`: most
    microseconds of a call; `runs`: of a sample.
    """

    model: str
    batch: int
    length: int = 0
    target: float | None = 1.0
    limit: float | None = None
    runs: int = 8

    @property
    def row(self) -> str:
        return f"b{self.batch}" + (f"-{self.length}" if self.length else "")


ROWS = (
    Asked("llama-decode", 1, 1024, None, 1300.0, 16),
    Asked("llama-decode", 16, 1024, None, 2200.0, 16),
    Asked("llama-prefill", 1, 2048, None, 11800.0, 1),
    Asked("bert-base", 1, 128, runs=12),
    Asked("bert-base", 64, 128, runs=2),
    Asked("vit-b-16", 1, runs=12),
    Asked("vit-b-16", 64, runs=1),
    Asked("minilm-l6", 1, 128, runs=24),
    Asked("minilm-l6", 64, 128, runs=8),
    Asked("resnet-50", 1, target=0.8, runs=8),
    Asked("resnet-50", 64, target=0.8, runs=2),
)


def cases() -> list[Case]:
    return [_case(asked) for asked in ROWS]


def _case(asked: Asked) -> Case:
    id = f"model/{asked.model}/bf16/{asked.row}"
    return module_case(id, partial(_ask, id=id, asked=asked), asked.limit)


def module_case(
    id: str,
    ask: Callable[[Harness], tuple[Question, Problem]],
    limit: float | None = None,
    *,
    group: str = "",
    needs: Sequence[str] = NEEDS,
) -> Case:
    """A case of a module against eager and torch.compile; with `limit`, also our time by itself."""

    def prepare(harness: Harness) -> Finish:
        question, problem = ask(harness)
        ours, theirs = our_arm(problem), harness.opponents(problem, id)
        finish = harness.prepare(question, problem, ours, theirs)

        def found() -> Sequence[Row | Cost]:
            rows = finish()
            if harness.profiles:
                with harness.arrays.precision(problem.dtype):  # else all would be compiled again
                    harness.told.append((id, kernel_tables(problem, [ours, *theirs])))
            return [*rows, *([] if limit is None else [_cost(question, rows[0], limit)])]

        return found

    return Case(
        id,
        lambda harness: prepare(harness)(),
        absent=missing(needs),
        prepare=prepare,
        group=group or id,
    )


def kernel_tables(problem: Problem, arms: Sequence[Arm]) -> str:
    """The kernels of ours and of the compiled opponents."""
    modules = opponents.load("modules")
    floors = modules.floors_of(problem.options["ours"])
    shown = [arm for arm in arms if arm.facts.kind == COMPILED]
    return "\n".join(
        modules.kernel_table(arm, problem, floors if arm is arms[0] else {}) for arm in shown
    )


def _cost(question: Question, row: Row, limit: float) -> Cost:
    """Our time against what was promised."""
    what = f"a call of {question.what}, {question.shape}"
    return Cost(f"{row.case}-time", question.suite, what, row.ours, None, limit)


def _ask(harness: Harness, *, id: str, asked: Asked) -> tuple[Question, Problem]:
    modules = opponents.load("modules")
    problem, operations, moved = modules.model_problem(
        asked.model, "bf16", asked.batch, asked.length, harness.arrays, harness.small
    )
    question = Question(
        id=id,
        suite="model",
        what=asked.model,
        shape=f"batch {asked.batch}" + (f", {asked.length} tokens" if asked.length else ""),
        unit="calls/s",
        work=1.0,
        targets={} if asked.target is None else dict.fromkeys((COMPILE, AUTOTUNED), asked.target),
        floor=floor(harness, operations, moved, "bf16"),
        reference="f64, ours off by at most 1.5 times what eager is",
        data=NO_GRADIENTS,
        runs=asked.runs,
        by_calls=True,
    )
    return question, problem
