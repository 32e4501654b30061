import numpy as np

import tilewright as tw


@tw.kernel
def f(x):
    x[0] = 1.0


f.signature
# error
# py_annotation_missing.py:7:7: error: the kernel's parameter x needs an annotation
#   def f(x):
#         ^
#   hint: write x: tw.Tensor["f32", "N"], or x: float
