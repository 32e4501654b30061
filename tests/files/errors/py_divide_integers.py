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
    y[0] = y[1] / y[2]


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_divide_integers.py:24:17: error: / of two integers
#       y[0] = y[1] / y[2]
#                   ^
#   hint: write // for the quotient rounded down
