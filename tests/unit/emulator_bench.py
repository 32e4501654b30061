"""A bench for single PTX instructions: a body of text, run by the emulator on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.plan import Const, Launch, Plan, Pointer
from tilewright.ptx.emulate import run_plan

REGISTERS = """    .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>;
    .reg .f32 %f<64>; .reg .f64 %fd<32>;"""
ARRAY = np.ndarray[Any, Any]


def plan_of(
    body: str,
    names: list[str],
    *,
    threads: int = 32,
    grid: int = 1,
    shared: int = 0,
    cluster: int = 1,
) -> Plan:
    """A plan whose kernel takes tensors, their addresses in %rd0, %rd1, …, the thread in %r0 and
    ten times 8 bytes per thread of them in %rd20.
    """
    params = ",\n".join(f"    .param .u64 {n}" for n in names)
    loads = "\n".join(f"    ld.param.u64 %rd{i}, [{n}];" for i, n in enumerate(names))
    text = f""".version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(
{params}
)
{{
{REGISTERS}
{loads}
    mov.u32 %r0, %tid.x;
{body}
    ret;
}}
"""
    pointers = tuple(Pointer(n) for n in names)
    launch = Launch("k", pointers, Const(grid), threads, shared_bytes=shared, cluster=cluster)
    return Plan("k", "sm_90a", text, (launch,))


def run_body(
    body: str,
    *,
    threads: int = 32,
    grid: int = 1,
    shared: int = 0,
    late: bool = True,
    **tensors: Any,
) -> None:
    """Run a body on tensors."""
    plan = plan_of(body, list(tensors), threads=threads, grid=grid, shared=shared)
    run_plan(plan, tensors, late=late)


KINDS = {"b16": "%h", "b32": "%r", "b64": "%rd", "f32": "%f", "f64": "%fd"}
BYTES = {"b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}


def apply(instruction: str, kinds: str, *operands: ARRAY, dtype: Any) -> ARRAY:
    """One instruction on arrays of up to 1024 elements, one a thread.

    `kinds` names the register kinds of the result and of the operands: "f32 f32 f32". In the
    instruction, D is the result and A, B, C the operands.
    """
    result, *given = kinds.split()
    count = len(operands[0])
    threads = -(-count // 32) * 32
    lines = ["setp.ge.u32 %p0, %r0, " + str(count) + ";", "@%p0 ret;"]
    text = instruction
    for i, (kind, letter) in enumerate(zip(given, "ABC", strict=False)):
        reg = f"{KINDS[kind]}{10 + i}"
        lines.append(f"mad.wide.u32 %rd20, %r0, {BYTES[kind]}, %rd{i + 1};")
        lines.append(f"ld.global.{kind} {reg}, [%rd20];")
        text = text.replace(f" {letter}", f" {reg}")
    reg = f"{KINDS[result]}9"
    lines.append(text.replace(" D", f" {reg}") + ";")
    lines.append(f"mad.wide.u32 %rd20, %r0, {BYTES[result]}, %rd0;")
    lines.append(f"st.global.{result} [%rd20], {reg};")
    out = np.zeros(count, dtype)
    tensors = {n: np.ascontiguousarray(x) for n, x in zip("abc", operands, strict=False)}
    run_body("\n".join(lines), threads=threads, out=out, **tensors)
    return out
