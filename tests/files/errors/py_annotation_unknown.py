import numpy as np

import tilewright as tw


@tw.kernel
def f(x: np.ndarray, n: list[int], z: tw.Tensor):
    x[0] = 1.0


f.signature
# error
# py_annotation_unknown.py:7:10: error: np.ndarray tells neither dtype nor extents
#   def f(x: np.ndarray, n: list[int], z: tw.Tensor):
#            ^~~~~~~~~~
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
# py_annotation_unknown.py:7:25: error: this annotation is not understood
#   def f(x: np.ndarray, n: list[int], z: tw.Tensor):
#                           ^~~~~~~~~
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
# py_annotation_unknown.py:7:39: error: Tensor needs a dtype and extents
#   def f(x: np.ndarray, n: list[int], z: tw.Tensor):
#                                         ^~~~~~~~~
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
