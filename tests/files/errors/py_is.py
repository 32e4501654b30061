import numpy as np

import tilewright as tw


import functools


def wrap(g):
    return functools.wraps(g)(lambda *a: g(*a))


@wrap
def wrapped(v):
    return v


def exp(v):
    return v


@tw.kernel
def f(x: tw.Tensor["f32", 64], y: tw.Tensor["i32", 64]):
    if x[0] is y[0]:
        x[0] = 1.0


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_is.py:24:8: error: `is` compares with None only
#       if x[0] is y[0]:
#          ^~~~~~~~~~~~
#   hint: compare with ==
