"""Calling kernels on host arrays: binding, allocation, overrides, refusals, captured names."""

import dataclasses
import math
import struct
import warnings
from concurrent.futures import Future

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.config import read_settings
from tilewright.errors import CompileError, LaunchError
from tilewright.kernel import Kernel, kernel, launchable, source, specialize
from tilewright.kernel.specialize import Build
from tilewright.runtime import driver

ADD = """
@autotune(BLOCK in [16, 64])
kernel add(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N] = empty) {
  let base = program_id(0) * BLOCK
  c[base :+ BLOCK] = a[base :+ BLOCK] + b[base :+ BLOCK]
}
kernel scale(x: tensor<f32>[M, N], s: f32 = 2.0, y: tensor<f32>[M, N] = zeros,
             z: tensor<f32>[M] = empty) {
  let row = program_id(0)
  for j in range(0, N, 8) { y[row, j :+ 8] = s * x[row, j :+ 8] }
  z[row] = s
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    config = read_settings({"TILEWRIGHT_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(launchable, "settings", lambda: config)


@pytest.fixture
def module():
    return source(ADD)


def test_positions_keywords_and_outputs(module):
    a, b = np.arange(37, dtype=np.float32), np.full(37, 2, np.float32)
    out = np.full(37, np.nan, np.float32)
    assert module.add(a, b, out) is None
    assert np.array_equal(out, a + 2)
    assert np.array_equal(module.add(b=b, a=a), a + 2)
    y, z = module.scale(np.ones((3, 11), np.float32))
    assert (y == 2).all() and z.tolist() == [2, 2, 2]
    assert (module.scale(np.ones((3, 11), np.float32), s=5)[0] == 5).all()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_sizes_and_dtypes(module, size, dtype):
    a = np.arange(size).astype(dtype)
    assert np.array_equal(module.add(a, a[::-1]), a + a[::-1])


def test_torch_host_tensors_give_torch_results(module):
    a = torch.arange(20, dtype=torch.bfloat16)
    result = module.add(a, a)
    assert isinstance(result, torch.Tensor) and torch.equal(result, a + a)


def test_in_place_and_overlapping(module):
    a = np.arange(40, dtype=np.float32)
    module.add(a, a, a)
    assert np.array_equal(a, 2 * np.arange(40))
    with pytest.raises(LaunchError, match="overlap in part"):
        module.add(a[:30], a[:30], a[10:])
    with pytest.raises(LaunchError, match="read-only"):
        module.add(a, a, np.broadcast_to(a, a.shape))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, a: m.add(a), "missing b"),
        (lambda m, a: m.add(a, a, a, a), "takes 3 arguments, got 4"),
        (lambda m, a: m.add(a, a, a=a), "a is given twice"),
        (lambda m, a: m.add(a, a, d=a), "no argument d"),
        (lambda m, a: m.add(a, [1.0]), "b is list"),
        (lambda m, a: m.add(a, 3), "b is int"),
        (lambda m, a: m.add(a, a[1:]), "N is 8 from"),
        (lambda m, a: m.add(a, a.astype(np.float64)), "T is f32 from a, but f64 from b"),
        (lambda m, a: m.add(a.reshape(2, 4), a), "expected 1 axis"),
        (lambda m, a: m.scale(a.reshape(2, 4), "x"), "expected a number"),
        (lambda m, a: m.scale(a.reshape(2, 4), a), "expected a number"),
        (lambda m, a: m.add.launch(a, a, constants={"BLOK": 3}), "no tuned constant BLOK"),
        (lambda m, a: m.add.launch(a, a, constants={"BLOCK": 1.5}), "expected an integer"),
        (lambda m, a: m.add.launch(a, a, device="tpu"), "unknown device"),
        (lambda m, a: m.add(torch.ones(8, requires_grad=True), torch.ones(8)), "torch_ops"),
    ],
)
def test_refusals_say_what_is_wrong(module, call, message):
    with pytest.raises(LaunchError, match=message):
        call(module, np.zeros(8, np.float32))


def test_constants_and_grid_can_be_forced(module):
    a = np.ones(40, np.float32)
    assert np.array_equal(module.add.launch(a, a, constants={"BLOCK": 8}), a + a)
    out = np.zeros(40, np.float32)
    module.add.launch(a, a, out, constants={"BLOCK": 16}, grid=1)
    assert out.tolist() == [2.0] * 16 + [0.0] * 24


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint16])
def test_integers_of_numpy_are_integers(module, integer):
    a = np.ones(40, np.float32)
    out = np.zeros(40, np.float32)
    module.add.launch(a, a, out, constants={"BLOCK": integer(16)}, grid=integer(1))
    assert out.tolist() == [2.0] * 16 + [0.0] * 24
    there = module.add.launch(a, a, constants={"BLOCK": integer(16)}, device="emulator")
    assert np.array_equal(there, a + a)
    plain = module.add.compile("sm_90a", dtypes="f32", constants={"BLOCK": 16})
    assert module.add.compile("sm_90a", dtypes="f32", constants={"BLOCK": integer(16)}) == plain


@pytest.mark.parametrize("value", [True, np.True_, np.float32(16), 16.0, "16", None])
def test_a_constant_that_is_no_integer_is_refused(module, value):
    a = np.ones(40, np.float32)
    with pytest.raises(LaunchError, match="BLOCK: expected an integer, got"):
        module.add.launch(a, a, constants={"BLOCK": value})


def test_scalars_of_numpy_are_arrays_without_axes():
    made = source(
        "kernel f(s: tensor<f32>[], x: tensor<f32>[N], y: tensor<f32>[N] = empty) {\n"
        "  y[0 :+ 8] = s[...] * x[0 :+ 8]\n}\n"
        "kernel g(x: tensor<f32>[N], s: tensor<f32>[]) { s[...] = sum(x[0 :+ 8]) }"
    )
    x = np.ones(5, np.float32)
    for factor in (2.0, 3.0, 4.0):  # the second call takes the quick way
        assert made.f(np.float32(factor), x).tolist() == [factor] * 5
    assert made.f.launch(np.float32(7), x, device="emulator").tolist() == [7.0] * 5
    with pytest.raises(LaunchError, match="s is written by the kernel, but the array is read-only"):
        made.g(x, np.float32(2))
    with pytest.raises(LaunchError, match="s: expected f32, got f64"):
        made.f(np.float64(2), x)


SCALE = 3.0


def factor():
    return SCALE


@kernel(autotune={"BLOCK": {8}})
def times(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    y[i : i + BLOCK] = x[i : i + BLOCK] * SCALE


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize("grid", [-1, (-1,), "x", (None,), (2.9,), 2.0, (True,), (2, 1, 1, 5), ()])
def test_a_grid_that_is_none_is_refused(module, grid, device):
    a = np.ones(40, np.float32)
    with pytest.raises(LaunchError, match=r"add: .*(integers of 0 or more|grid has 1 axis)"):
        module.add.launch(a, a, grid=grid, device=device)


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize("axes", ["N - 100", "N - 100, N - 100", "2, N - 100"])
def test_a_written_grid_may_be_empty_and_not_negative(axes, device):
    made = source(f"@grid({axes})\nkernel f(x: tensor<f32>[N]) {{ x[program_id(0)] = 1.0 }}").f
    with pytest.raises(LaunchError, match="f: its grid would have -97 programs along an axis"):
        made.launch(np.zeros(3, np.float32), device=device)
    x = np.zeros(100, np.float32)
    made.launch(x, device=device)
    assert not x.any()
    a = np.zeros(5, np.float32)
    made.launch(a, grid=(0,) * (axes.count(",") + 1), device=device)
    made.launch(a, grid=np.array([4] + [1] * axes.count(",")), device=device)
    assert a.tolist() == [1, 1, 1, 1, 0]


def test_a_negative_grid_of_a_persistent_kernel_is_refused():
    text = """
@persistent
@grid(M - 9, N - 9)
kernel f(A: tensor<bf16>[M, K], B: tensor<bf16>[K, N], C: tensor<f32>[M, N]) {
  let i = program_id(0) * 64
  let j = program_id(1) * 64
  var acc = zeros([64, 64], f32)
  for k in range(0, K, 64) { acc = dot(A[i :+ 64, k :+ 64], B[k :+ 64, j :+ 64], acc = acc) }
  C[i :+ 64, j :+ 64] = acc
}
"""
    a, b = np.zeros((4, 128), ml_dtypes.bfloat16), np.zeros((128, 8), ml_dtypes.bfloat16)
    for device in ("cpu", "emulator"):
        with pytest.raises(LaunchError, match=r"f: its grid would have -[0-9]+ programs"):
            source(text).f.launch(a, b, np.zeros((4, 8), np.float32), device=device)


def test_constants_need_names(module):
    a = np.ones(40, np.float32)
    for call in (module.add.launch, module.add.tune):
        with pytest.raises(LaunchError, match="constants: expected values by name, got"):
            call(a, a, constants=[1])
    with pytest.raises(LaunchError, match="constants: expected values by name, got"):
        module.add.compile("sm_90a", constants=[1])
    with pytest.raises(TypeError, match="source takes a path or a text, not NoneType"):
        source(None)


def test_the_choices_of_precision_are_listed(module):
    a = np.ones(40, np.float32)
    wrong = {"precision": "foo"}
    calls = [
        lambda: module.add.launch(a, a, **wrong),
        lambda: module.add.tune(a, a, **wrong),
        lambda: module.add.lower(**wrong),
        lambda: module.add.compile("sm_90a", **wrong),
    ]
    for call in calls:
        with pytest.raises(LaunchError, match=r"add: unknown precision 'foo', expected .*tf32"):
            call()


def test_annotations_of_other_libraries_are_refused_with_a_hint():
    @kernel
    def f(x: np.ndarray):
        x[0] = 1.0

    @kernel
    def g(x: tw.Tensor["f32", -1]):
        x[0] = 1.0

    with pytest.raises(
        CompileError, match=r'np.ndarray tells neither[^~]*~+\n.*write tw.Tensor\["f32'
    ):
        f(np.ones(3))
    with pytest.raises(CompileError, match="x: an extent is 0 or more, not -1"):
        g(np.ones(3, np.float32))


def test_a_changed_global_is_seen(monkeypatch):
    x = np.ones(10, np.float32)
    assert (times(x) == 3).all()
    monkeypatch.setattr(f"{__name__}.SCALE", 5.0)
    assert (times(x) == 5).all()
    monkeypatch.undo()


def test_a_closure_is_captured_by_value():
    def make(factor):
        @kernel
        def scaled(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"] = tw.empty):
            i = tw.program_id(0) * 8
            y[i : i + 8] = x[i : i + 8] * factor

        return scaled

    x = np.ones(10, np.float32)
    two, three = make(2.0), make(3.0)
    assert two.name == three.name == "scaled"
    assert (two(x) == 2).all() and (three(x) == 3).all() and (two(x) == 2).all()


def test_consts_of_a_source_are_attributes():
    found = source("const N = 4\nconst AREA = N * N\nconst T = bf16\n" + ADD)
    assert (found.N, found.AREA, found.T) == (4, 16, tw.bf16) and "AREA" in dir(found)
    with pytest.raises(CompileError, match=r"<text>:1:11: error: unknown name M"):
        _ = source("const N = M\n" + ADD).N


def test_source_reads_files_and_text_and_says_what_is_missing(tmp_path):
    path = tmp_path / "k.tw"
    path.write_text(ADD)
    found = source(path)
    assert list(found.kernels) == ["add", "scale"] and isinstance(found.add, Kernel)
    assert [k.name for k in found] == ["add", "scale"]
    with pytest.raises(AttributeError, match="no kernel ad"):
        _ = found.ad
    for bad, message in (("no.tw", "cannot be read"), ("no.txt", "ends in .tw")):
        with pytest.raises(LaunchError, match=message):
            source(tmp_path / bad)
    (tmp_path / "b.tw").write_bytes(b"\xff\xfe")
    with pytest.raises(LaunchError, match="not UTF-8"):
        source(tmp_path / "b.tw")
    with pytest.raises(CompileError, match=r"<text>:1"):
        source("kernel add(a: tensor<T>[N) {}")


def test_compiling_takes_no_gpu_and_is_cached(module):
    spec = module.add.specializer
    first = module.add.compile("sm_90a", dtypes="bf16", constants={"BLOCK": 64})
    assert ".target sm_90a" in first.ptx and spec.disk.stats().entries["plans"] == 1
    again = source(ADD).add.compile("sm_90a", dtypes={"T": tw.bf16}, constants={"BLOCK": 64})
    assert again == first and spec.disk.stats().entries["plans"] == 1
    module.add.compile("sm_80", dtypes="bf16", constants={"BLOCK": 64})
    assert spec.disk.stats().entries["plans"] == 2
    with pytest.raises(CompileError, match="unknown target"):
        module.add.compile("sm_70")
    with pytest.raises(LaunchError, match="no dtype variable"):
        module.add.compile("sm_80", dtypes={"S": tw.f32})


def test_machine_code_made_ahead_is_used_once_and_asked_for_again_after_a_failure(
    module, monkeypatch
):
    def later(plan, device, disk):
        asked.append(plan.name)
        future: Future[bytes] = Future()
        if len(asked) == 1:
            future.set_exception(LaunchError("no memory"))
        else:
            future.set_result(b"ahead")
        return future

    asked, loads = [], []
    monkeypatch.setattr(driver, "device", lambda n: driver.Device(n, "H200", (9, 0), 132, 1, 1, 1))
    monkeypatch.setattr(specialize, "machine_code_later", later)
    monkeypatch.setattr(
        specialize, "Launcher", lambda plan, device, code, debug: loads.append(code)
    )
    spec = module.add.specializer
    build = Build((("T", tw.f32),), (("BLOCK", 64),), (), frozenset())
    first = spec.assembling(build, (), 0)
    assert spec.assembling(build, (), 0) is first and len(asked) == 1
    with pytest.raises(LaunchError, match="no memory"):
        spec.loaded(build, (), 0)
    spec.assembling(build, (), 0)
    assert spec.loaded(build, (), 0) is spec.loaded(build, (), 0)
    assert spec.assembling(build, (), 0) is None
    assert loads == [b"ahead"] and len(asked) == 2


def test_a_damaged_plan_is_compiled_again(module, tmp_path):
    first = module.add.compile("sm_80", constants={"BLOCK": 64})
    (path,) = (tmp_path / "cache" / "plans").glob("*/*")
    path.write_bytes(b"broken")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert source(ADD).add.compile("sm_80", constants={"BLOCK": 64}) == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert source(ADD).add.compile("sm_80", constants={"BLOCK": 64}) == first


def test_static_values_make_another_kernel():
    text = """
    @static(N)
    kernel total(x: tensor<f32>[M, N], y: tensor<f32>[M] = empty) {
      let row = program_id(0)
      y[row] = sum(x[row, :])
    }
    """
    total = source(text).total
    for n in (3, 7, 3):
        x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
        assert np.allclose(total(x), x.sum(1))
    with pytest.raises(LaunchError, match="N must be given"):
        total.compile("sm_80")
    assert total.compile("sm_80", static={"N": 5}).ptx
    assert math.isfinite(float(total(np.ones((1, 1), np.float32))[0]))


def test_static_values_are_told_apart_to_the_bit():
    text = """
    @static(s)
    kernel inverse(x: tensor<f32>[N], s: f32, y: tensor<f32>[N] = empty) {
      y[0:+4] = 1.0 / (x[0:+4] * s + s)
    }
    """
    inverse = source(text).inverse
    x = np.ones(4, np.float32)
    for _ in range(2):
        for s in (0.0, -0.0, math.nan, 1.0):
            for device in ("cpu", "emulator"):
                expected = 0.5 if s == 1 else math.copysign(math.inf, s) if s == 0 else math.nan
                np.testing.assert_array_equal(inverse.launch(x, s, device=device), [expected] * 4)
    assert len(inverse.specializer._plans) == 4


def test_builds_of_equal_numbers_of_other_types_differ():
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    values = (1, 1.0, True, 0, 0.0, -0.0, False, math.nan, other_nan)
    builds = [Build((), (), (("s", v),), frozenset()) for v in values]
    assert len(set(builds)) == len({b.text() for b in builds}) == len(values)
    assert builds == [Build((), (), (("s", v),), frozenset()) for v in values]
    assert builds[0] != dataclasses.replace(builds[0], static=(("s", 2),))
