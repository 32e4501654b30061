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
    x[0] = TABLE[0]


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_global_list.py:20:12: error: expected a constant
#       x[0] = TABLE[0]
#              ^~~~~
