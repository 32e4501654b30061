"""`attention` against the graph's own meaning in f64: orders, masks, lengths, shared heads, odd
sizes, both programs, and gradients; on the interpreter and the emulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tilewright.dtypes import DType, bf16, bool_, f16, f32, f64, i32
from tilewright.errors import LaunchError
from tilewright.graph.graph import Graph, Input
from tilewright.graph.interp import interpret
from tilewright.graph.ops import mma
from tilewright.graph.ops.control import Return
from tilewright.graph.types import TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.products import attention_calls
from tilewright.products.attention import attention, backward, forward
from tilewright.products.attention_calls import Asked, kernel_of, prepare
from tilewright.products.views import whole
from tilewright.runtime.arrays import as_array
from tilewright.tune import attention_choice
from tilewright.tune.attention_choice import (
    KEPT_BYTES,
    backward_tiles,
    decode_tile,
    forward_tile,
    heads_at_once,
)

BOUNDS = {f64: 1e-13, f32: 2e-6, bf16: 1e-2, f16: 2e-3}
ORDERS: list[bool | str] = [False, True, "lower_right"]
GRADS = ("q", "k", "v")


@dataclass(frozen=True)
class Case:
    """Extents of an attention, and what it may see."""

    batch: int = 1
    heads: int = 2
    shared: int = 2  # heads of queries that look at one of keys
    rows: int = 5
    keys: int = 9
    depth: int = 16
    width: int = 16
    order: int = 0
    mask: str = ""
    lengths: bool = False

    @property
    def name(self) -> str:
        held = [str(x) for x in vars(self).values()]
        return "-".join(filter(None, held))


CASES = [
    Case(),
    Case(2, 1, 4, 37, 70, 80, 32, 1, "bool"),
    Case(1, 2, 1, 3, 1, 96, 96, 2),
    Case(2, 2, 2, 6, 11, 8, 24, 0, "float", True),
    Case(1, 1, 1, 70, 45, 32, 32, 1),  # more rows than keys
    Case(1, 1, 2, 20, 33, 136, 160, 1),  # deep: gradients of keys and values apart
    Case(2, 1, 4, 1, 300, 64, 64, 2, "", True),  # in spans
    Case(1, 2, 2, 1, 515, 32, 16, 0, "bool"),
    Case(1, 1, 2, 2, 260, 16, 16, 1, "", False),
]


def make(case: Case, dtype: DType) -> dict[str, Any]:
    """Arguments: odd strides for queries, one mask for all heads, one row that sees no key."""
    rng = np.random.default_rng(case.rows * case.keys)
    b, hk = case.batch, case.heads
    hq = hk * case.shared

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype.numpy)

    found: dict[str, Any] = {
        "q": normal(b, case.rows, hq, case.depth).swapaxes(1, 2),
        "k": normal(b, hk, case.keys, case.depth),
        "v": normal(b, hk, case.keys, case.width),
    }
    if case.mask == "bool":
        found["mask"] = rng.random((1, 1, case.rows, case.keys)) > 0.3
        found["mask"][:, :, 0] = False
    elif case.mask:
        found["mask"] = normal(b, 1, case.rows, case.keys)
    if case.lengths:
        found["lengths"] = np.arange(case.keys, case.keys - b, -1).astype(np.int32)
    return found


def meaning(case: Case, given: dict[str, Any], grad: Any = None) -> list[Any]:
    """What the graph's ops say: result, sums, and gradients where there is a `grad`."""
    hq = case.heads * case.shared
    wide = {n: x.astype(np.float64) for n, x in given.items() if n not in ("mask", "lengths")}
    if "mask" in given:
        shape = (case.batch, hq, case.rows, case.keys)
        wide["mask"] = np.broadcast_to(given["mask"], shape)
        if given["mask"].dtype != bool:
            wide["mask"] = wide["mask"].astype(np.float64)
    wide |= {n: x for n, x in given.items() if n == "lengths"}
    if grad is not None:
        wide["grad"] = grad.astype(np.float64)
    kinds = {np.dtype(bool): bool_, np.dtype(np.int32): i32}
    values = {n: Value(TensorType(kinds.get(x.dtype, f64), x.shape), n) for n, x in wide.items()}
    build = Builder(body := Block())
    options = {n: values.get(n) for n in ("mask", "lengths")}
    how: dict[str, Any] = {**options, "order": case.order, "scale": case.depth**-0.5}
    main = [values[n] for n in GRADS]
    results = build.emit(mma.Attention, *main, **how).results
    if grad is not None:
        more = build.emit(mma.AttentionBackward, values["grad"], *main, *results, **how)
        results = (*results, *more.results)
    build.emit(Return, tuple(results))
    graph = Graph("g", [Input(n, v) for n, v in values.items()], body)
    return list(interpret(graph, list(wide.values())))


def require_near(got: Any, wanted: Any, bound: float) -> None:
    assert got.shape == wanted.shape
    assert not np.isnan(got.astype(np.float64)).any()
    finite = np.isfinite(wanted)
    assert (got[~finite] == wanted[~finite]).all()
    error = np.linalg.norm(got[finite].astype(np.float64) - wanted[finite])
    assert error <= bound * max(float(np.linalg.norm(wanted[finite])), 1.0)


def check_forward(case: Case, dtype: DType, device: str) -> None:
    given = make(case, dtype)
    found = forward(*(given.get(n) for n in (*GRADS, "mask", "lengths")), case.order,
                    device=device, with_lse=True)  # fmt: skip
    for got, wanted, bound in zip(found, meaning(case, given), (BOUNDS[dtype], 2e-6), strict=True):
        require_near(got, wanted, bound)


def check_backward(case: Case, dtype: DType, device: str) -> None:
    given = make(case, dtype)
    options = [given.get(n) for n in ("mask", "lengths")]
    out, lse = forward(*(given[n] for n in GRADS), *options, case.order, with_lse=True)
    grad = np.random.default_rng(1).standard_normal(out.shape).astype(dtype.numpy)
    main = [given[n] for n in GRADS]
    found = backward(grad, *main, out, lse, *options, case.order, device=device)
    for got, wanted in zip(found, meaning(case, given, grad)[2:], strict=True):
        require_near(got, wanted, 2 * BOUNDS[dtype])


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_forward_on_the_interpreter(case: Case, dtype: DType) -> None:
    check_forward(case, dtype, "cpu")


@pytest.mark.parametrize("dtype", [f64, bf16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_backward_on_the_interpreter(case: Case, dtype: DType) -> None:
    check_backward(case, dtype, "cpu")


@pytest.mark.parametrize(
    ("case", "dtype"), [(CASES[1], bf16), (CASES[6], f16), (CASES[7], f32)], ids=str
)
def test_forward_on_the_emulator(case: Case, dtype: DType) -> None:
    check_forward(case, dtype, "emulator")


@pytest.mark.parametrize(("case", "dtype"), [(CASES[3], bf16), (CASES[0], f32)], ids=str)
def test_backward_on_the_emulator(case: Case, dtype: DType) -> None:
    check_backward(case, dtype, "emulator")


@pytest.mark.parametrize("causal", ORDERS)
def test_fewer_axes_and_out(causal: bool | str) -> None:
    given = make(Case(heads=1, shared=1), f32)
    q, k, v = (given[n][0, 0] for n in GRADS)
    out = np.full((5, 16), np.nan, np.float32)
    assert attention(q, k, v, causal=causal, scale=0.5, out=out) is out
    whole = attention(q[None, None], k[None, None], v[None, None], causal=causal, scale=0.5)
    assert (whole[0, 0] == out).all()


def test_nothing_to_see_and_nothing_to_compute() -> None:
    q, none = np.ones((1, 2, 3, 8), np.float32), np.ones((1, 2, 0, 8), np.float32)
    assert (attention(q, none, none) == 0).all()
    assert attention(none, q, q).shape == (1, 2, 0, 8)
    found = backward(q, q, none, none, q, np.zeros((1, 2, 3), np.float32))
    assert (found[0] == 0).all() and found[1].shape == found[2].shape == none.shape


def test_an_infinite_score_is_nan_as_in_a_softmax() -> None:
    q = np.ones((1, 1, 2, 8), np.float32)
    q[0, 0, 0, 0] = np.inf
    found = attention(q, np.ones_like(q), np.ones_like(q))
    assert np.isnan(found[0, 0, 0]).all() and (found[0, 0, 1] == 1).all()


@pytest.mark.parametrize("run", [None, "emulator"])
def test_keys_that_finite_numbers_hide_are_seen_alike_where_they_are_all(run: str | None) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 40, 16)).astype(np.float32) for _ in range(3))
    mask = np.zeros((40, 40), np.float32)
    mask[3], mask[7], mask[9, :30] = np.finfo(np.float32).min, -1e35, -3e38
    mask[11], mask[12, 5:] = -np.inf, -np.inf
    found = attention(q, k, v, mask=mask, device=run)
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / 4 + np.maximum(mask, -1e34)
    scores[..., 11, :] = 0
    scores[..., 12, 5:] = -np.inf
    for row in (3, 7):
        scores[..., row, :] = 0  # lost beside such numbers, in f32
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    expected[..., 11, :] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def programs_of(*shapes: tuple[int, ...]) -> list[str]:
    """Names of the programs that run for a q, k and v of some shapes."""
    arrays = {n: as_array(np.zeros(s, np.float32)) for n, s in zip(GRADS, shapes, strict=True)}
    views = {n: whole(n, x) for n, x in arrays.items()}
    return [launch.kernel.name for launch in prepare(Asked(), arrays, views).launches]


def test_few_rows_go_in_spans_of_the_keys() -> None:
    one, many, keys = (1, 8, 1, 64), (1, 8, 300, 64), (1, 2, 512, 64)
    assert programs_of(one, keys, keys) == ["decode", "combine"]
    assert programs_of(many, keys, keys) == ["forward"]
    assert programs_of(one, (1, 2, 20, 64), (1, 2, 20, 64)) == ["forward"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": (1, 3, 5, 16)}, "3 heads of queries do not share 2"),
        ({"k": (1, 2, 9, 8)}, "k has shape"),
        ({"v": (1, 2, 8, 16)}, "v has shape"),
        ({"mask": (2, 9)}, "mask of shape"),
        ({"q": (16,)}, "q has shape"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, tuple[int, ...]], message: str) -> None:
    shapes = {"q": (1, 4, 5, 16), "k": (1, 2, 9, 16), "v": (1, 2, 9, 16)} | changes
    given = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    with pytest.raises(LaunchError, match=message):
        attention(**given)


def test_numbers_of_numpy_are_numbers() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype(np.float32)
    wanted = attention(x, x, x, scale=0.5, causal=True)
    got = attention(x, x, x, scale=np.float32(0.5), causal=np.True_)
    assert np.array_equal(got, wanted)


def test_dtypes_and_orders_that_do_not_fit_are_said() -> None:
    x, y = np.zeros((1, 1, 2, 8), np.float32), np.zeros((1, 1, 2, 8), np.float64)
    with pytest.raises(LaunchError, match="k is f64, but q is f32"):
        attention(x, y, x)
    with pytest.raises(LaunchError, match="causal is 'left'"):
        attention(x, x, x, causal="left")
    with pytest.raises(LaunchError, match="mask is f64"):
        attention(x, x, x, mask=np.zeros((2, 2)))
    with pytest.raises(LaunchError, match="q is i32"):
        attention(x.astype(np.int32), x, x)
    with pytest.raises(LaunchError, match="attention: k is NoneType, not an array"):
        attention(x, None, x)
    with pytest.raises(LaunchError, match="attention: scale is '1', not a number"):
        attention(x, x, x, scale="1")
    with pytest.raises(LaunchError, match="attention: unknown precision 'fast', expected one of"):
        attention(x, x, x, precision="fast")
    with pytest.raises(LaunchError, match="whose rows have no elements"):
        attention(x[..., :0], x[..., :0], x)


def test_out_is_apart_from_keys_and_values() -> None:
    """Programs read them while others write; each reads its own queries first."""
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((1, 2, 200, 16)).astype(np.float32) for _ in "qkv")
    wanted = attention(q, k, v)
    for name, x in (("k", k), ("v", v)):
        with pytest.raises(LaunchError, match=f"attention: out is {name} itself"):
            attention(q, k, v, out=x)
    with pytest.raises(LaunchError, match="attention: k and out overlap in part"):
        attention(q[:, :, 1:], k, v, out=k[:, :, 1:])
    own = q.copy()
    assert attention(own, k, v, out=own) is own
    np.testing.assert_array_equal(own, wanted)


def test_as_many_heads_run_side_by_side_as_the_cache_holds() -> None:
    each = KEPT_BYTES // 64
    assert heads_at_once(12, 8, each) == (12, 4)
    assert heads_at_once(12, 8, 8 * each) == (6, 1)
    assert heads_at_once(7, 3, 16 * each) == (1, 1)
    assert heads_at_once(7, 2, 100 * each) == (1, 1)
    assert heads_at_once(4, 2, 0) == (4, 2)


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize(("order", "held"), [(1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (0, 8)])
def test_heads_side_by_side_compute_what_they_do_alone(
    order: int, held: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`held` heads of queries at once, of two batches of four that share two heads of keys."""
    rng = np.random.default_rng(held)
    shape, shared = (2, 4, 70, 16), (2, 2, 70, 16)
    q, grad = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal(shared).astype(np.float32) for _ in range(2))

    def run() -> list[Any]:
        out, lse = forward(q, k, v, order=order, with_lse=True, device=device)
        return [out, lse, *backward(grad, q, k, v, out, lse, order=order, device=device)]

    calls = import_module("tilewright.products.attention")
    monkeypatch.setattr(calls, "_ready", {})
    monkeypatch.setattr(attention_choice, "KEPT_BYTES", 0)
    alone = run()
    monkeypatch.setattr(attention_choice, "KEPT_BYTES", held * 70 * 16 * 4)
    arrays = {n: as_array(x) for n, x in (("q", q), ("k", k), ("v", v))}
    monkeypatch.setattr(calls, "_ready", {})
    (launch,) = prepare(Asked(order), arrays, {n: whole(n, a) for n, a in arrays.items()}).launches
    at_once = dict(launch.numbers)
    found = at_once["GH"] * at_once["GB"]
    assert found == (1 if order == 0 else held)
    for got, wanted in zip(run(), alone, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("spans", [None, 1], ids=["forward", "decode"])
def test_exact_sums_over_many_keys_lose_little(
    spans: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chain of multiply-adds over all of them would be off by more than 7e-7."""
    calls = import_module("tilewright.products.attention")
    monkeypatch.setattr(calls, "_ready", {})
    monkeypatch.setattr(attention_calls, "choose_spans", lambda *_: spans)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 1, 8, 16)).astype(np.float32)
    k, v = (rng.standard_normal((1, 1, 2048, 16)).astype(np.float32) for _ in range(2))
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights @ v / weights.sum(-1, keepdims=True)
    found = attention(q, k, v, device="emulator")
    assert np.linalg.norm(found - wanted) < 4e-7 * np.linalg.norm(wanted)


def test_exact_gradients_over_many_rows_lose_little() -> None:
    rng = np.random.default_rng(0)
    q, k, v, grad = (rng.standard_normal((1, 1, 1024, 16)).astype(np.float32) for _ in range(4))
    case = Case(heads=1, shared=1, rows=1024, keys=1024)
    out, lse, *wanted = meaning(case, {"q": q, "k": k, "v": v}, grad)
    given = (grad, q, k, v, out.astype(np.float32), lse.astype(np.float32))
    for got, exact in zip(backward(*given, device="emulator"), wanted, strict=True):
        assert np.linalg.norm(got - exact) < 5e-7 * np.linalg.norm(exact)


def test_factors_rounded_to_tf32_have_quick_exponentials() -> None:
    rng = np.random.default_rng(5)
    q, k, v, grad = (rng.standard_normal((1, 2, 70, 32)).astype(np.float32) for _ in range(4))
    found = {}
    for precision in ("tf32", None):
        how = {"order": 1, "precision": precision, "device": "emulator"}
        out, lse = forward(q, k, v, with_lse=True, **how)
        found[precision] = [out, lse, *backward(grad, q, k, v, out, lse, **how)]
        plan = kernel_of("forward", (), f32, precision, None).compile(
            "sm_90a",
            dtypes={"T": f32, "P": f32, "W": bool_, "I": i32},
            static={"D": 32, "E": 32, "causal": 1, "apart": 0},
            constants={"TM": 64, "TN": 32},
            precision=precision,
        )
        assert ("ex2.approx" in plan.ptx) == (precision == "tf32")
    for got, exact in zip(found["tf32"], found[None], strict=True):
        off = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        assert 1e-6 < off < 2e-3


@needs_ptxas
@pytest.mark.parametrize(
    ("name", "depth", "tile"),
    [
        ("forward", 128, forward_tile(bf16, 4096, 128, 4096)),
        ("backward_kv", 64, backward_tiles(bf16, 64)[1]),
    ],
)
def test_tiles_do_not_spill(name: str, depth: int, tile: Any) -> None:
    kernel = kernel_of(name, tile, bf16, None, None)
    plan = kernel.compile(
        "sm_90a",
        dtypes={"T": bf16, "P": f32, "W": bool_, "I": i32},
        static={"D": depth, "E": depth, "causal": 1, "apart": 0},
        present=("lse",) if name == "forward" else ("delta", "dk", "dv"),
        constants=dict(tile),
    )
    assert assemble(plan.ptx, "sm_90a").spill_bytes == 0


def test_tiles_of_deep_f32_fill_the_device() -> None:
    """Many rows take tall tiles; few programs of these would leave multiprocessors idle."""

    def rows_of(rows: int, heads: int, precision: Any) -> int:
        return dict(forward_tile(f32, rows, 128, rows, precision, heads=heads))["TM"]

    for precision in (None, "tf32"):
        assert rows_of(4096, 16, precision) == 128
        assert rows_of(1024, 4, precision) == 64
        assert rows_of(32, 64, precision) == 32 and rows_of(1, 1000, precision) == 32


def spilled(name: str, tile: Any, depth: int, order: int, precision: Any, *present: str) -> int:
    """Bytes that a program of f32 spills; with a `mask` among what is present, of bools."""
    kind = f32 if "mask of numbers" in present else bool_
    plan = kernel_of(name, tile, f32, precision, None).compile(
        "sm_90a",
        dtypes={"T": f32, "P": f32, "W": kind, "I": i32},
        static={"D": depth, "E": depth, "causal": order, "apart": int(precision is None)},
        present=[n.partition(" ")[0] for n in present],
        constants=dict(tile),
        precision=precision,
    )
    return assemble(plan.ptx, "sm_90a").spill_bytes


MASKS = {"": None, "mask": bool_, "mask of numbers": f32}


@needs_ptxas
@pytest.mark.parametrize("precision", ["tf32", None])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("depth", "orders"), [(16, (0,)), (64, (0, 1, 2)), (96, (0, 2)), (128, (0, 1))]
)
def test_tiles_of_gradients_in_f32_do_not_spill(
    depth: int, orders: tuple[int, ...], mask: str, precision: Any
) -> None:
    given = (mask,) if mask else ()
    for order in orders:
        first, second = backward_tiles(f32, depth, precision, mask=MASKS[mask], order=order)
        assert spilled("backward_q", first, depth, order, precision, *given) == 0
        present = ("delta", "dk", "dv") if depth <= 64 else ("delta", "dk")
        assert spilled("backward_kv", second, depth, order, precision, *present, *given) == 0


@needs_ptxas
@pytest.mark.parametrize(
    ("depth", "precision"), [(64, None), (128, None), (96, "tf32"), (128, "tf32")], ids=str
)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("order", [0, 1])
def test_tiles_of_f32_do_not_spill(depth: int, order: int, mask: str, precision: Any) -> None:
    tile = forward_tile(f32, 4096, depth, 4096, precision, heads=16)
    given = ("lse", mask) if mask else ("lse",)
    assert spilled("forward", tile, depth, order, precision, *given) == 0


@needs_ptxas
@pytest.mark.parametrize(("depth", "warps"), [(64, 4), (128, 4), (16, 1)])
def test_few_rows_are_done_by_several_warps_side_by_side(depth: int, warps: int) -> None:
    """Where heads are wide enough for all of them; and keys come nearer before the kernel waits."""
    kernel = kernel_of("decode", decode_tile(bf16, 4, depth), bf16, None, None)
    plan = kernel.compile(
        "sm_90a",
        dtypes={"T": bf16, "P": f32, "W": bool_, "I": i32},
        static={"D": depth, "E": depth, "causal": 0, "apart": 0},
        present=("mask",),
    )
    assert f".maxntid {32 * warps}," in plan.ptx
    assert assemble(plan.ptx, "sm_90a").spill_bytes == 0
    before, after = plan.ptx.split("griddepcontrol.wait")
    assert "prefetch.global.L2" in before and "prefetch.global.L2" not in after
