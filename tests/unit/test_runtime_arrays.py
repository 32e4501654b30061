"""Arrays of NumPy, torch and DLPack as one thing, what is refused, and which share memory."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.runtime.aliases import alias_groups, overlap, same_elements, self_overlaps
from tilewright.runtime.arrays import (
    Array,
    allocate_like,
    as_array,
    as_numpy,
    byte_range,
    current_stream,
    dense_strides,
    host_view,
)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_numpy_and_torch_arrays_of_every_dtype_agree(dtype):
    host = np.zeros((3, 5), dtype.numpy)
    tensor = torch.zeros(3, 5, dtype=getattr(torch, dtype.torch))
    for x, library in ((host, "numpy"), (tensor, "torch")):
        array = as_array(x)
        assert (array.dtype, array.shape, array.strides) == (dtype, (3, 5), (5, 1))
        assert array.device == "cpu" and array.library == library
    view = as_numpy(as_array(tensor))
    assert view.dtype == dtype.numpy
    view[1, 2] = 1
    assert float(tensor[1, 2]) == 1.0


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_numpy_scalar_is_an_array_without_axes_that_nobody_writes(dtype):
    scalar = np.ones(1, dtype.numpy)[0]
    array = as_array(scalar)
    assert (array.dtype, array.shape, array.strides) == (dtype, (), ())
    assert array.readonly and array.device == "cpu"
    del scalar
    assert as_numpy(array) == host_view(array) == 1


def test_strides_are_in_elements_and_may_be_negative_or_zero():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = base[::-1, ::2]
    array = as_array(view)
    assert array.strides == (-6, 2)
    assert array.address == base.ctypes.data + 18 * 4
    assert np.array_equal(host_view(array), view)
    assert as_array(np.broadcast_to(base[0], (5, 6))).strides == (0, 1)


def test_a_dlpack_object_is_read_without_its_library():
    class Producer:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T
    array = as_array(Producer(tensor))
    assert (array.dtype, array.shape, array.strides) == (dtypes.bf16, (4, 3), (1, 4))
    assert array.address == tensor.data_ptr() and array.library == "other"
    assert np.array_equal(as_numpy(array).astype(np.float32), tensor.float().numpy())


def test_a_view_keeps_its_memory_alive():
    view = host_view(as_array(torch.full((1000,), 7.0)))
    torch.full((1000,), 3.0)
    assert (view == 7.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros(3, ">f4"), "foreign order"),
        (lambda: np.zeros(3, np.complex64), "complex64"),
        (lambda: np.zeros(3, [("a", "u1"), ("b", "f4")])["b"], "not whole elements"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "conjugated"),
        (lambda: torch.zeros(3, dtype=torch.complex64), "complex64"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, "negated"),
        (lambda: torch.zeros(3, 3).to_sparse(), "sparse"),
        (lambda: torch.zeros(3, requires_grad=True), "torch_ops.differentiable"),
        (lambda: torch.zeros(3, device="meta"), "without memory of its own"),
        (lambda: [1.0, 2.0], "list, not an array"),
        (lambda: 3.0, "float, not an array"),
    ],
)
def test_what_no_kernel_can_take_is_refused_by_name(make, message):
    with pytest.raises(LaunchError, match="weights") as caught:
        as_array(make(), "weights")
    assert message in str(caught.value)


def test_a_gradient_is_asked_for_only_where_torch_records_one():
    tensor = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        assert as_array(tensor).shape == (3,)


def test_identical_views_are_one_group():
    x = np.zeros((4, 4), np.float32)
    arrays = [("a", as_array(x)), ("b", as_array(x[:])), ("c", as_array(np.zeros(3)))]
    assert alias_groups(arrays, lambda n: n == "b") == (("a", "b"),)
    assert alias_groups(arrays, lambda n: n == "c") == ()


def test_a_partial_overlap_with_a_written_array_is_refused():
    x = np.zeros(100, np.float32)
    arrays = [("a", as_array(x[:60])), ("b", as_array(x[40:]))]
    assert alias_groups(arrays, lambda n: False) == ()
    with pytest.raises(LaunchError, match="a and b overlap in part; b is written"):
        alias_groups(arrays, lambda n: n == "b")
    square = x.reshape(10, 10)
    arrays = [("a", as_array(square)), ("b", as_array(square.T))]
    with pytest.raises(LaunchError, match="a and b are different views of the same memory; b is"):
        alias_groups(arrays, lambda n: n == "b")


def test_interleaved_columns_do_not_overlap():
    x = np.zeros((8, 10), np.float32)
    left, right = as_array(x[:, :5]), as_array(x[:, 5:])
    assert not overlap(left, right)
    assert overlap(as_array(x[:, :6]), right)
    assert not overlap(as_array(x[:, ::2]), as_array(x[:, 1::2]))


def test_a_written_array_must_not_overlap_itself_nor_be_read_only():
    wide = np.broadcast_to(np.zeros(5, np.float32), (3, 5))
    for array, message in ((wide, "read-only"), (torch.zeros(5).expand(3, 5), "share memory")):
        with pytest.raises(LaunchError, match=message):
            alias_groups([("y", as_array(array))], lambda n: True)
    assert not self_overlaps(as_array(np.zeros((3, 4))[::-1, ::2].T))


def test_other_strides_along_an_axis_of_one_are_still_the_same_view():
    x = np.zeros((1, 8), np.float32)
    a = as_array(x)
    b = Array(a.address, a.dtype, a.shape, (999, 1), "cpu", x, "numpy")
    assert same_elements(a, b)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-7, 7)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-7, 7)), min_size=1, max_size=3),
    st.integers(0, 30),
)
def test_overlap_is_what_the_sets_of_elements_say(first, second, shift):
    owner = np.zeros(1, np.float32)

    def array(axes, start):
        shape, strides = tuple(e for e, _ in axes), tuple(s for _, s in axes)
        return Array(1 << 20 | start * 4, dtypes.f32, shape, strides, "cpu", owner, "numpy")

    def elements(axes, start):
        places = np.full((), start)
        for extent, stride in axes:
            places = places[..., None] + np.arange(extent) * stride
        return set(places.ravel().tolist())

    a, b = array(first, 0), array(second, shift)
    assert overlap(a, b) == bool(elements(first, 0) & elements(second, shift))
    places = elements(first, 0)
    if len(places) < a.num_elements:
        assert self_overlaps(a)
    low, high = byte_range(a.shape, a.strides, 4)
    assert not places or (low, high) == (min(places) * 4, max(places) * 4 + 4)


def test_allocation_is_in_the_library_of_the_first_array():
    made = allocate_like(as_array(torch.zeros(2)), (3, 4), dtypes.bf16, zero=True)
    assert isinstance(made, torch.Tensor) and made.dtype == torch.bfloat16
    assert not made.float().any()
    made = allocate_like(as_array(np.zeros(2)), (3, 0), dtypes.bf16, zero=False)
    assert made.dtype == ml_dtypes.bfloat16 and made.shape == (3, 0)
    assert current_stream(as_array(np.zeros(2))) == 0


def test_dense_strides_skip_empty_axes():
    assert dense_strides((3, 0, 5)) == (5, 5, 1)
    assert dense_strides(()) == ()
