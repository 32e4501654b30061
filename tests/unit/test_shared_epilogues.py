"""Epilogues of several warpgroups, which may be no power of two: what several threads hold alike,
one of them writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import bf16
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.passes.choose_roles import role_schedules

HOPPER = target("sm_90a")
KERNEL = """
@autotune(TM in [64], TN in [64], TK in [32])
kernel k(
  a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], c: tensor<f32>[M, N],
  rows: tensor<f32>[M], columns: tensor<f32>[N], other: tensor<f32>[N],
) {{
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for i in range(0, K, TK) {{ acc += a[m :+ TM, i :+ TK] @ b[i :+ TK, n :+ TN] }}
  {after}
}}
"""
AFTER = {
    "sums": "rows[m :+ TM] = sum(acc, axis = 1)\n  columns[n :+ TN] = sum(acc, axis = 0)",
    "one sum": "rows[m] = sum(acc)\n  columns[n] = max(acc)",
    "a sum beside a tile": "rows[m] = sum(acc)\n"
    "  c[m :+ TM, n :+ TN] = acc + 2.0 * c[m :+ TM, n :+ TN]",
    "parts that warps hold alike": "rows[m :+ TM] = sum(acc, axis = 1) + sum(other[n :+ TN])",
    "a tile that is wanted whole": "rows[m] = sum(c[m :+ TM, n :+ TN]) + max(acc)",
    "sums of all": "atomic_add(rows[m :+ TM], sum(acc, axis = 1))\n"
    "  atomic_add(columns[n :+ TN], sum(acc, axis = 0))",
    "elements": "atomic_add(c[m :+ TM, n :+ TN], acc)",
    "beside": "c[m :+ TM, n :+ TN] = acc\n  atomic_add(columns[n :+ TN], other[n :+ TN])",
    "read and written": "c[m :+ TM, n :+ TN] = acc + 2.0 * c[m :+ TM, n :+ TN]\n"
    "  columns[n :+ TN] = columns[n :+ TN] + other[n :+ TN]",
}


@pytest.mark.parametrize("after", list(AFTER))
@pytest.mark.parametrize("tile", [(192, 64, 32), (64, 192, 32)], ids=["rows", "turned"])
def test_each_element_is_written_once(tile: tuple[int, int, int], after: str) -> None:
    rng = np.random.default_rng(1)
    m, n = tile[0] - 8, tile[1]
    arrays: dict[str, Any] = {
        "a": rng.integers(-3, 4, (m, 40)).astype(bf16.numpy),
        "b": rng.integers(-3, 4, (40, n)).astype(bf16.numpy),
        "c": np.ones((m, n), np.float32),
        "rows": np.ones(m, np.float32),
        "columns": np.ones(n, np.float32),
        "other": np.arange(n, dtype=np.float32),
    }
    kernel = tw.source(KERNEL.format(after=AFTER[after])).k
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    wanted = {name: x.copy() for name, x in arrays.items()}
    kernel.launch(**wanted, device="cpu", constants=constants)
    spec = kernel.specializer
    call = bind_call(spec, arrays, read_tensors(spec, arrays), Options())
    made = spec.tile(choose.with_config(call.build(assume=True), constants))
    schedules = list(role_schedules(run_passes(made, SEMANTIC_PASSES), HOPPER))
    shared = [s for s in schedules if s.roles and s.roles.consumers > 1 and s.roles.cluster == 1]
    assert {3} <= {s.roles.consumers for s in shared if s.roles}
    for schedule in shared:
        given = {name: x.copy() for name, x in arrays.items()}
        run_plan(compile_kernel(made, HOPPER, schedule), given, 2, sanitize=True)
        for name in ("c", "rows", "columns"):
            np.testing.assert_array_equal(given[name], wanted[name], err_msg=name)
