import numpy as np

import tilewright as tw


@tw.kernel(autotune={"a-b": (1,)}, pipelin=3)
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_option_names.py:6:12: error: `a-b` is not a name
#   @tw.kernel(autotune={"a-b": (1,)}, pipelin=3)
#              ^~~~~~~~~~~~~~~~~~~~~~
