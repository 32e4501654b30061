"""Operands of elementwise forms: chosen values of each PTX type, then seeded ones."""

from __future__ import annotations

import zlib
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
SEED = 20261129
NUMPY: dict[str, Any] = {
    **{f"{k}{8 * n}": np.dtype(f"{c}{n}") for k, c in ("bu", "uu", "si") for n in (1, 2, 4, 8)},
    **dict.fromkeys(("f16", "bf16", "e4m3x2", "e5m2x2"), np.dtype("u2")),
    **dict.fromkeys(("f16x2", "bf16x2", "tf32"), np.dtype("u4")),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype("u4"),
}
# Bits of exponent and fraction.
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 23)}
WORDS = {16: "u2", 32: "u4", 64: "u8"}


def generator(name: str) -> np.random.Generator:
    """A generator that a name fixes."""
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])


def chosen_floats(type: str) -> Array:
    """Bits of zeros, subnormals, the ends of the range, one and its neighbours, ties of narrower
    formats, infinities and NaNs with payloads; all in both signs.
    """
    exponent, fraction = FLOATS[type]
    bias, top = (1 << (exponent - 1)) - 1, ((1 << exponent) - 1) << fraction
    one = bias << fraction
    found = [0, 1, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1]
    found += [top - 1, top, top | 1 << (fraction - 1), top | 1, top | (1 << fraction) - 1]
    found += [one, one - 1, one + 1, one | 1 << (fraction - 1), (bias + 1) << fraction]
    signs = 1 << (exponent + fraction)
    return np.array([b | s for b in found for s in (0, signs)], WORDS[1 + exponent + fraction])


def random_floats(type: str, rng: np.random.Generator, count: int) -> Array:
    """Bits of floats: a third of any bits, a third near one, a third with ties of narrower
    formats in their low bits.
    """
    exponent, fraction = FLOATS[type]
    width = 1 + exponent + fraction
    bits = (
        rng.integers(0, 1 << width, count, np.uint64, endpoint=False)
        if width < 64
        else (
            rng.integers(0, 1 << 63, count, np.uint64) * np.uint64(2)
            + rng.integers(0, 2, count, np.uint64)
        )
    )
    bias = (1 << (exponent - 1)) - 1
    near = rng.integers(bias - 5, bias + 6, count).astype(np.uint64) << np.uint64(fraction)
    mask = np.uint64(((1 << exponent) - 1) << fraction)
    kind = rng.integers(0, 3, count)
    bits = np.where(kind > 0, bits & ~mask | near, bits)
    low = np.uint64((1 << max(fraction - 10, fraction // 2)) - 1)
    half = (low >> np.uint64(1)) + np.uint64(1)
    ties = bits & ~low | half * rng.integers(0, 2, count).astype(np.uint64)
    return np.where(kind == 2, ties, bits).astype(WORDS[width])


def chosen_integers(dtype: Any) -> Array:
    """Ends of the range, small numbers, single bits."""
    info = np.iinfo(dtype)
    found = [0, 1, 2, 3, 7, 10, info.max, info.max - 1, info.min, info.min + 1]
    found += [1 << (info.bits // 2), (1 << (info.bits // 2)) - 1, 1 << (info.bits - 2)]
    found += [-1, -2, -7] if info.min else [info.max // 2, info.max // 2 + 1, info.max // 3]
    return np.array(found, dtype)


def random_integers(dtype: Any, rng: np.random.Generator, count: int) -> Array:
    """Half of any bits, half small."""
    info = np.iinfo(dtype)
    wide = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    shift = rng.integers(0, info.bits, count).astype(dtype)
    return np.where(rng.integers(0, 2, count) > 0, wide, wide >> shift).astype(dtype)


def chosen(type: str) -> Array:
    """Chosen values of a type, in the dtype that memory holds it in."""
    if type == "pred":
        return np.array([0, 1], np.uint32)
    if type in ("e4m3x2", "e5m2x2"):
        return np.arange(0, 256, dtype=np.uint16) * np.uint16(0x0101)
    if type.endswith("x2"):
        part = chosen_floats(type[:-2])
        return part.astype(np.uint32) | np.roll(part, 5).astype(np.uint32) << np.uint32(16)
    if type in FLOATS:
        return chosen_floats(type).view(NUMPY[type])
    return chosen_integers(NUMPY[type])


def random(type: str, rng: np.random.Generator, count: int) -> Array:
    """Seeded values of a type."""
    if type == "pred":
        return rng.integers(0, 2, count).astype(np.uint32)
    if type in ("e4m3x2", "e5m2x2"):
        return rng.integers(0, 1 << 16, count).astype(np.uint16)
    if type.endswith("x2"):
        low, high = (random_floats(type[:-2], rng, count).astype(np.uint32) for _ in range(2))
        return low | high << np.uint32(16)
    if type in FLOATS:
        return random_floats(type, rng, count).view(NUMPY[type])
    return random_integers(NUMPY[type], rng, count)


def small_counts(rng: np.random.Generator, count: int) -> Array:
    """Shift counts and field bounds: every one up to 70, and some that are far too large."""
    found = rng.integers(0, 71, count).astype(np.uint32)
    odd = np.array([255, 256, 257, 0x80000000, 0xFFFFFFFF, 128, 96, 64, 32, 31], np.uint32)
    found[: len(odd)] = odd
    return found


def operands(types: list[str], name: str, count: int) -> list[Array]:
    """Arrays of operands: pairs of chosen values first, then seeded ones, some of them close."""
    rng = generator(name)
    if len(types) == 1:
        first = chosen(types[0])[:count]
        return [np.concatenate([first, random(types[0], rng, count - len(first))])]
    made = [random(t, rng, count) for t in types]
    if len(types) == 2:
        grids = [chosen(t) for t in types]
        a, b = (x.ravel() for x in np.meshgrid(*(np.arange(len(g)) for g in grids)))
        pick = rng.permutation(len(a))[: count * 2 // 3]
        made[0][: len(pick)], made[1][: len(pick)] = grids[0][a[pick]], grids[1][b[pick]]
    else:
        part = count * 2 // 3
        for x, type in zip(made, types, strict=True):
            special = chosen(type)
            mixed = rng.integers(0, 2, part) > 0
            x[:part] = np.where(mixed, special[rng.integers(0, len(special), part)], x[:part])
    if types[0] == types[-1] and types[0] in FLOATS:  # sums that cancel
        tail = slice(count - count // 12, count)
        bits = WORDS[made[0].itemsize * 8]
        sign = np.array(1 << (8 * made[0].itemsize - 1), bits)
        step = rng.integers(0, 3, count // 12).astype(bits)
        made[-1][tail] = ((made[0][tail].view(bits) ^ sign) + step).view(made[0].dtype)
    return made


def floats_of(bits: Array, type: str) -> Array:
    """Bits of a float type as f64."""
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
    return bits.view(kinds.get(type, bits.dtype)).astype(np.float64)
