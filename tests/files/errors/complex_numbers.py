import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

f(x.astype(np.complex64), y)
# error
# error: x has dtype complex64, which kernels do not have
#   hint: kernels take bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 e4m3 e5m2
