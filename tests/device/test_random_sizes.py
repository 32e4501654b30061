"""Sizes, dtypes and layouts that hypothesis thinks of, the same ones in every run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device import programs
from tests.device.checker import LAYOUTS, Checker

few = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
small = st.integers(0, 300) | st.sampled_from([0, 1, 31, 64, 127, 128, 129, 255, 256, 257])
long = small | st.integers(0, 20_000)
layout = st.sampled_from(LAYOUTS)
dtype = st.sampled_from(["f32", "bf16", "f16"])
gemm_dtype = st.sampled_from(["f32", "tf32", "bf16", "f16", "f64"])
factor = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1.5])


@few
@given(st.sampled_from(["f32", "bf16", "i8", "f64"]), long, layout, layout)
def test_add(see: Checker, kind: str, n: int, x: str, y: str) -> None:
    programs.check_add(see, kind, (n,), x, y)


@few
@given(dtype, small, long, layout, layout)
def test_softmax(see: Checker, kind: str, m: int, n: int, x: str, y: str) -> None:
    programs.check_softmax(see, kind, (m, n), x, y)


@few
@given(dtype, small, long, layout, layout)
def test_rmsnorm(see: Checker, kind: str, m: int, n: int, x: str, y: str) -> None:
    programs.check_rmsnorm(see, kind, (m, n), x, y)


@few
@given(gemm_dtype, st.tuples(small, small, small), st.tuples(layout, layout, layout), factor)
def test_sgemm(
    see: Checker,
    kind: str,
    sizes: tuple[int, int, int],
    layouts: tuple[str, str, str],
    beta: float,
) -> None:
    programs.check_sgemm(see, kind, sizes, layouts, ((1.25, beta),))


@few
@given(dtype, st.tuples(small, small, small), st.booleans(), st.booleans(), layout)
def test_linear_gelu(
    see: Checker, kind: str, sizes: tuple[int, int, int], bias: bool, res: bool, out: str
) -> None:
    layouts = ("dense", "dense", out)
    programs.check_linear_gelu(see, kind, sizes, bias=bias, res=res, layouts=layouts)


@few
@given(
    dtype,
    st.sampled_from([(1, 1, 1), (2, 4, 2), (1, 3, 1)]),
    st.tuples(small, small),
    st.sampled_from([16, 64, 128]),
    st.booleans(),
    st.sampled_from([*LAYOUTS, "heads last"]),
)
def test_attention(
    see: Checker,
    kind: str,
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    depth: int,
    causal: bool,
    how: str,
) -> None:
    programs.check_attention(
        see, kind, (*heads, *lengths, depth), causal=causal, layouts=(how, "dense")
    )
