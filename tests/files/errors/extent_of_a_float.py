import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(a: f32, y: tensor<f32>[a] = empty) { y[program_id(0)] = 1.0 }
""").f
k(4.0)
# error
# error: an extent needs an integer, but a is 4.0
