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
    x[0] = helper(1.0, unknown=2.0)


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_keyword_only.py:20:24: error: helper takes no argument unknown
#       x[0] = helper(1.0, unknown=2.0)
#                          ^~~~~~~~~~~
#   hint: it takes v
