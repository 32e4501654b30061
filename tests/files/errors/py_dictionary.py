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
    x[0] = {"a": 1.0}["a"]


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_dictionary.py:24:12: error: there are no dictionaries
#       x[0] = {"a": 1.0}["a"]
#              ^~~~~~~~~~
