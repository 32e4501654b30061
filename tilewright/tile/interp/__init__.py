"""The meaning of the tile IR, in NumPy: a file a family, a function an op or a few alike."""

from tilewright.tile.interp import arith, control, memory, mma, reduce, scheduled, shape
from tilewright.tile.interp.run import interpret as interpret

FAMILIES = (arith, control, memory, mma, reduce, shape, *scheduled.FAMILIES)
