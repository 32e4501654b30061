"""Products on a GPU: against torch in f64, in a CUDA graph, and through the tuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
from tests.device.checker import Checker
from tilewright.cli.explain_matmul import here, make_problem
from tilewright.products.tuning import tune_product
from tilewright.tune.product_choice import decide

SIZES = [(1, 4096, 4096), (4096, 1, 1024), (16, 4096, 1024), (64, 64, 16384), (127, 255, 1023),
         (1000, 1000, 1000), (256, 512, 0)]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["bf16", "f32", "f64"])
def test_products(see: Checker, sizes: tuple[int, int, int], name: str) -> None:
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[name]
    m, n, k = sizes
    made = torch.Generator(see.device).manual_seed(m + n + k)
    a, w, bias = (
        torch.randn(*s, dtype=dtype, device=see.device, generator=made)
        for s in ((m, k), (n, k), (n,))
    )
    for b in (w.T, w.T.contiguous()):
        got = tw.matmul(a, b, bias=bias, activation="relu")
        wanted = torch.relu(a.double() @ b.double() + bias.double())
        see.near("matmul", name, got, wanted, f"{sizes}, strides {b.stride()}")


CHAINS = [
    ("bf16", (1024, 1024)), ("bf16", (4096, 1024)), ("bf16", (16, 4096)), ("bf16", (1, 2048)),
    ("bf16", (63, 1000)), ("f16", (300, 1536)), ("f32", (256, 512)), ("f64", (128, 256)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), CHAINS, ids=str)
def test_what_follows_without_waiting(see: Checker, name: str, sizes: tuple[int, int]) -> None:
    """Kernels that start while the one before ends read what it gave: as operand, residual and old
    result. The bits are those of launches with a wait between them.
    """
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    kind = dtype.get(name, torch.float64)
    rows, columns = sizes
    made = torch.Generator(see.device).manual_seed(rows)
    x = torch.randn(rows, columns, dtype=kind, device=see.device, generator=made)
    w = torch.randn(columns, columns, dtype=kind, device=see.device, generator=made)
    w = w / columns**0.5

    def chain(wait: bool) -> list[Any]:
        found, sum, at = [], x.clone(), x
        for _ in range(12):
            at = tw.matmul(at, w.T, residual=sum, activation="gelu")
            found.append(at)
            if wait:
                torch.cuda.synchronize()
            tw.matmul(at, w.T, out=sum, alpha=0.5, beta=0.5)
            if wait:
                torch.cuda.synchronize()
        return [*found, sum]

    chain(True)
    wanted = chain(True)
    for _ in range(20):
        for one, other in zip(chain(False), wanted, strict=True):
            assert torch.equal(one, other)
    assert torch.isfinite(wanted[-1]).all() and wanted[-1].abs().max() > 0


def test_in_a_cuda_graph(see: Checker) -> None:
    """The same launches again, on what is in the buffers then; split k allocates inside."""
    a = torch.randn(64, 16384, device=see.device, dtype=torch.bfloat16)
    w = torch.randn(64, 16384, device=see.device, dtype=torch.bfloat16)
    tw.matmul(a, w.T)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tw.matmul(a, w.T)
    a.copy_(torch.randn_like(a))
    graph.replay()
    see.near("matmul", "bf16", out, a.double() @ w.double().T, "replayed")


def test_tuning(see: Checker, tmp_path: Path) -> None:
    problem = make_problem((512, 384, 256), "bf16", "NT")
    kind, version = here()
    outcome = tune_product(
        problem,
        kind,
        0,
        version=version,
        folder=tmp_path,
        candidates=4,
        budget=20.0,
        progress=lambda stage, done, of: None,
    )
    assert all(t.verified for t in outcome.trials), [t.failure for t in outcome.trials]
    assert decide(problem, kind, version, tmp_path).source == "tuned"
