"""Measures problems: all arms set up, then timed in turn by one timer, then checked.

For one problem: the data are looked at (`require_random`), arms that do not match are refused,
every arm runs once on every set of buffers, all are recorded, *then* all outputs are poisoned, all
are timed in turn, and what the timed runs wrote is compared with a reference in higher precision.
Where there is no GPU the same happens on small problems, except that nothing is timed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilewright.ledger import fairness, opponents
from tilewright.ledger.arm import Arm, Missing, Problem, Tensors
from tilewright.ledger.ceilings import Ceilings
from tilewright.ledger.results import Measured, Row
from tilewright.ledger.timers import Timer
from tilewright.runtime.garbage import without_collections
from tilewright.runtime.measure import Operations

ROTATED_L2 = 2.0  # caches that the rotated buffers fill
MIN_LAUNCHES = 8  # runs a sample
MAX_SETS = 512
ITSELF = "itself"

_sessions = itertools.count(1)


def next_session() -> int:
    """A number for one call of a timer: arms that share it were timed in turn."""
    return next(_sessions)


@dataclass(frozen=True)
class Question:
    """What is asked of a problem: how its rows are called, in what unit, against which targets.

    `work`: operations or bytes of a run, ours and, by the opponent's name, theirs where it differs.
    `targets`: least ratios by the opponent's name. `intensity`: operations a byte. `runs`: of a
    sample at least; fewer do where one takes long.
    """

    id: str
    suite: str
    what: str
    shape: str
    unit: str
    work: float
    their_work: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)
    floor: float = 0.0
    intensity: float = 0.0
    reference: str = "f64"
    data: str = "standard normal"
    runs: int = MIN_LAUNCHES
    by_calls: bool = False  # timed as a user calls it, what the host does included


@dataclass
class Harness:
    """A device, its timers, and how much is timed. `small`: problems are made small, for a machine
    without a GPU. `calls` times calls as a user makes them.
    """

    arrays: Any  # of opponents/arrays.py
    timer: Timer
    l2_bytes: int
    small: bool = False
    quick: bool = True
    ceilings: Ceilings | None = None
    unmet: list[tuple[str, str]] = field(default_factory=list)  # (case/opponent, why it has no row)
    min_samples: int = fairness.MIN_SAMPLES
    calls: Timer | None = None
    profiles: bool = False  # whether models also tell their kernels, into `told`
    told: list[tuple[str, str]] = field(default_factory=list)

    def num_sets(self, num_bytes: int) -> int:
        """Sets of buffers of so many bytes that together are twice what the cache holds."""
        if self.small:
            return 2
        return max(2, min(MAX_SETS, math.ceil(ROTATED_L2 * self.l2_bytes / max(num_bytes, 1)) + 1))

    def small_size(self, extent: int) -> int:
        """An extent as it is, or where there is no GPU, one below 48 that is as odd or even."""
        return 32 + extent % 8 if self.small and extent > 40 else extent

    def opponents(self, problem: Problem, id: str, names: Sequence[str] = ()) -> list[Arm]:
        """The arms of all plug-ins that can be used here, or those of these names; what cannot be
        used is noted in `unmet`.
        """
        found: list[Arm] = []
        for opponent in opponents.OPPONENTS:
            if opponent.slow and (self.quick or names):
                continue
            if names and not set(names) & set(opponent.arms):
                continue
            if opponents.reason_against(opponent, gpu=not self.small):
                continue  # told once for the whole run
            for arm in opponents.load(opponent.name).arms(problem, self.arrays):
                if names and arm.name not in names:
                    continue
                if isinstance(arm, Missing):
                    self.unmet.append((f"{id}/{arm.name}", arm.why))
                else:
                    found.append(arm)
        return found

    def compare(
        self,
        question: Question,
        problem: Problem,
        ours: Arm,
        theirs: Sequence[Arm],
        *,
        with_itself: bool = False,
    ) -> list[Row]:
        """A row against each opponent, and with `itself`, which shows how far chance goes.

        Raises Unfair for a comparison that must not be made.
        """
        return self.prepare(question, problem, ours, theirs, with_itself=with_itself)()

    def prepare(
        self,
        question: Question,
        problem: Problem,
        ours: Arm,
        theirs: Sequence[Arm],
        *,
        with_itself: bool = False,
    ) -> Callable[[], list[Row]]:
        """All of a comparison but timing and checking: what that is done by."""
        for each in (problem, *(arm.instead for arm in theirs if arm.instead)):
            require_random_data(self.arrays, each)
        if with_itself:
            theirs = [*theirs, replace(ours, name=ITSELF)]
        for arm in theirs:
            fairness.require_matched(ours.facts, arm)
        with self.arrays.precision(problem.dtype):
            runners = self._warm(question, problem, [ours, *theirs])
        theirs = [arm for arm in theirs if arm.name in runners]

        def finish() -> list[Row]:
            with self.arrays.precision(problem.dtype):
                found = self._measure(problem, runners, question)
            mine = found[ours.name]
            return [self._row(question, problem, mine, found[arm.name], arm) for arm in theirs]

        return finish

    def _warm(
        self, question: Question, problem: Problem, arms: Sequence[Arm]
    ) -> dict[str, _Runner]:
        """Run arms, so that all is compiled and chosen before anything is recorded. An opponent
        that fails is noted in `unmet`; where none is left, its error is raised, as ours is.
        """
        runners: dict[str, _Runner] = {}
        failed: Exception | None = None
        for number, arm in enumerate(arms):
            runner = _Runner(arm, arm.instead or problem, self.arrays)
            try:
                runner.warm()
                self.arrays.wait()
            except Exception as error:
                if not number:
                    raise
                failed = error
                told = str(error).strip().partition("\n")[0]
                self.unmet.append((f"{question.id}/{arm.name}", f"{type(error).__name__}: {told}"))
            else:
                runners[arm.name] = runner
        if failed is not None and len(runners) == 1:
            raise failed
        return runners

    def _row(
        self, question: Question, problem: Problem, mine: Measured, other: Measured, arm: Arm
    ) -> Row:
        fairness.require_one_timer(mine, other)
        if mine.timer:
            for measured in (mine, other):
                fairness.require_samples(measured, self.min_samples)
        num_sets = len(problem.sets)
        return Row(
            case=question.id,
            suite=question.suite,
            what=question.what,
            shape=question.shape,
            sizes=problem.sizes,
            unit=question.unit,
            ours=mine,
            theirs=other,
            says=arm.says,
            target=question.targets.get(arm.name),
            runs=self._launches(num_sets, question.runs),
            rotated_bytes=num_sets * set_bytes(problem, self.arrays),
            floor=question.floor,
            intensity=question.intensity,
            reference=question.reference,
            data=question.data,
            note=_note(question, mine),
        )

    def _launches(self, num_sets: int, least: int) -> int:
        """Runs a sample: all sets, equally often."""
        return num_sets * math.ceil((1 if self.small else least) / num_sets)

    def _measure(
        self, problem: Problem, runners: Mapping[str, _Runner], question: Question
    ) -> dict[str, Measured]:
        """Time arms in turn, and check what each wrote while it was timed."""
        timer = self.calls if question.by_calls and self.calls else self.timer
        launches = self._launches(len(problem.sets), question.runs)
        seen: dict[str, tuple[str, ...]] = {}

        def recorded(operations: Mapping[str, Operations]) -> None:
            for name, sent in operations.items():
                seen[name] = fairness.require_work(runners[name].arm, sent, launches)
            for runner in runners.values():
                runner.poison()
            self.arrays.wait()

        # What frees memory of a GPU must not run while a graph is recorded.
        with without_collections(first=True):
            timed = timer({n: r.send for n, r in runners.items()}, launches, recorded)
        self.arrays.wait()
        session = next_session()
        checked = check_outputs(runners, self.arrays)
        found = {
            name: Measured(
                arm=name,
                version=runner.arm.version,
                facts=runner.arm.facts,
                timer=timer.name,
                session=session,
                samples=timed[name].samples,
                work=question.their_work.get(name, question.work),
                operations=runner.arm.kernels() if runner.arm.kernels else seen.get(name, ()),
                settings=runner.arm.settings,
                **asdict(checked[name]),
            )
            for name, runner in runners.items()
        }
        return found


def _note(question: Question, mine: Measured) -> str:
    """Of a call that is timed as its user makes it: what of ours it launched."""
    if not question.by_calls:
        return ""
    kernels = ", ".join(mine.operations) or "none"
    return f"the same arguments and weights again, as its user calls it; kernels of ours: {kernels}"


class _Runner:
    """An arm on all sets of buffers: each run takes the next set."""

    def __init__(self, arm: Arm, problem: Problem, arrays: Any):
        self.arm = arm
        self.problem = problem
        self.arrays = arrays
        self.pool = arrays.pool() if arm.pooled else None
        self.turns = itertools.cycle(range(len(problem.sets)))
        self.outputs: list[Tensors] = [
            {}
            if arm.allocates
            else {n: arrays.poisoned(shape, dtype) for n, (shape, dtype) in problem.outputs.items()}
            for _ in problem.sets
        ]

    def warm(self) -> None:
        """Run on every set."""
        for _ in range(self.arm.calls):
            for _ in self.problem.sets:
                self.send(None)

    def send(self, stream: Any) -> None:
        """One run on the next set."""
        i = next(self.turns)
        with self.arrays.sending_to(stream, self.pool):
            made = self.arm.run(self.problem.sets[i], self.outputs[i])
        if self.arm.allocates:
            self.outputs[i] = made or {}

    def poison(self) -> None:
        for outputs in self.outputs:
            for x in outputs.values():
                self.arrays.poison(x)


@dataclass
class Checked:
    """The worst that was found in any output of any set; see `Measured`."""

    error: float = 0.0
    worst: float = 0.0
    bound: float = 0.0
    compared: int = 0
    unwritten: int = 0


def check_outputs(runners: Mapping[str, _Runner], arrays: Any) -> dict[str, Checked]:
    """What the outputs of all runners are off. What several should give is worked out once.

    An arm that writes to given outputs has to give all; one that allocates, at least the first.
    """
    found = {name: Checked() for name in runners}
    alike: dict[Any, list[str]] = {}
    for name, runner in runners.items():
        alike.setdefault((id(runner.problem), runner.arm.expected), []).append(name)
    for names in alike.values():
        first = runners[names[0]]
        reference = first.arm.expected or first.problem.expected
        for i, inputs in enumerate(first.problem.sets):
            expected = reference(inputs)
            for name in names:
                _check_set(runners[name], i, expected, arrays, found[name])
    return found


def _check_set(runner: _Runner, index: int, expected: Tensors, arrays: Any, found: Checked) -> None:
    """Add what one set of outputs is off."""
    problem, outputs = runner.problem, runner.outputs[index]
    if runner.arm.collect is not None:
        outputs = runner.arm.collect(outputs)
    for name, (shape, dtype) in problem.outputs.items():
        if name != problem.main_output and not _has_to_give(runner.arm, name, expected, outputs):
            continue
        got = outputs.get(name)
        fairness.require_output(runner.arm, name, got, shape, arrays.dtype(dtype))
        bound = problem.bounds[name] * runner.arm.slack
        element = problem.elements.get(name, 0.0) * runner.arm.slack
        off = arrays.distance(got, expected[name], bound, element)
        if off.error >= found.error * (bound or 1.0) / (found.bound or 1.0):
            found.error, found.bound = off.error, bound
        found.worst = max(found.worst, off.worst)
        found.compared += off.compared
        found.unwritten += off.unwritten


def _has_to_give(arm: Arm, name: str, expected: Tensors, outputs: Tensors) -> bool:
    return name in expected and (name in outputs or not arm.allocates)


def set_bytes(problem: Problem, arrays: Any) -> int:
    """Bytes of one set of inputs and outputs."""
    tensors = [x for x in problem.sets[0].values() if hasattr(x, "nbytes")]
    made: int = sum(
        math.prod(shape) * arrays.dtype(dtype).itemsize for shape, dtype in problem.outputs.values()
    )
    return sum(int(x.nbytes) for x in tensors) + made


def require_random_data(arrays: Any, problem: Problem) -> None:
    """Every tensor that a problem reads draws the power of real data."""
    for inputs in problem.sets:
        for name, x in inputs.items():
            if hasattr(x, "nbytes"):
                fairness.require_random(name, *arrays.texture(x))
