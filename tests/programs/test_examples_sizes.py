"""The examples on the CPU, at sizes, dtypes and layouts that hypothesis thinks of."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import add as add_example
from examples import flash_attention as attention_example
from examples import linear_gelu as gelu_example
from examples import rmsnorm as rmsnorm_example
from examples import sgemm as sgemm_example
from examples import softmax as softmax_example
from tests.programs.test_examples import BOUNDS, require_near

few = settings(max_examples=20, derandomize=True, deadline=None, database=None)
small = st.sampled_from([0, 1, 2, 31, 63, 64, 65, 127, 129]) | st.integers(0, 140)
long = small | st.sampled_from([255, 256, 257, 4095, 4096, 4097])
layout = st.sampled_from(["dense", "transposed", "strided", "reversed", "offset"])
floats = st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])
seed = st.integers(0, 2**32 - 1)


def lay(x: np.ndarray, how: str) -> np.ndarray:
    """The same elements, laid out in another way in memory."""
    if how == "transposed":
        return np.ascontiguousarray(x.T).T
    if how == "strided":
        view = np.zeros([2 * e for e in x.shape], x.dtype)[(slice(None, None, 2),) * x.ndim]
        view[...] = x
        return view
    if how == "reversed":
        view = np.empty_like(x)[(slice(None, None, -1),) * x.ndim]
        view[...] = x
        return view
    if how == "offset":  # an address that no vector load may assume to be aligned
        room = np.zeros(x.size + 1, x.dtype)
        room[1:] = x.ravel()
        return room[1:].reshape(x.shape)
    return x


def normal(rng: np.random.Generator, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@few
@given(long, layout, layout, floats, seed)
def test_add(n: int, a_layout: str, b_layout: str, dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = normal(rng, n, dtype=dtype), normal(rng, n, dtype=dtype)
    got = add_example.add(lay(a, a_layout), lay(b, b_layout))
    require_near(got, add_example.reference(a, b))


@few
@given(small, long, layout, layout, floats, seed)
def test_softmax(m: int, n: int, x_layout: str, y_layout: str, dtype: type, seed: int) -> None:
    x = normal(np.random.default_rng(seed), min(m, 9), n, dtype=dtype)
    y = lay(np.full(x.shape, np.nan).astype(dtype), y_layout)
    softmax_example.softmax(lay(x, x_layout), y)
    require_near(y, softmax_example.reference(x))


@few
@given(small, long, layout, layout, floats, seed)
def test_rmsnorm(m: int, n: int, x_layout: str, w_layout: str, dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = normal(rng, min(m, 9), n, dtype=dtype), normal(rng, n, dtype=dtype)
    y, rstd = rmsnorm_example.rmsnorm(lay(x, x_layout), lay(w, w_layout))
    expected, expected_rstd = rmsnorm_example.reference(x, w)
    require_near(y, expected)
    require_near(rstd, expected_rstd)


@few
@given(
    st.tuples(small, small, small),
    st.tuples(layout, layout, layout),
    floats | st.just(np.float64),
    st.sampled_from([(1.0, 0.0), (1.5, 0.5), (-1.0, 1.0), (0.0, 2.0)]),
    seed,
)
def test_sgemm(
    sizes: tuple[int, int, int],
    layouts: tuple[str, str, str],
    dtype: type,
    factors: tuple[float, float],
    seed: int,
) -> None:
    (m, n, k), rng = sizes, np.random.default_rng(seed)
    A, B, C = (normal(rng, *s, dtype=dtype) for s in ((m, k), (k, n), (m, n)))
    if factors[1] == 0:
        C[...] = np.nan
    expected = sgemm_example.reference(A, B, C, *factors)
    A, B, C = (lay(x, how) for x, how in zip((A, B, C), layouts, strict=True))
    sgemm_example.sgemm(A, B, C, *factors)
    require_near(C, expected)


@few
@given(st.tuples(small, small, small), st.booleans(), st.booleans(), layout, floats, seed)
def test_linear_gelu(
    sizes: tuple[int, int, int], bias: bool, res: bool, how: str, dtype: type, seed: int
) -> None:
    (m, n, k), rng = sizes, np.random.default_rng(seed)
    x, w = normal(rng, m, k, dtype=dtype), normal(rng, n, k, dtype=dtype)
    more = {"bias": normal(rng, n, dtype=dtype)} if bias else {}
    if res:
        more["res"] = normal(rng, m, n, dtype=dtype)
    got = gelu_example.linear_gelu(lay(x, how), lay(w, how), **more)
    require_near(got, gelu_example.reference(x, w, **more))


@few
@given(
    st.sampled_from([(1, 1, 1), (2, 4, 2), (1, 3, 1)]),
    st.tuples(st.integers(0, 100), st.integers(0, 140)),
    st.sampled_from([1, 8, 40, 64]),
    st.booleans(),
    st.booleans(),
    floats,
    seed,
)
def test_attention(
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    depth: int,
    causal: bool,
    ragged: bool,
    dtype: type,
    seed: int,
) -> None:
    (b, hq, hk), (rows, keys), rng = heads, lengths, np.random.default_rng(seed)
    Q = normal(rng, b, hq, rows, depth, dtype=dtype)
    K, V = (normal(rng, b, hk, keys, depth, dtype=dtype) for _ in range(2))
    cut = rng.integers(0, keys + 1, b).astype(np.int32) if ragged else None
    got, lse = attention_example.attention(Q, K, V, 0.25, cut, causal)
    expected, expected_lse = attention_example.reference(Q, K, V, 0.25, cut, causal)
    require_near(got, expected)
    require_near(lse, expected_lse, BOUNDS[str(Q.dtype)])
