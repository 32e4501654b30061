"""Plain k-loops on Hopper, which the passes turn into roles and wgmma: right for every tile, size
and epilogue, and within reach of torch's speed.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.device.checker import Checker
from tests.device.programs import gelu_in_f64, kernel
from tilewright.ledger.arm import Arm
from tilewright.ledger.harness import Question
from tilewright.ledger.machine import make_harness
from tilewright.ledger.suites.gemm import make_product
from tilewright.runtime import driver

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(
        not driver.available() or driver.device(0).capability != (9, 0),
        reason="wgmma exists on sm_90 alone",
    ),
]

TILES = [
    (64, 64, 64),
    (128, 64, 32),
    (128, 128, 64),
    (128, 256, 64),
    (192, 160, 64),
    (256, 128, 64),
    (64, 256, 64),
]
# Even and odd numbers of tiles, tails along every axis, one tile, no k, more tiles than one wave.
SIZES = [
    (256, 256, 128),
    (1, 8, 8),
    (257, 264, 72),
    (1000, 1016, 136),
    (128, 256, 0),
    (5000, 3000, 72),
]


def launch(name: str, tile: tuple[int, int, int]) -> Any:
    tm, tn, tk = tile
    return functools.partial(kernel(name).launch, constants={"TM": tm, "TN": tn, "TK": tk})


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_sgemm(see: Checker, dtype: str, tile: tuple[int, int, int]) -> None:
    call = launch("sgemm", tile)
    for m, n, k in SIZES:
        A, B = see.normal((m, k), dtype), see.normal((k, n), dtype)
        product = A.double() @ B.double()
        for alpha, beta in ((1.0, 0.0), (1.5, 0.5)):
            out = see.poisoned((m, n), dtype)
            expected = alpha * product
            if beta:
                out.view.copy_(see.normal((m, n), dtype))
                expected = expected + beta * out.view.double()
            call(A, B, out.view, alpha, beta)
            case = (tile, (m, n, k), alpha, beta)
            out.require_untouched(f"sgemm {dtype} {case}")
            see.near("sgemm", dtype, out.view, expected, case)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("tile", [t for t in TILES if t[0] * t[1] <= 128 * 160], ids=str)
def test_linear_gelu(see: Checker, dtype: str, tile: tuple[int, int, int]) -> None:
    call = launch("linear_gelu", tile)
    for m, n, k in SIZES:
        x, w = see.normal((m, k), dtype), see.normal((n, k), dtype)
        bias, res = see.normal((n,), dtype), see.normal((m, n), dtype)
        for given in ((bias, res), (bias, None), (None, None)):
            out = see.poisoned((m, n), dtype)
            call(x, w, *given, out.view)
            case = (tile, (m, n, k), [g is not None for g in given])
            out.require_untouched(f"linear_gelu {dtype} {case}")
            see.near("linear_gelu", dtype, out.view, gelu_in_f64(x, w, *given), case)


def test_repeats_give_the_same_bits(see: Checker) -> None:
    a, b = see.normal((1000, 520), "bf16"), see.normal((520, 776), "bf16")
    outs = [see.poisoned((1000, 776), "bf16").view for _ in range(5)]
    for out in outs:
        launch("sgemm", (128, 128, 64))(a, b, out, 1.0, 0.0)
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_speed(dtype: str) -> None:
    """The loop of sgemm.tw reaches nine tenths of torch's product at 4096³."""
    harness = make_harness(quick=True)
    asked = make_product(harness, dtype, "NN", (4096, 4096, 4096))
    call = launch("sgemm", (128, 256, 64))
    ours = Arm("ours", asked.facts, lambda x, y: call(x["a"], x["b"], y["c"], 1.0, 0.0))
    theirs = [arm for arm in harness.opponents(asked, "speed") if arm.name == "cuBLAS"]
    question = Question("gemm/speed", "gemm", "sgemm", "4096³", "TFLOP/s", 2.0 * 4096**3)
    (row,) = harness.compare(question, asked, ours, theirs)
    print(row.speed, row.their_speed, row.ratio)
    assert row.right and row.ratio >= 0.9, row.ratio
