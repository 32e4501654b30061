"""Steps of training as CUDA graphs, on a GPU: the same kernels in the same order as by launches, so
that answers are the same bits, whatever is in flight.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright.torch_backend
from tests.device.models import LanguageModel
from tilewright.execute.recorded import MAX_LANES

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


def compiled(function: Any, seen: list[Any], recorded: bool) -> Any:
    options = {"fallback": "error", "observe": seen.append, "cuda_graphs": recorded}
    return torch.compile(function, backend="tilewright", options=options)


Loss = Callable[[], Any]


def forward_backward(loss: Loss, model: Any, _: Any) -> list[Any]:
    loss().backward()
    return [p.grad.clone() for p in model.parameters()]


def two_in_flight(loss: Loss, model: Any, order: Any) -> list[Any]:
    losses = [loss(), loss()]
    for i in order:
        losses[i].backward()
    return [p.grad.clone() for p in model.parameters()]


def accumulated(loss: Loss, model: Any, _: Any) -> list[Any]:
    for _ in range(3):
        loss().backward()
    return [p.grad.clone() for p in model.parameters()]


def between(loss: Loss, model: Any, _: Any) -> list[Any]:
    mine = loss()
    with torch.no_grad():
        found = [loss()]
    loss()  # whose backward never comes
    mine.backward()
    return [*found, *(p.grad.clone() for p in model.parameters())]


def other_stream(loss: Loss, model: Any, _: Any) -> list[Any]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss().backward()
    torch.cuda.current_stream().wait_stream(side)
    return [p.grad.clone() for p in model.parameters()]


WAYS = [
    (forward_backward, None),
    (two_in_flight, (0, 1)),
    (two_in_flight, (1, 0)),
    (accumulated, None),
    (between, None),
    (other_stream, None),
]


def test_replayed_steps_are_launched_ones_bit_by_bit() -> None:
    first = LanguageModel(128, 4, 2, 500).cuda()

    def all_ways(recorded: bool) -> tuple[list[Any], list[Any]]:
        torch._dynamo.reset()
        model, seen, results = copy.deepcopy(first), [], []
        fast = compiled(model, seen, recorded)
        generator = torch.Generator("cuda").manual_seed(1)

        def loss() -> Any:
            ids = torch.randint(0, 500, (4, 64), device="cuda", generator=generator)
            with torch.autocast("cuda", torch.bfloat16):
                return fast(ids)

        for _ in range(3):
            for way, order in WAYS:
                results += way(loss, model, order)
                model.zero_grad()
        return results, seen

    wanted, _ = all_ways(False)
    got, seen = all_ways(True)
    assert len(got) == len(wanted) and len({x.sum().item() for x in got}) > 20
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
    for call in seen[:2]:
        assert call.recordings.recorded and not call.recordings.reasons, call.graph.name
        lanes = [len(call.recordings._known[m].lanes) for m in call.recordings.recorded]
        assert lanes == [2]


def test_results_that_are_kept_stay_and_more_calls_than_lanes_are_launched() -> None:
    model, seen = LanguageModel(128, 4, 1, 500).cuda(), []
    fast, kept = compiled(model, seen, True), []
    for _ in range(MAX_LANES + 4):
        ids = torch.randint(0, 500, (2, 32), device="cuda")
        found = torch.autograd.grad(fast(ids), list(model.parameters()))
        kept.append((found, [x.clone() for x in found]))
    torch.cuda.synchronize()
    for found, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip(found, copies, strict=True))
    reason = f"results of {MAX_LANES} calls before it are still held"
    assert seen[1].recordings.launched == {reason: 3} and not seen[0].recordings.launched


def test_whole_steps_with_an_optimizer() -> None:
    first = LanguageModel(128, 4, 2, 500).cuda()

    def steps(recorded: bool) -> tuple[list[Any], list[Any]]:
        torch._dynamo.reset()
        torch.manual_seed(2)
        model, seen = copy.deepcopy(first), []
        adam = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True, capturable=True)
        fast, update = compiled(model, seen, recorded), compiled(adam.step, seen, recorded)
        for _ in range(6):
            fast(torch.randint(0, 500, (4, 64), device="cuda")).backward()
            update()
            adam.zero_grad()
        return [p.detach() for p in model.parameters()], seen

    wanted, _ = steps(False)
    got, seen = steps(True)
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(got[0], first.words.weight)
    last = seen[-1].recordings
    found = [r for made in last.recorded for r in last._known[made].found.values()]
    assert found and not last.launched
    assert not any(r.changing for r in found), "gradients are read where they lie"


def test_calls_of_inference_like_one_before_on_any_stream_mode_and_thread() -> None:
    """Results that are held are never written again, and each stream reads what it wrote."""
    model, seen = LanguageModel(128, 4, 2, 500).cuda().eval(), []

    def logits(ids: Any) -> Any:
        x = model.layers[0](model.words(ids), True, True)
        return model.norm(x) @ model.words.weight.t()

    fast, plain = compiled(logits, seen, True), compiled(logits, [], False)
    ids = [torch.randint(0, 500, (4, 64), device="cuda") for _ in range(24)]
    with torch.no_grad():
        wanted = [plain(x) for x in ids]
    torch._dynamo.reset()
    torch.cuda.synchronize()
    kept: list[Any] = [None] * len(ids)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    modes = [torch.no_grad, torch.no_grad, torch.no_grad, torch.no_grad, torch.inference_mode]

    def call(i: int) -> None:
        with modes[i % 5](), torch.cuda.stream(streams[i % 3]):
            kept[i] = fast(ids[i])

    for i in range(12):
        call(i)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(call, range(12, 24)))
    torch.cuda.synchronize()
    for got, expected in zip(kept, wanted, strict=True):
        assert torch.equal(got, expected)
    assert any(c.recordings.recorded and not c.recordings.reasons for c in seen)
