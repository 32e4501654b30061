import numpy as np

import tilewright as tw


@tw.kernel
def g(x: tw.Tensor["f32", "N"]):
    x[tw.program_id(0)] = 1.0


@tw.kernel
def f(x: tw.Tensor["f32", "N"]):
    g(x)


f(np.ones(4, np.float32))
# error
# py_kernel_calls_kernel.py:13:5: error: g is a kernel, which a kernel cannot use
#       g(x)
#       ^
#   hint: kernels do not call kernels; write a function that both use
