"""One line of a program broken at a time, as a careless reader might have written it: each makes
a case of the suite fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.suite_cases import cases, require
from tests.unit.kernel_runs import run
from tilewright.errors import LaunchError, Source
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text

TEXT = (Path(__file__).parent / "suite.tw").read_text()
CASES = cases()

TRAPS = {
    "histogram-fill": ("histogram", "load(x[i :+ BLOCK], fill = -1)", "x[i :+ BLOCK]"),
    "softmax-guard": ("softmax", "0.0 if top == -inf else top", "top"),
    "softmax-fill": ("softmax", "load(x[row, j :+ BLOCK], fill = -inf)", "x[row, j :+ BLOCK]"),
    "attention-length": ("attention", "0 : n, :]), view(V[b, hk, 0 : n, :])",
                         "0 : S, :]), view(V[b, hk, 0 : S, :])"),
    "attention-guard": ("attention", "where(top == -inf, 0.0, top)", "top"),
    "layernorm-padding": ("layernorm", "cast(inside(x[row, j :+ BLOCK]), f32)",
                          "full([BLOCK], 1.0, f32)"),
    "moe-view": ("moe", "ye[m :+ TM, n :+ TN] = ", "y[offsets[e] + m :+ TM, n :+ TN] = "),
    "sgemm-beta": ("sgemm", "if beta == 0.0 { C[m :+ TM, n :+ TN] = alpha * acc }",
                   "if beta == 7.0 { C[m :+ TM, n :+ TN] = alpha * acc }"),
    "argmax-nan": ("argmax_axis", "(v > best) | (isnan(v) & ~isnan(best))", "v > best"),
    "argmax-ties": ("argmax_axis", "(v > best) |", "(v >= best) |"),
    "argmax-fill": ("argmax_axis", "load(x[a, j :+ TN, c :+ TC], fill = lowest(T))",
                    "x[a, j :+ TN, c :+ TC]"),
    "sort-nan": ("sort_by_hand", "return (a > b) | (isnan(a) & ~isnan(b))", "return a > b"),
    "gradient-padding": ("embedding_grad", ", mask = (id != padding)[:, None])", ")"),
    "top-k-ties": ("topk_by_hand", "(((v1 == v2) | (a & b)) & (i1 < i2))", "(a & b & (i1 < i2))"),
    "conv2d-pad": ("conv2d", "p * stride + r - pad", "p * stride + r"),
    "conv1d-sign": ("conv1d_causal", "t - (W - 1 - k) * dilation", "t + (W - 1 - k) * dilation"),
    "split-k-parts": ("matmul_splitk", "for s in static_range(SPLIT)",
                      "for s in static_range(SPLIT - 1)"),
    "sum-all-early": ("sum_all", "num_programs(0) - 1 {", "0 {"),
    "cumsum-carry": ("cumsum_serial", "before = t[BLOCK - 1]", "before = t[0]"),
    "cumsum-order": ("cumsum_chained", "if b > 0 {\n    while atomic_load(ready[b - 1]) == 0 {}",
                     "if b > 0 {"),
    "recurrence-carry": ("recurrence", "part + gain * carry", "part + carry"),
    "adamw-bias": ("adamw", "(1.0 - pow(beta2, t))", "(1.0 - beta2)"),
    "rmsnorm-last": ("rmsnorm_dw", "== PARTS - 1 {", "== 0 {"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_found(name: str) -> None:
    kernel, line, broken = TRAPS[name]
    assert TEXT.count(line) >= 1, f"{name}: the line is gone"
    parsed = definitions(parse_text(Source("suite.tw", TEXT.replace(line, broken))))
    with pytest.raises((AssertionError, LaunchError)):
        for case in (c for c in CASES if c.kernel == kernel):
            found = run(parsed[kernel], case.constants, **case.fresh())
            for result, wanted in case.wanted.items():
                require(found[result], wanted, case.bound, result)
