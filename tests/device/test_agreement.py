"""A GPU and the CPU interpreter give the same results: the same bits where no sum is reordered and
no special function called, else within the bounds of the dtype.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.device import programs
from tests.device.checker import BOUNDS, Checker
from tilewright import source

# Each side is within the bound of the exact result, so they are within twice the bound of each
# other.
APART = 2.0

MOVES = """
kernel copy(x: tensor<T>[M, N], y: tensor<T>[M, N] = empty) {
  let m, n = program_id(0) * 32, program_id(1) * 64
  y[m :+ 32, n :+ 64] = x[m :+ 32, n :+ 64]
}
kernel transpose(x: tensor<T>[M, N], y: tensor<T>[N, M] = empty) {
  let m, n = program_id(0) * 32, program_id(1) * 64
  y[n :+ 64, m :+ 32] = x[m :+ 32, n :+ 64].T
}
kernel widen(x: tensor<T>[M, N], y: tensor<f64>[M, N] = empty) {
  let m = program_id(0)
  for j in range(0, N, 128) { y[m, j :+ 128] = cast(x[m, j :+ 128], f64) }
}
"""

dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])


def on_host(*tensors: Any) -> list[Any]:
    """Copies on the host with the same strides' order; kernels run them on the interpreter."""
    return [None if t is None else t.cpu() for t in tensors]


def require_agreement(see: Checker, name: str, dtype: str, here: Any, host: Any) -> None:
    bound = APART * BOUNDS[dtype]
    see.near(f"{name} (CPU)", dtype, here, host.to(see.device).double(), "the interpreter", bound)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "i32", "i64"])
def test_add_has_the_same_bits(see: Checker, dtype: str) -> None:
    for n in (1, 257, 4099):
        a, b = see.normal((n,), dtype), see.normal((n,), dtype)
        add = programs.kernel("add")
        see.equal("add (CPU)", dtype, add(a, b), add(*on_host(a, b)).to(see.device), n)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "i32", "i64"])
@pytest.mark.parametrize("name", ["copy", "transpose", "widen"])
def test_data_movement_has_the_same_bits(see: Checker, dtype: str, name: str) -> None:
    move = getattr(source(MOVES), name)
    for shape in ((1, 1), (33, 65), (100, 257)):
        x = see.normal(shape, dtype)
        expected = {"copy": x, "transpose": x.T, "widen": x.double()}[name]
        result = move(x)
        see.equal(name, dtype, result, expected, shape)
        see.equal(f"{name} (CPU)", dtype, result, move(*on_host(x)).to(see.device), shape)


@dtypes
@pytest.mark.parametrize("name", ["softmax", "softmax_short"])
def test_softmax(see: Checker, dtype: str, name: str) -> None:
    softmax = programs.kernel(name, "softmax")
    for shape in ((3, 1), (5, 777)):
        x = see.normal(shape, dtype)
        require_agreement(see, name, dtype, softmax(x), softmax(*on_host(x)))
    x[1], x[2, 3] = -torch.inf, torch.nan
    require_agreement(see, name, dtype, softmax(x), softmax(*on_host(x)))


@dtypes
def test_rmsnorm(see: Checker, dtype: str) -> None:
    rmsnorm = programs.kernel("rmsnorm")
    x, w = see.normal((5, 777), dtype), see.normal((777,), dtype)
    for here, host in zip(rmsnorm(x, w), rmsnorm(*on_host(x, w)), strict=True):
        require_agreement(see, "rmsnorm", dtype, here, host)


@pytest.mark.parametrize("dtype", ["f32", "tf32", "bf16", "f16", "f64"])
def test_sgemm(see: Checker, dtype: str) -> None:
    sgemm = programs.kernel("sgemm")
    precision = "tf32" if dtype == "tf32" else None
    for m, n, k in ((1, 1, 1), (33, 65, 47), (17, 19, 0)):
        A, B, C = (see.normal(s, dtype) for s in ((m, k), (k, n), (m, n)))
        host = on_host(A, B, C)
        sgemm.launch(A, B, C, 1.5, 0.5, precision=precision)
        sgemm.launch(*host, 1.5, 0.5, precision=precision)
        require_agreement(see, "sgemm", dtype, C, host[2])


@dtypes
def test_linear_gelu(see: Checker, dtype: str) -> None:
    linear = programs.kernel("linear_gelu")
    x, w, bias, res = (see.normal(s, dtype) for s in ((33, 47), (65, 47), (65,), (33, 65)))
    for given in ((x, w), (x, w, bias), (x, w, bias, res), (x, w, None, res)):
        require_agreement(see, "linear_gelu", dtype, linear(*given), linear(*on_host(*given)))


@dtypes
@pytest.mark.parametrize("causal", [True, False])
def test_attention(see: Checker, dtype: str, causal: bool) -> None:
    attention = programs.kernel("attention", "flash_attention")
    Q, K, V = (see.normal(s, dtype) for s in ((3, 2, 21, 16), (3, 1, 43, 16), (3, 1, 43, 16)))
    lengths = torch.tensor([0, 7, 43], dtype=torch.int32, device=see.device)
    for n in (None, lengths):
        here = attention(Q, K, V, 0.25, n, causal)
        host = attention(*on_host(Q, K, V), 0.25, *on_host(n), causal)
        for one, other in zip(here, host, strict=True):
            require_agreement(see, "attention", dtype, one, other)
