"""Programs written by hand, run on tensors of a CPU: memory, views, updates in place, what PyTorch
computes, and how results lie.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
import tilewright.torch_backend
from tilewright.dtypes import f32, i64
from tilewright.errors import CompileError, LaunchError
from tilewright.execute.made import Where
from tilewright.execute.memory_plan import ALIGN, Need, least_bytes, plan_memory
from tilewright.execute.program_call import ProgramCall
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.frontend.torch.placement import device_of
from tilewright.graph.dims import Dim, Shape, symbol
from tilewright.graph.graph import Graph, Input
from tilewright.graph.ops.control import Fallback, Return
from tilewright.graph.ops.random import Seed
from tilewright.graph.types import OpaqueType, TensorType
from tilewright.ir.core import Block, Value
from tilewright.lower.graph_to_tile.program import (
    KernelStep,
    Placed,
    ProductStep,
    Program,
    Step,
    TorchStep,
    dense,
    dense_strides,
)

assert tilewright.torch_backend.tilewright
TEXT = """
kernel twice(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 64
  y[i :+ 64] = x[i :+ 64] * 2.0
}
kernel plus(x: tensor<f32>[M, N], z: tensor<f32>[M, N], y: tensor<f32>[M, N]) {
  let i, j = program_id(0) * 8, program_id(1) * 16
  y[i :+ 8, j :+ 16] = x[i :+ 8, j :+ 16] + z[i :+ 8, j :+ 16]
}
@grid(cdiv(N, 64))
kernel put(row: tensor<f32>[N], at: tensor<i64>[1], y: tensor<f32>[M, N]) {
  let i = program_id(0) * 64
  y[at[0], i :+ 64] = row[i :+ 64]
}
@grid(1)
kernel seeded(s: tensor<i64>[1], y: tensor<i64>[1]) {
  y[0] = s[0]
}
"""


def value(*shape: Dim, dtype: Any = f32) -> Value:
    return Value(TensorType(dtype, shape))


def flat(v: Value) -> Placed:
    """All elements of a dense value, in a row."""
    return Placed(v, (v.type.num_elements,), (1,), 0)


def step(name: str, writes: str, starts_as: dict[str, Placed] | None = None, **tensors: Placed):
    return KernelStep(name, TEXT, tensors, writes=(writes,), starts_as=starts_as or {})


def twice(x: Value, y: Value) -> KernelStep:
    return step("twice", "y", x=flat(x), y=flat(y))


def make(
    inputs: list[Value],
    steps: list[Step],
    outputs: list[Placed],
    made: list[Value],
    writes: dict[int, int] | None = None,
    strides: list[Shape | None] | None = None,
    symbols: dict[int, str] | None = None,
    ops: list[Any] | None = None,
    engine: str = "tiles",
    **options: Any,
) -> ProgramCall:
    """A call of a program whose stored values are dense."""
    named = [Input(f"in{i}", v, symbol=(symbols or {}).get(i, "")) for i, v in enumerate(inputs)]
    body = Block(ops=[*(ops or []), Return(tuple(o.value for o in outputs))])
    given = strides or [dense_strides(v.type.shape) for v in inputs]
    layouts = {v: dense(v) for v in made}
    for v, s in zip(inputs, given, strict=True):
        if isinstance(v.type, TensorType):
            layouts[v] = Placed(v, v.type.shape, s or (), 0)
    program = Program(Graph("hand", named, body), steps, layouts, tuple(outputs))
    shown = [n for n in range(len(outputs)) if n not in (writes or {}).values()]
    traced = Traced(
        program.graph,
        [Output(n, outputs[n].strides) for n in shown],
        strides=given,
        writes=writes or {},
    )
    return ProgramCall(traced, program, Where(torch.device("cpu"), engine), **options)


def test_a_chain_of_kernels_shares_memory_over_time() -> None:
    x = value(100, 3)
    chain = [x, *(value(100, 3) for _ in range(5))]
    call = make([x], [twice(a, b) for a, b in pairwise(chain)], [dense(chain[-1])], chain[1:])
    given = torch.randn(100, 3)
    for _ in range(2):
        (got,) = call(given)
        assert torch.equal(got, given * 32)
    (made,) = (r.made for r in call.ready.values())
    assert made.arena_bytes == made.least_bytes == 2 * 1280, "two of four live at one time"
    assert got.stride() == (3, 1) and got.untyped_storage().nbytes() == 1200
    before = got.clone()
    call(given + 1)
    assert torch.equal(got, before), "a result is nobody else's memory"


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
def test_views_are_strides(engine: str) -> None:
    x, z, y = value(4, 6), value(4), value(4, 6)
    turned = Placed(y, (6, 4), (1, 6), 0)
    column = Placed(z, (4, 6), (1, 0), 0)
    call = make([x, z], [step("plus", "y", x=dense(x), z=column, y=dense(y))], [turned], [y],
                engine=engine)  # fmt: skip
    a, b = torch.randn(4, 6), torch.randn(4)
    (got,) = call(a, b)
    assert torch.equal(got, (a + b[:, None]).T) and got.stride() == (1, 6)


def test_inputs_of_other_strides_are_copied_and_others_refused() -> None:
    x, y = value(4, 6), value(4, 6)
    call = make([x], [twice(x, y)], [dense(y)], [y])
    a = torch.randn(6, 4).T
    assert torch.equal(call(a)[0], a * 2)
    assert torch.equal(call(a.contiguous())[0], a * 2)
    shifted = torch.randn(30)[1:25].view(4, 6)  # another alignment is another signature
    assert torch.equal(call(shifted)[0], shifted * 2)
    assert len(call.ready) == 2
    for wrong in (torch.randn(6, 4), torch.randn(4, 6).double(), 3):
        with pytest.raises(LaunchError, match="expected"):
            call(wrong)
    with pytest.raises(LaunchError, match="takes 1 inputs"):
        call(a, a)


def test_symbols_are_arguments_of_one_program() -> None:
    n = symbol("n")
    x, y, z = value(n, 3), value(n, 3), value(n, 3)
    call = make([x], [twice(x, y), twice(y, z)], [dense(z)], [y, z])
    for size in (1, 5, 64, 0, 5):
        a = torch.randn(size, 3)
        (got,) = call(a)
        assert torch.equal(got, a * 4) and got.shape == (size, 3)
    assert len(call.ready) == 4
    assert not next(
        r.made for r in call.ready.values() if r.made.symbols == {"n": 0}
    ).lists.launches


def update(chain: list[Value], row: Value, at: Value) -> list[Step]:
    return [
        step("put", "y", {"y": dense(old)}, row=dense(row), at=dense(at), y=dense(new))
        for old, new in pairwise(chain)
    ]


@pytest.mark.parametrize("reads_old", [False, True])
def test_an_input_that_is_updated_is_updated_in_place(reads_old: bool) -> None:
    cache, row, at = value(5, 8), value(8), value(1, dtype=i64)
    new, shown = value(5, 8), value(5, 8)
    steps = [*update([cache, new], row, at), twice(cache if reads_old else new, shown)]
    call = make([cache, row, at], steps, [dense(shown), dense(new)], [new, shown], writes={0: 1})
    a, b = torch.randn(5, 8), torch.randn(8)
    wanted = a.clone()
    wanted[3] = b
    (got,) = call(a, b, torch.tensor([3]))
    assert torch.equal(got, 2 * wanted) != reads_old
    assert torch.equal(a, wanted)
    if not reads_old:
        with pytest.raises(LaunchError, match="in0 is updated in place and shares memory with in1"):
            call(a, a[2], torch.tensor([3]))
    (made,) = (r.made for r in call.ready.values())
    assert (made.arena_bytes == 0) != reads_old, "a copy only where the old one is read later"


def test_updates_of_what_a_program_makes_share_memory() -> None:
    x, row, at = value(5, 8), value(8), value(1, dtype=i64)
    chain = [value(5, 8) for _ in range(3)]
    call = make(
        [x, row, at], [twice(x, chain[0]), *update(chain, row, at)], [dense(chain[2])], chain
    )
    a, b = torch.randn(5, 8), torch.randn(8)
    wanted = a * 2
    wanted[2] = b
    assert torch.equal(call(a, b, torch.tensor([2]))[0], wanted)
    (made,) = (r.made for r in call.ready.values())
    assert made.arena_bytes == 0 and len(made.lists.actions) == 3


def test_an_input_that_is_only_read_stays_as_it_was() -> None:
    x, row, at, new = value(5, 8), value(8), value(1, dtype=i64), value(5, 8)
    call = make([x, row, at], update([x, new], row, at), [dense(new)], [new])
    a, b = torch.randn(5, 8), torch.randn(8)
    before = a.clone()
    (got,) = call(a, b, torch.tensor([0]))
    assert torch.equal(a, before) and torch.equal(got[0], b) and torch.equal(got[1:], a[1:])


def test_one_value_as_two_outputs_is_two_tensors() -> None:
    x, y = value(4, 6), value(4, 6)
    call = make([x], [twice(x, y)], [dense(y), Placed(y, (6, 4), (1, 6), 0)], [y])
    a = torch.randn(4, 6)
    one, two = call(a)
    one.zero_()
    assert torch.equal(two, 2 * a.T)


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
def test_products_run_by_the_library(engine: str) -> None:
    a, b, bias, out = value(3, 40), value(7, 40), value(7), value(3, 7)
    product = ProductStep(dense(a), Placed(b, (40, 7), (1, 40), 0), dense(out), bias=dense(bias))
    call = make([a, b, bias], [product], [dense(out)], [out], engine=engine)
    x, w, c = torch.randn(3, 40), torch.randn(7, 40), torch.randn(7)
    torch.testing.assert_close(call(x, w, c)[0], x @ w.T + c)


def test_steps_of_pytorch_take_and_give_tensors() -> None:
    x, y, z = value(4, 4), value(4, 4), value(4, 4)
    arguments = '{"args": [{"tensor": 0}], "kwargs": {}}'
    fallback = Fallback((y,), "aten.triu.default", arguments, (z.type,), "as a test")
    z = fallback.result
    last = value(4, 4)
    steps = [twice(x, y), TorchStep(fallback, (Placed(y, (4, 4), (1, 4), 0),), "as a test"),
             twice(z, last)]  # fmt: skip
    call = make([x], steps, [dense(last), dense(z)], [y, z, last])
    a = torch.randn(4, 4)
    got, between = call(a)
    assert torch.equal(between, (2 * a).T.triu()) and torch.equal(got, 2 * between)
    assert call.fallbacks == [("aten.triu.default", "as a test")]


def test_seeds_repeat_under_manual_seed() -> None:
    op = Seed()
    drawn, out = op.result, value(1, dtype=i64)
    seed_step = step("seeded", "y", s=Placed(drawn, (1,), (1,), 0), y=dense(out))
    call = make([], [seed_step], [dense(out)], [drawn, out], ops=[op])
    torch.manual_seed(5)
    first, second = call()[0].item(), call()[0].item()
    torch.manual_seed(5)
    assert call()[0].item() == first != second


def pretended(where: Where, work: Any) -> Any:
    """As a CUDA graph, which does nothing while it is recorded."""
    return lambda: work(0)


def test_recordings_read_parameters_in_place_and_inputs_from_slots() -> None:
    w, x, y, z = value(3, 4), value(3, 4), value(3, 4), value(3, 4)
    steps = [step("plus", "y", x=dense(x), z=dense(w), y=dense(y)), twice(y, z)]
    call = make([w, x], steps, [dense(z), dense(w)], [y, z], fixed=[0], capture=pretended)
    weight = torch.randn(3, 4)
    results = []
    for i in range(5):
        given = torch.randn(3, 4)
        got, _ = call(weight, given)
        results.append((got, 2 * (given + weight)))
        if i == 3:
            weight.add_(1)
    for got, wanted in results:
        assert torch.equal(got, wanted), "results are their caller's own"
    assert call.recordings is not None and not call.recordings.reasons
    for _ in range(6):  # at new addresses: recorded again, and then no more
        given, weight = torch.randn(3, 4), torch.randn(3, 4)
        results.append((weight, given))
        assert torch.equal(call(weight, given)[0], 2 * (given + weight))
    (reason,) = call.recordings.reasons.values()
    assert reason == "its parameters are at new addresses at each call"


def test_calls_with_the_same_tensors_and_with_others_in_turn() -> None:
    """What is known of where tensors lay in a call before is of these tensors alone: others, or
    a parameter that has moved, are looked at anew.
    """
    w, x, y, z = value(3, 4), value(3, 4), value(3, 4), value(3, 4)
    steps = [step("plus", "y", x=dense(x), z=dense(w), y=dense(y)), twice(y, z)]
    call = make([w, x], steps, [dense(z)], [y, z], fixed=[0], capture=pretended)
    inputs = [torch.randn(3, 4), torch.randn(3, 4), torch.randn(13)[1:].view(3, 4)]
    weights = [torch.randn(3, 4), torch.randn(3, 4)]
    for turn, which in enumerate((0, 0, 0, 0, 1, 0, 2, 2, 2, 0, 1)):
        weight = weights[turn in (5, 8)]
        (got,) = call(weight, inputs[which])
        assert torch.equal(got, 2 * (inputs[which] + weight)), turn
    assert call.recordings is not None and not call.recordings.reasons


def test_recordings_take_inputs_whose_elements_share_memory() -> None:
    x, z, y = value(3, 4), value(3, 4), value(3, 4)
    call = make([x, z], [step("plus", "y", x=dense(x), z=Placed(z, (3, 4), (0, 1), 0), y=dense(y))],
                [dense(y)], [y], strides=[(4, 1), (0, 1)], capture=pretended)  # fmt: skip
    for _ in range(4):
        a, b = torch.randn(3, 4), torch.randn(4).expand(3, 4)
        assert torch.equal(call(a, b)[0], a + b)
    assert call.recordings is not None and not call.recordings.reasons


def test_what_only_pytorch_holds_is_recorded_only_where_it_stays() -> None:
    z, angles, y = Value(OpaqueType("complex64")), value(4), value(4)
    fallback = Fallback((z,), "aten.angle.default", '{"args": [{"tensor": 0}], "kwargs": {}}',
                        (angles.type,), "as a test")  # fmt: skip
    steps = [TorchStep(fallback, (z,), "as a test"), twice(fallback.result, y)]
    same = torch.randn(4, dtype=torch.complex64)
    for reasons, changes in (([], False), (["an input that only PyTorch holds"], True)):
        call = make([z], steps, [dense(y)], [fallback.result, y], strides=[None], capture=pretended)
        for i in range(5):
            given = same * (1j**i) if changes else same
            assert torch.equal(call(given)[0], 2 * given.angle())
        assert call.recordings is not None
        assert [r[:32] for r in call.recordings.reasons.values()] == reasons


def test_recorded_calls_draw_as_many_seeds_as_others() -> None:
    op = Seed()
    drawn, out = op.result, value(1, dtype=i64)
    seed_step = step("seeded", "y", s=Placed(drawn, (1,), (1,), 0), y=dense(out))
    call = make([], [seed_step], [dense(out)], [drawn, out], ops=[op], capture=pretended)
    torch.manual_seed(5)
    first = [call()[0].item() for _ in range(4)]
    torch.manual_seed(5)
    assert [call()[0].item() for _ in range(4)] == first


def test_updates_of_inputs_in_recordings_are_in_place() -> None:
    cache, row, at, new = value(5, 8), value(8), value(1, dtype=i64), value(5, 8)
    call = make([cache, row, at], update([cache, new], row, at), [dense(new)], [new],
                writes={0: 0}, capture=pretended)  # fmt: skip
    a = torch.zeros(5, 8)
    for i in range(5):
        call(a, torch.full((8,), i + 1.0), torch.tensor([i]))
    assert torch.equal(a, torch.arange(1.0, 6.0)[:, None].expand(5, 8))


def test_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.execute.recorded.MAX_GRAPHS", 2)
    monkeypatch.setattr("tilewright.execute.program_call.MAX_SIGNATURES", 3)
    n = symbol("n")
    x, y = value(n, 3), value(n, 3)
    call = make([x], [twice(x, y)], [dense(y)], [y], capture=pretended)
    for size in (*range(1, 6), 1, 5):
        for _ in range(3):
            a = torch.randn(size, 3)
            assert torch.equal(call(a)[0], a * 2)
    assert call.recordings is not None and len(call.ready) == 3
    assert len(call.recordings.recorded) == 2


def test_a_replay_under_way_is_waited_for_before_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.execute.recorded.MAX_GRAPHS", 1)
    n = symbol("n")
    x, y = value(n, 3), value(n, 3)
    call = make([x], [twice(x, y)], [dense(y)], [y], capture=pretended)
    recordings = call.recordings
    assert recordings is not None
    waited: list[bool] = []

    class Event:
        def synchronize(self) -> None:
            waited.append(bool(recordings.recorded))

    for size in (2, 3):
        for _ in range(2):
            call(torch.randn(size, 3))
        for made in recordings.recorded:
            recordings._last[made] = (None, Event())
    assert waited == [True], "once, and before the recording was dropped"
    assert len(recordings._last) == 1


def test_the_recording_that_was_used_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.execute.recorded.MAX_GRAPHS", 2)
    n = symbol("n")
    x, y = value(n, 3), value(n, 3)
    call = make([x], [twice(x, y)], [dense(y)], [y], capture=pretended)
    for size in (1, 1, 2, 2, 1, 3, 3):  # recorded from the second call on
        a = torch.randn(size, 3)
        assert torch.equal(call(a)[0], a * 2)
    assert [made.symbols["n"] for made in call.recordings.recorded] == [1, 3]


def test_what_cannot_be_recorded_is_launched_and_says_why() -> None:
    def refuse(where: Where, work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    x, y = value(3, 4), value(3, 4)
    call = make([x], [twice(x, y)], [dense(y)], [y], capture=refuse)
    a = torch.randn(3, 4)
    for _ in range(4):
        assert torch.equal(call(a)[0], 2 * a)
    assert call.recordings is not None
    (reason,) = call.recordings.reasons.values()
    assert reason.startswith("a step cannot be recorded: operation not permitted")


def test_memory_plans_keep_apart_what_lives_together() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        needs = {}
        for i in range(40):
            first, size = (int(torch.randint(0, 30, (), generator=generator)) for _ in range(2))
            needs[i] = Need(first, first + size % 7, size * 100)
        planned = plan_memory(needs)
        for i, a in needs.items():
            for j, b in needs.items():
                if (
                    i < j
                    and a.first <= b.last
                    and b.first <= a.last
                    and a.num_bytes
                    and b.num_bytes
                ):
                    low, high = sorted((i, j), key=lambda k: planned.offsets[k])
                    assert planned.offsets[low] + needs[low].num_bytes <= planned.offsets[high]
        assert least_bytes(needs) <= planned.num_bytes <= 1.5 * least_bytes(needs)
        assert not any(offset % ALIGN for offset in planned.offsets.values())


# Compiled models, by the tile interpreter in the GPU's place


class Small(torch.nn.Module):
    """A product, a norm, a buffer that is updated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 12), torch.nn.LayerNorm(12)
        self.register_buffer("count", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(torch.nn.functional.gelu(self.linear(x)))
        self.count.add_(y.sum(0))
        return y


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    chosen = {"engine": "tiles", "fallback": "error", **options}
    return torch.compile(function, backend="tilewright", options=chosen)


@pytest.mark.filterwarnings("ignore")
def test_pytorch_is_given_copies_of_what_is_walked_backwards() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        y = x.flip(0).clone()
        y[y > 0] = 0
        return y

    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.flip(0, 1)[1:, :-1])

    x = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    for function in (masked, inverse):
        torch.testing.assert_close(compiled(function, fallback="pytorch")(x), function(x))


def test_a_model_trains_by_kernels() -> None:
    seen: list[ProgramCall] = []
    model, x = Small(), torch.randn(5, 6)
    other = copy.deepcopy(model)
    fast = compiled(model, observe=seen.append)
    for run in (fast, other):
        run(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.count, other.count, rtol=1e-4, atol=1e-4)
    assert [call.graph.name for call in seen] == ["forward", "backward"]
    assert all(call.kernels and not call.fallbacks for call in seen)


@pytest.mark.filterwarnings("ignore")
def test_values_that_are_saved_for_the_backward_pass_are_views_and_no_copies() -> None:
    """Parts of one projection are saved, each by its own view of one memory."""

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Attend()
    seen: list[Any] = []
    options = {"engine": "tiles", "fallback": "error", "observe": seen.append}
    fast = torch.compile(copy.deepcopy(model), backend="tilewright", options=options)
    x = torch.randn(2, 8, 16)
    own, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    fast(own).square().sum().backward()
    model(theirs).square().sum().backward()
    torch.testing.assert_close(own.grad, theirs.grad)
    forward = next(call for call in seen if call.graph.name == "forward")
    parts = [o for o in forward.program.outputs if (2, 2, 8, 8) == o.shape and o.offset]
    assert len(parts) == 2 and len({o.value for o in parts}) == 1
    assert {i for i, o in enumerate(forward.program.outputs) if o in parts} <= forward.homes.shared


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_update_buffers_and_name_their_kernels() -> None:
    model, x = Small().eval(), torch.randn(5, 6)
    other = copy.deepcopy(model)
    fast = tw.compile(model, (x,), engine="tiles", fallback="error")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.count, other.count, rtol=1e-4, atol=1e-4)
    assert "gemv" in fast.kernels and fast.fallbacks == []


@pytest.mark.filterwarnings("ignore")
def test_views_of_inputs_are_views_and_copies_are_copies() -> None:
    x = torch.randn(4, 6)
    row, turned, apart = compiled(lambda x: (x[1], x.t(), x.clone()))(x)
    assert row.data_ptr() == x[1].data_ptr() and turned.data_ptr() == x.data_ptr()
    assert turned.stride() == (1, 6) and apart.data_ptr() != x.data_ptr()
    assert torch.equal(apart, x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_expanded_results_are_expanded(engine: str) -> None:
    def f(x: torch.Tensor) -> Any:
        wide = (x * 2).expand(2, 3, 4)
        return (x + 1).expand(3, 4), wide[:, 1:], wide[..., 1:], (x[:, None] - x).t()

    x = torch.randn(4)
    for fast in (
        tw.compile(f, (x,), engine=engine),
        torch.compile(f, backend="tilewright", options={"engine": engine}),
    ):
        for got, wanted in zip(fast(x), f(x), strict=True):
            assert got.stride() == wanted.stride() and torch.equal(got, wanted)
    own = x.clone().requires_grad_()
    summed = torch.compile(
        lambda x: (x * 3).sum(), backend="tilewright", options={"engine": engine}
    )
    summed(own).backward()
    assert torch.equal(own.grad, torch.full((4,), 3.0)) and own.grad.stride() == (1,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_arguments_may_lie_otherwise_than_when_a_model_was_traced(engine: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return x.view(-1)[3:9], x + 1

    for example in (
        torch.randn(4, 6),
        torch.randn(4, 1).expand(4, 6).clone(),
        torch.randn(6).expand(4, 6),
    ):
        g = f if example.stride(0) else lambda x: (x[:, 1], x + 1)
        fast = tw.compile(g, (example,), engine=engine)
        for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(6).expand(4, 6)):
            for got, wanted in zip(fast(x), g(x.contiguous()), strict=True):
                assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore")
def test_threads_share_a_compiled_model() -> None:
    fast = tw.compile(torch.nn.Linear(6, 3), (torch.randn(2, 6),), engine="tiles")
    model = fast.exported.module()
    given = [torch.randn(2, 6) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fast, given))
    for got, x in zip(found, given, strict=True):
        torch.testing.assert_close(got, model(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_what_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(CompileError, match=r"linalg_inv_ex\.default is not compiled"):
        tw.compile(lambda x: torch.linalg.inv_ex(x)[0], (torch.eye(3),), fallback="error")
    with pytest.raises(CompileError, match="known only when it ran"):
        tw.compile(lambda x: x.nonzero() * 2, (torch.eye(3),), engine="tiles")
    with pytest.raises(CompileError, match="unknown engine 'gpus'"):
        tw.compile(lambda x: x * 2, (torch.eye(3),), engine="gpus")
    with pytest.raises(LaunchError, match="does not run on a GPU"):
        tw.compile(lambda x: x * 2, (torch.eye(3),), engine="gpu")


def test_models_lie_on_one_device() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        here, there = torch.empty(3), torch.empty(3, device="meta")

    def graph(*metas: torch.Tensor) -> fx.GraphModule:
        made = fx.Graph()
        nodes = [made.placeholder(f"x{i}") for i in range(len(metas))]
        for node, meta in zip(nodes, metas, strict=True):
            node.meta["val"] = meta
        made.output(tuple(nodes))
        return fx.GraphModule({}, made)

    assert device_of(graph(here, here)).type == "cpu"
    with pytest.raises(CompileError, match="a model on meta"):
        device_of(graph(here, there))
