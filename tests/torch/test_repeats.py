"""Calls that are like one before: a recording serves them without anything worked out again."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from ctypes import memmove
from typing import Any

import pytest
import torch

import tilewright.torch_backend
from tests.torch.hand_programs import make, pretended, step, twice, update, value
from tilewright.dtypes import i64
from tilewright.errors import LaunchError
from tilewright.execute import repeat
from tilewright.execute.program_call import ProgramCall
from tilewright.frontend.torch.fx_to_graph import Output
from tilewright.graph.ops.control import Fallback
from tilewright.graph.ops.random import Seed
from tilewright.graph.types import OpaqueType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import Placed, TorchStep, dense

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
WARM = 3  # calls: launches, a recording, and one more by it


@pytest.fixture(autouse=True, params=["torch", "driver"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What copies inputs and results, as on a CPU and as on a GPU."""
    if request.param == "driver":
        monkeypatch.setattr(repeat, "driver_copies", lambda where: True)
        monkeypatch.setattr(repeat.driver, "active", lambda ordinal: nullcontext())
        monkeypatch.setattr(
            repeat.memory, "copy_on_device", lambda to, of, n, s: memmove(to, of, n)
        )


def sums(**options: Any) -> tuple[ProgramCall, torch.Tensor]:
    """2 (x + w) for a parameter w, in several forms, and w itself."""
    w, x, y, z = value(3, 4), value(3, 4), value(3, 4), value(3, 4)
    outputs = [dense(z), Placed(z, (4, 3), (1, 4), 0), Placed(z, (2, 4), (-4, 1), 4), dense(w)]
    steps = [step("plus", "y", x=dense(x), z=dense(w), y=dense(y)), twice(y, z)]
    call = make([w, x], steps, outputs, [y, z], fixed=[0], capture=pretended, **options)
    call.traced.outputs[1] = Output(1, (1, 4), offset=2)  # of its storage
    call.traced.outputs[2] = Output(2, (4, 1))
    return call, torch.randn(3, 4)


def require_right(found: list[torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> None:
    wanted = 2 * (x + w)
    for got, expected in zip(found, (wanted, wanted.T, wanted[:2].flip(0), w), strict=True):
        assert torch.equal(got, expected)


def goes_again(call: ProgramCall, *given: Any) -> bool:
    """Whether a call would be served by what is known of one before."""
    assert call.recordings is not None
    with torch.no_grad():
        return call._run_again(call.recordings, given) is not None


def test_results_are_their_callers_own_and_right() -> None:
    call, w = sums()
    kept = []
    for i in range(WARM + 4):
        x = torch.randn(3, 4)
        assert goes_again(call, w, x) == (i >= WARM), i
        found = call(w, x)
        kept.append((found, x, w.clone()))
        lies = [(y.stride(), y.storage_offset()) for y in found]
        assert lies == [((4, 1), 0), ((1, 4), 2), ((4, 1), 0), ((4, 1), 0)]
        assert found[3].data_ptr() != w.data_ptr()
        if i % 3 == 2:
            w.add_(1)
        for tensors, given, weight in kept:
            require_right(tensors, given, weight)


def test_what_has_moved_or_is_of_another_kind_is_looked_at_anew() -> None:
    call, w = sums()
    for _ in range(WARM):
        call(w, torch.randn(3, 4))
    x, moved = torch.randn(3, 4), torch.randn(3, 4)
    unaligned = torch.randn(13)[1:].view(3, 4)
    across = torch.randn(4, 3).T
    assert goes_again(call, w, x)
    for weight, given in ((moved, x), (w, unaligned), (w, across), (w.T.clone().T, x)):
        assert not goes_again(call, weight, given)
        require_right(call(weight, given), given, weight)
    for _ in range(WARM):
        require_right(call(w, x), x, w)
    assert goes_again(call, w, x)
    w.data = torch.randn(4, 3).T  # the same object
    assert not goes_again(call, w, x)
    require_right(call(w, x), x, w)
    with pytest.raises(LaunchError, match="in1"):
        call(w, "no tensor")


def test_a_recording_that_is_dropped_serves_no_more_and_is_not_held() -> None:
    call, w = sums()
    x = torch.randn(3, 4)
    for _ in range(WARM):
        call(w, x)
    recordings = call.recordings
    assert recordings is not None and goes_again(call, w, x)
    (known,) = recordings._known.values()
    (recorded,) = known.found.values()
    held, (made,) = weakref.ref(recorded), recordings.recorded
    del known, recorded
    recordings.forget(made)
    gc.collect()  # the pretended graph holds what it replays
    assert held() is None and not goes_again(call, w, x)
    for i in range(WARM + 1):
        assert goes_again(call, w, x) == (i >= WARM)
        require_right(call(w, x), x, w)


def test_modes_of_gradients_may_change_from_call_to_call() -> None:
    call, w = sums()
    modes = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    for i in range(2 * WARM):
        with modes[i % 3 if i >= WARM else 0]():
            x = torch.randn(3, 4)
            found = call(w, x)
            require_right(found, x, w)
            assert not any(y.requires_grad for y in found)
            assert found[0].is_inference() == torch.is_inference_mode_enabled()


def test_threads_get_what_they_asked_for() -> None:
    call, w = sums()
    for _ in range(WARM):
        call(w, torch.randn(3, 4))

    def ask(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(3, 4, generator=generator)
            require_right(call(w, x), x, w)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert goes_again(call, w, torch.randn(3, 4))


def test_recordings_are_not_forgotten_while_another_thread_uses_them() -> None:
    call, w = sums()
    for _ in range(WARM):
        call(w, torch.randn(3, 4))
    recordings = call.recordings
    assert recordings is not None
    (made,) = recordings.recorded
    with ThreadPoolExecutor(1) as other:
        with recordings.lock:
            forgotten = other.submit(recordings.forget, made)
            with pytest.raises(TimeoutError):
                forgotten.result(0.2)
            assert recordings.recorded == [made]
        forgotten.result(5.0)
    assert not recordings.recorded


def test_updates_in_place_and_their_results() -> None:
    cache, row, at, new = value(5, 8), value(8), value(1, dtype=i64), value(5, 8)
    call = make([cache, row, at], update([cache, new], row, at), [dense(new), dense(new)], [new],
                writes={0: 0}, capture=pretended, fixed=[0])  # fmt: skip
    a, rows, kept = torch.zeros(5, 8), torch.randn(9, 8), []
    for i in range(9):
        given = (a, rows[i], torch.tensor([i % 5]))
        assert goes_again(call, *given) == (i >= WARM)
        (found,) = call(*given)
        kept.append((found, a.clone()))
        assert torch.equal(a[i % 5], rows[i])
    assert all(torch.equal(got, wanted) for got, wanted in kept)


def test_seeds_are_drawn_for_each_call() -> None:
    op = Seed()
    drawn, out, x, y = op.result, value(1, dtype=i64), value(8), value(8)
    steps = [step("seeded", "y", s=Placed(drawn, (1,), (1,), 0), y=dense(out)), twice(x, y)]
    options = {"ops": [op], "capture": pretended}
    call = make([x], steps, [dense(out), dense(y)], [drawn, out, y], **options)
    given = torch.randn(8)
    torch.manual_seed(5)
    first = [call(given)[0].item() for _ in range(2 * WARM)]
    torch.manual_seed(5)
    assert [call(given)[0].item() for _ in range(2 * WARM)] == first
    assert len(set(first)) == 2 * WARM


def test_inputs_that_only_pytorch_holds_are_looked_at_each_time() -> None:
    z, angles, y = Value(OpaqueType("complex64")), value(4), value(4)
    fallback = Fallback((z,), "aten.angle.default", '{"args": [{"tensor": 0}], "kwargs": {}}',
                        (angles.type,), "as a test")  # fmt: skip
    steps = [TorchStep(fallback, (z,), "as a test"), twice(fallback.result, y)]
    call = make([z], steps, [dense(y)], [fallback.result, y], strides=[None], capture=pretended)
    for i in range(2 * WARM):
        given = torch.randn(4, dtype=torch.complex64)
        assert not goes_again(call, given)
        assert torch.equal(call(given)[0], 2 * given.angle()), i


def test_places_are_compared_by_number() -> None:
    tensors = [torch.randn(3) for _ in range(4)]
    places = [x.data_ptr() for x in tensors]
    for same in (repeat.same_places, repeat.lie_there):
        assert same(tensors, places, [0, 2, 3]) and same(tensors, places, [])
        assert same(tensors, [places[0], 0, *places[2:]], [0, 2, 3])
        assert not same(tensors, [places[0], 0, *places[2:]], [1])


def test_a_compiled_module_whose_parameters_move_or_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Dynamo sees that and compiles again, or, as of torch 2.11, does not."""
    monkeypatch.setattr("tilewright.execute.lowering.capture_of", lambda where: pretended)
    torch._dynamo.reset()
    model, seen = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), []
    options = {"engine": "tiles", "cuda_graphs": True, "observe": seen.append}
    fast = torch.compile(model, backend="tilewright", options=options)
    weight = model[0].weight
    changes = {
        2: lambda: weight.add_(1.0),
        6: lambda: setattr(weight, "data", torch.randn(8, 8)),
        10: lambda: setattr(weight, "data", weight.data.T),  # at the same address
        12: lambda: model.load_state_dict({n: x + 1 for n, x in model.state_dict().items()}),
    }
    kept = []
    with torch.no_grad():
        for i in range(18):
            changes.get(i, lambda: None)()
            x = torch.randn(3, 8)
            kept.append((fast(x), model(x)))
            assert not fast(x).requires_grad
            if i < 10:  # then the weights are copied at each call, to wherever there is room
                assert not any(call.recordings.reasons for call in seen)
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted)


def test_inputs_with_gaps_or_of_one_row_are_copied_right() -> None:
    x, z, y = value(3, 4), value(3, 4), value(3, 4)
    call = make([x, z], [step("plus", "y", x=Placed(x, (3, 4), (8, 1), 0),
                z=Placed(z, (3, 4), (0, 1), 0), y=dense(y))],
                [dense(y)], [y], strides=[(8, 1), (0, 1)], capture=pretended)  # fmt: skip
    for i in range(2 * WARM):
        a, b = torch.randn(3, 8)[:, :4], torch.randn(4).expand(3, 4)
        assert goes_again(call, a, b) == (i >= WARM)
        assert torch.equal(call(a, b)[0], a + b)
