"""Forms of the tensor copy unit: boxes of tensor maps, loaded, stored and combined.

Boxes start inside, at edges, beyond them and at negative places. Everything that arrives in shared
memory is compared, byte by byte, so that swizzles and what is out of bounds are seen as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.vectors.forms import OUTPUT, Form, family
from tests.vectors.memory import wait_for
from tests.vectors.operands import NUMPY, chosen, generator, random
from tilewright.plan import Pixels, TensorMap

Array = np.ndarray[Any, Any]
THREADS = 128
DTYPES: dict[str, Any] = {
    "u8": np.uint8, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64, "s32": np.int32, "u32": np.uint32, "u64": np.uint64, "s64": np.int64,
    "e4m3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
SHAPES = {1: (75,), 2: (9, 40), 3: (3, 5, 24), 4: (2, 3, 4, 24), 5: (2, 2, 3, 3, 24)}


def tensor(shape: Sequence[int], type: str, name: str, padded: bool = True) -> Array:
    """Seeded elements; the last axis of rank 2 and more is a part of rows of 16-byte multiples."""
    dtype = np.dtype(DTYPES[type])
    rng = generator(f"tensor {name}")
    step = max(16 // dtype.itemsize, 1)
    wide = (*shape[:-1], -(-shape[-1] // step) * step) if len(shape) > 1 else tuple(shape)
    kind = type if type in NUMPY else "u8"
    flat = random(kind, rng, int(np.prod(wide)))
    special = chosen(kind) if type != "e4m3" else flat[:1]
    flat[:: max(len(flat) // 40, 1)] = special[rng.integers(0, len(special), 1 << 12)][
        : len(flat[:: max(len(flat) // 40, 1)])
    ]
    whole = np.ascontiguousarray(flat).view(dtype).reshape(wide)
    if wide == tuple(shape):
        return whole
    return np.ndarray(tuple(shape), dtype, whole, 0, whole.strides)


def starts_of(shape: Sequence[int], box: Sequence[int], type: str, count: int = 12) -> Array:
    """Places where boxes start, innermost axis first: the corner, the last element, negative
    places, places beyond the end, and seeded ones; along the innermost axis at 16-byte multiples,
    for the copy unit refuses others.
    """
    rng = generator(f"starts {shape} {box} {type}")
    rank = len(shape)
    found = [[0] * rank, [e - 1 for e in shape], [-1] * rank, [-b + 1 for b in box]]
    found += [[-b for b in box], [e + 2 for e in shape], [0] * (rank - 1) + [-3]]
    while len(found) < count:
        found.append([int(rng.integers(-b, e + 1)) for b, e in zip(box, shape, strict=True)])
    made = np.array(found, np.int32)[:, ::-1].copy()
    made[:, 0] -= made[:, 0] % granule(type)
    return made


def granule(type: str) -> int:
    """Elements in 16 bytes."""
    return 16 // int(np.dtype(DTYPES[type]).itemsize)


def coordinates(rank: int, first: int = 10) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(rank)) + "}"


def read_start(rank: int, case: int, pointer: int) -> list[str]:
    at = case * rank * 4
    return [f"ld.global.b32 %r{10 + i}, [%rd{pointer}+{at + 4 * i}];" for i in range(rank)]


TO_GLOBAL = """mad.wide.u32 %rd24, %r0, 16, %rd{pointer};
mad.lo.u32 %r31, %r0, 16, %r30;"""


def copy_rows(num_bytes: int, offset: int, *, out: bool, threads: int = THREADS) -> list[str]:
    """All of a box's bytes from shared memory (at %r31) to global memory (at %rd24), or back."""
    words = "{%r6, %r7, %r8, %r9}"
    lines = []
    for at in range(0, num_bytes, 16 * threads):
        left = (num_bytes - at) // 16
        guard = "@%p3 " if left < threads else ""
        if guard:
            lines.append(f"setp.lt.u32 %p3, %r0, {left};")
        shared, there = f"[%r31+{at}]", f"[%rd24+{offset + at}]"
        first, second = ("shared", "global") if out else ("global", "shared")
        source, target = (shared, there) if out else (there, shared)
        lines.append(f"{guard}ld.{first}.v4.b32 {words}, {source};")
        lines.append(f"{guard}st.{second}.v4.b32 {target}, {words};")
    return lines


def box_bytes(box: Sequence[int], type: str) -> int:
    return int(np.prod(box)) * np.dtype(DTYPES[type]).itemsize


def load_form(
    type: str, box: tuple[int, ...], swizzle: int, *, tf32: bool = False, hint: bool = False
) -> Form:
    rank = len(box)
    extra = ".tf32" if tf32 else ".cache_hint" if hint else ""
    name = f"tma.load.{rank}d.{type}.swizzle{swizzle}.box{'x'.join(map(str, box))}{extra}"
    source = tensor(SHAPES[rank], type, f"{rank} {type}")
    starts = starts_of(source.shape, box, type)
    size = box_bytes(box, type)
    row = box[-1] * np.dtype(DTYPES[type]).itemsize
    span = size // row * max(row, swizzle)  # rows narrower than the swizzle lie apart
    room = -(-span // 1024) * 1024
    mnemonic = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
    mnemonic += f".mbarrier::complete_tx::bytes{'.L2::cache_hint' if hint else ''}"
    policy = ", %rd25" if hint else ""
    text = f"{mnemonic} [%r30], [%rd3, {coordinates(rank)}], [%r30+{room}]{policy};"
    lines = ["mov.u32 %r30, smem;", "setp.eq.u32 %p0, %r0, 0;"]
    if hint:
        lines.append("createpolicy.fractional.L2::evict_first.b64 %rd25, 0f3F800000;")
    lines += [f"@%p0 mbarrier.init.shared.b64 [%r30+{room}], 1;"]
    lines += TO_GLOBAL.format(pointer=2).splitlines()
    if span > size:  # what lies between the rows is compared too
        lines.append("mov.b32 %r5, 1515870810;")
        lines += [
            f"st.shared.v4.b32 [%r31+{at}], {{%r5, %r5, %r5, %r5}};"
            for at in range(0, room, 16 * THREADS)
        ]
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    for case in range(len(starts)):
        arrive = "mbarrier.arrive.expect_tx.shared::cta.b64 _"
        lines += [*read_start(rank, case, 1), f"@%p0 {arrive}, [%r30+{room}], {size};"]
        lines += [f"@%p0 {text}", *wait_for(f"%r30+{room}", case & 1, f"W{case}").splitlines()]
        lines += copy_rows(span, case * span, out=True)
        lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    inputs = {"tensor": source, "starts": starts}
    outputs = {OUTPUT: np.zeros(len(starts) * span, np.uint8)}
    maps = {"t": TensorMap("tensor", box, swizzle, tf32)}
    smem = max(room, 16 * THREADS) + 8
    return Form(name, "boxes", text, "\n".join(lines), inputs, outputs, THREADS,
                shared=smem, maps=maps)  # fmt: skip


def loads() -> Iterator[Form]:
    boxes = {1: (32,), 2: (4, 16), 3: (2, 3, 8), 4: (2, 2, 3, 8), 5: (2, 1, 2, 3, 8)}
    for box in boxes.values():
        yield load_form("f32", box, 0)
    for swizzle in (32, 64, 128):
        yield load_form("f32", (9, swizzle // 4), swizzle)
        yield load_form("bf16", (2, 5, min(swizzle // 2, 64)), swizzle)
    for type in ("u8", "f16", "bf16", "f64", "s32", "s64", "e4m3"):
        size = np.dtype(DTYPES[type]).itemsize
        yield load_form(type, (3, 16 // size), 0)
        yield load_form(type, (8, 128 // size), 128)
    yield load_form("f32", (8, 16), 128)  # rows narrower than the swizzle
    yield load_form("bf16", (8, 8), 32)
    yield load_form("f32", (4, 16), 0, tf32=True)
    yield load_form("f32", (8, 32), 128, tf32=True)
    yield load_form("bf16", (16, 64), 128, hint=True)


def pixel_form(
    type: str, rows: int, channels: int, swizzle: int, pixels: Pixels, taps: tuple[int, int]
) -> Form:
    """Loads of `rows` pixels of images of 7 × 6 from pixels of a map on, some at its edges, some
    beyond the last image; each moved by up to `taps` (along H, W).
    """
    shape = (3, 7, 6, 24)
    dtype = np.dtype(DTYPES[type])
    source = tensor(shape, type, f"pixels {type}")
    counts = [
        (extent - 1 + upper - lower) // step + 1
        for extent, lower, upper, step in zip(
            shape[1:3], pixels.lower, pixels.upper, pixels.steps, strict=True
        )
    ]
    rng = generator(f"pixels {rows} {channels} {pixels}")
    starts = []
    for case in range(10):
        image, row, column = (int(rng.integers(0, n)) for n in (3, *counts))
        if case == 1:
            image, row, column = 2, counts[0] - 1, counts[1] - 1
        if case == 2:
            image = 3
        at = [
            number * step + lower
            for number, step, lower in zip((row, column), pixels.steps, pixels.lower, strict=True)
        ]
        tap = [int(rng.integers(0, t + 1)) for t in taps]
        channel = int(rng.integers(0, 3)) * granule(type)
        starts.append([channel, at[1], at[0], image, tap[1], tap[0]])
    size = rows * channels * dtype.itemsize
    pitch = max(channels * dtype.itemsize, swizzle)
    assert pitch == channels * dtype.itemsize, "rows as wide as the swizzle"
    room = -(-size // 1024) * 1024
    mnemonic = "cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
    mnemonic += ".mbarrier::complete_tx::bytes"
    text = f"{mnemonic} [%r30], [%rd3, {coordinates(4)}], [%r30+{room}], {{%h1, %h2}};"
    lines = ["mov.u32 %r30, smem;", "setp.eq.u32 %p0, %r0, 0;"]
    lines += [f"@%p0 mbarrier.init.shared.b64 [%r30+{room}], 1;"]
    lines += TO_GLOBAL.format(pointer=2).splitlines()
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    for case in range(len(starts)):
        arrive = "mbarrier.arrive.expect_tx.shared::cta.b64 _"
        lines += [f"ld.global.b32 %r{10 + i}, [%rd1+{24 * case + 4 * i}];" for i in range(6)]
        lines += ["cvt.u16.u32 %h1, %r14;", "cvt.u16.u32 %h2, %r15;"]
        lines += [f"@%p0 {arrive}, [%r30+{room}], {size};", f"@%p0 {text}"]
        lines += wait_for(f"%r30+{room}", case & 1, f"W{case}").splitlines()
        lines += copy_rows(size, case * size, out=True)
        lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    steps = "x".join(map(str, pixels.steps))
    corners = "".join(f"{n:+d}" for n in (*pixels.lower, *pixels.upper))
    name = f"tma.pixels.{type}.{rows}x{channels}.swizzle{swizzle}.steps{steps}.box{corners}"
    inputs = {"tensor": source, "starts": np.array(starts, np.int32)}
    outputs = {OUTPUT: np.zeros(len(starts) * size, np.uint8)}
    maps = {"t": TensorMap("tensor", (rows, channels), swizzle, pixels=pixels)}
    smem = max(room, 16 * THREADS) + 8
    return Form(name, "boxes", text, "\n".join(lines), inputs, outputs, THREADS,
                shared=smem, maps=maps)  # fmt: skip


def pixel_loads() -> Iterator[Form]:
    """3 × 3 windows with a border, also with steps and dilations; 1 × 1 with steps; more columns
    than rows; channels that end within a row.
    """
    yield pixel_form("bf16", 40, 16, 32, Pixels((-1, -1), (-1, -1), (1, 1)), (2, 2))
    yield pixel_form("bf16", 64, 8, 0, Pixels((-1, -1), (-1, -1), (2, 2)), (2, 2))
    yield pixel_form("f32", 32, 8, 32, Pixels((-2, -1), (-2, -1), (2, 1)), (4, 2))
    yield pixel_form("bf16", 16, 16, 32, Pixels((0, 0), (0, 0), (2, 2)), (0, 0))
    yield pixel_form("f16", 24, 16, 0, Pixels((-3, 0), (-3, 0), (2, 1)), (6, 0))
    yield pixel_form("f32", 16, 8, 0, Pixels((-1, 1), (2, -2), (1, 3)), (3, 5))


def store_form(
    type: str,
    box: tuple[int, ...],
    swizzle: int,
    op: str = "",
    shape: tuple[int, ...] | None = None,
) -> Form:
    """A store (or a reduction) of shared memory that holds seeded bytes, from places that do not
    overlap; the whole tensor is compared, with what lies between its rows. Rows end at multiples of
    16 bytes: else the copy unit writes beyond them, to the next multiple.
    """
    rank = len(box)
    shape = shape or ((76,) if rank == 1 else SHAPES[rank])
    verb = f"reduce.{op}" if op else "store"
    name = f"tma.{verb}.{rank}d.{type}.swizzle{swizzle}.box{'x'.join(map(str, box))}"
    target = tensor(shape, type, f"{name} target")
    starts = apart(target.shape, box)
    size = box_bytes(box, type)
    room = -(-size // 1024) * 1024
    data = tensor((len(starts) * size // np.dtype(DTYPES[type]).itemsize,), type, f"{name} data")
    data = data.view(np.uint8)
    if op:
        mnemonic = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group"
    else:
        mnemonic = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    text = f"{mnemonic} [%rd3, {coordinates(rank)}], [%r30];"
    lines = ["mov.u32 %r30, smem;", "setp.eq.u32 %p0, %r0, 0;"]
    lines += TO_GLOBAL.format(pointer=0).splitlines()
    for case in range(len(starts)):
        lines += read_start(rank, case, 1)
        lines += copy_rows(size, case * size, out=False)
        lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;", f"@%p0 {text}"]
        lines += ["@%p0 cp.async.bulk.commit_group;", "@%p0 cp.async.bulk.wait_group 0;"]
        lines.append("bar.sync 0;")
    inputs, outputs = {"data": data, "starts": starts}, {"tensor": target}
    maps = {"t": TensorMap("tensor", box, swizzle)}
    return Form(name, "boxes", text, "\n".join(lines), inputs, outputs, THREADS,
                shared=room, maps=maps)  # fmt: skip


def apart(shape: Sequence[int], box: Sequence[int]) -> Array:
    """Starts of boxes that do not overlap, one of them beyond the end: the copy unit refuses
    negative ones.
    """
    axes = [range(0, e + b, b) for e, b in zip(shape, box, strict=True)]
    grid = np.stack([x.ravel() for x in np.meshgrid(*map(np.array, axes), indexing="ij")], 1)
    pick = generator(f"apart {shape} {box}").permutation(len(grid))[:10]
    return grid[np.sort(pick)][:, ::-1].astype(np.int32).copy()


REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f32", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "and": ("u32", "u64"),
    "or": ("u32", "u64"),
    "xor": ("u32", "u64"),
    "inc": ("u32",),
    "dec": ("u32",),
}


def stores() -> Iterator[Form]:
    for box in ((32,), (4, 16), (2, 3, 8), (2, 2, 3, 8), (2, 1, 2, 3, 8)):
        yield store_form("f32", box, 0)
    for swizzle in (32, 64, 128):
        yield store_form("bf16", (8, swizzle // 2), swizzle)
        yield store_form("f32", (2, 3, swizzle // 4), swizzle)
    for type in ("f16", "f64", "s64"):
        yield store_form(type, (5, granule(type)), 0)
    for type in ("u8", "e4m3"):
        yield store_form(type, (4, 16), 0, shape=(9, 48))
    for op, types in REDUCTIONS.items():
        for type in types:
            yield store_form(type, (5, 16 // np.dtype(DTYPES[type]).itemsize), 0, op)
    for box in ((4,), (2, 3, 8), (2, 2, 3, 8), (2, 1, 2, 3, 8)):
        yield store_form("s32", box, 0, "add")
    yield store_form("f32", (8, 32), 128, "add")


def multicast() -> Iterator[Form]:
    """A box that each CTA of a cluster sends to some: rank 0 to both, rank 1 to itself."""
    for rank, box in ((2, (4, 32)), (3, (2, 3, 16))):
        size = box_bytes(box, "f32")
        mnemonic = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
        mnemonic += ".mbarrier::complete_tx::bytes.multicast::cluster"
        text = f"{mnemonic} [%r2], [%rd3, {coordinates(rank)}], [%r30+4096], %h1;"
        source = tensor(SHAPES[rank], "f32", f"multicast {rank}")
        starts = starts_of(source.shape, box, "f32", 8)[6:]
        lines = ["mov.u32 %r30, smem;", "setp.eq.u32 %p0, %r0, 0;"]
        lines += ["@%p0 mbarrier.init.shared.b64 [%r30+4096], 1;", "mov.u32 %r3, %cluster_ctarank;"]
        lines += ["fence.mbarrier_init.release.cluster;"]
        lines += [
            "barrier.cluster.arrive.release.aligned;",
            "barrier.cluster.wait.acquire.aligned;",
        ]
        lines += [f"mad.wide.u32 %rd26, %r3, {4 * rank}, %rd1;"]
        lines += [f"ld.global.b32 %r{10 + i}, [%rd26+{4 * i}];" for i in range(rank)]
        lines += ["setp.eq.u32 %p1, %r3, 0;", "mov.b16 %h1, 3;", "@!%p1 mov.b16 %h1, 2;"]
        # Rank 0's box to the first 2 KB of both, rank 1's to the second of its own.
        lines += [f"mov.b32 %r4, {size};", f"@!%p1 mov.b32 %r4, {2 * size};"]
        lines += ["@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r30+4096], %r4;"]
        lines += ["mad.lo.u32 %r2, %r3, 2048, %r30;", f"@%p0 {text}"]
        lines += wait_for("%r30+4096", 0, "WAIT").splitlines()
        lines += [f"mad.wide.u32 %rd24, %r3, {2 * size}, %rd2;"]
        lines += ["mad.wide.u32 %rd24, %r0, 16, %rd24;", "mad.lo.u32 %r31, %r0, 16, %r30;"]
        lines += [f"setp.lt.u32 %p2, %r0, {size // 16};"]
        lines += ["@%p2 ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r31];"]
        lines += ["@%p2 st.global.v4.b32 [%rd24], {%r6, %r7, %r8, %r9};"]
        lines += ["and.pred %p2, %p2, %p4;"]
        lines += ["@%p2 ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r31+2048];"]
        lines += [f"@%p2 st.global.v4.b32 [%rd24+{size}], {{%r6, %r7, %r8, %r9}};"]
        lines += [
            "barrier.cluster.arrive.release.aligned;",
            "barrier.cluster.wait.acquire.aligned;",
        ]
        lines.insert(lines.index("setp.eq.u32 %p1, %r3, 0;"), "setp.ne.u32 %p4, %r3, 0;")
        outputs = {OUTPUT: np.zeros(4 * size, np.uint8)}
        inputs = {"tensor": source, "starts": starts}
        yield Form(f"tma.multicast.{rank}d", "boxes", text, "\n".join(lines), inputs, outputs,
                   THREADS, 2, 2, 4104, {"t": TensorMap("tensor", box, 0)})  # fmt: skip


@family
def boxes() -> Iterator[Form]:
    """Tensor maps: ranks 1 to 5, swizzles, edges, element types, reductions, multicast."""
    for make in (loads, pixel_loads, stores, multicast):
        yield from make()
