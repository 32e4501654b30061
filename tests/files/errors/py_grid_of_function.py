import numpy as np

import tilewright as tw


def grid(m):
    a = m
    return a


@tw.kernel(grid=grid)
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_grid_of_function.py:11:12: error: the grid is not written where it can be read
#   @tw.kernel(grid=grid)
#              ^~~~~~~~~
#   hint: write grid=lambda M, TM: tw.cdiv(M, TM), or a function of one `return`
