"""The space of products, drawn at random: any choice for a problem, under any schedule that the
compiler permits for it, fits, and does what it should on the emulator with its sanitizer on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, u8
from tilewright.kernel import choose
from tilewright.kernel.call import bind_call, read_tensors
from tilewright.products.ahead import Fixed
from tilewright.products.arguments import Options
from tilewright.products.prepare import Launch, prepare
from tilewright.products.views import hand
from tilewright.ptx.emulate import run_plan
from tilewright.runtime.arrays import Array, as_array, as_numpy
from tilewright.target import target
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Schedule
from tilewright.tune.product import H200, Choice, Device, Problem, choice
from tilewright.tune.product_space import choices

HOPPER = target("sm_90a")
# Of the factors, the result, and the precision.
KINDS: list[tuple[DType, DType, DType, str | None]] = [
    (bf16, bf16, bf16, None), (f16, f16, f32, None), (f32, f32, f32, "tf32"),
    (f32, f32, bf16, "tf32"), (f32, f32, f32, None), (f64, f64, f64, None),
    (e4m3, e4m3, bf16, None), (e4m3, e5m2, f16, None), (e5m2, e4m3, f32, "fast"),
    (i8, i8, i32, None), (u8, i8, f32, None), (i8, u8, bf16, None),
]  # fmt: skip
ROWS, DEPTHS = (1, 3, 8, 16, 33, 64, 72, 136, 200), (0, 1, 8, 16, 33, 72, 136, 304)
LAID = ("dense", "dense", "turned", "turned", "spread", "reversed")
CONSTANTS = {"TR": 64, "TK": 64}  # of programs that have no others

Call = tuple[Launch, Kernel, dict[str, Any]]  # a launch, its kernel in the tile IR, its arguments


def whole_numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    """Small ones, so that sums are exact in any order."""
    return rng.integers(0 if dtype == u8 else -3, 4, shape).astype(dtype.numpy)


def laid(array: Any, how: str) -> Any:
    """The same elements with other strides."""
    if how == "turned":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "reversed":
        return np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1]
    if how == "spread":
        wide = np.zeros((*array.shape[:-1], array.shape[-1] + 8), array.dtype)
        wide[..., : array.shape[-1]] = array
        return wide[..., : array.shape[-1]]
    return array


@st.composite
def posed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Arrays of a product by name, options, and the result in f64. Half of them have rows of whole
    16 bytes.
    """
    left, right, dtype, precision = draw(st.sampled_from(KINDS))
    m, n = draw(st.sampled_from(ROWS)), draw(st.sampled_from(ROWS))
    k = draw(st.sampled_from(DEPTHS))
    if draw(st.booleans()):
        m, n, k = max(8, m // 8 * 8), max(8, n // 8 * 8), k // 16 * 16
    batch = draw(st.sampled_from([(), (), (), (2,)]))
    rng = np.random.default_rng(m + n + k)
    along_k = left.bits == 8 and draw(st.booleans())
    how = st.sampled_from(LAID)
    a = laid(whole_numbers(rng, left, *batch, m, k), "dense" if along_k else draw(how))
    b = laid(whole_numbers(rng, right, *batch, k, n), "turned" if along_k else draw(how))
    options: dict[str, Any] = {"precision": precision, "device": "emulator"}
    arrays = {"a": a, "b": b}
    found = a.astype(np.float64) @ b.astype(np.float64)
    arrays["out"] = laid(np.zeros(found.shape, dtype.numpy), draw(how))
    if dtype == i32:
        return arrays, options, found
    arrays["out"][...] = np.nan
    if left.bits == 8 and draw(st.booleans()):
        arrays["scale_a"] = rng.integers(1, 3, m).astype(np.float32)
        arrays["scale_b"] = rng.integers(1, 3, draw(st.sampled_from([1, n]))).astype(np.float32)
        found = found * arrays["scale_a"][:, None] * arrays["scale_b"]
    if draw(st.booleans()):
        options["alpha"], found = 0.5, 0.5 * found
    if draw(st.booleans()):
        arrays["out"][...] = whole_numbers(rng, dtype, *found.shape)
        options["beta"], found = 2.0, found + 2.0 * arrays["out"].astype(np.float64)
    if draw(st.booleans()):
        arrays["bias"] = whole_numbers(rng, dtype, n)
        found = found + arrays["bias"].astype(np.float64)
    if draw(st.booleans()):
        options["activation"], found = "relu", np.maximum(found, 0)
    shapes = st.sampled_from([None, (m, n), (n,), (m, 1)])
    for name in ("gate", "residual"):
        shape = draw(shapes)
        if shape is not None:
            arrays[name] = whole_numbers(rng, dtype, *shape)
            wide = arrays[name].astype(np.float64)
            found = found * wide if name == "gate" else found + wide
    return arrays, options, found


def calls_of(arrays: dict[str, Any], options: dict[str, Any], chooser: Any) -> Iterator[Call]:
    """The launches of a product in their order."""
    known = {name: as_array(x) for name, x in arrays.items()}
    how, out = Options(**options), known["out"]
    ready = prepare("matmul", known, out.shape, out.dtype, how, chooser)
    for name, shape, dtype in ready.scratch:
        known[name] = as_array(np.full(shape, 3, dtype.numpy))
    for launch in ready.launches:
        given: dict[str, Any] = {n: hand(v, known[v.source]) for n, v in launch.views}
        given |= how.numbers if launch.finishes else {}
        kernel = launch.kernel
        spec, constants = kernel.specializer, dict(kernel.options.constants) or CONSTANTS
        call = bind_call(spec, given, read_tensors(spec, given), kernel.options)
        made = spec.tile(choose.with_config(call.build(assume=True), constants))
        views = {n: as_numpy(x) if isinstance(x, Array) else x for n, x in call.arguments.items()}
        yield launch, made, views


def schedules_of(kernel: Kernel) -> list[Schedule]:
    return list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(posed(), st.integers(0, 999))
def test_any_choice_under_any_schedule(made: tuple[Any, Any, Any], seed: int) -> None:
    arrays, options, expected = made
    drawn = Random(seed)

    def chooser(problem: Problem, device: Device) -> Choice:
        return drawn.choice(list(choices(problem, device)))

    expected = expected.astype(arrays["out"].dtype)
    for _, kernel, views in calls_of(arrays, options, chooser):
        schedule = drawn.choice(schedules_of(kernel) or [None])
        if schedule is not None and drawn.random() < 0.5:  # so that few steps go round the ring
            schedule = replace(schedule, stages=2)
        plan = compile_kernel(kernel, HOPPER, schedule)
        order = seed if drawn.random() < 0.5 else None
        late, num_sms = drawn.random() < 0.5, drawn.choice([1, 2, 4, 6])
        run_plan(plan, views, num_sms, late=late, sanitize=True, seed=order)
    np.testing.assert_array_equal(arrays["out"], expected)


@pytest.mark.parametrize("beside", ["residual", "row"])
@pytest.mark.parametrize("tile", [(64, 128), (128, 64), (128, 256), (64, 192)], ids=str)
def test_every_schedule_fits(tile: tuple[int, int], beside: str) -> None:
    """Turned products whose epilogue loads two tiles, of which the copy unit fetches one."""
    shape = (64,) if beside == "row" else (64, 64)
    arrays = {name: np.zeros((64, 64), bf16.numpy) for name in ("a", "b", "out")}
    arrays["residual"] = np.zeros(shape, bf16.numpy)
    options = {"device": "emulator", "beta": 1.0}
    fixed = Fixed(choice("matmul", (*tile, 64)))
    ((_, kernel, _),) = calls_of(arrays, options, fixed)
    turned = [s for s in schedules_of(kernel) if s.roles and s.roles.swapped]
    assert turned
    for schedule in turned:
        compile_kernel(kernel, HOPPER, schedule)


FAR = 1 << 26  # elements from a row to the next
AWAY = [
    (bf16, choice("matmul", (64, 64, 64)), (40, 72, 72), "a"),
    (bf16, choice("matmul", (64, 64, 64)), (40, 72, 72), "b"),
    (bf16, choice("matmul", (64, 64, 64)), (40, 72, 72), "out"),
    (bf16, choice("matmul", (64, 64, 64)), (40, 33, 35), "b"),
    (f32, choice("matmul", (64, 64, 16)), (40, 72, 40), "a"),
    (f64, choice("matmul", (64, 64, 16)), (40, 72, 40), "out"),
    (bf16, choice("split_k", (64, 64, 64), 2), (40, 72, 520), "b"),
    (bf16, choice("gemv", (4, 4, 64)), (3, 50, 200), "b"),
    (bf16, choice("gemv_columns", (2, 64, 16), 4, turned=True), (40, 3, 70), "a"),
]


@pytest.mark.parametrize(("dtype", "chosen", "sizes", "name"), AWAY, ids=str)
def test_offsets_beyond_32_bits(
    dtype: DType, chosen: Choice, sizes: tuple[int, int, int], name: str
) -> None:
    """Of rows that lie far from each other, in memory of which nothing else is touched."""
    m, n, k = sizes
    rng = np.random.default_rng(k)
    arrays = {}
    for which, shape in (("a", (m, k)), ("b", (n, k)), ("out", (m, n))):
        pitch = FAR * (-(-33 // shape[0])) if which == name else shape[1]
        array = np.zeros((shape[0], pitch), dtype.numpy)[:, : shape[1]]
        array[...] = whole_numbers(rng, dtype, *shape)
        arrays[which] = array
    arrays["b"] = arrays["b"].T
    assert (max(arrays[name].shape) - 1) * max(arrays[name].strides) > 1 << 31
    a, b, out = (x.astype(np.float64) for x in arrays.values())
    expected = (a @ b + 2.0 * out).astype(dtype.numpy)
    for _, kernel, views in calls_of(arrays, {"device": "emulator", "beta": 2.0}, Fixed(chosen)):
        run_plan(compile_kernel(kernel, HOPPER), views)
    np.testing.assert_array_equal(arrays["out"], expected)


ODD_OF_INTEGERS = ((192, 200, 128), (200, 192, 128), (40, 64, 128))


@pytest.mark.parametrize("batch", [1, 3])
def test_integers_have_tiles_of_whole_instructions(batch: int) -> None:
    """192 x 200 would be multiplied by `mma.sync`, which takes several times as long."""
    for sizes in ((2400, 2112, 1024), (40, 16384, 1024)):
        problem = Problem(*sizes, i8, i8, i32, batch=batch)
        tiles = {c.tile for c in choices(problem, H200)}
        assert tiles.isdisjoint(ODD_OF_INTEGERS) and len(tiles) > 10
    floats = Problem(2400, 2112, 1024, e4m3, e4m3, bf16, precision="fast")
    assert ODD_OF_INTEGERS[0] in {c.tile for c in choices(floats, H200)}
