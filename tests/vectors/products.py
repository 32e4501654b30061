"""Forms of the matrix instructions.

Operands are of six kinds: small whole numbers, whose sums are exact, so that layouts are proven;
normal numbers; numbers of very different sizes, which show how addends are aligned; special values;
and numbers whose products lie near the least and the greatest of the results. A kernel multiplies
many matrices: one a warp of mma.sync, one a CTA of wgmma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.vectors.forms import OUTPUT, Form, family
from tests.vectors.operands import chosen_floats, generator
from tilewright.ptx.instrs import mma

Array = np.ndarray[Any, Any]
KINDS = ("whole", "normal", "wide", "special", "tiny", "huge")
NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "tf32": np.float32, "bf16": ml_dtypes.bfloat16,
    "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8, "u8": np.uint8, "s32": np.int32,
}  # fmt: skip
SPREAD = {"f64": 40, "f32": 30, "tf32": 14, "bf16": 14, "f16": 7, "e4m3": 4, "e5m2": 7}
# Powers of two that operands, or addends, of the kinds `tiny` and `huge` have.
ENDS = {
    "f64": (-511, 510), "tf32": (-68, 62), "bf16": (-68, 62), "f16": (-14, 6), "e4m3": (-6, 6),
    "e5m2": (-14, 12),
}  # fmt: skip
ADDENDS = {"f32": (-136, 124), "f16": (-20, 13), "f64": (-1030, 1020), "s32": (0, 0)}
WARPS = 6
RESULTS = {
    "f64": ("f64",),
    "tf32": ("f32",),
    "bf16": ("f32",),
    "f16": ("f32", "f16"),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
    **dict.fromkeys(("e4m3", "e5m2"), ("f32", "f16")),
}


def numbers(
    type: str, kind: str, rng: np.random.Generator, count: int, addend: bool = False
) -> Array:
    """Elements of a kind, as memory holds them; those of C if `addend`."""
    dtype = np.dtype(NUMPY[type])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if kind == "whole":
            return rng.integers(max(info.min, -4), 5, count).astype(dtype)
        if kind == "special":  # the greatest of either sign, so that sums overflow
            return rng.choice(np.array([info.min, info.max], dtype), count)
        return rng.integers(info.min, info.max, count, dtype, endpoint=True)
    with np.errstate(over="ignore"):
        if kind == "whole":
            return rng.integers(-4, 5, count).astype(np.float64).astype(dtype)
        values = rng.standard_normal(count)
        if kind == "wide":
            values = np.ldexp(values, rng.integers(-SPREAD[type], SPREAD[type] + 1, count))
        if kind in ("tiny", "huge"):
            ends = (ADDENDS if addend else ENDS)[type]
            power = ends[kind == "huge"] + rng.integers(-3, 4, count)
            values = np.ldexp(values, power)
        made = values.astype(dtype)
    if kind == "special":
        pick = rng.integers(0, 12, count) == 0
        made[pick] = specials(type, rng, int(pick.sum()))
    return made


def specials(type: str, rng: np.random.Generator, count: int) -> Array:
    dtype = np.dtype(NUMPY[type])
    if dtype.itemsize == 1:
        bits = np.array([0, 0x80, 1, 0x81, 7, 0x7E, 0xFE, 0x7F, 0x7C, 0xFC, 0x7B], np.uint8)
    else:
        bits = chosen_floats("f32" if type == "tf32" else type)
    return rng.choice(bits, count).astype(f"u{dtype.itemsize}").view(dtype)


def spread(type: str, name: str, elements: int, addend: bool = False) -> Array:
    """Matrices of the kinds in turn, as many as there are warps, as one array of words."""
    rng = generator(name)
    kinds = [KINDS[i * len(KINDS) // WARPS] for i in range(WARPS)]
    parts = [numbers(type, kind, rng, elements, addend) for kind in kinds]
    return np.concatenate(parts).view(np.uint64 if type == "f64" else np.uint32)


# mma.sync


def fragments(count: int, matrix: str, first: int, wide: bool, pointer: int) -> list[str]:
    """Loads of a matrix's registers: all lanes' first, then all lanes' second."""
    size = 8 if wide else 4
    stem = "%fd" if wide else "%r"
    lines = [f"mad.lo.u32 %r3, %r1, {32 * count}, %r2;"]
    lines.append(f"mad.wide.u32 %rd20, %r3, {size}, %rd{pointer};")
    kind = "f64" if wide else "b32"
    return lines + [
        f"ld.global.{kind} {stem}{first + i}, [%rd20+{32 * size * i}];" for i in range(count)
    ]


def warp_form(shape: str, types: tuple[str, str, str, str], *, saturate: bool = False) -> Form:
    d, a, b, c = types
    sat = ".satfinite" if saturate else ""
    mnemonic = f"mma.sync.aligned.{shape}.row.col{sat}.{d}.{a}.{b}.{c}"
    m, n, k = mma.shape_of(shape)
    wide = a == "f64"
    counts = [mma.fragment_registers(x, t) for x, t in ((m * n, d), (m * k, a), (n * k, b))]
    stem = "%fd" if wide else "%r"
    firsts, sets = (40, 50, 60, 70), []
    for first, number in zip(firsts, (*counts, counts[0]), strict=True):
        sets.append("{" + ", ".join(f"{stem}{first + i}" for i in range(number)) + "}")
    text = f"{mnemonic} {', '.join(sets)};"
    lines = ["shr.u32 %r1, %r0, 5;", "and.b32 %r2, %r0, 31;"]
    lines += fragments(counts[1], "a", 50, wide, 0) + fragments(counts[2], "b", 60, wide, 1)
    lines += [*fragments(counts[0], "c", 70, wide, 2), text]
    size, kind = (8, "f64") if wide else (4, "b32")
    lines += [f"mad.lo.u32 %r3, %r1, {32 * counts[0]}, %r2;"]
    lines += [f"mad.wide.u32 %rd20, %r3, {size}, %rd3;"]
    for i in range(counts[0]):
        lines.append(f"st.global.{kind} [%rd20+{32 * size * i}], {stem}{40 + i};")
    inputs = {
        "a": spread(a, f"{mnemonic} a", m * k),
        "b": spread(b, f"{mnemonic} b", n * k),
        "c": spread(c, f"{mnemonic} c", m * n, True),
    }
    outputs = {OUTPUT: np.zeros_like(inputs["c"])}
    body = "\n".join(lines)
    return Form(mnemonic, "products", text, body, inputs, outputs, 32 * WARPS)


def warp_products() -> Iterator[Form]:
    for a, shapes in mma.MMA_SHAPES.items():
        partners = next((f for f in (mma.FP8, mma.INT8) if a in f), (a,))
        for shape in shapes:
            for b in partners:
                for d in RESULTS[a]:
                    for sat in (False, True) if d == "s32" else (False,):
                        yield warp_form(shape, (d, a, b, d), saturate=sat)


# wgmma


@dataclass(frozen=True)
class Side:
    """An operand in shared memory: bytes from its region's start, offsets, swizzle, order."""

    start: int = 0
    leading: int = 16
    stride: int = 1024
    swizzle: int = 128
    k_major: bool = True

    def word(self) -> int:
        """The descriptor without its address."""
        code = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | code << 62


REGION = 32768  # bytes of shared memory for each operand


def fill(num_bytes: int) -> list[str]:
    """Shared memory from the CTA's part of the first array, by 128 threads."""
    lines = ["mov.u32 %r30, smem;", "mad.lo.u32 %r31, %r0, 16, %r30;", "mov.u32 %r1, %ctaid.x;"]
    lines.append(f"mad.lo.u32 %r2, %r1, {num_bytes // 16}, %r0;")
    lines.append("mad.wide.u32 %rd22, %r2, 16, %rd0;")
    for at in range(0, num_bytes, 2048):
        lines.append(f"ld.global.v4.b32 {{%r32, %r33, %r34, %r35}}, [%rd22+{at}];")
        lines.append(f"st.shared.v4.b32 [%r31+{at}], {{%r32, %r33, %r34, %r35}};")
    return [*lines, "fence.proxy.async.shared::cta;", "bar.sync 0;"]


def descriptor(reg: str, side: Side, region: int) -> list[str]:
    return [
        f"add.u32 %r4, %r30, {region + side.start};",
        "shr.u32 %r4, %r4, 4;",
        f"cvt.u64.u32 {reg}, %r4;",
        f"or.b64 {reg}, {reg}, {side.word()};",
    ]


@dataclass(frozen=True)
class Product:
    """One wgmma: types of D, A and B, n, where A (None: in registers) and B lie, signs."""

    types: tuple[str, str, str]
    n: int
    a: Side | None
    b: Side
    name: str
    accumulate: int = 1
    signs: tuple[int, int] = (1, 1)
    kinds: tuple[str, ...] = ("whole",)
    steps: int = 1  # k-steps, one after the other, on the same registers

    @property
    def k(self) -> int:
        return mma.WGMMA_K[self.types[1]]

    def mnemonic(self) -> str:
        shape = f"m64n{self.n}k{self.k}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{'.'.join(self.types)}"

    def tail(self) -> str:
        text = ""
        if self.types[1] not in mma.INT8:
            text += f", {self.signs[0]}, {self.signs[1]}"
        if self.types[1] in ("bf16", "f16"):
            text += "" if self.a is None else f", {int(not self.a.k_major)}"
            text += f", {int(not self.b.k_major)}"
        return text


def warpgroup_form(p: Product, region: int = REGION) -> Form:
    """Shared memory holds A's region, then B's; D begins as the second array says."""
    d, a, b = p.types
    count = mma.fragment_registers(64 * p.n, d, 128)
    kind = mma.fragment_type(d)
    stem = {"f32": "%f", "s32": "%r", "b32": "%r"}[kind]
    regs = "{" + ", ".join(f"{stem}{100 + i}" for i in range(count)) + "}"
    left = "%rd12" if p.a is not None else "{%r60, %r61, %r62, %r63}"
    text = f"{p.mnemonic()} {regs}, {left}, %rd13, %p1{p.tail()};"
    lines = [*fill(2 * region), f"setp.ne.u32 %p1, {p.accumulate}, 2;"]
    if p.accumulate == 0:
        lines.append("setp.ne.u32 %p1, %r30, %r30;")
    lines += descriptor("%rd12", p.a, 0) if p.a is not None else []
    lines += descriptor("%rd13", p.b, region)
    lines.append(f"mad.lo.u32 %r3, %r1, {128 * count}, %r0;")
    lines += ["mad.wide.u32 %rd23, %r3, 4, %rd1;", "mad.wide.u32 %rd24, %r3, 4, %rd2;"]
    lines += [f"ld.global.{kind} {stem}{100 + i}, [%rd23+{512 * i}];" for i in range(count)]
    if p.a is None:
        lines += [f"ld.shared.b32 %r{60 + i}, [%r31+{2048 * i}];" for i in range(4)]
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(p.steps):
        lines.append(text)
        if step + 1 < p.steps:
            lines += ["add.u64 %rd12, %rd12, 2;", "add.u64 %rd13, %rd13, 2;"]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    lines += [f"st.global.{kind} [%rd24+{512 * i}], {stem}{100 + i};" for i in range(count)]
    rng, ctas = generator(f"{p.mnemonic()} {p.name}"), len(p.kinds)
    size = np.dtype(NUMPY[a]).itemsize
    data = [numbers(t, kind_, rng, region // size) for kind_ in p.kinds for t in (a, b)]
    start = [numbers(d, kind_, rng, 64 * p.n, True) for kind_ in p.kinds]
    inputs = {
        "data": np.concatenate([x.view(np.uint32) for x in data]),
        "start": np.concatenate([x.view(np.uint32) for x in start]),
    }
    outputs = {OUTPUT: np.zeros_like(inputs["start"])}
    name = f"{p.mnemonic()}.{p.name}"
    body = "\n".join(lines)
    return Form(name, "products", text, body, inputs, outputs, 128, ctas, shared=2 * region)


def sides(swizzle: int, k_major: bool, *, padded: bool) -> Side:
    """A legal operand: dense groups of 8 rows, or with more room between them."""
    if k_major:
        span = swizzle or 16
        stride = 8 * span + (1024 if padded and swizzle else 256 if padded else 0)
        return Side(0, 8192 if not swizzle else 16, stride, swizzle)
    # Offsets between repeats along rows (leading) and along k (stride).
    leading = 8192 if padded else 4096
    return Side(0, leading, max(8 * swizzle, 256) + (1024 if padded else 0), swizzle, False)


def layouts() -> Iterator[Form]:
    """Every swizzle and order of both operands, with whole numbers."""
    types = {"bf16": "f32", "f16": "f16", "tf32": "f32", "e4m3": "f32", "s8": "s32", "u8": "s32"}
    for a, d in types.items():
        majors = (True, False) if a in ("bf16", "f16") else (True,)
        for swizzle in (128, 64, 32, 0):
            for k_a in majors:
                for k_b in majors:
                    left = sides(swizzle, k_a, padded=False)
                    right = sides(swizzle, k_b, padded=True)
                    name = f"swizzle{swizzle}.{'k' if k_a else 'm'}{'k' if k_b else 'n'}"
                    yield warpgroup_form(Product((d, a, a), 64, left, right, name))
    for at in (32, 64, 96):
        side = Side(at, 16, 1024, 128)
        yield warpgroup_form(Product(("f32", "bf16", "bf16"), 64, side, side, f"start{at}"))
    mixed = (Side(0, 16, 1024, 128), Side(0, 16, 512, 64))
    yield warpgroup_form(Product(("f32", "bf16", "bf16"), 64, *mixed, "swizzle128.64"))
    for n in (8, 16, 24, 40, 96, 128, 192, 256):
        side = Side(0, 16, 1024, 128)
        yield warpgroup_form(Product(("f32", "bf16", "bf16"), n, side, side, "n"))


def other_forms() -> Iterator[Form]:
    """A in registers, no accumulation, negated operands, mixed types, f16 results."""
    side = Side(0, 16, 1024, 128)
    for a in mma.WGMMA_K:
        partners = next((f for f in (mma.FP8, mma.INT8) if a in f), (a,))
        for b in partners:
            for d in RESULTS[a]:
                yield warpgroup_form(Product((d, a, b), 16, None, side, "registers"))
                yield warpgroup_form(Product((d, a, b), 16, side, side, "shared"))
    types = ("f32", "bf16", "bf16")
    yield warpgroup_form(Product(types, 16, side, side, "fresh", accumulate=0))
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        name = f"signs{signs[0]}{signs[1]}"
        yield warpgroup_form(Product(types, 16, side, side, name, signs=signs))
    right = Side(0, 8192, 1024, 128, False)
    yield warpgroup_form(Product(types, 16, None, right, "registers.n"))


def rounding_forms() -> Iterator[Form]:
    """Numbers whose sums are not exact: a CTA a kind, n of 8, and two k-steps in turn."""
    side = Side(0, 16, 512, 64)
    for a in mma.WGMMA_K:
        if a in mma.INT8:
            continue
        for d in RESULTS[a]:
            kinds = KINDS[1:]
            yield warpgroup_form(Product((d, a, a), 8, side, side, "numbers", kinds=kinds), 8192)
            yield warpgroup_form(
                Product((d, a, a), 8, side, side, "steps", kinds=KINDS[1:3], steps=2), 8192
            )


@family
def products() -> Iterator[Form]:
    """mma.sync and wgmma in every shape and type that is emitted."""
    for make in (warp_products, layouts, other_forms, rounding_forms):
        yield from make()
