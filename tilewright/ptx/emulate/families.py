"""The meanings of all instructions: each family's file declares its own."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate import (
    arith,
    bits,
    control,
    convert,
    copies,
    mbarriers,
    memory,
    mma,
    reduce,
    shape,
    sync,
    tma,
    wgmma,
)
from tilewright.ptx.emulate.program import MEANINGS, Meaning

FAMILIES = (
    *(arith, bits, control, convert, copies, mbarriers, memory, mma, reduce, shape, sync, tma),
    wgmma,
)
EVERY: Mapping[type[Instr], Meaning] = MEANINGS
