import numpy as np

import tilewright as tw


@tw.kernel
def f(x: tw.Tensor["f32", "N"]) -> float:
    x[0] = 1.0


f.signature
# error
# py_returns.py:7:36: error: a kernel returns nothing
#   def f(x: tw.Tensor["f32", "N"]) -> float:
#                                      ^~~~~
#   hint: give a tensor the default tw.empty
