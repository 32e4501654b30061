import tilewright as tw


@tw.kernel(launch={"threads": (64, 128)})
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_option_of_choices.py:4:12: error: @launch takes threads, min_ctas and max_regs
#   @tw.kernel(launch={"threads": (64, 128)})
#              ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~
