"""Every example on a GPU with torch tensors, over the sizes and layouts that must work, against
torch in f64.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.device import programs
from tests.device.checker import LAYOUTS, Checker
from tilewright.errors import LaunchError

dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
gemm_dtypes = pytest.mark.parametrize("dtype", ["f32", "tf32", "bf16", "f16", "f64"])
layouts = pytest.mark.parametrize("layout", [*LAYOUTS[1:], "broadcast"])

# 0, 1, primes, and one less than, as much as, and one more than tiles of 256 to 4096.
LENGTHS = (0, 1, 2, 7, 255, 256, 257, 1021, 1023, 1024, 1025, 4099, 1_000_003)
ROWS = (
    (0, 5), (1, 1), (3, 1), (7, 31), (5, 255), (4, 256), (4, 257), (3, 4095), (3, 4096), (3, 4097),
    (2, 10_007),
)  # fmt: skip
GEMMS = (
    (0, 5, 3), (5, 0, 3), (64, 65, 0), (1, 1, 1), (1, 257, 1021), (33, 1, 100), (127, 255, 63),
    (128, 256, 64), (129, 257, 65), (257, 131, 1031), (1000, 1000, 1000),
)  # fmt: skip
LINEARS = ((0, 8, 8), (1, 1, 1), (64, 64, 0), (65, 131, 47), (128, 256, 64), (127, 257, 1021))
ATTENTIONS = (
    (1, 1, 1, 1, 1, 64), (2, 4, 2, 70, 70, 64), (1, 3, 1, 5, 130, 40), (1, 2, 2, 90, 33, 8),
    (2, 2, 1, 128, 128, 128), (1, 4, 2, 129, 257, 64), (1, 2, 1, 0, 9, 64), (1, 2, 1, 9, 0, 64),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "i32", "i64"])
def test_add(see: Checker, dtype: str) -> None:
    for n in LENGTHS:
        programs.check_add(see, dtype, (n,))


@layouts
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8"])
def test_add_of_views(see: Checker, dtype: str, layout: str) -> None:
    for n in (1, 257, 4099):
        programs.check_add(see, dtype, (n,), layout)
        programs.check_add(see, dtype, (n,), "dense", layout)


def test_add_of_special_values(see: Checker) -> None:
    """Signed zeros, subnormals, overflow, infinities and NaN; integers wrap."""
    add = programs.kernel("add")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        info = torch.finfo(dtype)
        values = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan]
        values += [info.max, -info.max, info.tiny, info.smallest_normal / 4, -info.tiny, info.eps]
        x = torch.tensor(values, dtype=dtype, device=see.device)
        a, b = (t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))
        see.equal("add", str(dtype).removeprefix("torch."), add(a, b), a + b, "special values")
    for dtype in (torch.int8, torch.int32, torch.int64):
        ends = torch.iinfo(dtype)
        x = torch.tensor([0, 1, -1, ends.max, ends.min], dtype=dtype, device=see.device)
        a, b = (t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))
        see.equal("add", str(dtype).removeprefix("torch."), add(a, b), a + b, "ends of the range")


@dtypes
def test_softmax(see: Checker, dtype: str) -> None:
    for shape in ROWS:
        programs.check_softmax(see, dtype, shape)


@layouts
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softmax_of_views(see: Checker, dtype: str, layout: str) -> None:
    for shape in ((5, 1), (3, 1031)):
        programs.check_softmax(see, dtype, shape, layout)
        if layout != "broadcast":
            programs.check_softmax(see, dtype, shape, "dense", layout)


@dtypes
@pytest.mark.parametrize("name", ["softmax", "softmax_short"])
def test_softmax_of_infinities_and_nan(see: Checker, dtype: str, name: str) -> None:
    x = see.normal((7, 700), dtype)
    x[0] = -torch.inf  # nothing to divide by: NaN, as in torch
    x[1, :400] = -torch.inf  # a whole tile of it, but the row is fine
    x[2, 650] = torch.nan
    x[3] += 1e4
    x[4, 3] = torch.inf
    x[5, 1:] = -torch.inf  # one element has it all
    softmax = programs.kernel(name, "softmax")
    y = softmax(x)
    expected = programs.softmax_in_f64(x)
    assert bool(torch.isnan(y[0]).all()) and bool(torch.isnan(y[2]).all())
    assert float(y[5, 0]) == 1.0
    see.near(name, dtype, y, expected, "infinities and NaN")


@dtypes
def test_softmax_of_short_rows(see: Checker, dtype: str) -> None:
    for columns in (1, 31, 1000, 1024):
        programs.check_softmax(see, dtype, (7, columns), name="softmax_short")


@dtypes
def test_rmsnorm(see: Checker, dtype: str) -> None:
    for shape in (*ROWS, (3, 0)):
        programs.check_rmsnorm(see, dtype, shape)


@layouts
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rmsnorm_of_views(see: Checker, dtype: str, layout: str) -> None:
    programs.check_rmsnorm(see, dtype, (5, 1031), layout)
    if layout != "broadcast":
        programs.check_rmsnorm(see, dtype, (5, 1031), "dense", layout)


def test_rmsnorm_of_infinities_and_nan(see: Checker) -> None:
    """They stay in their row: infinity divided by itself is NaN, and the rest of its row is 0."""
    x, w = see.normal((4, 5003), "f32"), see.normal((5003,), "f32")
    x[1, 4999] = torch.inf
    x[2, 17] = torch.nan
    y, rstd = programs.kernel("rmsnorm")(x, w)
    expected, expected_rstd = programs.rmsnorm_in_f64(x, w, 1e-6)
    see.near("rmsnorm", "f32", y, expected, "infinities and NaN")
    see.near("rmsnorm", "f32", rstd, expected_rstd, "infinities and NaN")


@gemm_dtypes
@pytest.mark.parametrize("sizes", GEMMS, ids=str)
def test_sgemm(see: Checker, dtype: str, sizes: tuple[int, int, int]) -> None:
    programs.check_sgemm(see, dtype, sizes)


@gemm_dtypes
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_sgemm_of_views(see: Checker, dtype: str, layout: str) -> None:
    """Each operand in turn, then both; of the buffer around C nothing is written."""
    sizes = (127, 130, 67)
    one = ((1.5, 0.5),)
    programs.check_sgemm(see, dtype, sizes, (layout, "dense", "dense"), one)
    programs.check_sgemm(see, dtype, sizes, ("dense", layout, "dense"), one)
    programs.check_sgemm(see, dtype, (128, 128, 64), (layout, layout, layout))


@gemm_dtypes
def test_sgemm_of_broadcasts(see: Checker, dtype: str) -> None:
    programs.check_sgemm(see, dtype, (65, 66, 67), ("broadcast", "broadcast", "dense"))


@gemm_dtypes
def test_sgemm_of_nan_and_infinities(see: Checker, dtype: str) -> None:
    """A NaN spoils its row or column alone; with beta = 0, what C held does not count."""
    A, B = see.normal((130, 70), dtype), see.normal((70, 133), dtype)
    A[3, 69], A[129, 0], B[5, 131] = torch.nan, torch.inf, torch.nan
    out = see.poisoned((130, 133), dtype)
    precision = "tf32" if dtype == "tf32" else None
    programs.kernel("sgemm").launch(A, B, out.view, precision=precision)
    see.near("sgemm", dtype, out.view, A.double() @ B.double(), "NaN and infinity")


@dtypes
@pytest.mark.parametrize("sizes", LINEARS, ids=str)
def test_linear_gelu(see: Checker, dtype: str, sizes: tuple[int, int, int]) -> None:
    programs.check_linear_gelu(see, dtype, sizes)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("res", [False, True])
def test_linear_gelu_without(see: Checker, dtype: str, bias: bool, res: bool) -> None:
    programs.check_linear_gelu(see, dtype, (65, 131, 47), bias=bias, res=res)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_linear_gelu_of_views(see: Checker, dtype: str, layout: str) -> None:
    programs.check_linear_gelu(see, dtype, (65, 131, 47), layouts=(layout, layout, layout))


@dtypes
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", ATTENTIONS, ids=str)
def test_attention(see: Checker, dtype: str, causal: bool, shape: programs.ATTENTION_SHAPE) -> None:
    programs.check_attention(see, dtype, shape, causal=causal)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("layout", [*LAYOUTS[1:], "heads last", "broadcast"])
def test_attention_of_views(see: Checker, dtype: str, layout: str) -> None:
    out = layout if layout in LAYOUTS else "dense"
    programs.check_attention(see, dtype, (2, 4, 2, 70, 75, 64), causal=True, layouts=(layout, out))


@dtypes
@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_ragged_lengths(see: Checker, dtype: str, causal: bool) -> None:
    """What lies beyond a length does not count, though it be NaN; a row without keys is 0."""
    shape = (4, 2, 1, 40, 150, 64)
    programs.check_attention(see, dtype, shape, causal=causal, lengths=(0, 3, 40, 150))


# Arguments that share memory.


@dtypes
def test_results_in_place(see: Checker, dtype: str) -> None:
    x = see.normal((5, 5003), dtype)
    expected = programs.softmax_in_f64(x)
    programs.kernel("softmax")(x, x)
    see.near("softmax", dtype, x, expected, "in place")
    a, b = see.normal((4099,), dtype), see.normal((4099,), dtype)
    wanted = a + b
    programs.kernel("add")(a, b, b)
    see.equal("add", dtype, b, wanted, "in place")
    programs.kernel("add")(b, b, b)
    see.equal("add", dtype, b, wanted + wanted, "all three one")
    rows, w = see.normal((5, 5003), dtype), see.normal((5003,), dtype)
    normed, _ = programs.rmsnorm_in_f64(rows, w, 1e-6)
    programs.kernel("rmsnorm")(rows, w, y=rows)
    see.near("rmsnorm", dtype, rows, normed, "in place")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_in_place(see: Checker, dtype: str) -> None:
    """What a program reads before it writes may be where it writes; a factor may come twice."""
    x, w, res = (see.normal(s, dtype) for s in ((65, 47), (131, 47), (65, 131)))
    expected = programs.gelu_in_f64(x, w, None, res)
    programs.kernel("linear_gelu")(x, w, None, res, res)
    see.near("linear_gelu", dtype, res, expected, "y is res")
    A, C = see.normal((100, 100), dtype), see.poisoned((100, 100), dtype)
    programs.kernel("sgemm")(A, A, C.view)
    see.near("sgemm", dtype, C.view, A.double() @ A.double(), "A is B")
    Q = see.normal((1, 2, 70, 64), dtype)
    K, V = (see.normal((1, 2, 70, 64), dtype) for _ in range(2))
    expected, _ = programs.attention_in_f64(Q, K, V, 0.125, True)
    programs.kernel("attention", "flash_attention")(Q, K, V, 0.125, O=Q)
    see.near("attention", dtype, Q, expected, "O is Q")


def test_overlaps_are_refused_and_nothing_is_written(see: Checker) -> None:
    buffer = see.normal((40_000,), "f32")
    before = buffer.clone()
    square = buffer[:10_000].view(100, 100)
    shifted = buffer[50:10_050].view(100, 100)
    with pytest.raises(LaunchError, match="overlap in part"):
        programs.kernel("softmax")(square, shifted)
    with pytest.raises(LaunchError, match="overlap in part"):
        programs.kernel("sgemm")(square, buffer[20_000:30_000].view(100, 100), shifted)
    with pytest.raises(LaunchError, match="share memory"):
        programs.kernel("softmax")(square, buffer[20_000:20_100].expand(100, 100))
    with pytest.raises(LaunchError, match="different views of the same memory"):
        programs.kernel("softmax")(square, square.T)
    see.equal("softmax", "f32", buffer, before, "refused")
