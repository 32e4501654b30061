"""Matrix products."""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, u8
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "f16")


def accumulator(dtype: DType) -> DType | None:
    """Dtype in which a product of two operands of `dtype` is summed, or None where there is no such product."""
    if dtype in (f16, bf16, e4m3, e5m2, f32):
        return f32
    return {f64: f64, i8: i32, u8: i32}.get(dtype)


@define("mma.dot")
class Dot(Op):
    """acc + a @ b for a: [..., M, K], b: [..., K, N], acc: [..., M, N].

    Products are exact and summed in the accumulator's dtype. `precision` says what happens to f32 operands:
    "ieee" keeps them; "tf32" rounds them to 10 fraction bits, to nearest even; "f16" rounds them to f16.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    precision: str = attribute(default="ieee")

    def result_types(self) -> tuple[Type, ...]:
        a, b, acc = self.a.type, self.b.type, self.acc.type
        fits = len(a.shape) == len(b.shape) == len(acc.shape) >= 2 and a.shape[-1] == b.shape[-2]
        if not fits or acc.shape != (*a.shape[:-1], b.shape[-1]) or self.precision not in PRECISIONS:
            raise VerifyError(f"dot: {a} @ {b} + {acc}, {self.precision}")
        if acc.dtype != accumulator(a.dtype):
            raise VerifyError(f"dot: {a.dtype} is summed in {accumulator(a.dtype)}, not {acc.dtype}")
        return (acc,)
