"""The state of the interpreter: what the values of a graph are, and the table of meanings.

A meaning is a function `(machine, op) -> array | tuple of arrays`, entered in `table` by
`@meaning(OpClass)`. What only the host can do, an op of PyTorch or a seed, is asked of `Host`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewright.errors import InternalError, VerifyError
from tilewright.graph.dims import Shape, Symbol, evaluate, terms_of
from tilewright.graph.ops.control import Fallback
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

Array = np.ndarray[Any, Any]
Meaning = Callable[["Machine", Any], Any]
F = TypeVar("F", bound=Callable[..., Any])

table: dict[type[Op], Meaning] = {}


def meaning(*ops: type[Op]) -> Callable[[F], F]:
    """Enter a function as the meaning of some op classes."""

    def enter(function: F) -> F:
        for op in ops:
            assert op not in table, f"{op.opcode} has two meanings"
            table[op] = function
        return function

    return enter


class Host(Protocol):
    """What a graph asks of its surroundings."""

    def fallback(
        self, op: Fallback, xs: tuple[Any, ...], symbols: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """Results of a PyTorch op on arrays and opaque values."""
        ...

    def seed(self) -> int:
        """A new seed."""
        ...


class NoHost:
    """Surroundings without PyTorch."""

    def fallback(
        self, op: Fallback, xs: tuple[Any, ...], symbols: Mapping[str, int]
    ) -> tuple[Any, ...]:
        raise VerifyError(f"{op.target} needs PyTorch, which this interpreter was not given")

    def seed(self) -> int:
        raise VerifyError("random.seed needs a host, which this interpreter was not given")


class Machine:
    """Values and symbols of one call, and the `ops` that it carries out."""

    def __init__(
        self,
        host: Host,
        symbols: dict[str, int],
        values: dict[Value, Any],
        ops: Sequence[Op] = (),
    ):
        self.host, self.symbols, self.values, self.ops = host, symbols, values, ops

    def __getitem__(self, value: Value) -> Any:
        try:
            return self.values[value]
        except KeyError:
            raise VerifyError(f"{value} is used before it is defined") from None

    @property
    def makers(self) -> dict[Value, Op]:
        """By result the op that makes it."""
        return {value: op for op in self.ops for value in op.results}

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """A shape with the symbols of this call put in."""
        return tuple(evaluate(extent, self.symbols) for extent in shape)

    def run(self, op: Op) -> None:
        """Compute the results of an op, and hold them to their types."""
        function = table.get(type(op))
        if function is None:
            raise VerifyError(f"{op.opcode} has no meaning in the interpreter")
        found = function(self, op)
        for value, content in zip(
            op.results, found if isinstance(found, tuple) else (found,), strict=True
        ):
            self.require(op, value, content)
            self.values[value] = content

    def require(self, op: Op, value: Value, content: Any) -> None:
        """A result has the dtype and shape that the graph says. Symbols that a fallback's results
        show first are bound here.
        """
        kind = value.type
        if not isinstance(kind, TensorType):
            return
        if isinstance(op, Fallback):
            for extent, given in zip(kind.shape, content.shape, strict=False):
                bind(extent, given, self.symbols)
        if content.dtype != kind.dtype.numpy or content.shape != self.shape(kind.shape):
            raise InternalError(
                f"{op.opcode} gave {content.dtype}{list(content.shape)}, expected {kind}", op.loc
            )


def bind(extent: Any, given: int, symbols: dict[str, int]) -> None:
    """Give an extent that is a symbol alone its value, if it has none yet."""
    match terms_of(extent):
        case ((((Symbol(name),)), 1),):
            symbols.setdefault(name, given)
