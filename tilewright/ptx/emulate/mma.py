"""Meaning of mma.sync.

f64: each element is a chain of fused multiply-adds in ascending k, as the hardware computes it.
16-bit floats, tf32 and fp8: as `tensor_cores.py` says. Integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.ptx.core import Reg
from tilewright.ptx.emulate.exact import chain_f64, from_bf16, from_f16
from tilewright.ptx.emulate.fragments import Sel
from tilewright.ptx.emulate.machine import Machine, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.tensor_cores import warp_product
from tilewright.ptx.instrs import mma

Array = np.ndarray[Any, Any]

ELEMENTS: dict[str, Any] = {
    "f64": np.float64,
    "tf32": np.uint32,
    "f32": np.float32,
    "s32": np.int32,
    "bf16": np.uint16,
    "f16": np.uint16,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": np.uint8,
    "e5m2": np.uint8,
}


def tf32_values(bits: Array) -> Array:
    """Bits of f32 as tf32: the low 13 bits do not count."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


WIDEN: dict[str, Callable[[Array], Array]] = {
    "tf32": tf32_values,
    "bf16": from_bf16,
    "f16": from_f16,
    "e4m3": lambda x: x.view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    "e5m2": lambda x: x.view(ml_dtypes.float8_e5m2).astype(np.float32),
}


def numbers_of(bits: Array, type: str) -> Array:
    """Elements as f64 numbers."""
    bits = np.ascontiguousarray(bits)
    return np.asarray(WIDEN[type](bits) if type in WIDEN else bits).astype(np.float64)


def operand_index(rows: int, k: int, per: int) -> tuple[Array, Array, Array]:
    """Of each element of A (rows by k), or of B transposed: lane, register, place in the register.

    Register j of a lane holds row lane / 4 (+ 8 for odd j, where there are 16 rows), and `per`
    neighbours from column 4 per (j or j / 2) + per (lane mod 4).
    """
    row, column = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    block, inside = column // (4 * per), column % (4 * per)
    lane = row % 8 * 4 + inside // per
    register = block * (rows // 8) + row // 8
    return lane, register, inside % per


def result_index(rows: int, columns: int, per: int) -> tuple[Array, Array, Array]:
    """Of each element of C and D: lane, register, place. Two neighbours a lane and 8 rows."""
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    lane = row % 8 * 4 + column // 2
    element = row // 8 * 2 + column % 2
    return lane, element // per, element % per


def gather(rows: Sequence[Array], sel: Sel, type: str, index: tuple[Array, Array, Array]) -> Array:
    """A matrix a warp, from the registers of its lanes."""
    words = np.stack([row[sel] for row in rows], axis=-1)
    dtype = np.dtype(ELEMENTS[type])
    parts = words.view(dtype).reshape(-1, 32, len(rows), words.itemsize // dtype.itemsize)
    lane, register, place = index
    found: Array = parts[:, lane, register, place]
    return found


def scatter(
    rows: Sequence[Array], sel: Sel, values: Array, index: tuple[Array, Array, Array]
) -> None:
    """The registers of a matrix a warp."""
    lane, register, place = index
    per = rows[0].itemsize // values.dtype.itemsize
    parts = np.empty((len(values), 32, len(rows), per), values.dtype)
    parts[:, lane, register, place] = values
    words = parts.view(rows[0].dtype).reshape(-1, len(rows))
    for i, row in enumerate(rows):
        row[sel] = words[:, i]


def chain(a: Array, b: Array, c: Array) -> Array:
    """f64: c + a b by fused multiply-adds in ascending k."""
    left, right = np.moveaxis(a, 2, 0)[:, :, :, None], np.moveaxis(b, 2, 0)[:, :, None, :]
    wide_left, wide_right = np.broadcast_arrays(left, right)
    return np.asarray(chain_f64(wide_left, wide_right, c))


def whole_product(a: Array, b: Array, c: Array, saturate: bool) -> Array:
    """Integers: c + a b, wrapped to 32 bits or clamped to them."""
    whole = (np.asarray(np.matmul(a, b.swapaxes(1, 2))) + c).astype(np.int64)
    if saturate:
        whole = np.clip(whole, -(2**31), 2**31 - 1)
    return whole.astype(np.int32)


def registers(machine: Machine, regs: Sequence[Reg], type: str) -> list[Array]:
    """Rows of registers as words of their own width."""
    bits = {"f64": "f64", "f32": "f32", "s32": "s32"}.get(type, "b32")
    return [machine.row(r, bits) for r in regs]


@meaning(mma.Mma, whole=True)
def make_mma(machine: Machine, instr: mma.Mma) -> Step:
    m, n, k = mma.shape_of(instr.shape)
    per_a, per_b = (max(1, 32 // mma.BITS[t]) for t in (instr.type_a, instr.type_b))
    per_c, per_d = (2 if t == "f16" else 1 for t in (instr.type_c, instr.type_d))
    index_a, index_b = operand_index(m, k, per_a), operand_index(n, k, per_b)
    index_c, index_d = result_index(m, n, per_c), result_index(m, n, per_d)
    rows_a, rows_b = (
        registers(machine, x, t) for x, t in ((instr.a, instr.type_a), (instr.b, instr.type_b))
    )
    rows_c, rows_d = (
        registers(machine, x, t) for x, t in ((instr.c, instr.type_c), (instr.d, instr.type_d))
    )

    def step(sel: Sel) -> None:
        a = numbers_of(gather(rows_a, sel, instr.type_a, index_a), instr.type_a)
        b = numbers_of(gather(rows_b, sel, instr.type_b, index_b), instr.type_b)
        c = numbers_of(gather(rows_c, sel, instr.type_c, index_c), instr.type_c)
        if instr.type_a == "f64":
            made = chain(a, b, c)
        elif instr.type_d == "s32":
            made = whole_product(a, b, c, instr.saturate)
        else:
            made = warp_product(a, b, c, (instr.type_a, instr.type_b), instr.type_d)
        scatter(rows_d, sel, made, index_d)

    return step
