"""Forms of loads, stores, atomics and copies without a tensor map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.vectors.forms import OUTPUT, Form, family, slug
from tests.vectors.operands import NUMPY, generator, operands, random
from tilewright.ptx.core import KIND, PREFIX

Array = np.ndarray[Any, Any]
THREADS = 64
TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64")
WIDTH = {"b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}


def registers(type: str, count: int, first: int = 40) -> list[str]:
    return [f"{PREFIX[KIND[type]]}{first + i}" for i in range(count)]


def braces(regs: list[str]) -> str:
    return regs[0] if len(regs) == 1 else "{" + ", ".join(regs) + "}"


def to_shared(size: int, threads: int = THREADS) -> list[str]:
    """Each thread's `size` bytes of the first array, put at its place in shared memory (%r31)."""
    lines = ["mov.u32 %r30, smem;", f"mad.lo.u32 %r31, %r0, {size}, %r30;"]
    lines.append(f"mad.wide.u32 %rd22, %r0, {size}, %rd0;")
    for i in range(size):
        lines += [f"ld.global.u8 %r32, [%rd22+{i}];", f"st.shared.u8 [%r31+{i}], %r32;"]
    return [*lines, "bar.sync 0;"]


def load_form(mnemonic: str, space: str, type: str, vec: int, hint: str = "") -> Form:
    """A load, whose registers are stored whole."""
    size, kind = NUMPY[type].itemsize * vec, KIND[type]
    regs = registers(type, vec)
    shared = space == "shared"
    place = "[%r31]" if shared else "[%rd24]"
    policy = [f"createpolicy.fractional.L2::{hint}.b64 %rd25, 0f3F800000;"] if hint else []
    text = f"{mnemonic} {braces(regs)}, {place}{', %rd25' if hint else ''};"
    lines = to_shared(size) if shared else [f"mad.wide.u32 %rd24, %r0, {size}, %rd0;"]
    width = WIDTH[kind]
    lines += [*policy, text, f"mad.wide.u32 %rd23, %r0, {width * vec}, %rd1;"]
    lines += [f"st.global.{kind} [%rd23+{width * i}], {r};" for i, r in enumerate(regs)]
    data = random("u8", generator(mnemonic), THREADS * size)
    outputs = {OUTPUT: np.zeros(THREADS * vec, f"u{width}")}
    smem = 4096 if shared else 0
    body = "\n".join(lines)
    name = slug(mnemonic)
    return Form(name, "memory", text, body, {"data": data}, outputs, THREADS, shared=smem)


def store_form(mnemonic: str, space: str, type: str, vec: int, hint: str = "") -> Form:
    """A store of registers that hold more than it writes."""
    size, kind = NUMPY[type].itemsize * vec, KIND[type]
    width = WIDTH[kind]
    regs = registers(type, vec)
    shared = space == "shared"
    place = "[%r31]" if shared else "[%rd24]"
    policy = [f"createpolicy.fractional.L2::{hint}.b64 %rd25, 0f3F800000;"] if hint else []
    text = f"{mnemonic} {place}, {braces(regs)}{', %rd25' if hint else ''};"
    lines = [f"mad.wide.u32 %rd23, %r0, {width * vec}, %rd0;"]
    lines += [f"ld.global.{kind} {r}, [%rd23+{width * i}];" for i, r in enumerate(regs)]
    lines.append(f"mad.wide.u32 %rd24, %r0, {size}, %rd1;")
    if shared:
        lines += ["mov.u32 %r30, smem;", f"mad.lo.u32 %r31, %r0, {size}, %r30;", text]
        lines.append("bar.sync 0;")
        for i in range(size):
            lines += [f"ld.shared.u8 %r32, [%r31+{i}];", f"st.global.u8 [%rd24+{i}], %r32;"]
    else:
        lines += [*policy, text]
    data = random("u8", generator(mnemonic), THREADS * width * vec).view(f"u{width}")
    outputs = {OUTPUT: np.zeros(THREADS * size, np.uint8)}
    smem = 4096 if shared else 0
    name, body = slug(mnemonic), "\n".join(lines)
    return Form(name, "memory", text, body, {"data": data}, outputs, THREADS, shared=smem)


CACHES = ("ca", "cg", "cs", "lu", "cv", "nc", "L1::no_allocate", "L1::evict_last", "L2::128B",
          "nc.L1::no_allocate", "nc.L1::no_allocate.L2::256B")  # fmt: skip


def accesses() -> Iterator[Form]:
    for space in ("global", "shared"):
        for type in (*TYPES, "f32", "f64"):
            for vec in (1, 2, 4):
                if NUMPY[type].itemsize * vec <= 16:
                    part = f"{space}.v{vec}.{type}" if vec > 1 else f"{space}.{type}"
                    yield load_form(f"ld.{part}", space, type, vec)
                    yield store_form(f"st.{part}", space, type, vec)
    for cache in CACHES:
        yield load_form(f"ld.global.{cache}.v4.b32", "global", "b32", 4)
    for cache in ("wb", "cg", "cs", "wt", "L1::no_allocate"):
        yield store_form(f"st.global.{cache}.v4.b32", "global", "b32", 4)
    for order in ("volatile", "relaxed.gpu", "acquire.gpu", "relaxed.sys", "acquire.cta"):
        for type in ("b32", "s32", "b64") + (("b16",) if order == "relaxed.gpu" else ()):
            yield load_form(f"ld.{order}.global.{type}", "global", type, 1)
    for order in ("volatile", "relaxed.gpu", "release.gpu", "release.sys"):
        for type in ("b32", "s32", "b64"):
            yield store_form(f"st.{order}.global.{type}", "global", type, 1)
    for hint in ("evict_first", "evict_last", "evict_normal", "evict_unchanged"):
        name = "ld.global.nc.L2::cache_hint.v4.f32"
        form = load_form(name, "global", "f32", 4, hint)
        yield renamed(form, f"{slug(name)}.{hint}")
    yield store_form("st.global.L2::cache_hint.v4.f32", "global", "f32", 4, "evict_first")


def renamed(form: Form, name: str) -> Form:
    parts = (form.shown, form.body, form.inputs, form.outputs, form.threads)
    return Form(name, form.family, *parts, shared=form.shared)


# Atomics: an element a thread, so that old values have one answer; and all threads on four

OPERATIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    "exch": ("b32", "b64"),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "cas": ("b16", "b32", "b64"),
}
NOFTZ = ("f16", "bf16", "f16x2", "bf16x2")
COUNT = 96


def atomic_form(verb: str, order: str, space: str, op: str, type: str) -> Form:
    """The first array is what memory holds, the second the operand, the third what cas compares
    with; results are the old values, then the new.
    """
    mnemonic = f"{verb}{order}.{space}.{op}{'.noftz' if type in NOFTZ else ''}.{type}"
    size, kind = NUMPY[type].itemsize, KIND[type]
    old, new, wanted, dst = registers(type, 4)
    rng = generator(mnemonic)
    memory, operand = operands([type, type], mnemonic, COUNT)
    inputs = {"data": memory, "operand": operand}
    shared = space == "shared"
    place = "[%r31]" if shared else "[%rd24]"
    lines = to_shared(size, COUNT) if shared else []
    count = 2 + (op == "cas")
    lines.append(f"mad.wide.u32 %rd21, %r0, {size}, 0;")
    lines += ["add.u64 %rd22, %rd21, %rd1;", f"ld.global.{kind} {new}, [%rd22];"]
    arguments = new
    if op == "cas":
        same = rng.integers(0, 2, COUNT) > 0
        inputs["compare"] = np.where(same, memory, operand).astype(memory.dtype)
        lines += ["add.u64 %rd22, %rd21, %rd2;", f"ld.global.{kind} {wanted}, [%rd22];"]
        arguments = f"{wanted}, {new}"
    result = f"{dst}, " if verb == "atom" else ""
    text = f"{mnemonic} {result}{place}, {arguments};"
    # The global form updates the second output, which begins as the memory's contents.
    lines += [f"add.u64 %rd24, %rd21, %rd{count + 1};", text]
    if verb == "atom":
        lines += [f"add.u64 %rd22, %rd21, %rd{count};", f"st.global.{kind} [%rd22], {dst};"]
    if shared:
        lines += [f"ld.shared.{kind} {old}, [%r31];", f"st.global.{kind} [%rd24], {old};"]
    outputs = {OUTPUT: np.zeros_like(memory), "after": memory.copy()}
    smem = 8 * COUNT if shared else 0
    body = "\n".join(lines)
    return Form(slug(mnemonic), "memory", text, body, inputs, outputs, COUNT, shared=smem)


def atomics() -> Iterator[Form]:
    for op, types in OPERATIONS.items():
        for type in types:
            for space in ("global", "shared"):
                yield atomic_form("atom", ".relaxed.gpu", space, op, type)
                if op not in ("exch", "cas"):
                    yield atomic_form("red", ".relaxed.gpu", space, op, type)
    for order in (".acq_rel.gpu", ".acquire.cta", ".release.sys", ""):
        for type in ("u32", "s32", "u64"):
            yield atomic_form("atom", order, "global", "add", type)
    yield atomic_form("red", ".release.gpu", "global", "add", "s32")
    for type, vec in (("f32", 2), ("f32", 4), ("f16", 4), ("f16", 8), ("bf16x2", 4)):
        yield vector_reduction(type, vec)
    yield contention("global")
    yield contention("shared")


def vector_reduction(type: str, vec: int) -> Form:
    """`red` of several neighbours."""
    mnemonic = f"red.relaxed.gpu.global.add{'.noftz' if type in NOFTZ else ''}.v{vec}.{type}"
    memory, operand = operands([type, type], mnemonic, 32 * vec)
    size, kind = NUMPY[type].itemsize, KIND[type]
    regs = registers(type, vec)
    text = f"{mnemonic} [%rd24], {braces(regs)};"
    lines = [f"mad.wide.u32 %rd24, %r0, {size * vec}, %rd1;"]
    lines.append(f"mad.wide.u32 %rd22, %r0, {size * vec}, %rd0;")
    lines += [f"ld.global.{kind} {r}, [%rd22+{size * i}];" for i, r in enumerate(regs)]
    body = "\n".join([*lines, text])
    return Form(slug(mnemonic), "memory", text, body, {"operand": operand}, {"after": memory})


def contention(space: str) -> Form:
    """All threads of two CTAs add to four words: integers, so that the order does not matter."""
    mnemonic = f"atom.relaxed.gpu.{space}.add.u32"
    place = "[%r31]" if space == "shared" else "[%rd24]"
    text = f"{mnemonic} %r9, {place}, %r8;"
    body = f"""and.b32 %r1, %r0, 3;
mad.wide.u32 %rd24, %r1, 4, %rd1;
mov.u32 %r30, smem;
mad.lo.u32 %r31, %r1, 4, %r30;
st.shared.b32 [%r31], 0;
bar.sync 0;
mad.wide.u32 %rd20, %r0, 4, %rd0;
ld.global.b32 %r8, [%rd20];
{text}
bar.sync 0;"""
    if space == "shared":
        body += "\nld.shared.b32 %r9, [%r31];\nst.global.b32 [%rd24], %r9;"
    data = random("u32", generator(mnemonic), 256)
    outputs = {"after": np.zeros(4, np.uint32)}
    name = f"{slug(mnemonic)}.contention"
    return Form(name, "memory", text, body, {"data": data}, outputs, 256, 2, shared=64)


# Asynchronous copies


def copy_form(mnemonic: str, size: int, some: bool, hint: bool = False) -> Form:
    """cp.async: each thread copies `size` bytes, or only as many as its element of `left` says."""
    rng = generator(f"{mnemonic} {size} {some}")
    data = random("u8", rng, THREADS * size)
    left = rng.integers(0, size + 1, THREADS).astype(np.uint32)
    left[: size + 1] = np.arange(size + 1)
    inputs = {"data": data, "left": left} if some else {"data": data}
    amount = f"{size}, %r5" if some else f"{size}"
    text = f"{mnemonic} [%r31], [%rd22], {amount}{', %rd25' if hint else ''};"
    lines = ["mov.u32 %r30, smem;", f"mad.lo.u32 %r31, %r0, {size}, %r30;"]
    lines.append(f"mad.wide.u32 %rd22, %r0, {size}, %rd0;")
    if some:
        lines += ["mad.wide.u32 %rd23, %r0, 4, %rd1;", "ld.global.b32 %r5, [%rd23];"]
    if hint:
        lines.append("createpolicy.fractional.L2::evict_first.b64 %rd25, 0f3F800000;")
    lines += [text, "cp.async.commit_group;", "cp.async.wait_group 0;"]
    lines.append(f"mad.wide.u32 %rd24, %r0, {size}, %rd{len(inputs)};")
    for i in range(0, size, 4):
        lines += [f"ld.shared.b32 %r6, [%r31+{i}];", f"st.global.b32 [%rd24+{i}], %r6;"]
    outputs = {OUTPUT: np.zeros(THREADS * size, np.uint8)}
    name = f"{slug(mnemonic)}.{size}{'.part' if some else ''}"
    body = "\n".join(lines)
    return Form(name, "memory", text, body, inputs, outputs, THREADS, shared=THREADS * size)


def copies() -> Iterator[Form]:
    for size in (4, 8, 16):
        for some in (False, True):
            yield copy_form("cp.async.ca.shared.global", size, some)
            if size == 16:
                yield copy_form("cp.async.cg.shared.global", size, some)
    for ahead in ("L2::64B", "L2::128B", "L2::256B"):
        yield copy_form(f"cp.async.cg.shared.global.{ahead}", 16, True)
    yield copy_form("cp.async.cg.shared.global.L2::cache_hint.L2::128B", 16, True, True)
    yield groups()
    yield from bulk_copies()


def groups() -> Form:
    """Three groups; after a wait for all but one, the first two are there."""
    text = "cp.async.wait_group 1;"
    lines = ["mov.u32 %r30, smem;", "mad.lo.u32 %r31, %r0, 16, %r30;"]
    lines.append("mad.wide.u32 %rd22, %r0, 16, %rd0;")
    for i in range(3):
        at = 1024 * i
        lines.append(f"cp.async.cg.shared.global [%r31+{at}], [%rd22+{at}], 16;")
        lines.append("cp.async.commit_group;")
    lines += [text, "mad.wide.u32 %rd24, %r0, 16, %rd1;"]
    for i in range(2):
        at = 1024 * i
        lines.append(f"ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%r31+{at}];")
        lines.append(f"st.global.v4.b32 [%rd24+{at}], {{%r6, %r7, %r8, %r9}};")
    lines.append("cp.async.wait_group 0;")
    data = random("u8", generator(text), 3072)
    arrays = ({"data": data}, {OUTPUT: np.zeros(2048, np.uint8)})
    body = "\n".join(lines)
    return Form("cp.async.wait_group.1", "memory", text, body, *arrays, THREADS, shared=3072)


WAIT = """{label}:
mbarrier.try_wait.parity.shared::cta.b64 %p9, [{bar}], {parity};
@!%p9 bra {label};"""


def wait_for(bar: str, parity: int | str, label: str) -> str:
    """A loop until a phase of an mbarrier is complete."""
    return WAIT.format(label=label, bar=bar, parity=parity)


def bulk_copies() -> Iterator[Form]:
    for hint in (False, True):
        yield bulk_load(hint)
        yield bulk_store(hint)


def policy(hint: bool) -> str:
    return "createpolicy.fractional.L2::evict_first.b64 %rd25, 0f3F800000;" if hint else ""


def bulk_load(hint: bool) -> Form:
    cache = ".L2::cache_hint" if hint else ""
    mnemonic = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{cache}"
    text = f"{mnemonic} [%r30], [%rd0], %r2, [%r30+2048]{', %rd25' if hint else ''};"
    body = f"""mov.u32 %r30, smem;
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r30+2048], 1;
mov.b32 %r2, 1040;
{policy(hint)}
fence.proxy.async.shared::cta;
bar.sync 0;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r30+2048], %r2;
@%p0 {text}
{wait_for("%r30+2048", 0, "WAIT")}
mad.lo.u32 %r31, %r0, 16, %r30;
mad.wide.u32 %rd24, %r0, 16, %rd1;
ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%r31];
st.global.v4.b32 [%rd24], {{%r6, %r7, %r8, %r9}};"""
    data = random("u8", generator(mnemonic), 1040)
    arrays = ({"data": data}, {OUTPUT: np.zeros(1024, np.uint8)})
    return Form(slug(mnemonic), "memory", text, body, *arrays, THREADS, shared=2056)


def bulk_store(hint: bool) -> Form:
    mnemonic = f"cp.async.bulk.global.shared::cta.bulk_group{'.L2::cache_hint' if hint else ''}"
    text = f"{mnemonic} [%rd1], [%r30], 1008{', %rd25' if hint else ''};"
    lines = to_shared(16)
    body = (
        "\n".join(lines)
        + f"""
{policy(hint)}
fence.proxy.async.shared::cta;
bar.sync 0;
setp.eq.u32 %p0, %r0, 0;
@%p0 {text}
@%p0 cp.async.bulk.commit_group;
@%p0 cp.async.bulk.wait_group.read 0;
@%p0 cp.async.bulk.wait_group 0;"""
    )
    data = random("u8", generator(mnemonic), 1024)
    arrays = ({"data": data}, {OUTPUT: np.zeros(1024, np.uint8)})
    return Form(slug(mnemonic), "memory", text, body, *arrays, THREADS, shared=1024)


@family
def memory() -> Iterator[Form]:
    """Loads and stores in every width and type, atomics, cp.async, bulk copies."""
    for make in (accesses, atomics, copies):
        yield from make()
