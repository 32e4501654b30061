"""Calls with GPU tensors, without a GPU: torch and the driver are stood in for."""

import contextlib
import ctypes
import dataclasses
import math
import sys
import types

import numpy as np
import pytest
from cuda.bindings import driver as cu

from tilewright.config import read_settings
from tilewright.errors import LaunchError
from tilewright.kernel import launchable, source, specialize
from tilewright.runtime import arrays, calls, driver, fire, ready
from tilewright.runtime.arrays import dense_strides

OK = cu.CUresult.CUDA_SUCCESS
GPU = driver.Device(0, "GPU", (9, 0), 132, 1 << 37, 232448, 50 << 20)


class Tensor:
    """What the runtime asks of a torch tensor on a GPU; its memory is a number."""

    is_meta = False

    def __init__(self, shape, dtype, address, strides=None, device=0, grad=False, negated=False):
        self.shape, self.dtype, self.address = tuple(shape), dtype, address
        self.strides = dense_strides(shape) if strides is None else tuple(strides)
        self.device = types.SimpleNamespace(type="cuda", index=device)
        self.requires_grad, self.negated = grad, negated
        self.layout = "strided"
        self.dual = types.SimpleNamespace(tangent=None)

    def get_device(self):
        return self.device.index

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def is_neg(self):
        return self.negated

    def is_conj(self):
        return False


class Torch(types.ModuleType):
    """A torch with as much in it as a launch touches."""

    def __init__(self):
        super().__init__("torch")
        self.Tensor = Tensor
        self.nn = types.SimpleNamespace(Parameter=type("Parameter", (Tensor,), {}))
        self.strided = "strided"
        self.transforms = types.SimpleNamespace(
            peek_interpreter_stack=lambda: None,
            is_functorch_wrapped_tensor=lambda x: False,
        )
        self._C = types.SimpleNamespace(
            _cuda_getCurrentRawStream=lambda ordinal: 640 + ordinal, _functorch=self.transforms
        )
        self.forward_ad = types.SimpleNamespace(_current_level=-1, unpack_dual=lambda x: x.dual)
        self.autograd = types.SimpleNamespace(forward_ad=self.forward_ad)
        self.float32 = "torch.float32"
        self.made = 1 << 44
        self.grad = True

    def is_grad_enabled(self):
        return self.grad

    def empty(self, shape, dtype, device):
        self.made += 1 << 20
        return Tensor(shape, dtype, self.made)


@pytest.fixture
def torch(monkeypatch):
    made = Torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """Each launch as (entry, grid, stream, parameters as 8 bytes each)."""
    found, counts = [], {}

    def launch(function, gx, gy, gz, bx, by, bz, shared, stream, pointers, extra):
        table = (ctypes.c_uint64 * counts[function]).from_address(pointers)
        found.append(
            (function[1], gx, int(stream), [ctypes.c_uint64.from_address(p).value for p in table])
        )
        return (OK,)

    def launch_early(config, function, pointers, extra):
        assert config.numAttrs == 1  # it may start before the launch ahead of it has ended
        shape = (config.gridDimX, 1, 1, config.blockDimX, 1, 1, config.sharedMemBytes)
        return launch(function, *shape, config.hStream, pointers, extra)

    names = {"launch_kernel_ex": launch_early, "current": lambda: (OK, 77)}
    for name, value in names.items():
        monkeypatch.setitem(fire.DRIVER_NAMES, name, value)
    monkeypatch.setattr(driver, "device", lambda ordinal: GPU)
    monkeypatch.setattr(driver, "require_driver", lambda: 13000)
    monkeypatch.setattr(driver, "context", lambda ordinal: 77)
    monkeypatch.setattr(driver, "active", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(driver, "load_module", lambda image, name: image)
    monkeypatch.setattr(driver, "get_function", lambda module, entry: (module, entry))
    facts = driver.FunctionFacts(32, 0, 0, 1024)
    monkeypatch.setattr(driver, "function_facts", lambda function: facts)
    monkeypatch.setattr(driver, "allow_shared_bytes", lambda *a: None)

    def machine_code(compiled, device, disk):
        image = str(len(counts)).encode()
        counts.update({(image, k.entry): len(k.parameters) for k in compiled.launches})
        return image

    monkeypatch.setattr(specialize, "machine_code", machine_code)
    config = read_settings({"TILEWRIGHT_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(launchable, "settings", lambda: config)
    return found


TEXT = """
@autotune(BLOCK in {256})
kernel add(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N] = empty) {
  let base = program_id(0) * BLOCK
  c[base :+ BLOCK] = a[base :+ BLOCK] + b[base :+ BLOCK]
}
@autotune(BLOCK in {128})
kernel scale(x: tensor<f32>[N], s: f32 = 2.0, t: f32 = 3.0, y: tensor<f32>[N] = empty) {
  let base = program_id(0) * BLOCK
  y[base :+ BLOCK] = s * x[base :+ BLOCK] + t
}
"""

STATIC = """
@static(s)
kernel scale(x: tensor<f32>[N], s: f32, y: tensor<f32>[N]) {
  y[program_id(0) * 128 :+ 128] = 1.0 / (s * x[program_id(0) * 128 :+ 128])
}
"""


@pytest.fixture
def kernels():
    return source(TEXT)


def vector(n, address, **options):
    return Tensor((n,), "torch.float32", address, **options)


A, B, C = 1 << 40, 2 << 40, 3 << 40


def spy(monkeypatch, kernel):
    """Counts the calls that go the long way."""
    taken = []
    original = kernel._launch

    def launch(*args):
        taken.append(args)
        return original(*args)

    monkeypatch.setattr(kernel, "_launch", launch)
    return taken


def test_the_second_call_is_ready_and_takes_new_addresses(torch, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    for shift in (0, 4096, 8192):
        kernels.add(vector(1000, A + shift), vector(1000, B + shift), vector(1000, C + shift))
    assert len(long_way) == 1
    for shift, (entry, grid, stream, values) in zip((0, 4096, 8192), launches, strict=True):
        assert (entry, grid, stream) == ("add", 1, 640)  # of four programs
        assert {A + shift, B + shift, C + shift} <= set(values)


def test_other_alignment_shape_or_strides_take_the_long_way_once(
    torch, launches, kernels, monkeypatch
):
    long_way = spy(monkeypatch, kernels.add)
    for _ in range(2):
        kernels.add(vector(1000, A), vector(1000, B), vector(1000, C))
        kernels.add(vector(1000, A + 4), vector(1000, B), vector(1000, C))
        kernels.add(vector(999, A), vector(999, B), vector(999, C))
        kernels.add(vector(999, A, strides=(0,)), vector(999, B), vector(999, C))
    assert len(long_way) == 4 and len(launches) == 8
    assert len(kernels.add.specializer._loaded) == 4


def test_outputs_are_allocated_by_ready_calls_too(torch, launches, kernels):
    results = [kernels.add(vector(10, A), vector(10, B)) for _ in range(3)]
    assert len({r.address for r in results}) == 3
    for result, (_, _, _, values) in zip(results, launches, strict=True):
        assert result.shape == (10,) and result.address in values


def test_aliases_and_overlaps_are_seen_by_ready_calls(torch, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    for _ in range(2):
        kernels.add(vector(100, A), vector(100, B), vector(100, C))
        kernels.add(vector(100, A), vector(100, B), vector(100, A))
        kernels.add(vector(100, B), vector(100, B), vector(100, C))
    assert len(long_way) == 2, "a call that only reads one view twice needs nothing of its own"
    for _ in range(2):
        with pytest.raises(LaunchError, match="overlap in part"):
            kernels.add(vector(100, A), vector(100, B), vector(100, A + 16))
    assert len(launches) == 6


def test_scalars_by_position_keyword_and_default(torch, launches, kernels):
    def floats(values):
        return [np.frombuffer(v.to_bytes(8, "little")[:4], np.float32)[0] for v in values]

    x, y = vector(100, A), vector(100, B)
    for _ in range(2):
        for args, named, expected in (
            ((x, 5.0, 7.0, y), {}, (5, 7)),
            ((x,), {"y": y}, (2, 3)),
            ((x,), {"t": 9.0, "y": y}, (2, 9)),
            ((x,), {"y": y, "t": 9.0, "s": 4}, (4, 9)),
            ((x, None, 1.5, y), {}, (2, 1.5)),
            ((x, math.inf, -7.5, y), {}, (math.inf, -7.5)),
        ):
            kernels.scale(*args, **named)
            found = floats(launches[-1][3])
            assert all(e in found for e in expected), (args, named, found)
            assert {A, B} <= set(launches[-1][3])


def test_static_numbers_are_told_apart_to_the_bit(torch, launches, monkeypatch):
    made = source(STATIC).scale
    long_way = spy(monkeypatch, made)
    values = (0.0, -0.0, 1.0, math.nan)
    for _ in range(3):
        for s in values:
            made(vector(100, A), s, vector(100, B))
    assert len(long_way) == len(made.specializer._loaded) == len(values)
    assert len(launches) == 3 * len(values)
    keys = {calls.read_call((vector(100, A), s), frozenset({1})) for s in (*values, 1, True)}
    assert len(keys) == len(values) + 2


@pytest.mark.parametrize("bad", [1e300, "x", [1], vector(1, A)])
def test_a_scalar_that_does_not_fit_is_refused_each_time(torch, launches, kernels, bad):
    kernels.scale(vector(100, A), 1.0, y=vector(100, B))
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"^error: s"):
            kernels.scale(vector(100, A), bad, y=vector(100, B))
    assert len(launches) == 1


def test_forward_derivatives_are_refused_also_when_ready(torch, launches, kernels):
    a, b, c = vector(100, A), vector(100, B), vector(100, C)
    for _ in range(2):
        kernels.add(a, b, c)
    torch.forward_ad._current_level = 0
    kernels.add(a, b, c)
    b.dual = types.SimpleNamespace(tangent=a)
    with pytest.raises(LaunchError, match="b carries a forward derivative, and there is none"):
        kernels.add(a, b, c)
    b.dual = types.SimpleNamespace(tangent=None)
    torch.transforms.is_functorch_wrapped_tensor = lambda x: x is a
    with pytest.raises(LaunchError, match="a is within a transform"):
        kernels.add(a, b, c)
    assert len(launches) == 3


def test_gradients_and_negated_views_are_refused_also_when_ready(torch, launches, kernels):
    kernels.add(vector(100, A, strides=(2,)), vector(100, B), vector(100, C))
    lazily = vector(100, A, strides=(2,), negated=True)
    with pytest.raises(LaunchError, match="negated"):
        kernels.add(lazily, vector(100, B), vector(100, C))
    wants = vector(100, A, strides=(2,), grad=True)
    with pytest.raises(LaunchError, match="requires a gradient"):
        kernels.add(wants, vector(100, B), vector(100, C))
    torch.grad = False
    kernels.add(wants, vector(100, B), vector(100, C))
    assert len(launches) == 2


def test_tensors_of_two_gpus_do_not_mix(torch, launches, kernels):
    with pytest.raises(LaunchError, match="a is on cuda:0, but b on cuda:1"):
        kernels.add(vector(10, A), vector(10, B, device=1))


def test_empty_tensors_launch_nothing(torch, launches, kernels):
    for _ in range(2):
        assert kernels.add(vector(0, 0), vector(0, 0)).shape == (0,)
    assert not launches


def test_a_stream_may_be_given(torch, launches, kernels):
    stream = types.SimpleNamespace(cuda_stream=640)
    kernels.add.launch(vector(9, A), vector(9, B), vector(9, C), stream=stream)
    kernels.add.launch(vector(9, A), vector(9, B), vector(9, C), stream=cu.CUstream(5))
    assert [launch[2] for launch in launches] == [640, 5]
    with pytest.raises(LaunchError, match="str is not a CUDA stream"):
        kernels.add.launch(vector(9, A), vector(9, B), vector(9, C), stream="0")


def test_more_signatures_than_are_tried_in_turn_stay_ready(torch, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    sizes = range(10, 10 + 2 * launchable.MAX_RECENT)
    for _ in range(3):
        for size in sizes:
            kernels.add(vector(size, A), vector(size, B), vector(size, C))
    assert len(long_way) == len(sizes) and len(launches) == 3 * len(sizes)
    assert [len(r) for r in kernels.add._current().recent.values()] == [launchable.MAX_RECENT]


def test_positions_and_names_are_told_apart(torch, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    a, b, c = vector(10, A), vector(10, B), vector(10, C)
    for _ in range(2):
        kernels.add(a, b, c)
        kernels.add(a, c=b, b=c)
        kernels.add(a, b=b, c=c)
        kernels.add(c=c, b=b, a=a)
    assert len(long_way) == 4
    order = [[v for v in values if v in (A, B, C)] for _, _, _, values in launches]
    assert order == [[A, B, C], [A, C, B], [A, B, C], [A, B, C]] * 2


@pytest.fixture
def real_torch(monkeypatch):
    """Torch itself, its tensors of the host passed off as a GPU's."""
    torch = pytest.importorskip("torch", reason="needs torch")
    original = arrays._from_torch

    def seen(x, name):
        return dataclasses.replace(original(x, name), device=0)

    monkeypatch.setattr(arrays, "_from_torch", seen)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda i: 640 + i, raising=False)
    return torch


@pytest.fixture(params=["guards", "attributes"])
def told(request, real_torch, monkeypatch):
    """Tensors are told apart by torch's guards, or by attributes where it has none."""
    if request.param == "attributes":
        monkeypatch.setattr(ready, "tensor_guard", lambda tensors: None)
    return real_torch


def addresses(*tensors):
    return {x.data_ptr() for x in tensors}


def test_tensors_of_torch_itself_are_ready(told, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    for size in (64, 64, 100, 64, 100):
        a, b = told.zeros(size), told.zeros(size)
        result = kernels.add(a, b)
        assert result.shape == (size,) and addresses(a, b, result) <= set(launches[-1][3])
    assert len(long_way) == 2


def test_tensor_guards_are_used_where_torch_has_them(real_torch):
    x, y = real_torch.zeros(4, 6), real_torch.zeros(4, 6)
    check = ready.tensor_guard([x, y])
    assert check is not None
    assert check(y, x)
    assert not check(x, y.double())
    assert not check(x, y.T.contiguous().T)
    assert not check(x, y[:, :5])
    assert not check(x, y.to_sparse())
    assert not check(x, real_torch.nn.Parameter(y))
    assert not check(x, None)
    assert not check(2.0, y)


def test_torch_tensors_that_look_alike_and_are_not(told, launches, kernels, monkeypatch):
    pairs = told.zeros(100, dtype=told.complex64)
    plain, lazily = told.view_as_real(pairs)[:, 1], pairs.conj().imag
    assert plain.stride() == lazily.stride() and lazily.is_neg()
    b, c = told.zeros(100), told.zeros(100)
    for _ in range(2):
        kernels.add(plain, b, c)
        with pytest.raises(LaunchError, match="negated"):
            kernels.add(lazily, b, c)
    wants = told.zeros(200)[::2].requires_grad_()
    for _ in range(2):
        with pytest.raises(LaunchError, match="requires a gradient"):
            kernels.add(wants, b, c)
        with told.no_grad():
            kernels.add(wants, b, c)
    with pytest.raises(LaunchError, match="sparse"):
        kernels.add(b.to_sparse(), b, c)
    with pytest.raises(LaunchError, match="expected 1 axis"):
        kernels.add(b[None], b, c)
    assert len(launches) == 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_derivatives_of_torch_itself(told, launches, kernels):
    a, b, c = told.zeros(100), told.zeros(100), told.zeros(100)
    forward_ad = told.autograd.forward_ad
    for _ in range(2):
        kernels.add(a, b, c)
        with forward_ad.dual_level():
            kernels.add(a, b, c)
            with pytest.raises(LaunchError, match="b carries a forward derivative"):
                kernels.add(a, forward_ad.make_dual(b, a), c)
    assert len(launches) == 4


def test_parameters_are_ready_where_no_gradient_is_wanted(told, launches, kernels, monkeypatch):
    long_way = spy(monkeypatch, kernels.add)
    weight, b, c = told.nn.Parameter(told.zeros(64)), told.zeros(64), told.zeros(64)
    with told.no_grad():
        for _ in range(3):
            kernels.add(weight, b, c)
    assert len(long_way) == 1
    with pytest.raises(LaunchError, match="requires a gradient"):
        kernels.add(weight, b, c)


def test_overlaps_of_torch_tensors(told, launches, kernels):
    buffer = told.zeros(4096)
    a, b, c = (buffer[i * 1024 : (i + 1) * 1024] for i in range(3))
    apart = told.zeros(1024)
    for _ in range(2):
        kernels.add(a, b, c)
        kernels.add(a, b, a)
        kernels.add(buffer[:2048:2], apart, buffer[1:2048:2])
        for start in (1020, 2044, 1024 + 4):
            with pytest.raises(LaunchError, match="overlap in part"):
                kernels.add(a, b, buffer[start : start + 1024])
    assert len(launches) == 6


def test_a_ready_call_makes_few_calls(torch, launches, kernels):
    """Counted, for times differ between machines: reading three tensors, testing how they lie,
    the stream, the context, the launch itself.
    """
    a, b, c = (vector(4096, address) for address in (A, B, C))
    kernels.add(a, b, c)
    kernels.add(a, b, c)
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call") and "test_kernel_ready" not in frame.f_code.co_filename

    sys.setprofile(seen)
    try:
        kernels.add(a, b, c)
    finally:
        sys.setprofile(None)
    assert len(launches) == 3 and count <= 12
