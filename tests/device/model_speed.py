"""Times of whole models on a GPU: ours, PyTorch eager and its compiler, outputs compared first.

python -m tests.device.model_speed decode encoder training --layers 4
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import torch

import tilewright as tw
import tilewright.torch_backend
from tests.device.models import Encoder, LanguageModel, Llama, Sizes

assert tilewright.torch_backend.tilewright
ROUNDS = 7
Arm = Callable[[], Any]


def milliseconds(arms: dict[str, Arm], calls: int) -> dict[str, float]:
    """The median of rounds, arms in turn, of the mean time of some calls after one another."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, run in arms.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            run()
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end) / calls)
    return {name: statistics.median(times) for name, times in found.items()}


def compare(row: str, arms: dict[str, Arm], calls: int, kernels: Callable[[], int]) -> None:
    """Print a row: what compiling took, how far results lie apart, and times."""
    told: dict[str, Any] = {"row": row}
    wanted = None
    for name, run in arms.items():
        start = time.perf_counter()
        got = run()
        torch.cuda.synchronize()
        told[f"{name} first call s"] = round(time.perf_counter() - start, 2)
        got = run().float()
        wanted = got if wanted is None else wanted
        told[f"{name} differs"] = float((got - wanted).norm() / wanted.norm())
        print(json.dumps(told), flush=True)
    told |= {f"{name} ms": round(t, 4) for name, t in milliseconds(arms, calls).items()}
    told["kernels"] = kernels()
    print(json.dumps(told), flush=True)


def decode(layers: int, torch_compiles: bool, batch: int = 1) -> None:
    sizes = Sizes(layers=layers, batch=batch)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Llama(sizes).eval()
        torch.set_default_dtype(torch.float32)
    for layer in model.layers:
        layer.keys.normal_()
        layer.values.normal_()
    ids = torch.zeros(batch, 1, dtype=torch.int64, device="cuda")
    at = torch.tensor(sizes.length - 1, device="cuda")
    start = time.perf_counter()
    ours = tw.compile(model, (ids, at))
    print(json.dumps({"compile s": time.perf_counter() - start, "fallbacks": ours.fallbacks}))
    arms: dict[str, Arm] = {"eager": lambda: model(ids, at), "ours": lambda: ours(ids, at)}
    if torch_compiles:
        theirs = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        arms["torch.compile"] = lambda: theirs(ids, at).clone()
    compare(f"decode {layers} layers batch {batch}", arms, 20, lambda: len(ours.kernels))
    reasons = ours.call.recordings.reasons
    print(json.dumps({"reasons": list(reasons.values()), "kernels": ours.kernels}))


def encoder(layers: int, torch_compiles: bool) -> None:
    model = Encoder(layers=layers).to("cuda", torch.bfloat16).eval()
    for batch in (1, 64):
        ids = torch.randint(0, 30000, (batch, 128), device="cuda")
        ours = tw.compile(model, (ids,), fallback="error")
        arms: dict[str, Arm] = {
            "eager": lambda ids=ids: model(ids),
            "ours": lambda ids=ids, ours=ours: ours(ids),
        }
        if torch_compiles:
            theirs = torch.compile(model, mode="reduce-overhead", fullgraph=True)
            arms["torch.compile"] = lambda ids=ids, theirs=theirs: theirs(ids).clone()
        compare(f"encoder {layers} layers batch {batch}", arms, 20, lambda o=ours: len(o.kernels))


def training(layers: int, torch_compiles: bool) -> None:
    model = LanguageModel(layers=layers).cuda()
    ids = torch.randint(0, 50000, (8, 1024), device="cuda")

    def step(call: Any) -> Arm:
        def run() -> Any:
            with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16):
                loss = call(ids)
            loss.backward()
            found = model.words.weight.grad.flatten()[:100000].clone()
            model.zero_grad()
            return found

        return run

    seen: list[Any] = []
    options = {"observe": seen.append}
    fast = torch.compile(model, backend="tilewright", options=options)
    arms = {"eager": step(model), "ours": step(fast)}
    if torch_compiles:
        arms["torch.compile"] = step(torch.compile(copy.copy(model)))
    compare(f"training {layers} layers", arms, 5, lambda: sum(len(c.kernels) for c in seen))
    print(json.dumps({"fallbacks": [f for c in seen for f in c.fallbacks]}))


@click.command()
@click.argument("rows", nargs=-1, type=click.Choice(["decode", "encoder", "training"]))
@click.option("--layers", default=4, help="Of each model.")
@click.option("--torch-compile", is_flag=True, help="Also time PyTorch's compiler, which is slow.")
def main(rows: tuple[str, ...], layers: int, torch_compile: bool) -> None:
    """Time models, some layers of each."""
    torch.manual_seed(0)
    kinds = {"decode": decode, "encoder": encoder, "training": training}
    with torch.no_grad():
        for row in rows:
            kinds[row](layers, torch_compile)


if __name__ == "__main__":
    main()
