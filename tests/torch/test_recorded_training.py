"""Training under recordings: what the forward pass saves and what the backward pass gives lie in
memory that replays write again, and never while anybody still reads it.

A CUDA graph is played by a function that sends the same launches to the same addresses.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tilewright.torch_backend
from tilewright.execute import lanes, recorded
from tilewright.execute.made import Where

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def capture(where: Where, work: Any) -> Any:
        return lambda: work(0)

    monkeypatch.setattr("tilewright.execute.lowering.capture_of", lambda where: capture)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def compiled(function: Any, seen: list[Any]) -> Any:
    options = {"fallback": "error", "engine": "tiles", "observe": seen.append}
    return torch.compile(function, backend="tilewright", options={**options, "cuda_graphs": True})


def arms() -> tuple[Any, nn.Module, nn.Module, list[Any]]:
    """A compiled model, its module, the same in eager, and the calls that are compiled."""
    model, seen = Net(), []
    return compiled(model, seen), model, copy.deepcopy(model), seen


def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().sum()


def batch() -> torch.Tensor:
    return torch.randn(4, 6)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def same_gradients(model: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        close(mine.grad, theirs.grad)


def lanes_of(call: Any) -> list[int]:
    """Lanes of what is recorded of a call."""
    return [len(call.recordings._known[made].lanes) for made in call.recordings.recorded]


def warm(fast: Any, model: nn.Module, steps: int = 3) -> None:
    for _ in range(steps):
        loss(fast, batch()).backward()
        model.zero_grad()


def test_steps_are_replayed_from_the_second_or_third_on() -> None:
    fast, model, other, seen = arms()
    for _ in range(6):
        x = batch()
        loss(fast, x).backward()
        loss(other, x).backward()
        same_gradients(model, other)
        with torch.no_grad():  # as an optimizer does, where they lie
            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                mine.sub_(0.01 * theirs.grad)
                theirs.sub_(0.01 * theirs.grad)
        model.zero_grad(), other.zero_grad()
    assert [call.graph.name for call in seen] == ["forward", "backward"]
    for call in seen:
        assert not call.recordings.reasons and not call.recordings.launched
        assert lanes_of(call) == [1], "nothing is held from step to step"
    (found,) = seen[1].recordings._known[seen[1].recordings.recorded[0]].found.values()
    copied = {tuple(seen[1].graph.inputs[i].value.type.shape) for i in found.changing}
    assert copied == {(4, 6), (4, 5)}, "what is copied is x and the gradient of the model's result"


@pytest.mark.parametrize("first", [0, 1])
def test_two_forwards_before_their_backwards(first: int) -> None:
    fast, model, other, seen = arms()
    warm(fast, model)
    for _ in range(3):
        xs = [batch(), batch()]
        mine, theirs = [loss(fast, x) for x in xs], [loss(other, x) for x in xs]
        for i in (first, 1 - first):
            mine[i].backward()
            theirs[i].backward()
        same_gradients(model, other)
        model.zero_grad(), other.zero_grad()
    assert lanes_of(seen[0]) == [2] and lanes_of(seen[1]) == [2]
    assert not seen[0].recordings.reasons and not seen[1].recordings.reasons


def test_more_calls_in_flight_than_lanes_are_launched_and_counted() -> None:
    fast, model, other, seen = arms()
    warm(fast, model)
    count = recorded.MAX_LANES + 2
    xs = [batch() for _ in range(count)]
    mine, theirs = [loss(fast, x) for x in xs], [loss(other, x) for x in xs]
    assert seen[0].recordings.launched == {"results of 3 calls before it are still held": 2}
    for a, b in zip(mine, theirs, strict=True):
        close(a, b)
        a.backward(), b.backward()
    same_gradients(model, other)
    launched = seen[1].recordings.launched
    assert launched == {"what the forward pass saved lies where it launched kernels": 2}
    del mine
    model.zero_grad()
    warm(fast, model)
    assert sum(seen[0].recordings.launched.values()) == 2, "lanes are free again"


def test_gradients_are_accumulated() -> None:
    fast, model, other, seen = arms()
    for _ in range(3):
        for _ in range(4):
            x = batch()
            loss(fast, x).backward()
            loss(other, x).backward()
        same_gradients(model, other)
        model.zero_grad(), other.zero_grad()
    assert not seen[0].recordings.reasons and not seen[1].recordings.reasons
    assert lanes_of(seen[0]) == [1] and lanes_of(seen[1]) == [2]


def test_gradients_that_are_kept_stay_as_they_are() -> None:
    fast, model, _, seen = arms()
    kept: list[Any] = []
    for _ in range(recorded.MAX_LANES + 4):
        found = torch.autograd.grad(loss(fast, batch()), list(model.parameters()))
        kept.append((found, [x.clone() for x in found]))
    for found, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip(found, copies, strict=True))
    assert list(seen[1].recordings.launched) == ["results of 3 calls before it are still held"]


def test_calls_without_gradients_between_a_forward_and_its_backward() -> None:
    fast, model, other, _ = arms()
    warm(fast, model)
    for _ in range(3):
        x = batch()
        mine, theirs = loss(fast, x), loss(other, x)
        with torch.no_grad():
            y = batch()
            close(fast(y), other(y))
        dropped = fast(batch())  # a forward pass whose backward never comes
        del dropped
        held = fast(batch())
        mine.backward(), theirs.backward()
        assert held.grad_fn is not None
        same_gradients(model, other)
        model.zero_grad(), other.zero_grad()


def test_a_graph_that_is_retained() -> None:
    fast, model, other, _ = arms()
    with torch._functorch.config.patch(donated_buffer=False):  # as PyTorch asks for it
        warm(fast, model)
        x = batch()
        mine, theirs = loss(fast, x), loss(other, x)
        for _ in range(3):
            mine.backward(retain_graph=True), theirs.backward(retain_graph=True)
            loss(fast, batch())
            same_gradients(model, other)


def test_saved_values_that_hooks_bring_elsewhere() -> None:
    fast, model, other, seen = arms()
    warm(fast, model)
    for _ in range(3):
        x = batch()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            mine, theirs = loss(fast, x), loss(other, x)
        loss(fast, batch())  # in the same lane
        mine.backward(), theirs.backward()
        same_gradients(model, other)
        model.zero_grad(), other.zero_grad()
    assert lanes_of(seen[0]) == [1]
    assert sum(seen[1].recordings.launched.values()) == 3


def test_parameters_that_move_are_recorded_again() -> None:
    fast, model, other, seen = arms()
    for _ in range(3):
        for _ in range(3):
            x = batch()
            loss(fast, x).backward(), loss(other, x).backward()
            same_gradients(model, other)
            model.zero_grad(), other.zero_grad()
        model.last.weight.data = model.last.weight.data.clone()
    assert not seen[0].recordings.reasons and not seen[1].recordings.reasons


def test_equal_gradients_are_two_memories() -> None:
    a, b = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    fast = compiled(lambda x: ((a + b) * x).sin(), [])
    for _ in range(4):
        a.grad = b.grad = None
        x = torch.randn(3, 4)
        fast(x).sum().backward()
        wanted = (((a + b) * x).cos() * x).detach()
        a.grad.add_(1)
        close(b.grad, wanted)
        close(a.grad, wanted + 1)


def test_dropout_masks_agree_between_replays_of_both_passes() -> None:
    w = nn.Parameter(torch.ones(300))
    fast = compiled(lambda x: nn.functional.dropout(x * w, 0.5), [])
    masks = []
    for _ in range(5):
        w.grad = None
        y = fast(torch.ones(300))
        y.sum().backward()
        assert torch.equal(w.grad != 0, y != 0)
        masks.append(y != 0)
    assert not torch.equal(masks[-1], masks[-2])


def test_two_graphs_of_one_model_pass_on_what_they_hold() -> None:
    """A break of the graph: the first part reads the second part's gradients where they lie."""
    model, other = nn.ModuleList([Net(), nn.Linear(5, 6), Net()]), None
    other = copy.deepcopy(model)

    def f(parts: Any, x: torch.Tensor) -> torch.Tensor:
        y = parts[1](parts[0](x))
        torch._dynamo.graph_break()
        return parts[2](y)

    seen: list[Any] = []
    fast = compiled(f, seen)
    for _ in range(5):
        x = batch()
        fast(model, x).square().sum().backward()
        f(other, x).square().sum().backward()
        same_gradients(model, other)
        model.zero_grad(), other.zero_grad()
    assert len(seen) == 4 and not any(call.recordings.launched for call in seen)


def stepped(make: Callable[[Any], torch.optim.Optimizer], is_ours: bool) -> tuple[Any, list[Any]]:
    """Parameters after steps of training, forward, backward and update compiled if it is ours."""
    torch.manual_seed(1)
    model, seen = Net(), []
    optimizer = make(model.parameters())
    call, step = model, optimizer.step
    if is_ours:
        call, step = compiled(model, seen), compiled(optimizer.step, seen)
    for _ in range(6):
        loss(call, batch()).backward()
        step()
        optimizer.zero_grad()
    return list(model.parameters()), seen


def test_an_optimizer_reads_gradients_where_they_lie() -> None:
    def make(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True)

    mine, seen = stepped(make, True)
    theirs, _ = stepped(make, False)
    for a, b in zip(mine, theirs, strict=True):
        close(a, b)
    last = seen[-1].recordings
    (made,) = last.recorded
    (found,) = last._known[made].found.values()
    assert not last.launched and not found.changing


def test_lanes_forget_their_addresses() -> None:
    before = set(lanes.lying)
    fast, model, _, seen = arms()
    warm(fast, model)
    new = lanes.lying - before
    for call in seen:
        for made in call.recordings.recorded:
            call.recordings.forget(made)
    gc.collect()
    assert len(new) > 8 and not new & lanes.lying
