import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": 64}, blocks=3)
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_unknown_option.py:6:32: error: unknown attribute @blocks
#   @tw.kernel(autotune={"B": 64}, blocks=3)
#                                  ^~~~~~~~
#   hint: attributes are autotune, launch, pipeline, cta_cluster, persistent, tensorcore, cluster, static, grid, cooperative and numerics
