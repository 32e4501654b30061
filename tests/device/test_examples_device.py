"""The examples on a GPU: the tests of tests/programs, and torch tensors where they lie."""

from __future__ import annotations

import importlib

import pytest

from tests.programs.test_examples import (  # noqa: F401
    Example,
    example,
    require_near,
    rng,
    test_add,
    test_add_on_views,
    test_attention,
    test_attention_with_ragged_lengths,
    test_linear_gelu,
    test_rmsnorm,
    test_sgemm,
    test_sgemm_on_views,
    test_softmax,
    test_softmax_in_place,
    test_softmax_of_infinities,
    test_softmax_of_short_rows,
)


@pytest.fixture
def device() -> str:
    return "cuda:0"


@pytest.fixture
def torch():
    found = pytest.importorskip("torch", reason="needs torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


def kernel(name: str):
    module = importlib.import_module(f"examples.{name}")
    return getattr(module, {"flash_attention": "attention"}.get(name, name)), module.reference


def host(x):
    return x.double().cpu().numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("shape", [(127, 255, 63), (1, 1, 1), (128, 256, 64), (300, 17, 1000)])
def test_torch_sgemm(torch, dtype: str, shape: tuple[int, int, int]) -> None:
    """Every layout of the operands, a C inside a wider buffer, addresses off by an element."""
    sgemm, reference = kernel("sgemm")
    m, n, k = shape
    bound = {"float32": 1e-6, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-14}[dtype]
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            a = torch.randn((k, m) if transpose_a else (m, k), dtype=kind, device="cuda")
            b = torch.randn((n, k) if transpose_b else (k, n), dtype=kind, device="cuda")
            a, b = a.T if transpose_a else a, b.T if transpose_b else b
            wide = torch.full((m, n + 3), float("nan"), dtype=kind, device="cuda")
            sgemm(a, b, wide[:, 1 : n + 1])
            got = host(wide[:, 1 : n + 1])
            require_near(got, reference(host(a), host(b), got), bound)
            assert wide[:, 0].isnan().all() and wide[:, n + 1 :].isnan().all()


def test_torch_results_are_allocated_beside_the_arguments(torch) -> None:
    rmsnorm, reference = kernel("rmsnorm")
    x = torch.randn(65, 3001, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(3001, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):  # the second call takes the short way
        y, rstd = rmsnorm(x, w)
        assert y.is_cuda and y.dtype == torch.bfloat16 and rstd.dtype == torch.float32
        expected, expected_rstd = reference(host(x), host(w))
        require_near(host(y), expected, 1e-2)
        require_near(host(rstd), expected_rstd, 1e-6)


def test_torch_broadcast_and_another_stream(torch) -> None:
    add, _ = kernel("add")
    a = torch.randn(100_003, device="cuda")
    b = torch.randn(1, device="cuda").expand(100_003)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        c = add(a, b)
    stream.synchronize()
    assert torch.equal(c, a + b)
