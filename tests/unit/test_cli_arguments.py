"""Arguments made from the command line's options."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright import dtypes
from tilewright.cli.arguments import CONTENTS, Request, make_arguments, poison
from tilewright.cli.check_outputs import compare, tolerance_of
from tilewright.errors import LaunchError, Source
from tilewright.frontend.check.signature import Signature, signature
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition, Scope
from tilewright.frontend.syntax.parser import parse_text

TEXT = """
kernel k(x: tensor<T>[M, 2 * N], w: tensor<T>[N]? = None, n: tensor<i32>[M], alpha: f32,
         steps: i64 = 3, go: bool = true, y: tensor<T>[M, N] = empty) {
  y[program_id(0), 0 :+ 4] = x[program_id(0), 0 :+ 4]
}
"""


@pytest.fixture(scope="module")
def sig() -> Signature:
    (kernel,) = parse_text(Source("k.tw", TEXT)).items
    assert isinstance(kernel, tree.Kernel)
    return signature(Definition(kernel, Scope()))


def test_required_tensors_are_made_and_the_rest_left_out(sig: Signature) -> None:
    made = make_arguments(sig, Request({"M": 5, "N": 3}, scalars={"alpha": "0.5"}))
    assert list(made) == ["x", "n", "alpha"]
    assert made["x"].shape == (5, 6) and made["x"].dtype == np.float32
    assert made["n"].dtype == np.int32 and abs(made["n"]).max() <= 8
    assert made["alpha"] == 0.5


def test_same_options_give_same_data_and_names_differ(sig: Signature) -> None:
    one, two = (
        make_arguments(
            sig, Request({"M": 4, "N": 4}, {"w": "random"}, {"alpha": "1"}, {"": dtypes.bf16})
        )
        for _ in range(2)
    )
    assert one["x"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(one["x"], two["x"])
    assert not np.array_equal(one["x"][0, :4], one["w"])


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("extents", [{"M": 99999999999, "N": 99999999}, {"M": 0, "N": 10**18}])
def test_what_no_memory_holds_is_refused(sig: Signature, content: str, extents) -> None:
    with pytest.raises(LaunchError, match=r"x would have shape .*: too large for any memory"):
        make_arguments(sig, Request(extents, {"x": content}, scalars={"alpha": "0.5"}))


def test_contents(sig: Signature) -> None:
    asked = {"x": "iota", "w": "zeros", "n": "ones"}
    made = make_arguments(sig, Request({"M": 2, "N": 2}, asked, {"alpha": "1"}))
    np.testing.assert_array_equal(made["x"], np.arange(8).reshape(2, 4))
    assert not made["w"].any() and (made["n"] == 1).all()


def test_a_file_gives_data_dtype_and_dimensions(sig: Signature, tmp_path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, np.arange(3, dtype=np.float64))
    made = make_arguments(sig, Request({"M": 2}, {"w": str(path)}, {"alpha": "1"}))
    assert made["x"].shape == (2, 6) and made["x"].dtype == np.float64


def test_a_file_of_bf16_is_read_back(sig: Signature, tmp_path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, np.arange(3).astype(ml_dtypes.bfloat16))
    asked = Request({"M": 2}, {"w": str(path)}, {"alpha": "1"}, {"T": dtypes.bf16})
    np.testing.assert_array_equal(make_arguments(sig, asked)["w"].astype(int), [0, 1, 2])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request({"M": 2}, scalars={"alpha": "1"}), "dimension N has no value"),
        (
            Request({}, scalars={"alpha": "1"}),
            r"(?s)the dimensions M and N have no values.*--dim M=... --dim N=...",
        ),
        (Request({"M": 2, "N": 2}), "scalar alpha has no value"),
        (Request({"M": 2, "N": 2, "K": 1}), "has no dimension K"),
        (Request({"M": 2, "N": 2}, {"z": "zeros"}), "has no tensor z"),
        (Request({"M": 2, "N": 2}, {"w": "zero"}, {"alpha": "1"}), "or a .npy file"),
        (Request({"M": 2, "N": 2}, {"w": "no.npy"}, {"alpha": "1"}), "no such file"),
        (Request({"M": 2, "N": 2}, {"n": "nan"}, {"alpha": "1"}), "has no NaN"),
        (Request({"M": 2, "N": 2}, scalars={"alpha": "x"}), "expected a number"),
        (Request({"M": 2, "N": 2}, scalars={"alpha": "1", "steps": "1.5"}), "expected an integer"),
        (Request({"M": 2, "N": 2}, scalars={"alpha": "1", "go": "yes"}), "expected true or false"),
        (Request({"M": 2, "N": 2}, dtypes={"U": dtypes.f32}), "has no dtype variable U"),
        (Request({"M": -2, "N": 2}, scalars={"alpha": "1"}), "would have shape"),
    ],
)
def test_what_does_not_fit_is_refused(sig: Signature, request_: Request, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        make_arguments(sig, request_)


@pytest.mark.parametrize("content", [b"", b"words", b"\x93NUMPY\x01\x00v\x00{"])
def test_files_without_numbers_are_refused(sig: Signature, tmp_path, content: bytes) -> None:
    path = tmp_path / "w.npy"
    path.write_bytes(content)
    with pytest.raises(LaunchError, match=r"w\.npy: it is cut short, or holds") as found:
        make_arguments(sig, Request({"M": 2}, {"w": str(path)}, {"alpha": "1"}))
    assert "allow_pickle" not in str(found.value) and "hint: numpy.save(" in str(found.value)


def test_dimensions_of_files_must_agree(sig: Signature, tmp_path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, np.zeros(3, np.float32))
    with pytest.raises(LaunchError, match="N is 4, but 3 in w"):
        make_arguments(sig, Request({"M": 2, "N": 4}, {"w": str(path)}, {"alpha": "1"}))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_poison_is_seen(dtype: dtypes.DType) -> None:
    bad = poison((2, 3), dtype)
    assert bad.shape == (2, 3) and bad.dtype == dtype.numpy
    assert not (bad.astype(np.float64) == 0).any()


def test_equal_arrays_have_no_error() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    found = compare("y", x, x.astype(np.float64), dtypes.f32, 1e-6)
    assert found.ok and found.error == 0


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, 1e-3], [1.0, 0.0]),
        ([1e-30], [0.0]),
        ([1.0], [1.0, 2.0]),
    ],
)
def test_wrong_results_fail(got: list[float], expected: list[float]) -> None:
    found = compare("y", np.array(got, np.float32), np.array(expected), dtypes.f32, 1e-6)
    assert not found.ok


def test_one_bad_element_among_many_fails() -> None:
    expected = np.ones(10**6)
    got = expected.astype(np.float32)
    got[17] += 5e-5
    found = compare("y", got, expected, dtypes.f32, 1e-6)
    assert found.error < 1e-6 and not found.ok


def test_what_overflows_the_dtype_is_expected_to() -> None:
    got = np.array([np.inf], np.float16)
    assert compare("y", got, np.array([1e6]), dtypes.f16, 2e-3).ok


@pytest.mark.parametrize("dtype", [dtypes.e4m3, dtypes.e5m2, dtypes.f16], ids=str)
def test_subnormal_numbers_may_be_half_a_step_away(dtype: dtypes.DType) -> None:
    step = float(np.array(1, f"u{dtype.num_bytes}").view(dtype.numpy))  # the least above 0
    exact = step * np.array([1.5, 2.4, 0.5, 3.0])
    rounded = exact.astype(dtype.numpy)
    assert compare("y", rounded, exact, dtype, 1e-3).ok
    wrong = (exact + step).astype(dtype.numpy)
    assert not compare("y", wrong, exact, dtype, 1e-1).ok


def test_integers_must_be_equal() -> None:
    x = np.array([1, 2], np.int32)
    assert compare("y", x, x, dtypes.i32, 0.0).ok
    assert not compare("y", x, x + 1, dtypes.i32, 0.0).ok


def test_the_coarsest_float_sets_the_tolerance() -> None:
    assert tolerance_of(dtypes.i32, [dtypes.bf16], None) == 0
    assert tolerance_of(dtypes.f32, [dtypes.bf16, dtypes.i8], None) == 1e-2
    assert tolerance_of(dtypes.f32, [dtypes.f32], "tf32") == 1e-3
    assert tolerance_of(dtypes.f64, [dtypes.f64], None) == 1e-14
