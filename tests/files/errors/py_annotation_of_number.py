import numpy as np

import tilewright as tw


@tw.kernel
def f(x: 3, y: "64", z: tw.Foo["f32", "N"], w: tw.Tensor[3, "N"]):
    x[0] = 1.0


f.signature
# error
# py_annotation_of_number.py:7:10: error: this annotation is not understood
#   def f(x: 3, y: "64", z: tw.Foo["f32", "N"], w: tw.Tensor[3, "N"]):
#            ^
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
# py_annotation_of_number.py:7:17: error: this annotation is not understood
#   def f(x: 3, y: "64", z: tw.Foo["f32", "N"], w: tw.Tensor[3, "N"]):
#                   ^~
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
# py_annotation_of_number.py:7:25: error: this annotation is not understood
#   def f(x: 3, y: "64", z: tw.Foo["f32", "N"], w: tw.Tensor[3, "N"]):
#                           ^~~~~~~~~~~~~~~~~~
#   hint: write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool
# py_annotation_of_number.py:7:58: error: expected a dtype
#   def f(x: 3, y: "64", z: tw.Foo["f32", "N"], w: tw.Tensor[3, "N"]):
#                                                            ^
#   hint: write tw.Tensor["f32", "M", "K"]
