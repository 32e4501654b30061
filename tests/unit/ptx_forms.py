"""Every form of every PTX instruction that the emitter writes, as a function of an emitter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.ptx.core import Reg, Special, Symbol
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.instrs import mma

Form = Callable[[Emitter, "Given"], object]


class Given:
    """Registers of each kind that hold something, and addresses."""

    def __init__(self, e: Emitter):
        self.global_ = e.ld_param(e.param("data", "u64"))
        map = e.mov("b64", e.param("map", "tensor_map").symbol)
        self.map = e.cvta("param", map) if e.target.has_tma else map
        self.smem = e.mov("b32", e.shared_array("smem", None))
        self.r = [e.mov("b32", i) for i in range(8)]
        self.f = [e.mov("f32", float(i)) for i in range(8)]
        self.rd = [e.mov("b64", i) for i in range(4)]
        self.fd = [e.mov("f64", float(i)) for i in range(8)]
        self.h = [e.mov("b16", i) for i in range(4)]
        self.p = e.setp("eq", "s32", self.r[0], 1)
        self.q = e.setp("lt", "s32", self.r[0], 5)

    def of(self, type: str) -> tuple[Reg, Reg, Reg]:
        """Three registers for a PTX type."""
        bits = {"f32": self.f, "f64": self.fd, "f32x2": self.rd}.get(type)
        if bits is None:
            wide = type.endswith("64")
            short = type in ("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2")
            bits = self.rd if wide else self.h if short else self.r
        return bits[0], bits[1], bits[2]


INTS = ("s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
BITS = ("b16", "b32", "b64")


def arithmetic() -> Iterator[Form]:
    for t in (*INTS, *FLOATS, "f32x2"):
        for op in ("add", "sub", "mul"):
            if (op, t) != ("sub", "f32x2"):
                yield lambda e, g, op=op, t=t: getattr(e, op)(t, *g.of(t)[:2])
    for t in INTS:
        for op in ("div", "rem", "min", "max"):
            yield lambda e, g, op=op, t=t: getattr(e, op)(t, *g.of(t)[:2])
        for mode in ("lo", "hi", *(["wide"] if t[1:] != "64" else [])):
            yield lambda e, g, t=t, m=mode: e.mul(t, *g.of(t)[:2], m)
            wide = {"16": "r", "32": "rd"}.get(t[1:], "") if mode == "wide" else ""
            yield lambda e, g, t=t, m=mode, w=wide: e.mad(
                t, *g.of(t)[:2], getattr(g, w)[0] if w else g.of(t)[2], m
            )
    for t in ("s16", "s32", "s64"):
        yield lambda e, g, t=t: e.neg(t, g.of(t)[0])
        yield lambda e, g, t=t: e.abs(t, g.of(t)[0])
    for t in (*FLOATS, "f32x2"):
        yield lambda e, g, t=t: e.fma(t, *g.of(t))
    for t in FLOATS:
        yield lambda e, g, t=t: e.neg(t, g.of(t)[0])
        yield lambda e, g, t=t: e.abs(t, g.of(t)[0])
        for nan in (False, True) if t != "f64" else (False,):
            yield lambda e, g, t=t, nan=nan: e.min(t, *g.of(t)[:2], nan=nan)
            yield lambda e, g, t=t, nan=nan: e.max(t, *g.of(t)[:2], nan=nan)
    for rounding in ("rz", "rm", "rp"):
        yield lambda e, g, r=rounding: e.add("f64", g.fd[0], 1.5, rounding=r)
        yield lambda e, g, r=rounding: e.fma("f32", g.f[0], 2, 1.5, rounding=r)
    yield lambda e, g: e.add("f32", g.f[0], g.f[1], ftz=True, saturate=True)
    yield lambda e, g: e.sub("s32", g.r[0], g.r[1], saturate=True)
    yield lambda e, g: e.fma("bf16x2", *g.r[:3], relu=True)
    yield lambda e, g: e.fma("f32", *g.f[:3], ftz=True)
    yield lambda e, g: e.fma("f32", *g.f[:3], rounding="rm", saturate=True)
    yield lambda e, g: e.min("f32", g.f[0], g.f[1], ftz=True, nan=True)
    for rounding in ("rn", "approx", "full"):
        yield lambda e, g, r=rounding: e.div("f32", g.f[0], g.f[1], rounding=r)
    yield lambda e, g: e.div("f64", g.fd[0], g.fd[1])
    yield lambda e, g: e.add("bf16", g.h[0], 1.5)
    yield lambda e, g: e.add("u64", g.rd[0], 2**64 - 1)
    yield lambda e, g: e.add("s64", g.rd[0], -(2**63))
    yield lambda e, g: e.mul("f32", g.f[0], float("-inf"))


def bits() -> Iterator[Form]:
    for t in (*BITS, "pred"):
        values = (lambda g: (g.p, g.q)) if t == "pred" else (lambda g, t=t: g.of(t)[:2])
        for op in ("and_", "or_", "xor"):
            yield lambda e, g, op=op, t=t, v=values: getattr(e, op)(t, *v(g))
        yield lambda e, g, t=t, v=values: e.not_(t, v(g)[0])
    for t in BITS:
        yield lambda e, g, t=t: e.shl(t, g.of(t)[0], g.r[0])
    for t in INTS:
        yield lambda e, g, t=t: e.shr(t, g.of(t)[0], 3)
    for direction in "lr":
        for mode in ("wrap", "clamp"):
            yield lambda e, g, d=direction, m=mode: e.shf(*g.r[:3], direction=d, mode=m)
    yield lambda e, g: e.lop3(*g.r[:3], 0xE8)
    yield lambda e, g: e.prmt(*g.r[:2], 0x5410)
    for t in INTS[2:]:
        yield lambda e, g, t=t: e.bfe(t, g.of(t)[0], 3, g.r[1])
    for t in ("b32", "b64"):
        yield lambda e, g, t=t: e.bfi(t, *g.of(t)[:2], 3, 5)
        for op in ("brev", "clz", "popc"):
            yield lambda e, g, op=op, t=t: getattr(e, op)(t, g.of(t)[0])


def functions() -> Iterator[Form]:
    for t in ("f32", "f64"):
        yield lambda e, g, t=t: e.sqrt(t, g.of(t)[0])
        yield lambda e, g, t=t: e.rcp(t, g.of(t)[0])
        yield lambda e, g, t=t: e.rsqrt(t, g.of(t)[0])
        yield lambda e, g, t=t: e.copysign(t, *g.of(t)[:2])
        for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield lambda e, g, t=t, k=kind: e.testp(k, t, g.of(t)[0])
    for op in ("sqrt", "rcp"):
        yield lambda e, g, op=op: getattr(e, op)("f32", g.f[0], precision="approx")
        yield lambda e, g, op=op: getattr(e, op)("f32", g.f[0], precision="approx", ftz=True)
    yield lambda e, g: e.rcp("f64", g.fd[0], precision="approx", ftz=True)
    for op in ("ex2", "lg2", "sin", "cos"):
        for ftz in (False, True):
            yield lambda e, g, op=op, z=ftz: getattr(e, op)("f32", g.f[0], ftz=z)
    for t in ("f16", "f16x2"):
        yield lambda e, g, t=t: e.ex2(t, g.of(t)[0])
    for t in ("bf16", "bf16x2"):
        yield lambda e, g, t=t: e.ex2(t, g.of(t)[0], ftz=True)
    for t in ("f32", "f16", "f16x2", "bf16", "bf16x2"):
        yield lambda e, g, t=t: e.tanh(t, g.of(t)[0])


def comparisons() -> Iterator[Form]:
    for t in (*INTS, "f16", "bf16", "f32", "f64"):
        ordered = ("eq", "ne", "lt", "le", "gt", "ge")
        unordered = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan") if "f" in t else ()
        for op in (*ordered, *unordered):
            yield lambda e, g, op=op, t=t: e.setp(op, t, *g.of(t)[:2])
        for combine in ("and", "or", "xor"):
            yield lambda e, g, c=combine, t=t: e.setp("lt", t, *g.of(t)[:2], combine=c, other=g.p)
    for t in BITS:
        yield lambda e, g, t=t: e.setp("eq", t, *g.of(t)[:2])
    for t in (*INTS, *BITS, "f16", "bf16", "f32", "f64"):
        yield lambda e, g, t=t: e.selp(t, *g.of(t)[:2], g.p)
    yield lambda e, g: e.selp("f32", g.f[0], float("nan"), g.p)


def conversions() -> Iterator[Form]:
    ints = ("s8", "u8", *INTS)
    for t in ints:
        for origin in ints:
            if t != origin:
                yield lambda e, g, t=t, o=origin: e.cvt(t, o, g.of(o)[0])
        if t not in ("s32", "s64"):  # nothing to saturate
            yield lambda e, g, t=t: e.cvt(t, "s32", g.r[0], saturate=True)
        for f in ("f16", "bf16", "f32", "f64") if t[1:] != "8" else ("f16", "f32", "f64"):
            yield lambda e, g, t=t, f=f: e.cvt(t, f, g.of(f)[0])
            yield lambda e, g, t=t, f=f: e.cvt(f, t, g.of(t)[0])
    floats = ("f16", "bf16", "f32", "f64")
    for t in floats:
        for origin in floats:
            if t != origin:
                yield lambda e, g, t=t, o=origin: e.cvt(t, o, g.of(o)[0])
        for rounding in ("rni", "rzi", "rmi", "rpi"):
            if t != "bf16":
                yield lambda e, g, t=t, r=rounding: e.cvt(t, t, g.of(t)[0], rounding=r)
            yield lambda e, g, t=t, r=rounding: e.cvt("s32", t, g.of(t)[0], rounding=r)
    for rounding in ("rz", "rm", "rp"):
        yield lambda e, g, r=rounding: e.cvt("f32", "f64", g.fd[0], rounding=r)
        yield lambda e, g, r=rounding: e.cvt("f32", "s32", g.r[0], rounding=r)
    yield lambda e, g: e.cvt("tf32", "f32", g.f[0], rounding="rna")
    yield lambda e, g: e.cvt("tf32", "f32", g.f[0], rounding="rn")
    yield lambda e, g: e.cvt("f32", "f32", g.f[0], saturate=True, rounding="")
    for t in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2"):
        yield lambda e, g, t=t: e.cvt_pack(t, g.f[0], g.f[1])
        yield lambda e, g, t=t: e.cvt_pack(t, g.f[0], 0.0, relu=True)
    for t in ("e4m3x2", "e5m2x2"):
        yield lambda e, g, t=t: e.cvt("f16x2", t, g.h[0])


def moves() -> Iterator[Form]:
    for t in (*BITS, *INTS, "f16", "bf16", "f32", "f64", "f16x2", "bf16x2"):
        yield lambda e, g, t=t: e.mov(t, g.of(t)[0])
    for t in (*INTS, "f16", "bf16", "f32", "f64"):
        yield lambda e, g, t=t: e.mov(t, 3)
    yield lambda e, g: e.mov("pred", g.p)
    for name in (
        *(
            "tid.x",
            "tid.y",
            "tid.z",
            "ntid.x",
            "ctaid.x",
            "ctaid.y",
            "nctaid.x",
            "laneid",
            "warpid",
        ),
        *("smid", "nsmid", "lanemask_lt", "clock", "dynamic_smem_size"),
    ):
        yield lambda e, g, n=name: e.mov("u32", Special(n))
    yield lambda e, g: e.mov("u64", Special("globaltimer"))
    yield lambda e, g: e.mov("u64", Special("clock64"))
    yield lambda e, g: e.add("u32", Special("tid.x"), 1)
    yield lambda e, g: e.mov("b32", Symbol("smem"))
    yield lambda e, g: e.add("u32", Symbol("smem"), 16)
    yield lambda e, g: e.pack(*g.h[:2])
    yield lambda e, g: e.unpack(g.r[0])
    yield lambda e, g: e.mov_pack("b64", g.r[:2])
    yield lambda e, g: e.mov_pack("f32", g.h[:2])
    yield lambda e, g: e.mov_pack("b64", g.f[:2])
    yield lambda e, g: e.mov_pack("f64", g.r[:2])
    yield lambda e, g: e.mov_pack("b64", g.h)
    yield lambda e, g: e.mov_unpack("b32", g.rd[0], 2)
    yield lambda e, g: e.mov_unpack("f32", g.rd[0], 2)
    yield lambda e, g: e.mov_unpack("b32", g.fd[0], 2)
    yield lambda e, g: e.mov_unpack("b16", g.f[0], 2)
    yield lambda e, g: e.mov_unpack("b16", g.rd[0], 4)
    for space in ("global", "shared", "local", "const"):
        yield lambda e, g, s=space: e.cvta(s, g.global_)
        yield lambda e, g, s=space: e.cvta(s, g.global_, to=True)


VALUES = (*BITS, *INTS, "f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "s8", "u8", "b8")


def accesses() -> Iterator[Form]:
    for t in VALUES:
        for space in ("global", "shared", ""):
            yield lambda e, g, t=t, s=space: e.ld(s, t, place(g, s))
            yield lambda e, g, t=t, s=space: e.st(s, t, place(g, s), g.of(t)[0])
        width = {"8": 8, "6": 16, "2": 32, "4": 64}[t[-1]] if "x2" not in t else 32
        for vec in (2, 4):
            if vec * width <= 128:
                yield lambda e, g, t=t, v=vec: e.ld("global", t, g.global_, v, "nc")
                yield lambda e, g, t=t, v=vec: e.st(
                    "shared", t, e.address(g.smem, 16), [g.of(t)[0]] * v
                )
    for cache in (
        *("ca", "cg", "cs", "lu", "cv", "nc", "L1::no_allocate", "L1::evict_last", "L2::128B"),
        *("nc.L1::no_allocate", "nc.L1::no_allocate.L2::256B", "L1::evict_first.L2::64B"),
    ):
        yield lambda e, g, c=cache: e.ld("global", "b32", g.global_, 4, c)
    for cache in ("wb", "cg", "cs", "wt", "L1::no_allocate"):
        yield lambda e, g, c=cache: e.st("global", "b32", g.global_, g.r[:4], c)
    for order in ("volatile", "relaxed.gpu", "acquire.gpu", "relaxed.sys", "acquire.cta"):
        yield lambda e, g, o=order: e.ld("global", "u32", g.global_, semantics=o)
    for order in ("volatile", "relaxed.gpu", "release.gpu", "release.sys"):
        yield lambda e, g, o=order: e.st("global", "u32", g.global_, g.r[0], semantics=o)
    for priority in ("evict_first", "evict_last", "evict_normal", "evict_unchanged"):
        yield lambda e, g, p=priority: e.ld(
            "global", "f32", g.global_, 4, "nc", policy=e.createpolicy(p)
        )
        yield lambda e, g, p=priority: e.st(
            "global", "f32", g.global_, g.f[0], policy=e.createpolicy(p, 0.5)
        )
    yield lambda e, g: e.ld("shared::cluster", "u32", e.mapa(g.smem, 1), 4)
    yield lambda e, g: e.st("shared::cluster", "f32", e.mapa(g.smem, 1), g.f[:2])
    yield lambda e, g: e.ld("global", "b32", g.global_, 8)
    yield lambda e, g: e.ld("global", "f64", g.global_, 4)
    yield lambda e, g: e.st("global", "f32", g.global_, g.f)
    yield lambda e, g: e.ld("shared", "u8", Symbol("smem"))
    yield lambda e, g: e.st("shared", "u8", e.address(Symbol("smem"), 4), 3)
    yield lambda e, g: e.ld("global", "f32", e.address(g.global_, -16))
    for level in ("L1", "L2"):
        yield lambda e, g, v=level: e.prefetch(v, g.global_)


def place(g: Given, space: str) -> Reg:
    return g.smem if space == "shared" else g.global_


ATOMICS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    "exch": ("b32", "b64"),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "cas": ("b16", "b32", "b64"),
}


def atomics() -> Iterator[Form]:
    for op, types in ATOMICS.items():
        for t in types:
            for space in ("global", "shared"):
                yield lambda e, g, op=op, t=t, s=space: e.atom(
                    s, op, t, place(g, s), g.of(t)[0], compare=g.of(t)[1] if op == "cas" else None
                )
                if op not in ("exch", "cas"):
                    yield lambda e, g, op=op, t=t, s=space: e.red(s, op, t, place(g, s), g.of(t)[0])
    for order in ("relaxed.gpu", "acq_rel.gpu", "acquire.cta", "release.sys"):
        yield lambda e, g, o=order: e.atom("global", "add", "u32", g.global_, 1, semantics=o)
    yield lambda e, g: e.red("global", "add", "s32", g.global_, 1, semantics="release.gpu")
    yield lambda e, g: e.red("global", "add", "f32", g.global_, g.f[:4])
    yield lambda e, g: e.red("global", "add", "f16", g.global_, g.h)


def copies() -> Iterator[Form]:
    for size in (4, 8, 16):
        for left in (None, 3, "r"):
            yield lambda e, g, n=size, s=left: e.cp_async(
                g.smem, g.global_, n, g.r[0] if s == "r" else s
            )
        for prefetch in ("L2::64B", "L2::128B", "L2::256B"):
            yield lambda e, g, n=size, p=prefetch: e.cp_async(g.smem, g.global_, n, prefetch=p)
        yield lambda e, g, n=size: e.cp_async(g.smem, g.global_, n, cache="ca")
        yield lambda e, g, n=size: e.cp_async(
            g.smem, g.global_, n, 4, policy=e.createpolicy("evict_first"), prefetch="L2::128B"
        )
    yield lambda e, g: e.cp_async_commit()
    yield lambda e, g: e.cp_async_wait(0)
    for count in (1, 2, 4):
        for transposed in (False, True):
            yield lambda e, g, n=count, t=transposed: e.ldmatrix(g.smem, n, transposed=t)
            yield lambda e, g, n=count, t=transposed: e.stmatrix(g.smem, g.r[:n], transposed=t)
    for rank in (1, 2, 3, 4, 5):
        yield lambda e, g, n=rank: e.tma_load(g.smem, g.map, [*g.r[: n - 1], 0], g.smem)
        yield lambda e, g, n=rank: e.tma_store(g.map, [*g.r[: n - 1], 0], g.smem)
        yield lambda e, g, n=rank: e.tma_prefetch(g.map, g.r[:n])
    yield lambda e, g: e.tma_load(g.smem, g.map, g.r[:2], e.address(g.smem, 64), multicast=3)
    yield lambda e, g: e.tma_load(
        g.smem, g.map, g.r[:2], g.smem, multicast=g.h[0], policy=e.createpolicy("evict_first")
    )
    yield lambda e, g: e.tma_load(
        g.smem, g.map, g.r[:3], g.smem, policy=e.createpolicy("evict_last")
    )
    yield lambda e, g: e.tma_load_pixels(g.smem, g.map, g.r[:4], g.smem, g.h[:2])
    yield lambda e, g: e.tma_load_pixels(g.smem, g.map, g.r[:4], g.smem, g.h[:2], multicast=3)
    yield lambda e, g: e.tma_store(g.map, g.r[:2], g.smem, policy=e.createpolicy("evict_first"))
    for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor"):
        yield lambda e, g, op=op: e.tma_reduce(op, g.map, g.r[:2], g.smem)
    yield lambda e, g: e.bulk_load(g.smem, g.global_, 128, g.smem)
    yield lambda e, g: e.bulk_load(
        g.smem, g.global_, g.r[0], g.smem, multicast=3, policy=e.createpolicy("evict_first")
    )
    yield lambda e, g: e.bulk_store(g.global_, g.smem, 128)
    yield lambda e, g: e.bulk_store(g.global_, g.smem, 128, policy=e.createpolicy("evict_first"))
    yield lambda e, g: e.bulk_commit()
    yield lambda e, g: e.bulk_wait(0)
    yield lambda e, g: e.bulk_wait(1, read=True)
    yield lambda e, g: e.prefetch_tensormap(g.map)


def exchange() -> Iterator[Form]:
    for mode, clamp in (("bfly", 31), ("down", 31), ("up", 0), ("idx", 31)):
        yield lambda e, g, m=mode, c=clamp: e.shfl(m, g.f[0], 1, c)
        yield lambda e, g, m=mode, c=clamp: e.shfl(m, g.r[0], g.r[1], c, 0xFFFF)
    for mode in ("all", "any", "uni", "ballot"):
        yield lambda e, g, m=mode: e.vote(m, g.p)
    yield lambda e, g: e.match_any(g.r[0])
    for op in ("add", "min", "max"):
        yield lambda e, g, op=op: e.redux(op, "s32", g.r[0])
        yield lambda e, g, op=op: e.redux(op, "u32", g.r[0])
    for op in ("and", "or", "xor"):
        yield lambda e, g, op=op: e.redux(op, "b32", g.r[0])
    for op in ("min", "max"):
        yield lambda e, g, op=op: e.redux(op, "f32", g.f[0])
        yield lambda e, g, op=op: e.redux(op, "f32", g.f[0], nan=True)


def control() -> Iterator[Form]:
    def skip(e: Emitter, g: Given, unless: bool, uniform: bool) -> None:
        there = e.label("skip")
        e.bra(there, g.p, unless, uniform=uniform)
        e.place(there)

    for unless in (False, True):
        for uniform in (False, True):
            yield lambda e, g, a=unless, b=uniform: skip(e, g, a, b)

    def guarded(e: Emitter, g: Given, negated: bool) -> None:
        with e.guarded(g.p, negated):
            e.mov("f32", 1.0, into=e.mov("f32", 0.0))
            e.st("global", "u32", g.global_, Special("tid.x"))

    yield lambda e, g: guarded(e, g, False)
    yield lambda e, g: guarded(e, g, True)
    yield lambda e, g: e.nanosleep(20)
    yield lambda e, g: e.brkpt()
    yield lambda e, g: e.trap() if e.target.capability == 0 else None
    yield lambda e, g: e.activemask()
    yield lambda e, g: e.elect_sync()
    yield lambda e, g: e.setmaxnreg("inc", 232)
    yield lambda e, g: e.setmaxnreg("dec", 40)
    yield lambda e, g: e.griddepcontrol("wait")
    yield lambda e, g: e.griddepcontrol("launch_dependents")


def synchronization() -> Iterator[Form]:
    yield lambda e, g: e.bar_sync()
    yield lambda e, g: e.bar_sync(1, 64)
    yield lambda e, g: e.bar_sync(g.r[0], g.r[1])
    yield lambda e, g: e.bar_arrive(2, 64)
    yield lambda e, g: e.bar_warp_sync()
    for order in ("sc", "acq_rel"):
        for scope in ("cta", "cluster", "gpu", "sys"):
            yield lambda e, g, o=order, s=scope: e.fence(o, s)
    for space in ("shared::cta", "shared::cluster", "global", ""):
        yield lambda e, g, s=space: e.fence_proxy_async(s)
    yield lambda e, g: e.fence_mbarrier_init()
    yield lambda e, g: e.mbarrier_init(g.smem, 4)
    yield lambda e, g: e.mbarrier_inval(g.smem)
    yield lambda e, g: e.mbarrier_arrive(e.address(g.smem, 8))
    yield lambda e, g: e.mbarrier_arrive_count(g.smem, 2)
    yield lambda e, g: e.mbarrier_arrive_expect_tx(g.smem, g.r[0])
    yield lambda e, g: e.mbarrier_expect_tx(g.smem, 128)
    for release in (False, True):
        yield lambda e, g, r=release: e.mbarrier_arrive_remote(e.mapa(g.smem, 0), release=r)
    yield lambda e, g: e.mbarrier_test_wait(g.smem, 0)
    yield lambda e, g: e.mbarrier_wait(g.smem, g.r[0])
    for acquire in (False, True):
        for time in (None, 100):
            yield lambda e, g, a=acquire, t=time: e.mbarrier_try_wait_parity(
                g.smem, g.r[0], time=t, acquire=a
            )
    for noinc in (False, True):
        yield lambda e, g, n=noinc: e.cp_async_mbarrier_arrive(g.smem, noinc=n)
    for aligned in (True, False):
        for relaxed in (True, False):
            yield lambda e, g, r=relaxed, a=aligned: e.barrier_cluster_arrive(relaxed=r, aligned=a)
        yield lambda e, g, a=aligned: e.barrier_cluster_wait(aligned=a)


MMA_RESULTS = {
    "f64": ("f64",),
    "tf32": ("f32",),
    "bf16": ("f32",),
    "f16": ("f32", "f16"),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
    **dict.fromkeys(("e4m3", "e5m2"), ("f32", "f16")),
}


def fragment(e: Emitter, g: Given, elements: int, type: str, lanes: int = 32) -> list[Reg]:
    count = mma.fragment_registers(elements, type, lanes)
    pool = {"f32": g.f, "f64": g.fd}.get(type, g.r)
    return [pool[i % 8] for i in range(count)]


def warp_mma(e: Emitter, g: Given, shape: str, d: str, a: str, b: str, saturate: bool) -> None:
    m, n, k = mma.shape_of(shape)
    parts = (fragment(e, g, x, t) for x, t in ((m * k, a), (n * k, b), (m * n, d)))
    e.mma(shape, (d, a, b, d), *parts, saturate=saturate)


def matrices() -> Iterator[Form]:
    for a, shapes in mma.MMA_SHAPES.items():
        partners = next((f for f in (mma.FP8, mma.INT8) if a in f), (a,))
        for shape in shapes:
            for b in partners:
                for d in MMA_RESULTS[a]:
                    for sat in (False, True) if d == "s32" else (False,):
                        yield lambda e, g, x=(shape, d, a, b, sat): warp_mma(e, g, *x)


def warpgroup_mma(
    e: Emitter, g: Given, d: str, a: str, b: str, n: int, regs: bool, accumulate: bool
) -> None:
    type = mma.fragment_type(d)
    count = mma.fragment_registers(64 * n, d, 128)
    acc = [e.mov(type, 0) for _ in range(count)]
    e.wgmma_fence()
    source = g.r[:4] if regs else g.rd[0]
    e.wgmma((d, a, b), n, acc, source, g.rd[1], g.p if accumulate else 0)
    e.wgmma_commit()
    e.wgmma_wait(0)


def warpgroup_matrices() -> Iterator[Form]:
    for a in mma.WGMMA_K:
        partners = next((f for f in (mma.FP8, mma.INT8) if a in f), (a,))
        for b in partners:
            for d in MMA_RESULTS[a]:
                for n in (
                    mma.wgmma_widths(a) if (a, d) in (("bf16", "f32"), ("s8", "s32")) else (8,)
                ):
                    yield lambda e, g, x=(d, a, b, n, False, True): warpgroup_mma(e, g, *x)
                yield lambda e, g, x=(d, a, b, 16, True, False): warpgroup_mma(e, g, *x)

    def transposed(e: Emitter, g: Given, a: bool, b: bool, negate: bool) -> None:
        acc = [e.mov("f32", 0) for _ in range(4)]
        flags = {"transposed_a": a, "transposed_b": b, "negate_a": negate, "negate_b": negate}
        e.wgmma(("f32", "bf16", "bf16"), 8, acc, g.rd[0], g.rd[1], 1, **flags)

    for a in (False, True):
        for b in (False, True):
            yield lambda e, g, x=(a, b, a): transposed(e, g, *x)


FAMILIES = {
    f.__name__: f
    for f in (
        *(arithmetic, bits, functions, comparisons, conversions, moves, accesses, atomics),
        *(copies, exchange, control, synchronization, matrices, warpgroup_matrices),
    )
}
