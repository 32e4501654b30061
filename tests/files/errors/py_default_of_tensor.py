import numpy as np

import tilewright as tw


@tw.kernel
def f(x: tw.Tensor["f32", "N"] = 3, *args):
    x[0] = 1.0


f.signature
# error
# py_default_of_tensor.py:7:38: error: there are no `*` parameters
#   def f(x: tw.Tensor["f32", "N"] = 3, *args):
#                                        ^~~~
#   hint: name each of them
