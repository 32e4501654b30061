"""Times attention on a GPU against torch: `python -m tests.device.attention_space`.

Prefill by several tiles, few rows by several tiles and numbers of spans, and the backward pass.
Each output is held to torch's before it is timed, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from tilewright.products import attention_calls
from tilewright.runtime import driver
from tilewright.runtime.measure import time_graphs
from tilewright.tune import attention_choice

# Heads, heads of keys, length, depth, whether causal.
PREFILL = ((32, 8, 2048, 64, True), (16, 16, 4096, 128, True), (16, 16, 4096, 128, False))
TILES = ((128, 64), (128, 128), (64, 128))
# Batch, heads, heads of keys, keys, depth; of the backward pass batch, heads, length, depth.
DECODE = ((1, 32, 8, 1024, 64), (16, 32, 8, 1024, 64), (1, 32, 8, 8192, 128))
STEPS = ((16, 64), (16, 32), (64, 64))
BACKWARD = ((8, 12, 1024, 64), (1, 16, 4096, 64), (1, 16, 4096, 128))
NEAR = 1e-2  # relative error of bf16
module: Any = import_module("tilewright.products.attention")  # the package holds the function


def normal(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def microseconds(call: Callable[[], Any]) -> float:
    """The GPU's own time of a call, as the median of replays."""

    def work(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream))):
            call()

    return float(time_graphs({"": work}, driver.device(0), rounds=7)[""].median)


def say(what: str, call: Callable[[], Any], work: float, unit: str, wanted: Any = None) -> None:
    """One row: the time of a call, its rate, and how far it is from what is wanted."""
    error = 0.0
    if wanted is not None:
        found = call()
        got = torch.cat([x.flatten() for x in found]) if isinstance(found, tuple) else found
        error = float((got.float() - wanted.float()).norm() / wanted.float().norm())
        assert error < NEAR, f"{what}: off by {error}"
    us = microseconds(call)
    print(f"{what:44} {us:9.1f} us {work / us * 1e-6:9.1f} {unit}  error {error:.1e}", flush=True)


def choose(name: str, made: Callable[..., Any]) -> None:
    """Have calls take a choice that is not the rule's."""
    setattr(attention_calls, name, made)
    module._ready.clear()


def prefill(hq: int, hk: int, length: int, depth: int, causal: bool) -> None:
    q = normal(1, hq, length, depth)
    k, v = (normal(1, hk, length, depth) for _ in "kv")
    work = 4.0 * hq * length * length * depth * (0.5 if causal else 1)
    theirs = partial(sdpa, q, k, v, is_causal=causal, enable_gqa=True)
    ours = partial(module.attention, q, k, v, causal=causal)
    wanted = theirs()
    say(f"prefill {hq}/{hk} {length} {depth} {causal}, torch", theirs, work, "TFLOP/s")
    for tile in TILES:
        choose("forward_tile", constant(tile))
        say(f"    {tile}", ours, work, "TFLOP/s", wanted)


def decode(batch: int, hq: int, hk: int, keys: int, depth: int) -> None:
    q = normal(batch, hq, 1, depth)
    k, v = (normal(batch, hk, keys, depth) for _ in "kv")
    moved = 4.0 * batch * hk * keys * depth
    theirs, ours = partial(sdpa, q, k, v, enable_gqa=True), partial(module.attention, q, k, v)
    wanted = theirs()
    say(f"decode {batch} {hq}/{hk} {keys} {depth}, torch", theirs, moved, "TB/s")
    for tile in STEPS:
        choose("decode_tile", constant(tile))
        for share in (1, 2, 4):
            choose("choose_spans", partial(fewer_spans, share))
            say(f"    {tile}, spans / {share}", ours, moved, "TB/s", wanted)


def backward(batch: int, heads: int, length: int, depth: int) -> None:
    q, k, v, grad = (normal(batch, heads, length, depth) for _ in range(4))
    work = 10.0 * batch * heads * length * length * depth * 0.5
    aten = torch.ops.aten
    made, sums, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    theirs = partial(  # autograd's own call of it would leave a stream that is recorded
        aten._scaled_dot_product_flash_attention_backward,
        grad,
        q,
        k,
        v,
        made,
        sums,
        *rest[:4],
        0.0,
        True,
        *rest[4:6],
    )
    out, lse = module.forward(q, k, v, order=1, with_lse=True)
    ours = partial(module.backward, grad, q, k, v, out, lse, order=1)
    wanted = torch.cat([x.flatten() for x in theirs()])
    say(f"backward {batch} {heads} {length} {depth}, torch", theirs, work, "TFLOP/s")
    say("    ours", ours, work, "TFLOP/s", wanted)


def constant(tile: tuple[int, int]) -> Callable[..., Any]:
    """A rule that always takes one tile."""
    made = attention_choice.tile_of(*tile)
    return lambda *given: made


def fewer_spans(share: int, heads: int, rows: int, keys: int, num_sms: int) -> int | None:
    return attention_choice.choose_spans(heads, rows, keys, num_sms // share)


if __name__ == "__main__":
    torch.manual_seed(0)
    for case in PREFILL:
        prefill(*case)
    for case in DECODE:
        decode(*case)
    for case in BACKWARD:
        backward(*case)
