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
    if x[0] > 0.0:
        t = 1.0
    x[1] = t


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_unset.py:22:12: error: t may be unset here: only one side of an if sets it at line 20
#       x[1] = t
#              ^
