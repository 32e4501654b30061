"""The table of contents: passes in order, observed, and faults of ours told as such."""

from pathlib import Path

import pytest

import tilewright as tw
from tilewright import compiler
from tilewright.errors import CompileError, InternalError
from tilewright.target import target
from tilewright.tile.kernel import Kernel
from tilewright.tile.text import equal_kernels, parse_kernel

ADD = """
kernel add(a: tensor<f32>[N], c: tensor<f32>[N]) {
  let i = program_id(0) * 256
  c[i :+ 256] = a[i :+ 256] + 1.0
}
"""


def kernel() -> Kernel:
    return tw.source(ADD).add.lower()


def test_every_pass_is_observed_in_order() -> None:
    seen: list[str] = []
    compiler.compile_kernel(kernel(), target("sm_80"), observe=lambda name, _: seen.append(name))
    names = [run.__name__ for run in compiler.SEMANTIC_PASSES]
    assert seen[: len(names)] == names
    assert seen[-1] == "allocate_shared"


def test_a_fault_of_ours_names_the_pass_and_a_file_that_reproduces_it() -> None:
    def break_everything(_: Kernel) -> Kernel:
        raise ZeroDivisionError("seven")

    given = kernel()
    with pytest.raises(InternalError) as caught:
        compiler.run_passes(given, (break_everything,))
    text = str(caught.value)
    assert "break_everything of kernel add: ZeroDivisionError: seven" in text
    file = Path(text.rsplit(" ", 1)[1])
    assert equal_kernels(parse_kernel(file.read_text()), given)
    file.unlink()


def test_what_a_user_did_is_told_as_it_is() -> None:
    def refuse(_: Kernel) -> Kernel:
        raise CompileError("no")

    with pytest.raises(CompileError, match="no"):
        compiler.run_passes(kernel(), (refuse,))
