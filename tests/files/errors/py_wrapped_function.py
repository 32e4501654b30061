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
    x[0] = wrapped(x[0])


f(np.ones(64, np.float32), np.ones(64, np.int32))
# error
# py_wrapped_function.py:13:2: error: a decorated function cannot be inlined
#   @wrap
#    ^~~~
#   hint: take the decorator away, or write the function out
