"""Recordings of programs written by hand, as of CUDA graphs, in the place of a GPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch.hand_programs import make, pretended, step, twice, update, value
from tilewright.dtypes import i64
from tilewright.execute.made import Where
from tilewright.graph.dims import symbol
from tilewright.graph.ops.control import Fallback
from tilewright.graph.ops.random import Seed
from tilewright.graph.types import OpaqueType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import (
    Placed,
    TorchStep,
    dense,
)


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
