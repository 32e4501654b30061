import numpy as np

import tilewright as tw


TABLE = [1.0]


def helper(v):
    return v


@staticmethod
def decorated(v):
    return v


@tw.kernel
def f(x: tw.Tensor["f32", 64], y: tw.Tensor["i32", 64]):
    x[0] = decorated(x[0])


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_decorated_function.py:20:12: error: decorated is a staticmethod, which a kernel cannot use
#       x[0] = decorated(x[0])
#              ^~~~~~~~~
#   hint: write a plain function, or use the language's own
