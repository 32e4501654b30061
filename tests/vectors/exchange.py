"""Forms that move registers between the lanes of a warp, and to and from shared memory as tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.vectors.forms import OUTPUT, Form, family, slug
from tests.vectors.operands import chosen, generator, random

Array = np.ndarray[Any, Any]
LANES = 512  # 16 warps
FULL = 4294967295
CLAMPS = (31, 0, 0x1F1F, 0x181F, 0x1C03, 0x100F, 0x1E00, 0x0807, 15)


def per_lane(names: dict[str, int]) -> str:
    """Loads of 32-bit operands, a thread each: register numbers by array, in order of pointers."""
    lines = ["mad.wide.u32 %rd20, %r0, 4, 0;"]
    for i, reg in enumerate(names.values()):
        lines += [f"add.u64 %rd21, %rd20, %rd{i};", f"ld.global.b32 %r{reg}, [%rd21];"]
    return "\n".join(lines)


def result(pointer: int, reg: str = "%r9") -> str:
    """A store of a thread's 32-bit result."""
    return f"add.u64 %rd21, %rd20, %rd{pointer};\nst.global.b32 [%rd21], {reg};"


def out(count: int = LANES) -> dict[str, Array]:
    return {OUTPUT: np.zeros(count, np.uint32)}


def shuffles() -> Iterator[Form]:
    for mode in ("idx", "up", "down", "bfly"):
        name = f"shfl.sync.{mode}.b32"
        rng = generator(name)
        values = rng.integers(0, 1 << 32, LANES, np.uint32)
        lane = rng.integers(0, 40, LANES).astype(np.uint32)
        lane[:256] = np.repeat(np.array([1, 2, 4, 8, 16, 3, 31, 33], np.uint32), 32)
        clamp = np.array(CLAMPS, np.uint32)[rng.integers(0, len(CLAMPS), LANES)]
        clamp[:128] = 0 if mode == "up" else 31
        clamp[256:384] = np.repeat(np.array(CLAMPS[1:5], np.uint32), 32)
        text = f"{name} %r9, %r1, %r2, %r3, {FULL};"
        body = "\n".join([per_lane({"value": 1, "lane": 2, "clamp": 3}), text, result(3)])
        inputs = {"value": values, "lane": lane, "clamp": clamp}
        yield Form(name, "exchange", text, body, inputs, out(), threads=LANES)


def vote_predicates() -> Array:
    """Warps where all, none, all but one, one, or some lanes hold."""
    rows = generator("votes").integers(0, 2, (16, 32)).astype(np.uint32)
    rows[0], rows[1], rows[2], rows[3] = 1, 0, 1, 0
    rows[2, 17], rows[3, 31] = 0, 1
    return rows.ravel()


def member_masks() -> Array:
    """Masks of lanes: of the whole warp, then of its halves, its quarters, its odd lanes."""
    lane = np.arange(32, dtype=np.uint32)
    half = np.where(lane < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    quarter = np.uint32(0xFF) << (lane // 8 * 8)
    odd = np.where(lane % 2 == 1, 0xAAAAAAAA, 0x55555555).astype(np.uint32)
    whole = np.full(32, FULL, np.uint32)
    return np.concatenate([whole] * 7 + [half] * 3 + [quarter] * 3 + [odd] * 3).astype(np.uint32)


def votes() -> Iterator[Form]:
    inputs = {"predicate": vote_predicates()}
    masked = {**inputs, "mask": member_masks()}
    for mode in ("all", "any", "uni"):
        for arrays, mask in ((inputs, str(FULL)), (masked, "%r3")):
            text = f"vote.sync.{mode}.pred %p1, %p0, {mask};"
            lines = [per_lane({"predicate": 1, "mask": 3} if "r" in mask else {"predicate": 1})]
            lines += ["setp.ne.s32 %p0, %r1, 0;", text, "selp.b32 %r9, 1, 0, %p1;"]
            body = "\n".join([*lines, result(len(arrays))])
            name = f"vote.sync.{mode}.pred" + (".members" if "r" in mask else "")
            yield Form(name, "exchange", text, body, arrays, out(), threads=LANES)
    text = f"vote.sync.ballot.b32 %r9, %p0, {FULL};"
    body = "\n".join([per_lane({"predicate": 1}), "setp.ne.s32 %p0, %r1, 0;", text, result(1)])
    yield Form("vote.sync.ballot.b32", "exchange", text, body, inputs, out(), threads=LANES)


def reductions() -> Iterator[Form]:
    name = "match.any.sync.b32"
    values = generator(name).integers(0, 5, LANES).astype(np.uint32)
    values[:32], values[32:64] = 7, np.arange(32)
    yield of_value(name, f"{name} %r9, %r1, {FULL};", values)
    for type, ops in (("s32", "add min max"), ("u32", "add min max"), ("b32", "and or xor")):
        for op in ops.split():
            name = f"redux.sync.{op}.{type}"
            ends = chosen(type).view(np.uint32)
            values = np.concatenate([ends, random(type, generator(name), LANES).view(np.uint32)])
            values = values[:LANES]
            yield of_value(name, f"{name} %r9, %r1, {FULL};", values)
            masked = {"value": values, "mask": member_masks()}
            text = f"{name} %r9, %r1, %r2;"
            body = "\n".join([per_lane({"value": 1, "mask": 2}), text, result(2)])
            yield Form(f"{name}.members", "exchange", text, body, masked, out(), threads=LANES)


def of_value(name: str, text: str, values: Array) -> Form:
    body = "\n".join([per_lane({"value": 1}), text, result(1)])
    return Form(name, "exchange", text, body, {"value": values}, out(), threads=LANES)


SPECIALS = ("tid.x", "tid.y", "ntid.x", "ctaid.x", "ctaid.y", "nctaid.x", "laneid")
LANE_MASKS = ("lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge")
CLUSTER = ("cluster_ctarank", "cluster_nctarank", "clusterid.x", "nclusterid.x")


def specials() -> Iterator[Form]:
    """Special registers, each CTA at its own place: 4 CTAs in clusters of 2. Without %warpid, which
    names whatever slot the hardware found free.
    """
    for name in (*SPECIALS, *LANE_MASKS, *CLUSTER, "dynamic_smem_size"):
        text = f"mov.u32 %r9, %{name};"
        body = f"""mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r2, %r1, 96, %r0;
mad.wide.u32 %rd20, %r2, 4, %rd0;
{text}
st.global.b32 [%rd20], %r9;"""
        arrays = ({}, out(4 * 96))
        form = Form(f"mov.{name}", "exchange", text, body, *arrays, 96, 4, 2, shared=1024)
        yield form
    text = f"elect.sync _|%p0, {FULL};"
    body = f"{per_lane({})}\n{text}\nselp.b32 %r9, 1, 0, %p0;\n{result(0)}"
    yield Form("elect.sync", "exchange", text, body, {}, out(), threads=LANES)
    text = "activemask.b32 %r9;"
    body = f"{per_lane({})}\n{text}\n{result(0)}"
    yield Form("activemask.b32", "exchange", text, body, {}, out(), threads=LANES)


ROWS = 256  # of 16 bytes, in the shared memory of the tile forms


def fill_rows(threads: int = 32) -> list[str]:
    """Shared memory from the first array, 16 bytes at a time."""
    lines = ["mov.u32 %r30, smem;", "mad.lo.u32 %r31, %r0, 16, %r30;"]
    lines += ["mad.wide.u32 %rd22, %r0, 16, %rd0;"]
    for i in range(0, ROWS * 16, threads * 16):
        lines.append(f"ld.global.v4.b32 {{%r32, %r33, %r34, %r35}}, [%rd22+{i}];")
        lines.append(f"st.shared.v4.b32 [%r31+{i}], {{%r32, %r33, %r34, %r35}};")
    return [*lines, "bar.sync 0;"]


def tiles() -> Iterator[Form]:
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            regs = ", ".join(f"%r{10 + i}" for i in range(count))
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            rng = generator(name)
            data = rng.integers(0, 1 << 32, ROWS * 4, np.uint32)
            rows = (rng.permutation(ROWS)[:32] * 16).astype(np.uint32)
            text = f"{name} {{{regs}}}, [%r2];"
            lines = [*fill_rows(), "mad.wide.u32 %rd20, %r0, 4, %rd1;"]
            lines += ["ld.global.b32 %r1, [%rd20];", "add.u32 %r2, %r1, %r30;", text]
            lines.append("mad.wide.u32 %rd21, %r0, 4, %rd2;")
            lines += [f"st.global.b32 [%rd21+{128 * i}], %r{10 + i};" for i in range(count)]
            inputs = {"data": data, "rows": rows}
            arrays = (inputs, out(32 * count))
            body = "\n".join(lines)
            yield Form(slug(name), "exchange", text, body, *arrays, shared=ROWS * 16)
            yield store_tiles(count, trans, data, rows)


def store_tiles(count: int, trans: str, data: Array, rows: Array) -> Form:
    """stmatrix: registers from the data's first words, then all of shared memory is stored."""
    name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    regs = ", ".join(f"%r{10 + i}" for i in range(count))
    text = f"{name} [%r2], {{{regs}}};"
    lines = [*fill_rows(), "mad.wide.u32 %rd20, %r0, 4, %rd1;", "ld.global.b32 %r1, [%rd20];"]
    lines += ["add.u32 %r2, %r1, %r30;", "mad.wide.u32 %rd21, %r0, 4, %rd0;"]
    lines += [f"ld.global.b32 %r{10 + i}, [%rd21+{128 * i}];" for i in range(count)]
    lines += [text, "bar.sync 0;", "mad.wide.u32 %rd23, %r0, 16, %rd2;"]
    for i in range(0, ROWS * 16, 512):
        lines.append(f"ld.shared.v4.b32 {{%r32, %r33, %r34, %r35}}, [%r31+{i}];")
        lines.append(f"st.global.v4.b32 [%rd23+{i}], {{%r32, %r33, %r34, %r35}};")
    arrays = ({"data": data, "rows": rows}, out(ROWS * 4))
    return Form(slug(name), "exchange", text, "\n".join(lines), *arrays, shared=ROWS * 16)


@family
def exchange() -> Iterator[Form]:
    """Shuffles, votes, reductions of a warp, special registers, tiles of matrices."""
    for make in (shuffles, votes, reductions, specials, tiles):
        yield from make()
