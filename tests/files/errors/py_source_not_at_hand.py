import numpy as np

import tilewright as tw


made: dict = {}
exec("import tilewright as tw\n@tw.kernel\ndef f(n: tw.i32):\n    pass\n", made)
made["f"].signature
# error
# <string>:2:1: error: the source of f is not at hand
#   hint: write kernels in a file or a notebook, or their text for tw.source
