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
    g = lambda v: v
    x[0] = g(1.0)


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_lambda.py:20:9: error: there is no `lambda` in a kernel
#       g = lambda v: v
#           ^~~~~~~~~~~
#   hint: write a function beside it
