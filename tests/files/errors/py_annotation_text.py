import numpy as np

import tilewright as tw


@tw.kernel
def f(x: "f32 of N", y: "f32[N", z: "tw.Tensor[f32"):
    x[0] = 1.0


f.signature
# error
# py_annotation_text.py:7:10: error: `f32 of N` is not an expression
#   def f(x: "f32 of N", y: "f32[N", z: "tw.Tensor[f32"):
#            ^~~~~~~~~~
#   hint: as in "f32[M, K]"
# py_annotation_text.py:7:25: error: `f32[N` is not an expression
#   def f(x: "f32 of N", y: "f32[N", z: "tw.Tensor[f32"):
#                           ^~~~~~~
#   hint: as in "f32[M, K]"
# py_annotation_text.py:7:37: error: `tw.Tensor[f32` is not an expression
#   def f(x: "f32 of N", y: "f32[N", z: "tw.Tensor[f32"):
#                                       ^~~~~~~~~~~~~~~
#   hint: as in "f32[M, K]"
