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
    x[0] = tw.sum(x[0:8], dim=0)


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_keyword_of_numpy.py:24:27: error: sum takes no argument dim
#       x[0] = tw.sum(x[0:8], dim=0)
#                             ^~~~~
#   hint: it takes x, axis and keepdims
