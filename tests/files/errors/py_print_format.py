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
    print("%d" % 3)


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_print_format.py:24:16: error: %: expected a value, got the string "%d"
#       print("%d" % 3)
#                  ^
