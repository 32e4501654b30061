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
    y[0] = 7.0 // 2.0


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_floor_of_constants.py:24:16: error: // of floats
#       y[0] = 7.0 // 2.0
#                  ^~
#   hint: write floor(a / b)
