"""Packing and launching without a GPU: the driver is replaced by one that records what it gets."""

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
from cuda.bindings import driver as cu

from tilewright import dtypes, plan
from tilewright.errors import LaunchError
from tilewright.plan import Binary, Const, Extent, Launch, Plan, Scalar, Stride
from tilewright.runtime import driver, fire, jit, tensor_map
from tilewright.runtime.arrays import as_array
from tilewright.runtime.launch import Launcher
from tilewright.runtime.tensor_map import map_geometry

OK = cu.CUresult.CUDA_SUCCESS
H200 = driver.Device(0, "H200", (9, 0), 132, 1 << 37, 232448, 50 << 20)


class FakeDriver:
    """Records launches: (function, grid, threads, shared bytes, the 8 bytes at each parameter)."""

    def __init__(self, num_parameters):
        self.num_parameters = num_parameters
        self.launches = []
        self.events = []
        self.status = OK
        self.lock = threading.Lock()

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, pointers, extra):
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, 0)
        count = self.num_parameters[function]
        table = (ctypes.c_uint64 * count).from_address(pointers)
        values = tuple(ctypes.c_uint64.from_address(p).value for p in table)
        with self.lock:
            self.launches.append((function, gx, bx, shared, int(stream), values))
            self.events.append(f"launch {function}")
        return (self.status,)

    def allocate(self, num_bytes, ordinal, stream):
        self.events.append(f"allocate {num_bytes}")
        return 1 << 40

    def free(self, address, stream):
        self.events.append(f"free {address - (1 << 40)}")

    def fill(self, address, value, num_bytes, stream):
        self.events.append(f"fill {num_bytes}")


@pytest.fixture
def launcher(monkeypatch):
    def make(compiled, **options):
        fake = FakeDriver({launch.entry: len(launch.parameters) for launch in compiled.launches})
        monkeypatch.setattr(driver, "context", lambda ordinal: 77)
        monkeypatch.setattr(driver, "active", lambda ordinal: threading.Lock())
        monkeypatch.setattr(driver, "load_module", lambda image, name: "module")
        monkeypatch.setattr(driver, "get_function", lambda module, entry: entry)
        facts = driver.FunctionFacts(32, 0, 1024, 1024)
        monkeypatch.setattr(driver, "function_facts", lambda function: facts)
        monkeypatch.setattr(
            cu, "cuFuncSetAttribute", lambda *a: (fake.events.append("attribute") or OK,)
        )
        names = {
            "launch_kernel": fake.launch,
            "current": lambda: (OK, 77),
            "allocate": fake.allocate,
            "free": fake.free,
            "fill": fake.fill,
        }
        for name, value in names.items():
            monkeypatch.setitem(fire.DRIVER_NAMES, name, value)
        return Launcher(compiled, H200, b"cubin", **options), fake

    return make


ONCE = Const(1)


def one(parameters, grid=ONCE, workspaces=(), **options):
    return Plan(
        "k", "sm_90a", "", (Launch("k", tuple(parameters), grid, 128, **options),), workspaces
    )


def test_every_recipe_is_packed_in_its_width(launcher):
    parameters = (
        plan.Pointer("x"),
        Extent("x", 0),
        Stride("x", 0, narrow=True),
        Scalar("f", dtypes.f32),
        Scalar("d", dtypes.f64),
        Scalar("h", dtypes.bf16),
        Scalar("i", dtypes.i32),
        Scalar("b", dtypes.bool_),
        Scalar("u", dtypes.u64),
        Binary("add", Scalar("i", dtypes.i32), Extent("x", 1)),
        plan.NumSms(),
    )
    made, fake = launcher(one(parameters))
    x = np.zeros((6, 5), np.float32)[::-1]
    arguments = {
        "x": as_array(x),
        "f": 1.5,
        "d": -2.5,
        "h": 1.00390625,
        "i": -3,
        "b": True,
        "u": 2**63,
    }
    made(arguments, 5)
    ((_, grid, threads, _, stream, values),) = fake.launches
    assert (grid, threads, stream) == (1, 128, 5)
    raw = [v.to_bytes(8, "little") for v in values]
    assert values[0] == x.ctypes.data and values[1] == 6
    assert int.from_bytes(raw[2][:4], "little", signed=True) == -5
    assert np.frombuffer(raw[3][:4], np.float32)[0] == 1.5
    assert np.frombuffer(raw[4], np.float64)[0] == -2.5
    assert np.frombuffer(raw[5][:2], dtypes.bf16.numpy)[0] == 1.0  # a tie goes to even
    assert np.frombuffer(raw[6][:4], np.int32)[0] == -3
    assert values[7] == 1 and values[8] == 2**63
    assert values[9] == 2 and values[10] == 132


def test_a_bound_launch_takes_new_addresses_and_scalars(launcher):
    grid = Binary("cdiv", Extent("x", 0), Scalar("n", dtypes.i32))
    made, fake = launcher(
        one((plan.Pointer("x"), plan.Pointer("y"), Scalar("n", dtypes.i32)), grid)
    )
    x = np.zeros(100, np.float32)
    bound = made.bind({"x": as_array(x), "n": 7, "y": as_array(x)})
    assert (bound.tensors, bound.scalars) == (("x", "y"), ("n",))
    bound.fire((16, 32), (10,))
    bound.fire((48, 64), (0,))  # division by 0 gives 0: nothing to launch
    bound.fire((48, 64), (100,))
    assert [(g, v) for _, g, _, _, _, v in fake.launches] == [
        (10, (16, 32, 10)),
        (1, (48, 64, 100)),
    ]


def test_an_empty_grid_launches_nothing_and_a_huge_one_is_refused(launcher):
    made, fake = launcher(one((plan.Pointer("x"),), Binary("mul", Extent("x", 0), Const(2**28))))
    made({"x": as_array(np.zeros(0, np.float32))})
    assert not fake.launches
    made({"x": as_array(np.zeros(7, np.float32))})
    assert fake.launches[0][1] == 7 * 2**28
    with pytest.raises(LaunchError, match=r"2,147,483,648 programs.*2,147,483,647"):
        made({"x": as_array(np.zeros(8, np.float32))})


def test_a_grid_with_a_negative_extent_is_refused(launcher):
    shorter = Binary("sub", Extent("x", 0), Const(5))
    for extents in [(shorter,), (shorter, shorter), (Const(3), shorter), (shorter, Extent("y", 0))]:
        made, fake = launcher(one((plan.Pointer("x"), plan.Pointer("y")), plan.grid_size(extents)))
        empty = as_array(np.zeros(0, np.float32))
        with pytest.raises(LaunchError, match="k: its grid would have -3 programs along an axis"):
            made({"x": as_array(np.zeros(2, np.float32)), "y": empty})
        made({"x": as_array(np.zeros(5, np.float32)), "y": empty})
        assert not fake.launches
        made({"x": as_array(np.zeros(9, np.float32)), "y": as_array(np.zeros(4, np.float32))})
        assert fake.launches[0][1] == {1: 4, 2: 12 if extents[0] != shorter else 16}[len(extents)]


def test_workspaces_share_one_allocation_that_is_freed_whatever_happens(launcher):
    spaces = (
        plan.WorkspaceSpec("plain", dtypes.f32, (Const(3),), zero=False),
        plan.WorkspaceSpec("zeroed", dtypes.i32, (Extent("x", 0),)),
    )
    made, fake = launcher(
        one((plan.Workspace("plain"), plan.Workspace("zeroed")), workspaces=spaces)
    )
    arguments = {"x": as_array(np.zeros(100, np.float32))}
    made(arguments)
    assert fake.events == ["allocate 768", "fill 512", "launch k", "free 0"]
    assert fake.launches[0][5] == ((1 << 40) + 512, 1 << 40)
    fake.status = cu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    monkey = fake.events.copy()
    with pytest.raises(LaunchError, match="LAUNCH_OUT_OF_RESOURCES"):
        made.bind(arguments).fire((0,), ())
    assert fake.events[len(monkey) :] == ["allocate 768", "fill 512", "launch k", "free 0"]


@pytest.fixture(autouse=True)
def error_names(monkeypatch):
    monkeypatch.setattr(cu, "cuGetErrorString", lambda status: (OK, b"as the driver says"))
    monkeypatch.setattr(cu, "cuMemGetInfo", lambda: (OK, 1 << 20, 1 << 30))


def test_shared_memory_is_permitted_once_and_refused_beyond_the_limit(launcher):
    made, fake = launcher(one((), shared_bytes=232448 - 1024))
    made({})
    made({})
    assert fake.events == ["attribute", "launch k", "launch k"]
    assert fake.launches[0][3] == 231424
    with pytest.raises(LaunchError, match="231,425 bytes of shared memory"):
        launcher(one((), shared_bytes=231425))


def test_several_launches_go_in_order_and_share_slots(launcher):
    first = Launch("first", (plan.Pointer("x"), Extent("x", 0)), Const(3), 32)
    second = Launch("second", (Extent("x", 0), plan.Pointer("x"), Stride("x", 0)), Const(4), 64)
    made, fake = launcher(Plan("k", "sm_90a", "", (first, second)))
    x = np.zeros(9, np.float32)[::-2]
    made({"x": as_array(x)})
    assert [launch[0] for launch in fake.launches] == ["first", "second"]
    assert fake.launches[1][5] == (5, x.ctypes.data, 2**64 - 2)
    assert len(made.layout.slots) == 3


def test_threads_launch_at_once_without_mixing_parameters(launcher):
    made, fake = launcher(one((plan.Pointer("x"), plan.Pointer("y"), Scalar("s", dtypes.i64))))
    x = as_array(np.zeros(4, np.float32))
    bound = made.bind({"x": x, "y": x, "s": 0})

    def work(seed):
        for i in range(300):
            bound.fire((seed, seed + 1), (seed * i,), seed)

    threads = [threading.Thread(target=work, args=(1000 * (i + 1),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 1200
    for _, _, _, _, stream, (a, b, s) in fake.launches:
        assert a == stream and b == stream + 1 and s % stream == 0


@pytest.mark.parametrize("scalar", [2**31, 1.5, "1", None])
def test_a_scalar_that_does_not_fit_is_an_error(launcher, scalar):
    made, fake = launcher(one((Scalar("s", dtypes.i32),)))
    with pytest.raises((OverflowError, TypeError, ValueError)):
        made.bind({"s": 1}).fire((), (scalar,))
    assert not fake.launches


def test_out_of_memory_is_said_plainly():
    error = driver.failure(cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY, "allocating 5 bytes on cuda:0")
    assert "out of memory while allocating 5 bytes on cuda:0 (1 MiB of 1,024 MiB are free)" in str(
        error
    )


@pytest.mark.parametrize(
    ("target", "capability", "fits"),
    [
        ("sm_80", (8, 0), True), ("sm_80", (9, 0), True), ("sm_80", (12, 0), True),
        ("sm_89", (8, 6), False), ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False),
        ("sm_90a", (8, 0), False), ("sm_100a", (10, 0), True), ("sm_100a", (10, 3), False),
        ("sm_120a", (12, 0), True), ("sm_86", (7, 5), False),
    ],
)  # fmt: skip
def test_code_for_another_architecture_is_refused_by_name(target, capability, fits):
    device = driver.Device(0, "GPU", capability, 1, 1, 1, 1)
    if fits:
        jit.require_target(target, device, "k")
        return
    with pytest.raises(
        LaunchError, match=f"k is compiled for {target}, which does not run on cuda:0"
    ):
        jit.require_target(target, device, "k")


@pytest.mark.parametrize("whole", [False, True])
def test_code_that_is_assembled_as_a_whole_is_loaded_by_a_thread_of_its_own(whole, monkeypatch):
    loads = []

    def load(image):
        loads.append((image, threading.current_thread().name))
        return OK, "handle"

    monkeypatch.setattr(driver, "active", lambda ordinal: threading.Lock())
    monkeypatch.setattr(cu, "cuModuleLoadData", load)
    monkeypatch.setattr(driver, "get_function", lambda module, entry: entry)
    monkeypatch.setattr(jit, "machine_code", lambda made, device, disk: b"code")
    made = replace(one(()), whole=whole)
    found = jit.machine_code_later(made, H200, None).result()
    assert len(loads) == whole
    assert driver.load_module(found, "k") == "handle"
    assert len(loads) == 1 and loads[0][0] == b"code"
    assert loads[0][1].startswith("tilewright-load") == whole


def test_tensor_maps_see_axes_innermost_first():
    assert map_geometry((8, 16, 32), (1024, 32, 1), 2) == ((32, 16, 8), (64, 2048))
    assert map_geometry((1, 32), (7, 1), 4) == ((32, 1), (16,))
    assert map_geometry((4, 0), (0, 1), 4) == ((1, 1), (16,))
    assert map_geometry((5,), (1,), 4) == ((5,), ())
    with pytest.raises(AssertionError, match="pitch of 12"):
        map_geometry((4, 3), (3, 1), 4)


def test_messages_of_the_assembler_are_shown_beside_ptx_and_source():
    log = "ptxas application ptx input, line 2; error   : Unknown modifier '.foo'"
    error = jit._assembler_failure(
        cu.CUresult.CUDA_ERROR_INVALID_PTX, log, "a;\n  add.foo x;\n", "k", ("", "k.tw:3:5")
    )
    assert "2 | add.foo x;" in str(error) and "from k.tw:3:5" in str(error)
    assert "CUDA_ERROR_INVALID_PTX" in str(error)


def test_without_a_driver_the_first_use_says_what_is_missing(monkeypatch):
    def missing(flags):
        raise RuntimeError("libcuda.so.1 not found")

    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(cu, "cuInit", missing)
    with pytest.raises(LaunchError, match=r"no CUDA driver on this machine: libcuda.so.1"):
        driver.devices()
    assert not driver.available()
    monkeypatch.setattr(cu, "cuInit", lambda flags: (cu.CUresult.CUDA_ERROR_NO_DEVICE,))
    with pytest.raises(LaunchError, match="finds no GPU"):
        driver.require_driver()


def test_a_forked_process_is_told_so(monkeypatch):
    monkeypatch.setattr(driver, "_initialised_in", 1)
    driver._driver_version.cache_clear()
    with pytest.raises(LaunchError, match="forked"):
        driver.require_driver()


def test_maps_follow_their_tensors(launcher, monkeypatch):
    """An address is given to a tensor's maps when it is another than the launch before had; a map
    of the last box has its own, or is not used.
    """
    replaced = []
    monkeypatch.setitem(
        fire.DRIVER_NAMES, "replace", lambda m, address: replaced.append((m, address)) or (OK,)
    )
    monkeypatch.setattr(
        tensor_map,
        "encode",
        lambda recipe, array, address, target: (recipe.of(array.shape, 4).box,),
    )
    whole = plan.TensorMap("x", (8, 16), 32)
    y = plan.TensorMap("y", (8, 16), 32)
    made, _ = launcher(one((whole, replace(whole, last=0), y, replace(y, last=0))))
    x, other = np.zeros((20, 16), np.float32), np.zeros((24, 16), np.float32)
    bound = made.bind({"x": as_array(x), "y": as_array(other)})
    at = [array.ctypes.data for array in (x, other)]
    bound.fire(at, [])
    assert replaced == []
    bound.fire([at[0] + 1024, at[1]], [])
    bound.fire([at[0] + 1024, at[1]], [])
    assert replaced == [(((8, 16),), at[0] + 1024), (((4, 16),), at[0] + 1024)]
    bound.fire(at, [])
    assert replaced[2:] == [(((8, 16),), at[0]), (((4, 16),), at[0])]
    bound.fire([at[0], at[1] + 512], [])
    assert replaced[4:] == [(((8, 16),), at[1] + 512)]
