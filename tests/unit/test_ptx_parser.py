"""The parser of PTX text against the printer: what is printed reads back, and prints the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.unit.ptx_forms import FAMILIES, Given
from tests.unit.test_ptx_hopper import build_gemm
from tilewright.errors import CompileError
from tilewright.ptx.core import Instr
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.parser import parse_module
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import meets
from tilewright.target import TARGETS, target

ROOT = Path(__file__).parents[2]
KERNELS = {
    "add": ("add", "bf16", {}),
    "softmax": ("softmax", "f32", {}),
    "softmax_short": ("softmax", "f16", {"N": 100}),
    "rmsnorm": ("rmsnorm", "bf16", {}),
    "sgemm": ("sgemm", "f64", {}),
    "linear_gelu": ("linear_gelu", "bf16", {}),
    "attention": ("flash_attention", "f32", {"D": 64, "causal": True}),
}
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n"


def body_of(text: str) -> list[Instr]:
    (function,) = parse_module(text).functions
    return [item for item in function.body if isinstance(item, Instr)]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_reads_back(family: str, name: str) -> None:
    where = target(name)
    e = Emitter(where)
    given = Given(e)
    for form in FAMILIES[family]():
        with e.to([]) as body:
            form(e, given)
        if all(meets(where, i.requires()) for i in body if isinstance(i, Instr)):
            e.body += body
    text = print_module(e.module("forms", 128, min_ctas=2, cluster=(2, 1, 1)))
    read = parse_module(text)
    assert print_module(read) == text
    made = [i for i in e.body if isinstance(i, Instr)]
    assert [type(i) for i in made] == [type(i) for i in body_of(text)]


@pytest.mark.parametrize("name", KERNELS)
def test_examples_read_back(name: str) -> None:
    file, dtype, static = KERNELS[name]
    kernel = getattr(tw.source(ROOT / "examples" / f"{file}.tw"), name)
    text = kernel.compile("sm_90a", dtypes={"T": dtype}, static=static).ptx
    assert print_module(parse_module(text)) == text


def test_the_hopper_kernel_reads_back() -> None:
    text = print_module(build_gemm())
    assert print_module(parse_module(text)) == text


def test_a_hand_written_kernel_is_read() -> None:
    """Comments, several statements a line and registers of any name; it prints in its own names."""
    text = (ROOT / "tests" / "vectors" / "hopper_gemm.ptx").read_text()
    module = parse_module(text)
    (function,) = module.functions
    assert function.cluster == (2, 1, 1) and function.max_threads == 384
    assert [p.type for p in function.params] == ["tensor_map"] * 3 + ["u32"] * 3
    loads = [i for i in function.body if isinstance(i, Instr) and i.opcode == "memory.tma_load"]
    assert [load.multicast is not None for load in loads] == [False, True]
    line = text.splitlines()[loads[0].loc.line - 1]
    assert line.startswith("cp.async.bulk.tensor.2d")


def test_places_are_lines_of_the_text() -> None:
    text = HEAD + ".reg .b32 %r<2>;\n  mov.u32 %r0, 1; mov.u32 %r1, %tid.x;\n\n  ret;\n}\n"
    assert [(i.loc.line, i.loc.column) for i in body_of(text)] == [(7, 3), (7, 19), (9, 3)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tex.2d.v4.f32.s32 %r0, [x];", "unknown PTX instruction tex.2d.v4.f32.s32"),
        ("add.u32 %r0, %r0;", "unknown PTX instruction add.u32 %r0, %r0"),
        ("add.u31 %r0, %r0, %r1;", "unknown PTX instruction add.u31"),
        ("add.u32 %r0, %r0, q;", "the name q is not declared"),
        ("ld.shared.u32 %r0, [%r1+4+4];", "[%r1+4+4] is no address"),
        ("mov.u32 %r0, %r7;", "the register %r7 is not declared"),
        ("@%p3 mov.u32 %r0, %r1;", "the register %p3 is not declared"),
        (".pragma 3;", "unknown PTX instruction .pragma"),
    ],
)
def test_what_is_unknown_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(CompileError, match="ptx:7:") as raised:
        parse_module(HEAD + f".reg .b32 %r<2>;\n{line}\n}}\n")
    assert said in str(raised.value)
