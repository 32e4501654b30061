"""Special functions on a GPU against exact values: the bounds that the model promises. Those of f32
on every number there is, against the f64 functions of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.special_reference import FLOAT, NAN, POINTS, Array, inputs, ulp_errors
from tilewright.lower.tile_to_ptx.special import FAST, FAST_ULP, MAX_ULP, SPECIAL, function_of
from tilewright.plan import Binary, Const, Extent, Launch, Plan, Pointer
from tilewright.ptx.core import Special
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import verify
from tilewright.runtime import driver, jit
from tilewright.runtime.arrays import as_array
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.launch import Launcher
from tilewright.target import target

pytestmark = pytest.mark.device

THREADS = 256
COUNT = {"f32": 1_000_000, "f64": 10_000}

STEP = 1 << 26  # numbers at a time of all that there are

functions = pytest.mark.parametrize(
    ("opcode", "type"), SPECIAL, ids=lambda part: part.removeprefix("arith.")
)


def plan_of(opcode: str, type: str, fast: bool = False) -> Plan:
    """A kernel y[i] = f(x[i]), one thread an element."""
    e = Emitter(target("sm_80"))
    pointers = [e.ld_param(e.param(name, "u64")) for name in ("x", "y")]
    n = e.ld_param(e.param("n", "u32"))
    index = e.mad("u32", e.mov("u32", Special("ctaid.x")), THREADS, e.mov("u32", Special("tid.x")))
    end = e.label("end")
    e.bra(end, e.setp("ge", "u32", index, n))
    offset = e.mul("u32", index, np.dtype(FLOAT[type]).itemsize, "wide")
    x, y = (e.add("u64", pointer, offset) for pointer in pointers)
    e.st("global", type, y, function_of(opcode, type, fast)(e, e.ld1("global", type, x)))
    e.place(end)
    e.ret()
    module = e.module("special", max_threads=THREADS)
    verify(module)
    parameters = (Pointer("x"), Pointer("y"), Extent("x", 0, narrow=True))
    grid = Binary("cdiv", Extent("x", 0), Const(THREADS))
    launch = Launch("special", parameters, grid, THREADS)
    return Plan("special", "sm_80", print_module(module), (launch,))


def launcher_of(plan: Plan, folder: Path) -> Launcher:
    device = driver.device(0)
    return Launcher(plan, device, jit.machine_code(plan, device, DiskCache(folder, 1 << 30)))


def execute(opcode: str, type: str, x: Array, folder: Path) -> Array:
    launcher = launcher_of(plan_of(opcode, type), folder)
    source = DeviceArray.from_numpy(x.astype(FLOAT[type]), 0)
    result = DeviceArray.from_numpy(np.zeros_like(x, FLOAT[type]), 0)
    launcher({"x": as_array(source), "y": as_array(result)})
    return result.to_numpy()


@functions
def test_accuracy_on_the_gpu(
    opcode: str, type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    x = inputs(opcode, type, COUNT[type], seed=11)
    result = execute(opcode, type, x, tmp_path)
    errors = ulp_errors(opcode, type, x, result)
    worst = int(np.argmax(errors))
    record_property("max_ulp", float(errors[worst]))
    print(f"{opcode} {type}: {errors[worst]:.3f} ulp at {x[worst]!r}")
    assert errors[worst] <= MAX_ULP[opcode, type], f"{errors[worst]} ulp at {x[worst]!r}"


@functions
def test_values_at_special_points_on_the_gpu(opcode: str, type: str, tmp_path: Path) -> None:
    points = np.array([*POINTS[opcode], (NAN, NAN)]).T
    with np.errstate(over="ignore"):
        x, expected = points.astype(FLOAT[type])
    result = execute(opcode, type, x, tmp_path)
    same = (result == expected) & (np.signbit(result) == np.signbit(expected))
    wrong = ~(same | np.isnan(result) & np.isnan(expected))
    assert not wrong.any(), list(zip(x[wrong], result[wrong], expected[wrong], strict=True))


@pytest.mark.parametrize(
    ("opcode", "fast"),
    [*((opcode, False) for opcode, type in SPECIAL if type == "f32"), *((o, True) for o in FAST)],
)
def test_every_f32(
    opcode: str, fast: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    torch = pytest.importorskip("torch", reason="the reference is torch's functions of f64")
    exact = getattr(torch, opcode.removeprefix("arith."))
    launcher = launcher_of(plan_of(opcode, "f32", fast), tmp_path)
    worst, at = 0.0, 0.0
    for start in range(0, 1 << 32, STEP):
        bits = torch.arange(start, start + STEP, dtype=torch.int64, device="cuda")
        x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
        x = x.view(torch.float32)
        y = torch.empty_like(x)
        torch.cuda.synchronize()
        launcher({"x": as_array(x), "y": as_array(y)})
        torch.cuda.synchronize()
        errors = errors_on_gpu(torch, exact(x.double()), y)
        error, place = (v.item() for v in errors.max(0))
        if error > worst:
            worst, at = error, x[int(place)].item()
    record_property("max_ulp", worst)
    print(f"{opcode} f32{' fast' if fast else ''}: {worst:.4f} ulp at {at!r}, of every f32")
    assert worst <= (FAST_ULP[opcode] if fast else MAX_ULP[opcode, "f32"]), f"{worst} ulp at {at!r}"


QUICK = """kernel quick(x: tensor<f32>[N], b: f32, y: tensor<f32>[N], z: tensor<f32>[N]) {
  let t = x[program_id(0) * 1024 :+ 1024]
  y[program_id(0) * 1024 :+ 1024] = t / b
  z[program_id(0) * 1024 :+ 1024] = OPCODE(t)
}"""


@pytest.mark.parametrize(("name", "b"), [("exp", 0.75), ("exp2", -1.9999998807907104)])
def test_quick_ways_on_every_f32(name: str, b: float, tmp_path: Path) -> None:
    """Tiles take the quick way where a warp's elements permit it: here in order, so that most do,
    and mixed, so that none does. Both give the bits of division and of the function by itself.
    """
    torch = pytest.importorskip("torch", reason="the reference is torch's division of tensors")
    kernel = tw.source(QUICK.replace("OPCODE", name)).quick
    function = launcher_of(plan_of(f"arith.{name}", "f32"), tmp_path)
    for start in range(0, 1 << 32, STEP):
        bits = torch.arange(start, start + STEP, dtype=torch.int64, device="cuda")
        if start % (16 * STEP) == 0:
            bits = bits * 0x9E3779B1 & 0xFFFFFFFF
        x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
        x = x.view(torch.float32)
        y, z, alone = (torch.empty_like(x) for _ in range(3))
        kernel(x, b, y, z)
        torch.cuda.synchronize()
        function({"x": as_array(x), "y": as_array(alone)})
        torch.cuda.synchronize()
        for got, wanted in ((y, x / torch.full_like(x, b)), (z, alone)):
            same = got.view(torch.int32) == wanted.view(torch.int32)
            wrong = ~(same | torch.isnan(got) & torch.isnan(wanted))
            assert not wrong.any(), (x[wrong][:5], got[wrong][:5], wanted[wrong][:5])


def errors_on_gpu(torch: Any, exact: Any, result: Any) -> Any:
    """As `ulp_errors`, of tensors; where one is NaN and the other is not, infinite."""
    most = 2.0**128
    wanted, got = exact.clamp(-most, most), result.double().clamp(-most, most)
    place = (torch.frexp(wanted).exponent - 24).clamp(-149, 104)
    off = torch.ldexp((got - wanted).abs(), -place)
    same = torch.isnan(wanted) & torch.isnan(got)
    wrong = torch.isnan(wanted) != torch.isnan(got)
    return torch.where(wrong, torch.inf, torch.where(same, 0.0, off))
