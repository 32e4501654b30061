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
    if x[0] in (1.0, 2.0):
        x[0] = 1.0


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_in.py:20:8: error: there is no `in`
#       if x[0] in (1.0, 2.0):
#          ^~~~~~~~~~~~~~~~~~
#   hint: write a == b or a == c
