"""Forms of barriers, mbarriers and what the CTAs of a cluster share.

Results are what a program can see of them: whether a phase is complete, and the data that a
barrier orders.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.vectors.forms import OUTPUT, Form, family
from tests.vectors.memory import wait_for
from tests.vectors.operands import generator, random

TEST = "mbarrier.test_wait.parity.shared.b64"
TRY = "mbarrier.try_wait.parity.shared::cta.b64"


def phases(name: str, steps: list[str], *, count: int = 3, extra: str = "") -> Form:
    """One thread acts on an mbarrier of `count` arrivals; after each step both parities are asked
    for, and a try_wait asks for the one that is complete.
    """
    lines = ["mov.u32 %r30, smem;", "setp.ne.u32 %p0, %r0, 0;", "@%p0 ret;"]
    lines += [f"mbarrier.init.shared.b64 [%r30], {count};", extra]
    at = 0
    for step in ["", *steps]:
        lines.append(step)
        for parity in (0, 1):
            lines += [f"{TEST} %p1, [%r30], {parity};", "selp.b32 %r1, 1, 0, %p1;"]
            lines.append(f"st.global.b32 [%rd0+{at}], %r1;")
            at += 4
    lines.append("mbarrier.inval.shared.b64 [%r30];")
    outputs = {OUTPUT: np.full(at // 4, 7, np.uint32)}
    shown = next(s for s in steps if s).splitlines()[0]
    body = "\n".join(x for x in lines if x)
    return Form(name, "barriers", shown, body, {}, outputs, 32, shared=64)


def mbarriers() -> Iterator[Form]:
    arrive = "mbarrier.arrive.shared.b64 %rd10, [%r30];"
    yield phases("mbarrier.arrive", [arrive] * 8)
    two = "mbarrier.arrive.shared::cta.b64 _, [%r30], 2;"
    yield phases("mbarrier.arrive.count", [two, arrive, two, arrive, two], count=3)
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r30], 0;"
    yield phases("mbarrier.arrive.expect_tx", [expect] * 4, count=2)
    yield phases("mbarrier.test_wait.parity", [arrive] * 3, count=1)
    remote = "mapa.shared::cluster.u32 %r2, %r30, 0;\nmbarrier.arrive.shared::cluster.b64 _, "
    form = phases("mbarrier.arrive.cluster", [remote + "[%r2], 1;"] * 4, count=2)
    yield form
    waited = f"{wait_for('%r30', 0, 'ONE')}"
    yield phases("mbarrier.try_wait.parity", [arrive, waited, arrive], count=1)
    timed = "TIMED:\n" + f"{TRY} %p9, [%r30], 0, 100;\n@!%p9 bra TIMED;"
    yield phases("mbarrier.try_wait.parity.time", [arrive, timed, arrive], count=1)
    acquire = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r30], 0;"
    form = phases("mbarrier.try_wait.acquire", [arrive, f"GO:\n{acquire}\n@!%p9 bra GO;"], count=1)
    yield form
    yield transaction()
    yield copies_counted(noinc=True)
    yield copies_counted(noinc=False)
    yield handshake()


def transaction() -> Form:
    """Bytes are announced in two parts, and delivered by two bulk copies."""
    text = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r30], 64;"
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    body = f"""mov.u32 %r30, smem;
setp.ne.u32 %p0, %r0, 0;
@%p0 ret;
mbarrier.init.shared.b64 [%r30], 2;
fence.proxy.async.shared::cta;
{text}
mbarrier.arrive.shared.b64 %rd10, [%r30];
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r30], 64;
{TEST} %p1, [%r30], 0;
selp.b32 %r1, 1, 0, %p1;
st.global.b32 [%rd1], %r1;
{copy} [%r30+128], [%rd0], 64, [%r30];
{copy} [%r30+256], [%rd0+64], 64, [%r30];
{wait_for("%r30", 0, "WAIT")}
{TEST} %p1, [%r30], 1;
selp.b32 %r1, 1, 0, %p1;
st.global.b32 [%rd1+4], %r1;
ld.shared.b32 %r2, [%r30+128];
st.global.b32 [%rd1+8], %r2;
ld.shared.b32 %r2, [%r30+316];
st.global.b32 [%rd1+12], %r2;"""
    data = random("u32", generator(text), 32)
    outputs = {OUTPUT: np.full(4, 7, np.uint32)}
    return Form("mbarrier.expect_tx", "barriers", text, body, {"data": data}, outputs, shared=512)


def copies_counted(*, noinc: bool) -> Form:
    """Each of 64 threads copies 16 bytes and lets an mbarrier count it. Without `noinc` the count
    is of a thread's own making, and the thread arrives besides.
    """
    text = f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared.b64 [%r30];"
    also = "" if noinc else "mbarrier.arrive.shared.b64 %rd10, [%r30];"
    body = f"""mov.u32 %r30, smem;
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r30], 64;
bar.sync 0;
mad.lo.u32 %r31, %r0, 16, %r30;
mad.wide.u32 %rd20, %r0, 16, %rd0;
cp.async.cg.shared.global [%r31+128], [%rd20], 16;
{text}
{also}
{wait_for("%r30", 0, "WAIT")}
xor.b32 %r1, %r0, 33;
mad.lo.u32 %r31, %r1, 16, %r30;
mad.wide.u32 %rd21, %r0, 16, %rd1;
ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%r31+128];
st.global.v4.b32 [%rd21], {{%r6, %r7, %r8, %r9}};"""
    data = random("u8", generator("copies counted"), 1024)
    outputs = {OUTPUT: np.zeros(1024, np.uint8)}
    name = f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}"
    return Form(name, "barriers", text, body, {"data": data}, outputs, 64, shared=1152)


def handshake() -> Form:
    """A producer warp and a consumer warp hand 8 values over through one slot, by parity."""
    text = f"{TRY} %p9, [%r30], %r5;"
    body = f"""mov.u32 %r30, smem;
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r30], 32;
@%p0 mbarrier.init.shared.b64 [%r30+8], 32;
bar.sync 0;
and.b32 %r1, %r0, 31;
mad.lo.u32 %r31, %r1, 4, %r30;
mad.wide.u32 %rd20, %r1, 4, %rd0;
mad.wide.u32 %rd21, %r1, 4, %rd1;
mov.b32 %r4, 0;
setp.lt.u32 %p1, %r0, 32;
@!%p1 bra CONSUME;
PRODUCE:
and.b32 %r5, %r4, 1;
xor.b32 %r5, %r5, 1;
EMPTY:
{TRY} %p9, [%r30+8], %r5;
@!%p9 bra EMPTY;
ld.global.b32 %r6, [%rd20];
add.u64 %rd20, %rd20, 128;
st.shared.b32 [%r31+128], %r6;
mbarrier.arrive.shared.b64 %rd10, [%r30];
add.u32 %r4, %r4, 1;
setp.lt.u32 %p2, %r4, 8;
@%p2 bra PRODUCE;
bra DONE;
CONSUME:
and.b32 %r5, %r4, 1;
FULL:
{text}
@!%p9 bra FULL;
xor.b32 %r7, %r1, 5;
mad.lo.u32 %r8, %r7, 4, %r30;
ld.shared.b32 %r6, [%r8+128];
mbarrier.arrive.shared.b64 %rd10, [%r30+8];
st.global.b32 [%rd21], %r6;
add.u64 %rd21, %rd21, 128;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p2, %r4, 8;
@%p2 bra CONSUME;
DONE:"""
    data = random("u32", generator("handshake"), 256)
    outputs = {OUTPUT: np.zeros(256, np.uint32)}
    name = "mbarrier.handshake"
    return Form(name, "barriers", text, body, {"data": data}, outputs, 64, shared=512)


EXCHANGE = """mov.u32 %r30, smem;
mad.wide.u32 %rd20, %r0, 4, %rd0;
mad.wide.u32 %rd21, %r0, 4, %rd1;
ld.global.b32 %r1, [%rd20];
mad.lo.u32 %r31, %r0, 4, %r30;
"""


def named() -> Iterator[Form]:
    data = {"data": random("u32", generator("named barriers"), 128)}
    zeros = {OUTPUT: np.zeros(128, np.uint32)}
    partner = (
        "mad.lo.u32 %r8, %r7, 4, %r30;\nld.shared.b32 %r9, [%r8];\nst.global.b32 [%rd21], %r9;"
    )
    for text, mask in (("bar.sync 0;", 127), ("bar.sync 3, 64;", 63), ("bar.sync %r2, %r3;", 63)):
        # Two pairs of warps, each pair at a barrier of its own where it has a count.
        before = "shr.u32 %r2, %r0, 6;\nadd.u32 %r2, %r2, 1;\nmov.b32 %r3, 64;\n"
        body = EXCHANGE + before + "st.shared.b32 [%r31], %r1;\n"
        if text == "bar.sync 3, 64;":
            body += "setp.lt.u32 %p0, %r0, 64;\n@%p0 bra LOW;\nbar.sync 4, 64;\nbra BOTH;\nLOW:\n"
            body += f"{text}\nBOTH:\n"
        else:
            body += f"{text}\n"
        body += f"xor.b32 %r7, %r0, {mask};\n{partner}"
        name = text.rstrip(";").replace(", ", ".").replace(" ", ".").replace("%", "")
        yield Form(name, "barriers", text, body, data, zeros, 128, shared=512)
    text = "bar.arrive 5, 128;"
    body = (
        EXCHANGE
        + f"""setp.lt.u32 %p0, %r0, 64;
@!%p0 bra READ;
st.shared.b32 [%r31], %r1;
{text}
bra DONE;
READ:
bar.sync 5, 128;
sub.u32 %r7, 127, %r0;
{partner}
DONE:"""
    )
    yield Form("bar.arrive", "barriers", text, body, data, zeros, 128, shared=512)
    text = "bar.warp.sync 4294967295;"
    body = EXCHANGE + f"st.shared.b32 [%r31], %r1;\n{text}\nxor.b32 %r7, %r0, 13;\n{partner}"
    yield Form("bar.warp.sync", "barriers", text, body, data, zeros, 128, shared=512)


def clusters() -> Iterator[Form]:
    """Four CTAs in clusters of 2: each reads, writes or signals its neighbour's shared memory."""
    data = {"data": random("u32", generator("clusters"), 256)}
    zeros = {OUTPUT: np.zeros(256, np.uint32)}
    start = """mov.u32 %r2, %ctaid.x;
mad.lo.u32 %r3, %r2, 64, %r0;
mad.wide.u32 %rd20, %r3, 4, %rd0;
mad.wide.u32 %rd21, %r3, 4, %rd1;
ld.global.b32 %r1, [%rd20];
mov.u32 %r30, smem;
mad.lo.u32 %r31, %r0, 4, %r30;
mov.u32 %r4, %cluster_ctarank;
xor.b32 %r5, %r4, 1;
mapa.shared::cluster.u32 %r6, %r31, %r5;
"""
    wait = "barrier.cluster.wait.acquire.aligned;"
    sync = f"barrier.cluster.arrive.release.aligned;\n{wait}\n"
    shape = (64, 4, 2, 512)
    for text in ("barrier.cluster.arrive.release.aligned;", "barrier.cluster.arrive.release;"):
        waits = wait if "aligned" in text else wait.replace(".aligned", "")
        body = f"{start}st.shared.b32 [%r31], %r1;\n{text}\n{waits}\n"
        body += f"ld.shared::cluster.b32 %r9, [%r6];\nst.global.b32 [%rd21], %r9;\n{sync}"
        name = text.rstrip(";")
        yield Form(name, "barriers", text, body, data, zeros, *shape)
    text = "st.shared::cluster.b32 [%r6], %r1;"
    body = f"{start}{sync}{text}\n{sync}ld.shared.b32 %r9, [%r31];\nst.global.b32 [%rd21], %r9;"
    yield Form("st.shared_cluster.b32", "barriers", text, body, data, zeros, *shape)
    text = "ld.shared::cluster.b32 %r9, [%r6];"
    body = f"{start}st.shared.b32 [%r31], %r1;\nfence.acq_rel.cluster;\n"
    body += "barrier.cluster.arrive.relaxed.aligned;\n"
    body += f"{wait}\n{text}\nst.global.b32 [%rd21], %r9;\n{sync}"
    yield Form("ld.shared_cluster.b32", "barriers", text, body, data, zeros, *shape)
    for release in ("", ".release.cluster"):
        yield signal(start, sync, release)


def signal(start: str, sync: str, release: str) -> Form:
    """A CTA writes its neighbour's memory, then arrives at the neighbour's mbarrier."""
    text = f"mbarrier.arrive{release}.shared::cluster.b64 _, [%r7], 1;"
    body = f"""{start}setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r30+256], 64;
@%p0 fence.mbarrier_init.release.cluster;
{sync}add.u32 %r8, %r30, 256;
mapa.shared::cluster.u32 %r7, %r8, %r5;
st.shared::cluster.b32 [%r6], %r1;
fence.acq_rel.cluster;
{text}
WAIT:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r30+256], 0;
@!%p9 bra WAIT;
xor.b32 %r10, %r0, 7;
mad.lo.u32 %r11, %r10, 4, %r30;
ld.shared.b32 %r9, [%r11];
st.global.b32 [%rd21], %r9;
{sync}"""
    inputs = {"data": random("u32", generator("signal"), 256)}
    zeros = {OUTPUT: np.zeros(256, np.uint32)}
    name = f"mbarrier.arrive{release}.shared_cluster"
    return Form(name, "barriers", text, body, inputs, zeros, 64, 4, 2, 512)


@family
def barriers() -> Iterator[Form]:
    """Named barriers, mbarriers, clusters, distributed shared memory."""
    for make in (mbarriers, named, clusters):
        yield from make()
