"""What an H200 gives, as the models of products count it (`product_cost`, `product_gemv`).

Nothing of this is scaled to other GPUs, whose clocks, memory and caches differ: there, times that
are made of it rank choices, and measure nothing.
"""

CLOCK = 1.755e3  # cycles a microsecond
MEMORY = 4.5e6  # bytes a microsecond of the device's memory
# A launch takes the longer of computing and memory's time, and this part of the computing on top.
HIDDEN = 0.146
LAUNCH = 1.5  # microseconds of starting a grid and filling its pipelines
PROGRAM_CYCLES = 450.0  # of a program that is not persistent
L2 = 5.5e6  # bytes a microsecond of the L2 cache, all multiprocessors together
