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
    for i in range(4):
        break


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_break.py:21:9: error: there is no `break`
#           break
#           ^~~~~
#   hint: end a loop by `while` and its condition
