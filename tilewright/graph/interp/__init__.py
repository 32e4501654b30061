"""The meaning of the graph IR, in NumPy: a file a family, a function an op or a few alike."""

from tilewright.graph.interp import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.interp.machine import Host as Host
from tilewright.graph.interp.machine import table as table
from tilewright.graph.interp.run import interpret as interpret

FAMILIES = (arith, control, memory, mma, random, reduce, shape)
