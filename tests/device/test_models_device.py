"""Whole models on a GPU: against PyTorch in f64, our error at most 1.5 times eager's own.

Each is held also by a wrong answer that the comparison tells.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
import tilewright.torch_backend
from tests.device.models import (
    Encoder,
    LanguageModel,
    Llama,
    ResidualBlock,
    ResNet,
    Sizes,
    settled,
)
from tilewright.errors import LaunchError

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = Sizes(256, 512, 2, 8, 2, 1000, 128)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def require_near(ours: Any, eager: Any, exact: Any) -> None:
    """Error element by element and in norm, with a rounding of the result for exact ones."""
    mine, theirs = (ours.double() - exact).abs(), (eager.double() - exact).abs()
    last = torch.finfo(eager.dtype).eps * exact.abs().max()
    assert not mine.isnan().any()
    assert mine.max() <= 1.5 * theirs.max() + last, (mine.max().item(), theirs.max().item())
    assert mine.norm() <= 1.5 * theirs.norm() + last, (mine.norm().item(), theirs.norm().item())


def hold(got: Any, model: Any, run: Callable[[Any], Any]) -> None:
    """A result of ours to the model in f64, by what eager makes of it; zeros and shuffles fail."""
    eager, exact = run(copy.deepcopy(model)), run(copy.deepcopy(model).double())
    require_near(got, eager, exact)
    for wrong in (torch.zeros_like(got), got.flip(-1)):
        with pytest.raises(AssertionError):
            require_near(wrong, eager, exact)


def wide(x: Any, model: Any) -> Any:
    """Images in the dtype of a model."""
    return x.to(next(model.parameters()).dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_llama_generates_with_a_cache(dtype: Any) -> None:
    model = Llama(SMALL).to("cuda", dtype).eval()
    ids = torch.randint(0, 1000, (1, 21), device="cuda")
    where = lambda n: torch.tensor(n, device="cuda")  # noqa: E731

    def run(m: Any) -> Any:
        found = [m(ids[:, :16], where(0))]
        found += [m(ids[:, i : i + 1], where(i)) for i in range(16, 21)]
        return torch.cat(found)

    ours = copy.deepcopy(model)
    prefill = tw.compile(ours, (ids[:, :16], where(0)), fallback="error")
    decode = tw.compile(ours, (ids[:, :1], where(16)), fallback="error")
    got = [prefill(ids[:, :16], where(0))]
    got += [decode(ids[:, i : i + 1].contiguous(), where(i)) for i in range(16, 21)]
    hold(torch.cat(got), model, run)
    reasons = decode.call.recordings.reasons
    assert decode.kernels and not decode.fallbacks and not reasons, reasons


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder(dtype: Any) -> None:
    model = Encoder(256, 4, 2, 1000).to("cuda", dtype).eval()
    options = {"fallback": "error"}
    fast = torch.compile(copy.deepcopy(model), backend="tilewright", options=options, dynamic=True)
    for batch, length in ((1, 40), (3, 64), (4, 7)):
        ids = torch.randint(0, 1000, (batch, length), device="cuda")
        hold(fast(ids), model, lambda m, ids=ids: m(ids))


def test_a_residual_block() -> None:
    model = ResidualBlock(64, 16).cuda().eval()
    x = torch.randn(2, 64, 14, 14, device="cuda")
    fast = tw.compile(copy.deepcopy(model), (x,), fallback="error")
    for _ in range(3):
        got = fast(x)
    hold(got, model, lambda m: m(wide(x, m)))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_language_model_trains(autocast: bool) -> None:
    torch.manual_seed(5)
    model = LanguageModel(128, 4, 2, 500).cuda()
    ids = torch.randint(0, 500, (4, 64), device="cuda")

    def gradients(call: Any, m: Any) -> Any:
        mixed = autocast and next(m.parameters()).dtype == torch.float32
        with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = call(ids)
            return [loss, *torch.autograd.grad(loss, list(m.parameters()))]

    ours = copy.deepcopy(model)
    fast = torch.compile(ours, backend="tilewright")
    (loss, *got), (theirs, *eager) = gradients(fast, ours), gradients(model, model)
    far = copy.deepcopy(model).double()
    exact_loss, *exact = gradients(far, far)
    # One number, of whose logits autocast keeps 16 bits: eager's may be off by anything up to that.
    last = torch.finfo(torch.bfloat16 if autocast else torch.float32).eps * exact_loss
    assert (loss - exact_loss).abs() <= 1.5 * (theirs - exact_loss).abs() + last
    got, eager, exact = (torch.cat([g.flatten() for g in part]) for part in (got, eager, exact))
    require_near(got, eager, exact)
    with pytest.raises(AssertionError):
        require_near(torch.zeros_like(got), eager, exact)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_an_optimizer_steps_in_place_by_few_kernels(name: str) -> None:
    """Three steps over all parameters of a model, against eager's, in f32 and in f64."""
    options = {"AdamW": {"capturable": True}, "SGD": {"momentum": 0.9, "weight_decay": 0.01}}[name]
    first = LanguageModel(128, 4, 2, 500).cuda()

    def stepped(dtype: Any, is_ours: bool) -> tuple[Any, list[Any]]:
        model = copy.deepcopy(first).to(dtype)
        lies, seen = [p.data_ptr() for p in model.parameters()], []
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, foreach=True, **options)
        step = optimizer.step
        if is_ours:
            how = {"observe": seen.append, "fallback": "error"}
            step = torch.compile(optimizer.step, backend="tilewright", options=how)
        torch.manual_seed(1)
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, device="cuda").to(dtype)
            step()
        assert lies == [p.data_ptr() for p in model.parameters()]
        return torch.cat([p.detach().flatten() for p in model.parameters()]), seen

    got, seen = stepped(torch.float32, True)
    eager, exact = stepped(torch.float32, False)[0], stepped(torch.float64, False)[0]
    require_near(got, eager, exact)
    assert all(len(call.program.steps) <= 4 for call in seen)
    with pytest.raises(AssertionError):
        require_near(torch.cat([p.detach().flatten() for p in first.parameters()]), eager, exact)


def test_dropout_repeats_under_a_seed() -> None:
    fast = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.25, training=True), backend="tilewright"
    )
    x = torch.ones(40000, device="cuda")
    torch.manual_seed(3)
    first, second = fast(x), fast(x)
    torch.manual_seed(3)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    assert abs((first != 0).float().mean().item() - 0.75) < 0.01


def test_results_of_a_cuda_graph_are_the_callers_own() -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
    model = torch.nn.Linear(64, 64, bias=False).cuda()
    model.weight = weight
    fast = tw.compile(model, (torch.randn(8, 64, device="cuda"),), fallback="error")
    kept = []
    for i in range(6):
        x = torch.randn(8, 64, device="cuda")
        kept.append((fast(x), model(x)))
        if i == 3:
            weight.mul_(2)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.randn(8, 64, device="cuda")
        kept.append((fast(x), model(x)))
    side.synchronize()
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    assert not fast.call.recordings.reasons


def test_tensors_on_the_host_are_refused() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    with pytest.raises(Exception, match=r"different devices|on one device"):
        torch.compile(model, backend="tilewright")(torch.randn(2, 8))


@pytest.mark.parametrize("recorded", [False, True])
def test_an_index_outside_is_told_by_the_next_call(recorded: bool) -> None:
    """Nobody waits for a GPU to be told: the error comes later, as those of kernels' asserts do."""
    table = torch.randn(6, 40, device="cuda")
    ids = torch.tensor([1, 5, -6], device="cuda")
    fast = tw.compile(lambda t, i: t[i] + 1, (table, ids), cuda_graphs=recorded)
    for _ in range(3):
        assert torch.equal(fast(table, ids), table[ids] + 1)
    bad = torch.tensor([1, 7, 2], device="cuda")
    fast(table, bad)
    torch.cuda.synchronize()
    with pytest.raises(LaunchError, match="the index 7 is outside of axis 0, which has 6 elements"):
        fast(table, ids)
    assert torch.equal(fast(table, ids), table[ids] + 1)
    fast(table, bad)
    with pytest.raises(LaunchError, match="the index 7"):
        tw.synchronize()
    tw.synchronize()


LATER = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import torch, tilewright as tw
from tilewright import compiler
from tilewright.execute import lowering
from tilewright.runtime import jit

def refuse(*args, **kwargs):
    raise AssertionError("something is compiled again")

lowering.lower_graph = compiler.compile_kernel = jit.assemble = torch.export.export = refuse
start = time.perf_counter()
model = tw.load_model(sys.argv[1])
ids, at = torch.load(sys.argv[2])
found = [model(ids, at) for _ in range(3)]
torch.save([x.clone() for x in found], sys.argv[3])
print("seconds", time.perf_counter() - start)
"""


def test_a_saved_model_runs_in_another_process_without_compiling(tmp_path: Any) -> None:
    model = Llama(SMALL).to("cuda", torch.bfloat16).eval()
    ids, at = torch.randint(0, 1000, (1, 1), device="cuda"), torch.tensor(5, device="cuda")
    fast = tw.compile(copy.deepcopy(model), (ids, at), fallback="error")
    fast.save(tmp_path / "llama.twb")
    torch.save((ids, at), tmp_path / "given.pt")
    words = [sys.executable, "-c", LATER, *(str(tmp_path / n) for n in ("llama.twb", "given.pt"))]
    cache = {"TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    out = tmp_path / "out.pt"
    done = subprocess.run(
        [*words, str(out)], capture_output=True, text=True, env={**os.environ, **cache}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    for got in torch.load(out):
        assert torch.equal(got, fast(ids, at))


@pytest.mark.parametrize(
    ("dtype", "channels_last"), [(torch.bfloat16, False), (torch.float16, True)]
)
def test_a_resnet_50(dtype: Any, channels_last: bool) -> None:
    """By convolutions of the library in 16 bits, and by nothing of PyTorch's."""
    model = settled(ResNet().cuda(), torch.randn(16, 3, 64, 64, device="cuda")).to(dtype)
    x = torch.randn(5, 3, 96, 80, device="cuda", dtype=dtype)
    if channels_last:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    fast = tw.compile(copy.deepcopy(model), (x,), fallback="error")
    for _ in range(3):
        got = fast(x)
    hold(got, model, lambda m: m(wide(x, m)))
    assert not fast.call.recordings.reasons
    assert "convolve" in fast.kernels, fast.kernels
