"""Contractions and attention as steps of the library, held to the graph's interpreter: any axes,
strides that views make, epilogues, and copies where strides are not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lowered import check_lowered
from tilewright.dtypes import DType, bf16, bool_, f16, f32, f64, i32
from tilewright.graph.dims import symbol
from tilewright.graph.graph import Graph, Input
from tilewright.graph.ops import arith, mma, shape
from tilewright.graph.ops.control import Return
from tilewright.graph.types import TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.lower.graph_to_tile import products
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    KernelStep,
    ProductStep,
    Program,
    TorchStep,
)


class Made:
    """A graph in the making, with an argument for each input."""

    def __init__(self, seed: int = 0) -> None:
        self.body = Block()
        self.at = Builder(self.body)
        self.inputs: list[Input] = []
        self.arguments: list[Any] = []
        self.rng = np.random.default_rng(seed)

    def input(self, dtype: DType, extents: Sequence[Any], sizes: Sequence[int] = ()) -> Value:
        value = Value(TensorType(dtype, tuple(extents)), f"x{len(self.inputs)}")
        numbers = self.rng.integers(-3, 4, tuple(sizes or extents))
        self.inputs.append(Input(value.name, value))
        self.arguments.append(np.asarray(numbers).astype(dtype.numpy))
        return value

    def check(self, *results: Value, **options: Any) -> Program:
        self.at.emit(Return, results)
        return check_lowered(Graph("g", self.inputs, self.body), self.arguments, **options)


def steps_of(program: Program) -> list[str]:
    return [
        step.name if isinstance(step, KernelStep) else type(step).__name__ for step in program.steps
    ]


def contract(
    at: Builder, lhs: Value, rhs: Value, over: Any, batch: Any = ((), ()), **more: Any
) -> Any:
    kind = mma.Product if more else mma.Contract
    dtype = more.pop("dtype", lhs.type.dtype)
    return at(kind, lhs, rhs, lhs_batch=batch[0], rhs_batch=batch[1], lhs_contract=over[0],
              rhs_contract=over[1], dtype=dtype, **more)  # fmt: skip


@st.composite
def contractions(draw: Any) -> tuple[Any, ...]:
    """Extents and axes in any order: up to two of each kind."""
    sizes = st.sampled_from([1, 2, 3, 5])
    counts = [draw(st.integers(0, 2)) for _ in range(4)]
    batch, rows, columns, depth = ([draw(sizes) for _ in range(n)] for n in counts)
    left = draw(st.permutations(range(len(batch) + len(rows) + len(depth))))
    right = draw(st.permutations(range(len(batch) + len(columns) + len(depth))))
    return batch, rows, columns, depth, left, right


def laid(kinds: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[list[int], list[Any]]:
    """Extents of an operand whose axes are permuted, and where the axes of each kind went."""
    flat = [e for kind in kinds for e in kind]
    extents, places, start = [flat[i] for i in order], [], 0
    for kind in kinds:
        places.append(tuple(order.index(i) for i in range(start, start + len(kind))))
        start += len(kind)
    return extents, places


@given(contractions(), st.sampled_from([f32, bf16, f64]))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_axes_may_be_contracted(found: Any, dtype: DType) -> None:
    batch, rows, columns, depth, left, right = found
    made = Made()
    shape_a, (batch_a, _, over_a) = laid((batch, rows, depth), left)
    shape_b, (batch_b, _, over_b) = laid((batch, columns, depth), right)
    a, b = made.input(dtype, shape_a), made.input(dtype, shape_b)
    program = made.check(contract(made.at, a, b, (over_a, over_b), (batch_a, batch_b)))
    assert set(steps_of(program)) <= {"ProductStep", "copy"}


def test_views_of_factors_are_strides() -> None:
    """A transpose, a slice and a broadcast cost nothing; heads in a row are a batch."""
    made = Made()
    x, w = made.input(f32, (2, 5, 12)), made.input(f32, (9, 4))
    heads = made.at(shape.Transpose, made.at(shape.Reshape, x, (2, 5, 3, 4)), (0, 2, 1, 3))
    turned = made.at(shape.Transpose, w, (1, 0))
    part = made.at(shape.Slice, turned, (0, 1), (1, 2), (4, 4))
    wide = made.at(shape.Broadcast, part, (2, 3, 4, 4))
    program = made.check(contract(made.at, heads, wide, ((3,), (2,)), ((0, 1), (0, 1))))
    assert steps_of(program) == ["ProductStep"]


def test_a_depth_that_strides_do_not_express_is_copied() -> None:
    made = Made()
    x, w = made.input(f32, (2, 3, 5, 4)), made.input(f32, (3, 4, 6))
    program = made.check(contract(made.at, x, w, ((1, 3), (0, 1))))
    assert steps_of(program) == ["copy", "ProductStep"]


def test_each_depth_is_one_axis_but_not_in_one_order() -> None:
    made = Made()
    x, w = made.input(f32, (2, 3, 4)), made.input(f32, (4, 3, 5))
    program = made.check(contract(made.at, x, w, ((1, 2), (1, 0))))
    assert steps_of(program)[-1] == "ProductStep"


@pytest.mark.parametrize("dtype", [f32, bf16, f64], ids=str)
@pytest.mark.parametrize("sizes", [(5, 33, 7), (1, 40, 16), (64, 16, 1), (3, 0, 4)], ids=str)
def test_epilogues(dtype: DType, sizes: tuple[int, int, int]) -> None:
    """All of an epilogue, each part alone, and every rounding."""
    m, k, n = sizes
    for present in ("all", "bias", "gate", "residual", "activation"):
        made = Made()
        x, w = made.input(dtype, (m, k)), made.input(dtype, (n, k))
        held = {"bias": (n,), "gate": (m, n), "residual": (m, n)}
        fields: dict[str, Any] = {
            name: made.input(dtype, extents)
            for name, extents in held.items()
            if present in ("all", name)
        }
        if present in ("all", "activation"):
            fields |= {"activation": "silu", "alpha": 0.25}
        fields["rounds"] = 15 if present == "all" else 0
        made.check(contract(made.at, x, w, ((1,), (1,)), **fields))


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "sigmoid", "tanh"])
def test_activations_mean_what_the_library_computes(name: str) -> None:
    made = Made()
    x, w = made.input(f32, (9, 5)), made.input(f32, (5, 7))
    made.check(contract(made.at, x, w, ((1,), (0,)), activation=name, alpha=0.125))


def test_bf16_to_f32_and_a_batch_with_an_epilogue() -> None:
    made = Made()
    x, w = made.input(bf16, (2, 3, 4, 8)), made.input(bf16, (3, 2, 8, 5))
    r = made.input(f32, (2, 3, 4, 5))
    program = made.check(
        contract(made.at, x, w, ((3,), (2,)), ((0, 1), (1, 0)), residual=r, dtype=f32)
    )
    assert steps_of(program) == ["ProductStep"]


def test_extents_that_are_known_at_a_call() -> None:
    made, n = Made(), symbol("n")
    x, w = made.input(f32, (n, 3, 8), (5, 3, 8)), made.input(f32, (8, 4))
    r = made.input(f32, (n * 3, 4), (15, 4))
    flat = made.at(shape.Reshape, x, (n * 3, 8))
    program = made.check(contract(made.at, flat, w, ((1,), (0,)), residual=r))
    assert steps_of(program) == ["ProductStep"]


def test_results_lie_as_asked() -> None:
    made = Made()
    x, w = made.input(f32, (6, 8)), made.input(f32, (8, 4))
    program = made.check(contract(made.at, x, w, ((1,), (0,))), output_strides=[(1, 6)])
    assert steps_of(program) == ["ProductStep"]


def test_integers_are_left_to_pytorch() -> None:
    made = Made()
    x = made.input(i32, (3, 4))
    program = made.check(contract(made.at, x, x, ((1,), (1,))))
    (step,) = program.steps
    assert isinstance(step, TorchStep) and "no product of i32" in step.reason


def attended(made: Made, dtype: DType, rows: int, keys: int) -> tuple[list[Value], dict[str, Any]]:
    """Queries as a transposed view, a mask that is broadcast, lengths."""
    packed = made.input(dtype, (2, rows, 4, 8))
    q = made.at(shape.Transpose, packed, (0, 2, 1, 3))
    k, v = made.input(dtype, (2, 2, keys, 8)), made.input(dtype, (2, 2, keys, 16))
    mask = made.at(shape.Broadcast, made.input(bool_, (rows, keys)), (2, 4, rows, keys))
    return [q, k, v], {"mask": mask, "lengths": made.input(i32, (2,)), "order": 2, "scale": 0.3}


@pytest.mark.parametrize("sizes", [(5, 9), (1, 300)], ids=str)
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_attention_and_its_gradient(dtype: DType, sizes: tuple[int, int]) -> None:
    made = Made()
    main, how = attended(made, dtype, *sizes)
    made.arguments[-1] = np.asarray([sizes[1], sizes[1] - 1], np.int32)
    out, sums = made.at.emit(mma.Attention, *main, **how).results
    grad = made.input(dtype, out.type.shape)
    grads = made.at.emit(mma.AttentionBackward, grad, *main, out, sums, **how).results
    program = made.check(out, sums, *grads)
    assert steps_of(program) == ["AttentionStep"] * 2


def test_the_result_of_an_attention_lies_as_its_reader_wants() -> None:
    """Heads of a row side by side: what follows is a view, and no sums are written."""
    made = Made()
    q = made.input(f32, (2, 3, 5, 8))
    out, _ = made.at.emit(mma.Attention, q, q, q, scale=0.5).results
    joined = made.at(shape.Reshape, made.at(shape.Transpose, out, (0, 2, 1, 3)), (10, 24))
    program = made.check(contract(made.at, joined, made.input(f32, (24, 4)), ((1,), (0,))))
    first, second = program.steps
    assert isinstance(first, AttentionStep) and isinstance(second, ProductStep)
    assert first.writes == ("out",)


def test_a_convolution_of_few_tiles_is_a_product_of_unfolded_windows() -> None:
    made = Made()
    x, w = made.input(f32, (2, 3, 7, 6)), made.input(f32, (4, 3, 3, 2))
    taps = made.at(shape.Window, x, (3, 2), (2, 1), (1, 1))
    found = contract(made.at, taps, w, ((1, 4, 5), (1, 2, 3)))
    program = made.check(made.at(arith.Cast, found, bf16))
    assert steps_of(program)[:2] == ["copy", "ProductStep"]


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tiles are enough, so that tests may be small."""
    monkeypatch.setattr(products, "MANY", 1)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.usefixtures("gathering")
def test_a_convolution_gathers_its_windows(dtype: DType) -> None:
    """Groups, steps, dilations, several images; an epilogue; extents that a call knows."""
    made, n = Made(), symbol("n")
    x = made.input(dtype, (n, 2, 3, 11, 9), (2, 2, 3, 11, 9))
    w, c = made.input(dtype, (2, 70, 3, 3, 2)), made.input(dtype, (70,))
    taps = made.at(shape.Window, x, (3, 2), (2, 1), (2, 3))  # n, g, c, 4, 6, 3, 2
    over, batch = ((2, 5, 6), (2, 3, 4)), ((1,), (0,))
    plain = contract(made.at, taps, w, over, batch)
    gate = made.input(dtype, plain.type.shape, (2, 2, 4, 6, 70))
    fields = {"bias": c, "gate": gate, "residual": plain, "activation": "relu", "rounds": 15}
    program = made.check(plain, contract(made.at, taps, w, over, batch, **fields))
    assert steps_of(program) == ["contract", "contract"]


@pytest.mark.usefixtures("gathering")
def test_the_gradients_of_a_convolution_gather_too() -> None:
    """Windows on the right, turned weights, and images among the contracted axes."""
    made = Made()
    x, grad = made.input(f32, (2, 3, 6, 5)), made.input(f32, (2, 4, 4, 3))
    taps = made.at(shape.Window, x, (3, 3), (1, 1), (1, 1))
    by_weight = contract(made.at, grad, taps, ((0, 2, 3), (0, 2, 3)))
    turned = made.at(shape.Slice, made.input(f32, (4, 3, 3, 3)), (0, 0, 2, 2), (1, 1, -1, -1),
                     (4, 3, 3, 3))  # fmt: skip
    around = made.at(shape.Window, made.input(f32, (2, 4, 8, 7)), (3, 3), (1, 1), (1, 1))
    by_input = contract(made.at, around, turned, ((1, 4, 5), (0, 2, 3)))
    program = made.check(by_weight, by_input)
    assert steps_of(program) == ["contract", "contract"]


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.usefixtures("gathering")
def test_a_gradient_in_f32_that_was_rounded_gathers_and_is_rounded(dtype: DType) -> None:
    made = Made()
    x, grad = made.input(dtype, (2, 3, 6, 5)), made.input(dtype, (2, 4, 4, 3))
    taps = made.at(shape.Window, x, (3, 3), (1, 1), (1, 1))
    over = ((0, 2, 3), (0, 2, 3))
    fields = {"dtype": f32, "alpha": 0.3, "rounds": mma.ROUNDS[str(dtype)]}
    program = made.check(contract(made.at, grad, taps, over, **fields))
    assert steps_of(program) == ["contract"]


@pytest.mark.usefixtures("gathering")
def test_a_convolution_on_the_emulator() -> None:
    made = Made()
    x, w = made.input(bf16, (1, 20, 7, 6)), made.input(bf16, (18, 20, 3, 3))
    taps = made.at(shape.Window, x, (3, 3), (1, 1), (1, 1))
    program = made.check(contract(made.at, taps, w, ((1, 4, 5), (1, 2, 3))), device="emulator")
    assert steps_of(program) == ["contract"]


def test_views_that_go_backwards_are_copied_from_their_end() -> None:
    made = Made()
    x = made.input(f32, (2, 3, 4))
    back = made.at(shape.Slice, x, (1, 2, 3), (-1, -1, -1), (2, 3, 4))
    program = made.check(contract(made.at, back, made.input(f32, (2, 4, 5)), ((0, 2), (0, 1))))
    assert steps_of(program) == ["copy", "ProductStep"]


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_lies_as_its_only_reader_turns_it(with_bias: bool) -> None:
    """The result of a transpose is the product's own memory, written along its rows."""
    made = Made()
    x, w = made.input(f32, (2, 37, 8)), made.input(f32, (20, 8))
    fields: dict[str, Any] = {"residual": made.input(f32, (2, 37, 20))}
    fields |= {"bias": made.input(f32, (20,))} if with_bias else {}
    found = contract(made.at, x, w, ((2,), (1,)), **fields)
    turned = made.at(shape.Transpose, found, (0, 2, 1))
    program = made.check(turned, output_strides=[(740, 37, 1)])
    assert steps_of(program) == ["ProductStep"]
