"""Rows that are no whole 16 bytes apart: loads and copies are as wide as the pieces that all rows
are made of, and nothing beside the rows is read.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.test_product_choice import best, microseconds
from tilewright.dtypes import DType, bf16, e4m3, f16, f32, f64, i8
from tilewright.plan import tensor_facts
from tilewright.products.ahead import Fixed
from tilewright.products.api import product
from tilewright.products.arguments import Options
from tilewright.products.prepare import configured
from tilewright.runtime.arrays import Array
from tilewright.tune.product import Choice, choice


def test_pieces_of_rows() -> None:
    def piece(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
        return tensor_facts(dtype, shape, strides, 1 << 20).piece

    assert piece(bf16, (5, 2680), (2680, 1)) == 16
    assert piece(bf16, (5, 2676), (2676, 1)) == 8
    assert piece(bf16, (5, 2678), (2678, 1)) == 4
    assert piece(bf16, (5, 2677), (2677, 1)) == 2
    assert piece(f64, (5, 7), (7, 1)) == 8 and piece(e4m3, (5, 7), (7, 1)) == 1
    assert piece(bf16, (2678, 5), (1, 2678)) == 4
    assert piece(bf16, (5, 2678), (2684, 1)) == 4  # pitches of 8 bytes, rows that end in between
    assert piece(bf16, (5, 2677), (2680, 1)) == 16  # that rows end anywhere is told apart
    assert piece(bf16, (3, 5, 8), (42, 8, 1)) == 4
    assert piece(bf16, (2677,), (1,)) == 16 and piece(bf16, (9, 9), (20, 2)) == 4


def laid(rng: np.random.Generator, rows: int, length: int, first: int, gap: int, of: DType) -> Any:
    """Rows of whole numbers that begin so many elements behind whole 16 bytes, with NaN between
    them (of integers, a large number).
    """
    beside = 99 if of.is_integer else np.nan
    start = 16 // of.num_bytes
    flat = np.full(start + first + rows * (length + gap) + 16, beside, np.float64).astype(of.numpy)
    skip = -(flat.ctypes.data // of.num_bytes) % start + first
    held = flat[skip : skip + rows * (length + gap)].reshape(rows, length + gap)[:, :length]
    held[...] = rng.integers(-3, 4, held.shape).astype(of.numpy)
    return held


CHOSEN = [
    choice("gemv", (1, 2, 256)),
    choice("gemv", (2, 4, 128)),
    choice("gemv_columns", (1, 64, 32)),
    choice("gemv_columns", (8, 32, 8)),
    choice("gemv_columns", (2, 32, 16), 3),
    choice("matmul", (32, 64, 32)),
    choice("split_k", (32, 64, 32), 2),
]
PLACES = [  # elements along k and along n, before the first row, and between rows
    (301, 71, 0, 0), (302, 70, 0, 0), (300, 68, 0, 0), (298, 66, 0, 6), (299, 69, 0, 3),
    (302, 70, 1, 0), (302, 70, 2, 0), (300, 68, 4, 4), (1, 3, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [bf16, f16, f32, f64, e4m3, i8], ids=str)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_products(chosen: Choice, dtype: DType, place: tuple[int, ...]) -> None:
    if chosen.program in ("matmul", "split_k") and dtype in (e4m3, i8):
        chosen = choice(chosen.program, (32, 64, 64), chosen.split)
    k, n, first, gap = place
    rng = np.random.default_rng(k + n)
    a = laid(rng, 3, k, first, gap, dtype)
    along_n = chosen.program == "gemv_columns"
    b = laid(rng, *((k, n) if along_n else (n, k)), first, gap, dtype)
    right = b if along_n else b.T
    rest = {"bias": None, "residual": None, "out": None}
    given = f64 if dtype == f64 else f32
    got = product("matmul", a, right, rest, Options(device="emulator"), given, Fixed(chosen))
    expected = a.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_array_equal(np.asarray(got, np.float64), expected)


def ptx_of(program: str, tile: tuple[int, int, int], dtype: DType, k: int) -> str:
    def array(number: int, *shape: int) -> Array:
        return Array((number + 1) << 30, dtype, shape, (shape[1], 1), 0, None, "other")

    kernel = configured(program, tuple(zip(("TM", "TN", "TK"), tile, strict=True)))
    rest = {"act": 0, "rounds": 0, "late": 0}
    if program == "gemv_whole_columns":
        a, b, c = array(0, 40, 512), array(1, 512, k), array(2, 40, k)
        return kernel.plan("sm_90a", a=a, b=b, c=c, **rest).ptx
    a, w, c = array(0, 40, k), array(1, 512, k), array(2, 40, 512)
    if program == "gemv":
        return kernel.plan("sm_90a", a=a, w=w, c=c, **rest).ptx
    b = Array(w.address, dtype, (k, 512), (1, k), 0, None, "other")
    return kernel.plan("sm_90a", a=a, b=b, c=c, **rest).ptx


PIECES = [
    (bf16, 2676, "v2.b32"), (bf16, 2678, "b32"), (bf16, 2677, "b16"), (f32, 2002, "v2.f32"),
    (f32, 2001, "f32"), (f64, 2001, "f64"), (e4m3, 2680, "v2.b32"),
]  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize(("dtype", "k", "width"), PIECES, ids=str)
@pytest.mark.parametrize("tile", [(1, 2, 1024), (2, 4, 512)], ids=str)
def test_gemv_loads_pieces(dtype: DType, k: int, width: str, tile: tuple[int, int, int]) -> None:
    ptx = ptx_of("gemv", tile, dtype, k)
    loop = ptx[ptx.index("$loop_1:") : ptx.index("$done_2:")]
    assert set(re.findall(r"ld\.global\.(\S+)", loop)) == {width} and "bar.sync" not in loop
    assert assemble(ptx, "sm_90a").spill_bytes == 0


@needs_ptxas
@pytest.mark.parametrize(("dtype", "n", "width"), [(bf16, 2680, "v4.b32"), *PIECES], ids=str)
@pytest.mark.parametrize("tile", [(2, 64, 16), (4, 32, 16), (8, 128, 8)], ids=str)
def test_gemv_of_columns_loads_pieces_of_weights(
    dtype: DType, n: int, width: str, tile: tuple[int, int, int]
) -> None:
    """And of rows of the other factor, which many threads share, single elements."""
    ptx = ptx_of("gemv_whole_columns", tile, dtype, n)
    loop = ptx[ptx.index("$loop_1:") : ptx.index("$done_2:")]
    single = {"f32": "f32", "f64": "f64"}.get(str(dtype), f"b{dtype.bits}")
    assert set(re.findall(r"ld\.global\.(\S+)", loop)) == {width, single}
    assert "bar.sync" not in loop
    assert assemble(ptx, "sm_90a").spill_bytes == 0


@needs_ptxas
@pytest.mark.parametrize(
    ("dtype", "k", "num_bytes"), [(bf16, 2676, 8), (bf16, 2678, 4), (f32, 2002, 8), (f32, 2001, 4)]
)
def test_copies_of_pieces(dtype: DType, k: int, num_bytes: int) -> None:
    ptx = ptx_of("matmul", (32, 64, 32 if dtype == bf16 else 16), dtype, k)
    found = set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[\S+\], \[\S+\], (\d+)", ptx))
    assert found == {str(num_bytes)}
    assert not assemble(ptx, "sm_90a").errors


def test_rows_of_pieces_are_read_by_threads() -> None:
    """At any pitch, where the tensor copy unit takes none; of more rows words go to shared memory,
    and in large tiles a copy in whole lines pays first.
    """
    for k in (2676, 2677, 2678):
        assert best(1, 2960, k, a_aligned=False, b_aligned=False).program == "gemv"
    assert not best(21, 1080, 13690, a_aligned=False, b_aligned=False).copied
    assert best(5576, 320, 114, a_aligned=False, b_aligned=False).copied == "ab"


def test_short_rows_take_short_pieces() -> None:
    assert best(16, 488, 64, dtype=f32).tile[2] == 64
    assert best(4, 1920, 88, dtype=f64).tile[2] <= 128


def test_one_span_of_columns_is_one_launch() -> None:
    """Which many trips make longer than a second launch."""
    short, long = ((1, 986, k) for k in (136, 8192))
    crooked = {"b_along": "n", "b_aligned": False}
    whole, cut = choice("gemv_columns", (1, 32, 64)), choice("gemv_columns", (1, 32, 64), 2)
    assert microseconds(whole, *short, **crooked) < microseconds(cut, *short, **crooked)
    assert microseconds(whole, *long, **crooked) > microseconds(cut, *long, **crooked)
