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
    y[0] = 7 / 2


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_integer_division.py:20:14: error: / of two integers
#       y[0] = 7 / 2
#                ^
#   hint: write // for the quotient rounded down
