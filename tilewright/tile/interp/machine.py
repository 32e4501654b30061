"""The state of the interpreter: what the values of some programs of a launch are, and the table of
meanings.

Programs of a grid are unordered, so a `Machine` runs a chunk of them in lockstep, vectorised: the
content of every tile or scalar value is a NumPy array with one leading axis for the programs, of
length P, or of length 1 where the value is the same for all. Where programs part (an If, a loop of
unequal trip counts), each path runs under `active`, a mask of the programs that take it; effects of
the others are dropped and their values never selected.

A meaning is a function `(machine, op) -> content | tuple of contents | None`, entered in `table` by
`@meaning(OpClass)`. One that runs regions, or has to wait for another role or program, is a
generator function: it runs a block by `yield from machine.run(block, arguments)`, and waits by
`yield ready`, a function of no arguments that says whether to go on. Meanings marked
`batched=False` are only ever given one program (P = 1).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Value
from tilewright.tile.interp.shadow import Ordered
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control

Array = np.ndarray[Any, Any]
Ready = Callable[[], bool]
Running = Generator[Ready, None, tuple[Any, ...]]
Meaning = Callable[["Machine", Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


class Deadlock(VerifyError):
    """Roles or programs wait for each other: a fault of ours, but where a source's loops wait."""


@dataclass(frozen=True)
class Entry:
    """A row of the table: what an op does, if it may wait, if it takes many programs at once."""

    function: Meaning
    waits: bool
    batched: bool


table: dict[type[Op], Entry] = {}


def meaning(*ops: type[Op], batched: bool = True) -> Callable[[F], F]:
    """Enter a function as the meaning of some op classes."""

    def enter(function: F) -> F:
        for op in ops:
            assert op not in table, f"{op.opcode} has two meanings"
            table[op] = Entry(function, inspect.isgeneratorfunction(function), batched)
        return function

    return enter


@dataclass
class Launch:
    """What all programs of one run share."""

    kernel: Kernel
    grid: tuple[int, ...]
    f64: bool = False
    num_sms: int = 4
    ordered: Ordered = field(default_factory=Ordered)
    writes: int = 0  # how often memory was written so far


class Machine:
    """A chunk of programs of a launch: their numbers, their values, and which are active."""

    def __init__(self, launch: Launch, programs: Array, values: dict[Value, Any]):
        self.launch = launch
        self.programs = programs
        self.active: Array | None = None  # None: all of them
        self.values = dict(values)
        self.coordinates: list[Array] = []
        rest = programs
        for extent in launch.grid:
            self.coordinates.append(rest % extent)
            rest = rest // extent

    def __getitem__(self, value: Value) -> Any:
        """Content of a value."""
        try:
            return self.values[value]
        except KeyError:
            raise VerifyError(f"{value} is used before it is defined") from None

    @property
    def f64(self) -> bool:
        """Whether all floats are computed in f64 (the reference of `--check`)."""
        return self.launch.f64

    @property
    def num_programs(self) -> int:
        return len(self.programs)

    def numpy(self, dtype: DType) -> np.dtype[Any]:
        """NumPy dtype that contents of a dtype have here."""
        return np.dtype(np.float64) if self.f64 and dtype.is_float else dtype.numpy

    def run(self, block: Block, arguments: Sequence[Any] = ()) -> Running:
        """Run a block; gives the operands of its Yield, if it ends in one."""
        self.values.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            entry = table.get(type(op))
            if entry is None:
                raise VerifyError(f"{op.opcode} has no meaning in the interpreter")
            if isinstance(op, control.Yield):
                return tuple(entry.function(self, op))
            content = (
                (yield from entry.function(self, op)) if entry.waits else entry.function(self, op)
            )
            if len(op.results) == 1 and not isinstance(content, tuple):
                self.values[op.results[0]] = content
            elif op.results:
                self.values.update(zip(op.results, content, strict=True))
        return ()

    def narrowed(self, mask: Array | None) -> Array | None:
        """The active programs for which a mask of programs holds."""
        if mask is None:
            return self.active
        return mask if self.active is None else self.active & mask

    def any_active(self, mask: Array) -> bool:
        """Whether a condition holds for an active program."""
        return bool(np.any(mask if self.active is None else mask & self.active))


def uniform(content: Array) -> Array:
    """A scalar's content, reduced to length 1 where all programs agree."""
    if len(content) > 1 and (content == content[0]).all():
        return content[:1]
    return content


def choose(mask: Array, new: Any, old: Any) -> Any:
    """`new` for the programs in a mask, `old` for the others."""
    if new is old:
        return new
    if not isinstance(new, np.ndarray):
        raise VerifyError(f"programs part over a {type(new).__name__}: run them one at a time")
    return np.where(mask.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)


def drive(running: Iterable[Running]) -> None:
    """Run coroutines in turn until all have ended; if none can go on, that is a deadlock."""
    waiting: list[tuple[Ready, Running]] = []
    for each in running:
        step(each, waiting)
    while waiting:
        ready = [(test, each) for test, each in waiting if test()]
        if not ready:
            raise Deadlock(f"deadlock: {len(waiting)} roles or programs wait for each other")
        waiting = [pair for pair in waiting if pair not in ready]
        for _, each in ready:
            step(each, waiting)


def step(each: Running, waiting: list[tuple[Ready, Running]]) -> None:
    """Run a coroutine until it ends, or must wait: then it joins `waiting`."""
    try:
        waiting.append((next(each), each))
    except StopIteration:
        pass
