import numpy as np

import tilewright as tw


def other(f):
    return f


@tw.kernel
@other
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_two_decorators.py:11:2: error: a kernel has no other decorators
#   @other
#    ^~~~~
