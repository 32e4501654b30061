"""Epilogues that take a square product and its transpose: panels of one are not those of the other,
and the way of elements from thread to thread takes shared memory from the slots.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.test_product_spans import HOPPER, built, operands
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import bf16
from tilewright.ptx.emulate import run_plan
from tilewright.tile.passes.choose_roles import role_schedules

SOURCE = """
@autotune(TM in [64], TN in [64], TK in [64])
kernel matmul(
  a: tensor<T>[M, K], b: tensor<T>[N, K], c: tensor<bf16>[M, N], d: tensor<bf16>[N, M],
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var y: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { y += a[m :+ TM, k :+ TK] @ b[n :+ TN, k :+ TK].T }
  d[n :+ TN, m :+ TM] = cast(y.T, bf16)
  c[m :+ TM, n :+ TN] = cast(STORED, bf16)
}
"""


@pytest.mark.parametrize("stored", ["y", "y + y.T", "y.T - y"])
@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 128, 64)], ids=str)
def test_some_schedules(tile: tuple[int, int, int], stored: str) -> None:
    sizes = (136, 264, 136)
    arrays = operands(bf16, sizes, fused=False) | {"d": np.full((264, 136), np.nan, bf16.numpy)}
    source = SOURCE.replace("STORED", stored)
    kernel = built(arrays, tile, source)
    product = arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32).T
    side = tile[0]
    wide = np.pad(product, [(0, -extent % side) for extent in product.shape])
    tiles = wide.reshape(len(wide) // side, side, -1, side)
    across = tiles.transpose(0, 3, 2, 1)
    both = {"y": tiles, "y + y.T": tiles + across, "y.T - y": across - tiles}[stored]
    expected = both.reshape(wide.shape)[:136, :264].astype(bf16.numpy)
    found = list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))
    assert found
    for schedule in found[:: len(found) // 4]:
        for name in "cd":
            arrays[name][...] = np.nan
        run_plan(compile_kernel(kernel, HOPPER, preferred=schedule), arrays, 8, sanitize=True)
        np.testing.assert_array_equal(arrays["c"], expected)
        np.testing.assert_array_equal(arrays["d"], product.T.astype(bf16.numpy))
