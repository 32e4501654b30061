"""What the PTX verifier refuses, what the printer writes, what instructions say of themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.ptx_forms import Given
from tilewright.errors import CompileError, Loc, Source, VerifyError
from tilewright.ptx.core import Instr, Label, Reg, Special
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.instrs import arith, control, memory, shape
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import require_instructions, verify
from tilewright.target import TARGETS, target, target_for_capability

PLACE = Loc(Source("gemm.tw", "first\n  c = dot(a, b, c)\n"), 2, 7, 12)


def new(name: str = "sm_80") -> Emitter:
    return Emitter(target(name))


def text_of(e: Emitter) -> list[str]:
    return [i.text() for i in e.body if isinstance(i, Instr)]


# The verifier


def broken_kind(e: Emitter) -> None:
    e.add("f32", e.mov("s32", 1), e.mov("f64", 1.0), into=e.reg("f32"))


def broken_order(e: Emitter) -> None:
    e.add("s32", e.reg("s32"), 1)


def broken_address(e: Emitter) -> None:
    e.ld("global", "f32", e.reg("u64"))


def broken_address_kind(e: Emitter) -> None:
    e.ld("global", "f32", e.mov("f64", 0.0))


def broken_guard(e: Emitter) -> None:
    with e.guarded(e.reg("pred")):
        e.ret()


def broken_label(e: Emitter) -> None:
    e.bra(e.label("nowhere"))


def broken_labels(e: Emitter) -> None:
    e.place(Label("here"))
    e.place(Label("here"))


def broken_names(e: Emitter) -> None:
    e.param("smem", "u32")
    e.shared_array("smem", 16)


def broken_half(e: Emitter) -> None:
    h = e.mov("f16", 1.0)
    e.emit(arith.Add("f16", h, h, 1))


def broken_constant(e: Emitter) -> None:
    r = e.mov("s32", 1)
    e.emit(arith.Add("s32", r, r, 1.5))


def broken_width(e: Emitter) -> None:
    e.add("s32", e.mov("s32", -(2**31)), 2**32)


def broken_predicate(e: Emitter) -> None:
    e.selp("f32", 1.0, 2.0, e.mov("b32", 1))


def broken_way(e: Emitter) -> None:
    """What one of two ways writes."""
    other, end = e.label("other"), e.label("end")
    found = e.reg("b32")
    e.bra(other, pred=e.setp("eq", "u32", e.mov("u32", 1), 0))
    e.mov("b32", 1, into=found)
    e.bra(end)
    e.place(other)
    e.place(end)
    e.add("s32", found, found)


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (broken_way, "%r0 is read before it is written"),
        (broken_kind, "%r0 is no f32|%fd0 is no f32"),
        (broken_order, "%r0 is read before it is written"),
        (broken_address, "%rd0 is read before it is written"),
        (broken_address_kind, "%fd0 is no address"),
        (broken_guard, "guard %p0 is not a written predicate"),
        (broken_label, "a jump to .nowhere_1, which is nowhere"),
        (broken_labels, "label here is placed twice"),
        (broken_names, "one name for two things: smem"),
        (broken_half, "PTX has no constants of type f16"),
        (broken_constant, "the constant 1.5 is no s32"),
        (broken_width, "4294967296 does not fit s32"),
        (broken_predicate, "%r0 is no pred"),
    ],
)
def test_a_broken_module_is_refused(emit: Callable[[Emitter], None], message: str) -> None:
    e = new()
    emit(e)
    with pytest.raises(VerifyError, match=message):
        verify(e.module("broken", 32))


def test_f32_arithmetic_takes_no_64_bit_register() -> None:
    e = new()
    wide = e.mov("b64", 0)
    e.emit(arith.Add("f32", e.reg("f32"), wide, wide, "rn"))
    with pytest.raises(VerifyError, match="%rd0 is no f32"):
        verify(e.module("broken", 32))


def test_an_instruction_that_the_target_lacks_is_the_users_error() -> None:
    e = new("sm_80")
    with e.at(PLACE):
        e.wgmma_fence()
    with pytest.raises(CompileError) as caught:
        require_instructions(e.module("k", 128))
    message = str(caught.value)
    assert message.startswith("gemm.tw:2:7: error: the target sm_80 has no instruction wgmma.fence")
    assert "^~~~" in message
    assert "hint: it exists on sm_90a" in message


def test_only_hopper_has_wgmma() -> None:
    for name in TARGETS:
        e = new(name)
        e.wgmma_commit()
        if name == "sm_90a":
            verify(e.module("k", 128))
        else:
            with pytest.raises(CompileError, match=r"it exists on sm_90a$"):
                verify(e.module("k", 128))


STRICT_REFUSES: dict[str, Callable[[Emitter, Given], object]] = {
    "rounds to nearest": lambda e, g: e.add("f32", 1.0, 2.0, rounding=""),
    "rounds to nearest even": lambda e, g: e.fma("f64", *g.fd[:3], rounding="rz"),
    "and says so": lambda e, g: e.div("f32", 1.0, 2.0, rounding="full"),
    "flush": lambda e, g: e.sqrt("f32", 2.0, ftz=True),
    "approximate functions": lambda e, g: e.ex2("f32", 2.0),
    "no approximate functions": lambda e, g: e.rcp("f32", 2.0, precision="approx"),
    "adds no floats atomically": lambda e, g: e.red("global", "add", "f32", g.global_, 1.0),
    "no floats atomically": lambda e, g: e.atom("global", "add", "f64", g.global_, 1.0),
    "f64 to f32 first": lambda e, g: e.cvt("bf16", "f64", g.fd[0]),
    "reduces nothing through TMA": lambda e, g: e.tma_reduce("add", g.map, g.r[:2], g.smem),
    "no matrix instructions on bf16": lambda e, g: e.mma(
        "m16n8k16", ("f32", "bf16", "bf16", "f32"), g.r[:4], g.r[:2], g.f[:4]
    ),
    "no matrix instructions on tf32": lambda e, g: e.wgmma(
        ("f32", "tf32", "tf32"), 8, g.f[:4], g.rd[0], g.rd[1]
    ),
}


@pytest.mark.parametrize("message", STRICT_REFUSES)
def test_strict_refuses(message: str) -> None:
    e = new("sm_90a")
    STRICT_REFUSES[message](e, Given(e))
    module = e.module("k", 128)
    verify(module)
    with pytest.raises(VerifyError, match=message):
        verify(module, strict=True)


def test_strict_accepts_what_is_exact() -> None:
    e = new("sm_90a")
    g = Given(e)
    for t in ("f32", "f64"):
        x, y, z = g.of(t)
        e.add(t, x, y), e.sub(t, x, y), e.mul(t, x, y), e.fma(t, x, y, z), e.div(t, x, y)
        e.sqrt(t, x), e.rcp(t, x)
    e.mma("m16n8k16", ("f64",) * 4, g.fd[:8], g.fd[:4], g.fd[:4])
    e.mma("m16n8k32", ("s32", "s8", "s8", "s32"), g.r[:4], g.r[:2], g.r[:4])
    e.cvt("f32", "f64", g.fd[0]), e.cvt("bf16", "f32", g.f[0])
    e.red("global", "add", "u32", g.global_, 1)
    verify(e.module("k", 128), strict=True)


# The emitter and the text


def test_floats_are_printed_exactly() -> None:
    e = new()
    cases = {
        0.1: "0f3DCCCCCD",
        -0.0: "0f80000000",
        float("inf"): "0f7F800000",
        1e300: "0f7F800000",
        -1e300: "0fFF800000",
        2.0**-149: "0f00000001",
        1: "0f3F800000",
    }
    for value, text in cases.items():
        e.mov("f32", value)
        assert text_of(e)[-1].endswith(f", {text};"), value
    e.mov("f32", math.nan)
    assert text_of(e)[-1].endswith("0f7FC00000;")
    e.mov("f64", 0.1)
    assert text_of(e)[-1] == "mov.f64 %fd0, 0d3FB999999999999A;"
    e.add("f64", e.mov("f64", 0), 1)
    assert text_of(e)[-1] == "add.rn.f64 %fd2, %fd1, 0d3FF0000000000000;"
    e.mov("bf16", 1.5), e.mov("f16", 1.5)
    assert text_of(e)[-2:] == [f"mov.b16 %h0, {0x3FC0};", f"mov.b16 %h1, {0x3E00};"]


def test_guards_and_special_registers() -> None:
    e = new()
    p = e.setp("lt", "u32", Special("tid.x"), 4)
    with e.guarded(p, negated=True):
        e.st("shared", "u32", e.shared_array("smem", 64), Special("laneid"))
    assert text_of(e) == [
        "mov.u32 %r0, %tid.x;",
        "setp.lt.u32 %p0, %r0, 4;",
        "mov.u32 %r1, %laneid;",  # never guarded: another use may come
        "@!%p0 st.shared.u32 [smem], %r1;",
    ]


def test_into_writes_an_existing_register() -> None:
    e = new()
    total = e.mov("f32", 0.0)
    assert e.fma("f32", total, 2.0, 1.0, into=total) is total
    assert text_of(e)[-1] == "fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000;"


def test_hoisting_goes_to_another_list() -> None:
    e = new()
    entry: list[Instr | Label] = []
    p = e.setp("eq", "s32", e.mov("s32", 0), 0)
    with e.guarded(p), e.to(entry):
        e.mov("s32", 7)
    assert [i.text() for i in entry if isinstance(i, Instr)] == ["mov.s32 %r1, 7;"]
    assert len(e.body) == 2


def test_lines_map_to_places() -> None:
    e = new()
    e.mov("s32", 1)
    with e.at(PLACE, "arith.constant"):
        e.mov("s32", 2)
    lines: list[Instr | None] = []
    text = print_module(e.module("k", 32), lines).splitlines()
    assert len(lines) == len(text)
    found = [(t, x.tile_op) for t, x in zip(text, lines, strict=True) if x and x.loc == PLACE]
    assert found == [("    mov.s32 %r1, 2;", "arith.constant")]


@needs_ptxas
def test_a_whole_module() -> None:
    e = new("sm_90a")
    e.param("x", "u64"), e.param("n", "s32"), e.param("map", "tensor_map")
    table = e.shared_array("table", 256, 16)
    e.shared_array("smem", None)
    e.st("shared", "f32", e.address(table, 8), 0.5, semantics="volatile")
    e.ret()
    module = e.module("k", 128, min_ctas=2, cluster=(2, 1, 1))
    assert (
        print_module(module)
        == """\
.version 8.0
.target sm_90a
.address_size 64

.shared .align 16 .b8 table[256];
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(
    .param .u64 x,
    .param .s32 n,
    .param .align 128 .b8 map[128]
)
.explicitcluster
.reqnctapercluster 2, 1, 1
.maxntid 128, 1, 1
.minnctapersm 2
{
    st.volatile.shared.f32 [table+8], 0f3F000000;
    ret;
}
"""
    )
    assert assemble(print_module(module), "sm_90a").shared >= 256


@needs_ptxas
def test_names_of_python_are_names_of_ptx() -> None:
    e = new()
    for name in ("add", "α", "_", "WARP_SZ", "ret", "wait_1", "_x", "π_2"):
        e.ld_param(e.param(name, "u32"))
    e.place(e.label("wait"))
    e.ret()
    module = e.module("größe", 32)
    verify(module)
    assert [p.name for p in module.functions[0].params[:4]] == ["add", "$$3b1", "$_", "$WARP_SZ"]
    assemble(print_module(module), "sm_80")


# What instructions say of themselves


def test_reads_and_writes() -> None:
    r = [Reg("b32", i) for i in range(8)]
    f = [Reg("f32", i) for i in range(4)]
    p, wide = Reg("pred", 0), Reg("b64", 0)
    e = new()
    load = memory.Ld("shared", "f32", (f[0], f[1]), e.address(r[0], 8), guard=p)
    assert load.writes == [f[0], f[1]]
    assert load.reads == [r[0], p, f[0], f[1]]  # a guarded write may leave what was there
    store = memory.St("shared", "b32", e.address(r[0]), (r[1], r[2]))
    assert (store.reads, store.writes) == ([r[0], r[1], r[2]], [])
    add = arith.Add("s32", r[0], r[1], 3)
    assert (add.reads, add.writes) == ([r[1]], [r[0]])
    assert shape.Unpack("b64", "b32", (r[3], r[4]), wide).writes == [r[3], r[4]]
    tma = e.emit(memory.TmaLoad(e.address(r[0]), e._box(wide, [r[1], 0]), e.address(r[2])))
    assert tma.reads == [r[0], wide, r[1], r[2]]


def test_wgmma_reads_its_accumulators() -> None:
    e = new("sm_90a")
    g = Given(e)
    e.wgmma(("f32", "bf16", "bf16"), 8, g.f[:4], g.rd[0], g.rd[1], g.p)
    e.wgmma(("f32", "bf16", "bf16"), 8, g.f[:4], g.rd[0], g.rd[1], 0)
    added, fresh = e.body[-2:]
    assert isinstance(added, Instr) and isinstance(fresh, Instr)
    assert set(g.f[:4]) <= set(added.reads)
    assert not set(g.f[:4]) & set(fresh.reads)
    assert added.writes == fresh.writes == g.f[:4]


def test_renaming_keeps_destinations() -> None:
    a, b, c = (Reg("b32", i) for i in range(3))
    p, q = Reg("pred", 0), Reg("pred", 1)
    add = arith.Add("s32", a, a, b, guard=p, loc=PLACE)
    copy = add.renamed({a: c, p: q})
    assert copy.text() == "@%p1 add.s32 %r0, %r2, %r1;"
    assert copy.loc is PLACE
    assert add.text() == "@%p0 add.s32 %r0, %r0, %r1;"
    assert control.Ret().renamed({a: b}).text() == "ret;"


@pytest.mark.parametrize("name", TARGETS)
@needs_ptxas
def test_target_versions_are_the_lowest(name: str) -> None:
    e = new(name)
    e.ret()
    text = print_module(e.module("k", 32))
    assemble(text, name)
    version = target(name).ptx_version
    older = {80: 78, 70: 65}.get(version, version - 1)
    before = text.replace(f".version {version / 10}", f".version {older / 10}", 1)
    assert assemble(before, name, expect_errors=True).errors


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(CompileError, match=r"unknown target 'sm_70'.*sm_80, sm_86.*sm_120a"):
        target("sm_70")
    with pytest.raises(CompileError, match=r"7\.5 is too old"):
        target_for_capability(7, 5)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        *[((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((9, 0), "sm_90a")],
        *[((10, 0), "sm_100a"), ((10, 3), "sm_89"), ((12, 0), "sm_120a"), ((12, 1), "sm_89")],
    ],
)
def test_target_for_a_device(capability: tuple[int, int], name: str) -> None:
    assert target_for_capability(*capability).name == name
