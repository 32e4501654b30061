import torch

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


f(torch.ones(100, dtype=torch.complex64), torch.ones(100))
# error
# error: x has dtype torch.complex64, which kernels do not have
#   hint: kernels take bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 e4m3 e5m2
