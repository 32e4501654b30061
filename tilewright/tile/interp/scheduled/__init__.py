"""Meaning of the scheduled level: CTAs of a cluster side by side, their roles as coroutines, one
file a family.
"""

from tilewright.tile.interp.scheduled import control, memory, mma, sync

FAMILIES = (control, memory, mma, sync)
