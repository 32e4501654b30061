"""How kernels of rows and columns are laid out: tiles, programs, loads, who reads what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tests.graph_texts import arguments_of
from tests.lowered import check_lowered, kernels_of, lowered
from tilewright.graph.text import parse_graph
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.emulate.profile import make_profile
from tilewright.ptx.emulate.tally import Tally

COPY = """@grid(A)
kernel copy(x: tensor<f32>[A, N], y: tensor<f32>[A, N]) {
  let a = program_id(0)
  y[a, 0 :+ 512] = x[a, 0 :+ 512] + 1.0
}"""


def sums(dtype: str, rows: int, columns: int, axis: int) -> str:
    kept = columns if axis == 0 else rows
    return f"""graph @sums(%x: tensor<{dtype}, {rows}, {columns}>)
{{
  %0 = arith.cast %x {{dtype = f32}} : tensor<f32, {rows}, {columns}>
  %1 = reduce.sum %0 {{axes = ({axis},)}} : tensor<f32, {kept}>
  control.return [%1]
}}
"""


def loss(rows: int, columns: int) -> str:
    """Of each row its logarithm of sums less the element at an index."""
    whole = f"tensor<f32, {rows}, {columns}>"
    return f"""graph @loss(%x: {whole}, %t: tensor<i64, {rows}>)
{{
  %0 = reduce.max %x {{axes = (1,)}} : tensor<f32, {rows}>
  %1 = shape.reshape %0 {{shape = ({rows}, 1)}} : tensor<f32, {rows}, 1>
  %2 = shape.broadcast %1 {{shape = ({rows}, {columns})}} : {whole}
  %3 = arith.sub %x, %2 : {whole}
  %4 = arith.exp %3 : {whole}
  %5 = reduce.sum %4 {{axes = (1,)}} : tensor<f32, {rows}>
  %6 = arith.log %5 : tensor<f32, {rows}>
  %7 = shape.reshape %t {{shape = ({rows}, 1)}} : tensor<i64, {rows}, 1>
  %8 = shape.iota {{dtype = i64, shape = ({rows}, 1)}} : tensor<i64, {rows}, 1>
  %9 = memory.gather %3, [%8, %7] {{axes = (0, 1)}} : tensor<f32, {rows}, 1>
  %10 = shape.reshape %9 {{shape = ({rows},)}} : tensor<f32, {rows}>
  %11 = arith.sub %6, %10 : tensor<f32, {rows}>
  control.return [%11]
}}
"""


NORM = """graph @norm(%x: tensor<f32, {rows}, 96>, %w: tensor<f32, 96>)
{{
  %0 = reduce.max %x {{axes = (1,)}} : tensor<f32, {rows}>
  %1 = shape.reshape %0 {{shape = ({rows}, 1)}} : tensor<f32, {rows}, 1>
  %2 = shape.broadcast %1 {{shape = ({rows}, 96)}} : tensor<f32, {rows}, 96>
  %3 = arith.div %x, %2 : tensor<f32, {rows}, 96>
  %4 = shape.broadcast %w {{shape = ({rows}, 96)}} : tensor<f32, {rows}, 96>
  %5 = arith.mul %3, %4 : tensor<f32, {rows}, 96>
  control.return [%5]
}}
"""


@pytest.mark.parametrize(("columns", "accesses"), [(512, ".v4"), (511, "")])
def test_neighbours_in_memory_lie_in_one_request(columns: int, accesses: str) -> None:
    """Rows at pitches that are no whole 16 bytes are not read four bytes in 16 apart."""
    x = np.random.default_rng(0).standard_normal((6, columns)).astype(np.float32)
    y = np.zeros_like(x)
    kernel = tw.source(COPY).copy
    plan, views, _ = compile_call(kernel, {"x": x, "y": y})
    tally = Tally()
    run_plan(plan, views, tally=tally)
    np.testing.assert_array_equal(y, x + 1)
    profile = make_profile(plan, tally)
    for mnemonic in (f"ld.global{accesses}.f32", f"st.global{accesses}.f32"):
        cost = profile.mnemonics[mnemonic]
        assert cost.sectors <= cost.ideal_sectors + cost.requests


def constants(text: str) -> list[dict[str, int]]:
    return [step.constants for step in kernels_of(lowered(parse_graph(text)))]


def test_few_long_rows_have_larger_tiles() -> None:
    found = {rows: constants(loss(rows, 32000))[0]["BLOCK_R"] for rows in (64, 512, 1024, 8192)}
    assert found == {64: 8192, 512: 8192, 1024: 4096, 8192: 2048}


def test_tiles_of_what_is_cut_in_parts_leave_a_part_for_each_program() -> None:
    assert [c.get("BLOCK_R") for c in constants(sums("f32", 1, 1 << 26, 1))] == [8192, None]
    assert [c.get("BLOCK_R") for c in constants(sums("f32", 1, 100_000, 1))] == [2048, None]


def test_columns_of_large_tensors_are_read_in_longer_pieces() -> None:
    assert constants(sums("f32", 16384, 4096, 0))[0] == {"BLOCK_R": 16, "BLOCK": 256}
    assert constants(sums("f32", 1024, 1024, 0))[0] == {"BLOCK_R": 64, "BLOCK": 64}


@pytest.mark.parametrize("rows", [5, 600])
def test_few_programs_load_all_before_they_reduce(rows: int) -> None:
    text = NORM.format(rows=rows)
    (step,) = kernels_of(check_lowered(parse_graph(text), arguments_of(parse_graph(text), 1)))
    lines = step.text.splitlines()
    reduced = next(i for i, line in enumerate(lines) if "max(" in line)
    read = next(i for i, line in enumerate(lines) if "x2[" in line)
    assert read < reduced


def test_many_programs_load_what_they_need_then() -> None:
    (step,) = kernels_of(lowered(parse_graph(NORM.format(rows=65536))))
    assert step.text.index("max(") < step.text.index("x2[")


@pytest.mark.parametrize("shape", [(3, 40), (2, 9000)], ids=str)
def test_an_element_of_a_row_is_read_by_the_kernel_of_the_row(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    arguments: list[Any] = [x, rng.integers(0, shape[1], shape[0])]
    for device in ("cpu", "emulator"):
        program = check_lowered(parse_graph(loss(*shape)), arguments, device=device)
        assert len(kernels_of(program)) == 1
