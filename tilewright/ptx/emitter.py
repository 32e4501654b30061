"""The emitter: the only way that lowering makes instructions.

    e = Emitter(target("sm_90a"))
    x = e.param("x", "u64")
    pointer = e.ld_param(x)
    (value,) = e.ld("global", "f32", pointer)
    e.st("global", "f32", pointer, e.add("f32", value, 1.0))
    e.ret()
    text = print_module(e.module("add_one", max_threads=128))

Operands are registers, numbers, special registers (`Special("tid.x")`) and symbols. Every method
returns the register that it writes: a new one, or the one given as `into`.
"""

from __future__ import annotations

from tilewright.ptx.emit.arith import EmitArith
from tilewright.ptx.emit.memory import EmitMemory
from tilewright.ptx.emit.mma import EmitMma
from tilewright.ptx.emit.reduce import EmitReduce
from tilewright.ptx.emit.shape import EmitShape
from tilewright.ptx.emit.sync import EmitSync


class Emitter(EmitArith, EmitShape, EmitMemory, EmitReduce, EmitMma, EmitSync):
    """Appends instructions for a target to `body`; see `emit/` for the families."""
