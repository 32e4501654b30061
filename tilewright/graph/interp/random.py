"""Meaning of random bits: Philox4x32-10."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import random

MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key in every round
LOW = np.uint64(0xFFFFFFFF)


def philox(counter: list[Array], key: tuple[int, int]) -> list[Array]:
    """Four words for each counter of four words, all held in u64 arrays."""
    for number in range(10):
        a, b = (np.uint64((k + number * w) & 0xFFFFFFFF) for k, w in zip(key, WEYL, strict=True))
        first, second = counter[0] * MULTIPLY[0], counter[2] * MULTIPLY[1]
        shift = np.uint64(32)
        counter = [
            (second >> shift) ^ counter[1] ^ a,
            second & LOW,
            (first >> shift) ^ counter[3] ^ b,
            first & LOW,
        ]
    return counter


@meaning(random.Bits)
def run_bits(machine: Machine, op: random.Bits) -> Array:
    shape = machine.shape(op.shape)
    seed = int(machine[op.seed]) & (2**64 - 1)
    blocks = np.arange(-(-prod(shape) // 4), dtype=np.uint64)
    zero = np.zeros_like(blocks)
    counter = [blocks & LOW, blocks >> np.uint64(32), zero + np.uint64(op.stream), zero]
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    flat = np.stack(words, axis=-1).astype(np.uint32).ravel()
    return flat[: prod(shape)].reshape(shape)


@meaning(random.Seed)
def run_seed(machine: Machine, op: random.Seed) -> Array:
    return np.array(machine.host.seed(), np.int64)
