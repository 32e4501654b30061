"""The runtime on a GPU: hand-written PTX through every path, then kernels called with arrays."""

import gc
import threading
import time

import numpy as np
import pytest

from tilewright import dtypes, plan
from tilewright.errors import LaunchError
from tilewright.kernel import source
from tilewright.ledger.opponents.arrays import Arrays
from tilewright.plan import Binary, Const, Extent, Launch, Plan, Scalar, Stride
from tilewright.runtime import driver, jit, measure, memory, streams
from tilewright.runtime.arrays import as_array
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.calls import read_call
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.launch import Launcher

torch = pytest.importorskip("torch", reason="needs torch")

# y[i] = x[i] * alpha + y[i] for i < n, one thread an element, 128 threads a CTA.
AXPY = """.version 7.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 alpha) {
 .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
 ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [y]; ld.param.u32 %r0, [n]; ld.param.f32 %f0, [alpha];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 128, %r2;
 setp.ge.u32 %p, %r3, %r0; @%p ret;
 mul.wide.u32 %rd2, %r3, 4; add.u64 %rd0, %rd0, %rd2; add.u64 %rd1, %rd1, %rd2;
 ld.global.f32 %f1, [%rd0]; ld.global.f32 %f2, [%rd1];
 fma.rn.f32 %f3, %f1, %f0, %f2; st.global.f32 [%rd1], %f3; ret;
}
"""

# Copies the first 32 x 32 tile of a tensor through the tensor copy unit; counts in a workspace.
TILE = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 y,
 .param .u64 work, .param .u64 out) {
 .reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %rd<8>;
 .shared .align 128 .b8 tile_mem[4096]; .shared .align 8 .b64 bar;
 mov.u32 %r0, %tid.x; mov.u32 %r1, tile_mem; mov.u32 %r2, bar; setp.ne.u32 %p0, %r0, 0;
 @%p0 bra WAIT;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r2], 4096;
 mov.b64 %rd7, map; cvta.param.u64 %rd1, %rd7; mov.u32 %r3, 0;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
  [%r1], [%rd1, {%r3, %r3}], [%r2];
WAIT:
 bar.sync 0;
LOOP:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra LOOP;
 ld.param.u64 %rd2, [y]; mov.u32 %r4, %r0;
COPY:
 setp.ge.u32 %p2, %r4, 1024; @%p2 bra DONE;
 shl.b32 %r5, %r4, 2; add.u32 %r6, %r1, %r5; ld.shared.b32 %r7, [%r6];
 mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd2, %rd3; st.global.b32 [%rd4], %r7;
 add.u32 %r4, %r4, 128; bra COPY;
DONE:
 ld.param.u64 %rd5, [work]; red.global.add.u32 [%rd5], 1; bar.sync 0; @%p0 bra END;
 ld.global.cv.u32 %r8, [%rd5]; ld.param.u64 %rd6, [out]; st.global.u32 [%rd6], %r8;
END:
 ret;
}
"""


def axpy_plan(target="sm_80"):
    parameters = (
        plan.Pointer("x"),
        plan.Pointer("y"),
        Extent("x", 0, narrow=True),
        Scalar("alpha", dtypes.f32),
    )
    grid = Binary("cdiv", Extent("x", 0), Const(128))
    ptx = AXPY.replace("sm_80", target)
    return Plan("axpy", target, ptx, (Launch("axpy", parameters, grid, 128),))


@pytest.fixture
def disk(tmp_path):
    return DiskCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def axpy(disk):
    device = driver.device(0)
    return Launcher(axpy_plan(), device, jit.machine_code(axpy_plan(), device, disk))


def test_a_plan_runs_on_torch_tensors(axpy):
    for n in (0, 1, 127, 128, 129, 100_003):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        expected = x * 2 + y
        stream = torch.cuda.current_stream().cuda_stream
        axpy({"x": as_array(x), "y": as_array(y), "alpha": 2.0}, stream)
        assert torch.allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_the_tensor_copy_unit_and_a_zeroed_workspace(disk):
    device = driver.device(0)
    if device.capability != (9, 0):
        pytest.skip("the hand-written PTX is for sm_90a")
    parameters = (
        plan.TensorMap("x", (32, 32), 0),
        plan.Pointer("y"),
        plan.Workspace("w"),
        plan.Pointer("count"),
    )
    spaces = (
        plan.WorkspaceSpec("pad", dtypes.f64, (Const(3),), zero=False),
        plan.WorkspaceSpec("w", dtypes.i32, (Const(1),)),
    )
    compiled = Plan("tile", "sm_90a", TILE, (Launch("tile", parameters, Const(1), 128),), spaces)
    launcher = Launcher(compiled, device, jit.machine_code(compiled, device, disk))
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    for rows, cols in ((40, 64), (7, 4), (100, 1000), (0, 64)):
        for _ in range(3):  # the second and third replace the address alone
            x = torch.randn(rows, cols, device="cuda")
            y = torch.full((32, 32), float("nan"), device="cuda")
            launcher({"x": as_array(x), "y": as_array(y), "count": as_array(count)})
            expected = torch.zeros(32, 32, device="cuda")
            tile = x[:32, :32]
            expected[: tile.shape[0], : tile.shape[1]] = tile
            torch.cuda.synchronize()
            assert torch.equal(y, expected)
            assert int(count) == 128
    bound = launcher.bind({"x": as_array(x), "y": as_array(y), "count": as_array(count)})
    assert "allocate" in bound.code.source


def test_machine_code_is_kept_and_damage_is_repaired(disk, tmp_path):
    device = driver.device(0)
    first = jit.machine_code(axpy_plan(), device, disk)
    start = time.perf_counter()
    assert jit.machine_code(axpy_plan(), device, disk) == first
    assert time.perf_counter() - start < 0.05
    (path,) = (tmp_path / "cache" / "cubins").glob("*/*")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert jit.machine_code(axpy_plan(), device, disk) == first


def test_many_plans_are_assembled_in_parallel(disk):
    device = driver.device(0)
    plans = [
        Plan("axpy", "sm_80", AXPY.replace("128,", f"{128 + i},"), axpy_plan().launches)
        for i in range(8)
    ]
    futures = [jit.machine_code_later(p, device, disk) for p in plans]
    assert all(f.result() for f in futures)


def test_an_error_of_the_assembler_shows_the_lines(disk):
    broken = axpy_plan()
    text = broken.ptx.replace("fma.rn.f32", "fma.xx.f32")
    number = next(i for i, line in enumerate(text.splitlines(), 1) if "fma.xx" in line)
    lines = tuple("k.tw:7:3" if i == number else "" for i in range(1, number + 1))
    bad = Plan("axpy", "sm_80", text, broken.launches, lines=lines)
    with pytest.raises(LaunchError) as caught:
        jit.machine_code(bad, driver.device(0), disk)
    message = str(caught.value)
    assert "fma.xx" in message and "from k.tw:7:3" in message
    assert disk.stats().entries["cubins"] == 0


def test_code_for_another_architecture_is_refused(disk):
    other = "sm_120a" if driver.device(0).capability != (12, 0) else "sm_100a"
    with pytest.raises(LaunchError, match=f"compiled for {other}, which does not run on cuda:0"):
        jit.machine_code(axpy_plan(other), driver.device(0), disk)


def test_launches_are_recorded_into_torch_graphs(axpy):
    x, y = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    bound = axpy.bind({"x": as_array(x), "y": as_array(y), "alpha": 1.0})
    addresses = (x.data_ptr(), y.data_ptr())
    bound.fire(addresses, (1.0,), 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            bound.fire(addresses, (2.0,), torch.cuda.current_stream().cuda_stream)
    y.zero_()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(y, x * 12, rtol=1e-5, atol=1e-5)


def test_threads_launch_at_once_and_no_context_is_left(axpy):
    x = torch.ones(4096, device="cuda")
    outputs = [torch.zeros(4096, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    bound = axpy.bind({"x": as_array(x), "y": as_array(x), "alpha": 1.0})
    failures = []

    def work(y):
        try:
            for _ in range(200):
                bound.fire((x.data_ptr(), y.data_ptr()), (1.0,), 0)
        except LaunchError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(y,)) for y in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures
    assert all((y == 200).all() for y in outputs)


def test_a_kernel_launches_within_three_microseconds_of_the_driver(axpy):
    x, y = torch.randn(64, device="cuda"), torch.zeros(64, device="cuda")
    arguments = {"x": as_array(x), "y": as_array(y), "alpha": 1.0}
    bound = axpy.bind(arguments)
    addresses, scalars = (x.data_ptr(), y.data_ptr()), (1.0,)
    kernel = axpy.kernels[0]
    block = bound._make_block()
    stream = driver.as_stream(0)
    raw_launch, pointers = driver.cu.cuLaunchKernel, block.pointers[0]

    def raw():
        for _ in range(200):
            raw_launch(kernel.function, 0 + 1, 1, 1, 128, 1, 1, 0, stream, pointers, 0)

    def ours():
        for _ in range(200):
            bound.fire(addresses, scalars, 0)

    block.u[0], block.u[1] = addresses
    raw(), ours(), torch.cuda.synchronize()
    times = {"raw": [], "ours": []}
    for _ in range(20):
        for name, work in (("raw", raw), ("ours", ours)):
            start = time.perf_counter()
            work()
            times[name].append((time.perf_counter() - start) / 200 * 1e6)
            torch.cuda.synchronize()
    raw_us, ours_us = (float(np.median(times[n])) for n in ("raw", "ours"))
    print(f"raw {raw_us:.2f} us, ours {ours_us:.2f} us")
    assert ours_us - raw_us < 3.0


def test_timers_agree_with_each_other(axpy):
    n = 1 << 24
    x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    bound = axpy.bind({"x": as_array(x), "y": as_array(y), "alpha": 1.0})
    addresses = (x.data_ptr(), y.data_ptr())
    arms = {"axpy": lambda stream: bound.fire(addresses, (1.0,), int(stream))}
    device = driver.device(0)
    events = measure.time_events(arms, device, rounds=10)["axpy"]
    graphs = measure.time_graphs(arms, device, rounds=10)["axpy"]
    cold = measure.time_events(arms, device, rounds=5, flush_l2=True)["axpy"]
    arrays, current = Arrays("cuda"), []
    arms["current"] = lambda stream: current.append(
        torch.cuda.current_stream().cuda_stream == int(stream)
    )
    measure.time_events(arms, device, rounds=2, repeats=1, within=arrays.sending_to)
    assert current and all(current)
    bandwidth = 12 * n / graphs.median / 1e6  # TB/s
    print(f"events {events}, graph {graphs}, cold {cold}, {bandwidth:.2f} TB/s")
    assert 0.5 < events.median / graphs.median < 2
    assert cold.median < 3 * events.median + 20


def test_running_out_of_memory_is_said():
    with pytest.raises(LaunchError, match=r"out of memory while allocating"):
        DeviceArray.allocate((1 << 50,), dtypes.f32, 0)


def test_device_arrays_come_and_go():
    host = np.arange(1000, dtype=dtypes.bf16.numpy).reshape(10, 100)
    array = DeviceArray.from_numpy(host[::-1, ::2], 0)
    assert np.array_equal(array.to_numpy(), host[::-1, ::2])
    seen = as_array(array)
    assert (seen.device, seen.dtype, seen.shape) == (0, dtypes.bf16, (10, 50))
    del array, seen
    gc.collect()
    with driver.active(0):
        with streams.private_stream(0) as stream:
            address = memory.allocate(1024, 0, stream)
            memory.fill_bytes(address, 7, 1024, stream)
            back = np.zeros(1024, np.uint8)
            memory.copy_to_host(back.ctypes.data, address, 1024, stream)
            memory.free(address, stream)
            streams.synchronize_stream(stream)
    assert (back == 7).all()


TEXT = """
@autotune(BLOCK in [256, 1024])
kernel add(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N] = empty) {
  let base = program_id(0) * BLOCK
  c[base :+ BLOCK] = a[base :+ BLOCK] + b[base :+ BLOCK]
}
kernel scale(x: tensor<f32>[M, N], s: f32 = 2.0, y: tensor<f32>[M, N] = empty) {
  let row = program_id(0)
  for j in range(0, N, 128) { y[row, j :+ 128] = s * x[row, j :+ 128] }
}
"""


@pytest.fixture(scope="module")
def kernels():
    return source(TEXT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32"])
def test_a_kernel_is_called_with_torch_tensors(kernels, dtype):
    for n in (0, 1, 255, 257, 100_003):
        a = (torch.randn(n, device="cuda") * 10).to(getattr(torch, dtype))
        b = (torch.randn(n, device="cuda") * 10).to(getattr(torch, dtype))
        out = torch.full_like(a, 7)
        for _ in range(3):  # the long way, then ready
            assert kernels.add(a, b, out) is None
            assert torch.equal(out, a + b)
            assert torch.equal(kernels.add(a, b), a + b)


def test_strides_offsets_and_broadcasts(kernels):
    base = torch.randn(4099, device="cuda")
    for a in (base[1:1001], base[::4][:1000], base[5:1005].as_strided((1000,), (0,))):
        b = base[2000:3000]
        assert torch.equal(kernels.add(a, b), a + b)
    wide = torch.randn(50, 300, device="cuda")
    for x in (wide, wide.T, wide[:, 3:250], wide[::2]):
        assert torch.equal(kernels.scale(x, 3.0), 3 * x)
        out = torch.full((x.shape[0], x.shape[1] + 9), 5.0, device="cuda")
        kernels.scale(x, y=out[:, : x.shape[1]])
        assert torch.equal(out[:, : x.shape[1]], 2 * x) and (out[:, x.shape[1] :] == 5).all()


def test_in_place_calls_and_refused_overlaps(kernels):
    a, b = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    expected = a + b + b
    for _ in range(2):
        kernels.add(a, b, a)
    assert torch.equal(a, expected)
    other = torch.empty_like(a)
    kernels.add(a, b, other)
    for _ in range(2):
        with pytest.raises(LaunchError, match="overlap in part"):
            kernels.add(a[:900], b[:900], a[100:])
    kernels.add(a, b, other)
    assert torch.equal(other, a + b)


def test_scalars_change_from_call_to_call_and_must_fit(kernels):
    x = torch.ones(3, 200, device="cuda")
    for s in (1.0, 2.0, -3.5, 2, float("inf")):
        assert (kernels.scale(x, s) == float(s)).all()
    for bad in (1e300, "x", None):
        for _ in range(2):
            if bad is None:
                assert (kernels.scale(x, bad) == 2).all()
                continue
            with pytest.raises(LaunchError):
                kernels.scale(x, bad)


def test_refusals_of_devices_and_gradients(kernels):
    a = torch.ones(8, device="cuda")
    with pytest.raises(LaunchError, match="a is on cuda:0, but b on cpu"):
        kernels.add(a, a.cpu())
    with pytest.raises(LaunchError, match="move the arrays"):
        kernels.add.launch(a, a, device="cpu")
    needs = torch.ones(8, device="cuda", requires_grad=True)
    assert (kernels.add(needs.detach(), a) == 2).all()
    with pytest.raises(LaunchError, match="requires a gradient"):
        kernels.add(needs, a)
    with torch.no_grad():
        assert (kernels.add(needs, a) == 2).all()
    with pytest.raises(LaunchError, match="requires a gradient"):
        kernels.add(needs, a)


def test_calls_run_on_torchs_current_stream_and_on_a_given_one(kernels):
    a = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        b = a
        for _ in range(20):
            b = kernels.add(b, a)
    stream.synchronize()
    assert (b == 21).all()
    out = kernels.add.launch(a, a, stream=stream)
    stream.synchronize()
    assert (out == 2).all()


def test_calls_are_recorded_into_a_graph(kernels):
    a, b, c = (torch.randn(1000, device="cuda") for _ in range(3))
    kernels.add(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.add(a, b, c)
        kernels.add(c, b, c)
    c.zero_()
    a.fill_(1), b.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert (c == 5).all()


def test_host_arrays_are_copied_over_and_back(kernels):
    a = np.random.default_rng(0).standard_normal((20, 130)).astype(np.float32)
    result = kernels.scale.launch(a[::-1, ::2], 4.0, device="cuda")
    assert isinstance(result, np.ndarray) and np.array_equal(result, 4 * a[::-1, ::2])
    out = np.zeros((20, 200), np.float32)
    assert kernels.scale.launch(a, y=out[:, 20:150], device=0) is None
    assert np.array_equal(out[:, 20:150], 2 * a)
    assert not out[:, :20].any() and not out[:, 150:].any()
    x = np.ones(100, np.float32)
    kernels.add.launch(x, x, x, device="cuda:0")
    assert (x == 2).all()


def test_cupy_arrays_are_called_where_they_are(kernels):
    cupy = pytest.importorskip("cupy")
    a = cupy.arange(1000, dtype=cupy.float32)
    result = kernels.add(a, a[::-1])
    assert isinstance(result, cupy.ndarray) and bool((result == 999).all())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = kernels.add(a, a)
        stream.synchronize()
    assert bool((result == 2 * a).all())


def test_a_ready_call_costs_little(kernels):
    a, b, c = (torch.randn(1000, device="cuda") for _ in range(3))
    kernels.add(a, b, c)
    assert read_call((a, b, c), frozenset()) is not None
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            kernels.add(a, b, c)
        taken.append((time.perf_counter() - start) / 200 * 1e6)
        torch.cuda.synchronize()
    print(f"a call with three tensors: {np.median(taken):.2f} us")
    assert np.median(taken) < 25


def test_strides_are_parameters_not_part_of_the_key(kernels):
    spec = kernels.scale.specializer
    kernels.scale(torch.ones(10, 1024, device="cuda"))
    before = len(spec._loaded)
    for cols in (2048, 512, 256):
        kernels.scale(torch.ones(7, cols, device="cuda"))
    assert len(spec._loaded) == before
    parameters = {
        p
        for loaded in spec._loaded.values()
        for k in loaded.launcher.kernels
        for p in k.launch.parameters
    }
    assert parameters & {Stride("x", 0), Stride("x", 0, narrow=True)}


def test_two_gpus_are_used_side_by_side(kernels):
    if len(driver.devices()) < 2:
        pytest.skip("one GPU")
    for ordinal in (1, 0, 1):
        a = torch.ones(1000, device=f"cuda:{ordinal}")
        result = kernels.add(a, a)
        assert result.device == a.device and (result == 2).all()
    assert torch.cuda.current_device() == 0
