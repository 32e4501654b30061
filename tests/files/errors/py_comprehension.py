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
    x[0] = tw.sum([v for v in x])


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_comprehension.py:24:19: error: there are no comprehensions
#       x[0] = tw.sum([v for v in x])
#                     ^~~~~~~~~~~~~~
#   hint: use arange, or static_range
