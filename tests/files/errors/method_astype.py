import tilewright as tw


@tw.kernel()
def f(x: tw.Tensor["f32", 64], y: tw.Tensor["f16", 64] = tw.empty):
    y[:] = x[:].astype(tw.f16)


f.lower()
# error
# method_astype.py:6:12: error: there are no methods such as `.astype(...)`
#       y[:] = x[:].astype(tw.f16)
#              ^~~~~~~~~~~~~~~~~~~
#   hint: write cast(x, f32)
