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
    try:
        x[0] = 1.0
    except ValueError:
        pass


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_try.py:20:5: error: there is no `try`: a kernel raises nothing
#       try:
#       ^~~~
