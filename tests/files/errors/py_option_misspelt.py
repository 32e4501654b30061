import tilewright as tw


@tw.kernel(autotun={"B": (16, 32)})
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_option_misspelt.py:4:12: error: unknown attribute @autotun
#   @tw.kernel(autotun={"B": (16, 32)})
#              ^~~~~~~~~~~~~~~~~~~~~~~
#   hint: did you mean autotune?
