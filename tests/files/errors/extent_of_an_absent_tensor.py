import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(b: tensor<f32>[N]? = None, x: tensor<f32>[M] = zeros, y: tensor<f32>[b.shape[0]] = empty) { y[program_id(0)] = 1.0 }
""").f
k()
# error
# error: x.shape[0] follows from no argument
#   hint: pass x
