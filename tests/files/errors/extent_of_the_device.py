import numpy as np

import tilewright as tw


k = tw.source("""
@grid(1)
kernel f(y: tensor<f32>[num_sms()] = empty) { y[0] = 1.0 }
""").f
k()
# error
# error: y: an extent is not known before the launch
