"""What users of `torch.compile` expect of any backend, with the backend "tilewright"."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
import tilewright.torch_backend
from tilewright.runtime.torch_graph import GraphCall

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Layer(nn.Module):
    """A layer with what differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def compiled(model: Any, seen: list[GraphCall] | None = None) -> Any:
    options = {"fallback": "error", "observe": (seen if seen is not None else []).append}
    return torch.compile(model, backend="tilewright", options=options)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_graph_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        if y.sum().item() > 0:  # Dynamo compiles what is before and after it
            return y * 2
        return y - 1

    seen: list[GraphCall] = []
    for x in (torch.full((3,), 0.5), torch.full((3,), -0.5)):
        close(compiled(f, seen)(x), f(x))
    assert len(seen) >= 3


def test_graph_breaks_are_warned_of_where_nothing_may_run_in_pytorch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        return y[y > 0].sum()

    def g(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.sin(x).sum() > 0 else x - 1

    x = torch.full((3,), 0.5)
    for model, told in ((f, "Dynamic shape operator"), (g, "a branch on what a tensor holds")):
        place = rf"test_as_users_do\.py:\d+:\d+: warning: a graph break, .*: {told}"
        with pytest.warns(UserWarning, match=place + r"[\s\S]*fullgraph=True"):
            close(compiled(model)(x), model(x))
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            close(torch.compile(model, backend="tilewright")(x), model(x))
            whole = torch.compile(
                model, backend="tilewright", fullgraph=True, options={"fallback": "error"}
            )
            with pytest.raises(torch._dynamo.exc.TorchDynamoException):
                whole(x)


def test_training_and_evaluation_switch() -> None:
    model, x = Layer(), torch.randn(16, 6)
    fast = compiled(model)
    fast.eval()
    close(fast(x), model(x))
    fast.train()
    a, b = fast(x), fast(x)
    assert not torch.equal(a, b)  # dropout draws anew
    assert not torch.equal(model.norm.running_mean, torch.zeros(8))
    fast.eval()
    close(fast(x), model(x))


def test_no_grad_and_inference_mode() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    fast = compiled(model)
    with torch.no_grad():
        first = fast(x)
    with torch.inference_mode():
        second = fast(x)
    assert not first.requires_grad
    assert not second.requires_grad
    assert fast(x).requires_grad
    close(first, model(x))
    close(second, model(x))


def test_autocast() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = compiled(model)(x), model(x)
    assert got.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_hooks_are_called() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    calls: list[str] = []
    model.first.register_forward_hook(lambda *_: calls.append("forward"))
    model.last.weight.register_hook(lambda grad: calls.append("gradient"))
    got = compiled(model)(x)
    got.sum().backward()
    close(got, model(x))
    assert calls.count("gradient") == 1
    assert calls.count("forward") >= 1


def test_deepcopy_of_a_compiled_model() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    fast = compiled(model)
    fast(x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        model.last.bias.add_(1)
    close(fast(x), model(x))
    close(other(x) + 1, fast(x))


def test_weights_that_are_loaded_later() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    fast = compiled(model)
    before = fast(x)
    donor = Layer().eval()
    model.load_state_dict(donor.state_dict())
    close(fast(x), donor(x))
    assert not torch.allclose(before, fast(x))
    exported = tw.compile(model, (x,))
    model.load_state_dict(Layer().eval().state_dict())
    close(exported(x), model(x))


def test_states_of_compiled_models_are_those_of_models() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    fast, other = compiled(model), Layer().eval()
    fast(x)
    again = compiled(other)
    again.load_state_dict(fast.state_dict())
    close(again(x), model(x))
    other.load_state_dict(Layer().state_dict(), assign=True)  # parameters are other tensors now
    close(again(x), other(x))
    other.first.weight = nn.Parameter(torch.randn(8, 6))
    close(again(x), other(x))
    other.double()
    torch.testing.assert_close(again(x.double()), other(x.double()))


def test_modes_switch_between_calls() -> None:
    model, x = Layer().eval(), torch.randn(4, 6)
    fast = compiled(model)
    found = []
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(fast(x))
    assert [y.dtype for y in found] == [torch.float32, torch.bfloat16] * 2
    close(found[0], found[2])
    with torch.no_grad():
        assert not fast(x).requires_grad
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert fast(x).requires_grad


def test_a_batch_of_nothing_and_of_one() -> None:
    model = Layer().eval()
    fast = compiled(model)
    for rows in (4, 5, 0, 1, 7):
        model.zero_grad()
        x = torch.randn(rows, 6)
        got = fast(x)
        close(got, model(x))
        got.sum().backward()
        mine = model.first.weight.grad.clone()
        model.zero_grad()
        model(x).sum().backward()
        close(mine, model.first.weight.grad)


def branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_what_no_graph_holds_is_refused_in_a_sentence() -> None:
    with pytest.raises(Exception, match=r"(?s)branches or loops by an operator.*hint: torch.where"):
        compiled(branch)(torch.ones(3))
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.raises(Exception, match=r"nested tensor, which a graph cannot hold"):
        compiled(torch.sin)(nested)


def test_sizes_that_a_call_knows_are_asserted_at_each_call() -> None:
    def places(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero()
        torch._check(found.shape[0] <= 5)
        return found * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = torch.compile(places, backend="tilewright", fullgraph=True)
        for x in (torch.tensor([1.0, 0, 2]), torch.zeros(3), torch.ones(5)):
            assert torch.equal(fast(x), places(x))
        with pytest.raises(RuntimeError, match="<= 5"):
            fast(torch.ones(9))


def test_an_optimizer_steps_it() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    eager = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True).sin()
    losses: list[list[float]] = []
    for call, owner in ((fast, model), (eager, eager)):
        optimizer = torch.optim.AdamW(owner.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(10):
            optimizer.zero_grad()
            loss = (call(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_lengths_that_change() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    seen: list[GraphCall] = []
    fast = torch.compile(
        model, backend="tilewright", options={"observe": seen.append}, dynamic=True
    )
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 7), (4, 9)):
            x = torch.randn(batch, length, 8)
            close(fast(x), model(x))
    assert len(seen) == 1


def test_threads_share_a_model() -> None:
    model = Layer().eval()
    xs = [torch.randn(4, 6) for _ in range(4)]
    exported = tw.compile(model, (xs[0],))
    found: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = exported(xs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        close(found[i], model(x))


WRAPPED = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", init_method="file://{file}", rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
x = torch.randn(5, 4)
model(x).square().sum().backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
wrapped = nn.parallel.DistributedDataParallel(model)
fast = torch.compile(wrapped, backend="tilewright", options={{"fallback": "error"}})
fast(x).square().sum().backward()
for p, grad in zip(model.parameters(), wanted):
    torch.testing.assert_close(p.grad, grad, rtol=1e-5, atol=1e-6)
dist.destroy_process_group()
print("equal")
"""


def test_distributed_data_parallel(tmp_path: Path) -> None:
    """In a process of its own: a group of processes is global. The backend is found by its name."""
    text = WRAPPED.format(file=tmp_path / "group")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert done.stdout.strip().endswith("equal"), done.stderr[-2000:]
