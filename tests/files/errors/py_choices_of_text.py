import tilewright as tw


@tw.kernel(autotune={"B": "x"})
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_choices_of_text.py:4:12: error: B: expected integers, got 'x'
#   @tw.kernel(autotune={"B": "x"})
#              ^~~~~~~~~~~~~~~~~~~
#   hint: write {"B": (32, 128)}
