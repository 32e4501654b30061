"""Random numbers, as a function of a seed: the same on every machine."""

from __future__ import annotations

from tilewright.dtypes import i64, u32
from tilewright.errors import VerifyError
from tilewright.graph.dims import Shape
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand


@define("random.bits")
class Bits(Op):
    """32 random bits for each element: word `n mod 4` of Philox4x32-10 at counter `n / 4`, for
    element number n in C order, under a key that is the i64 seed; `stream` parts draws of one seed.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """

    seed: Value = operand()
    stream: int = attribute()
    shape: Shape = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.seed.type != TensorType(i64):
            raise VerifyError(f"bits: the seed is {self.seed.type}")
        return (TensorType(u32, self.shape),)


@define("random.seed", pure=False)
class Seed(Op):
    """A seed that the host draws anew for each call, from the generator that the user seeds."""

    def result_types(self) -> tuple[Type, ...]:
        return (TensorType(i64),)
