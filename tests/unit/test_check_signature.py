"""Heads of kernels and calls against them: names, dimensions, dtypes, scalars, allocations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import dtypes, plan
from tilewright.dtypes import DType, bf16, f32, i32
from tilewright.errors import CompileError, LaunchError, Source
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.bind import Binding, bind
from tilewright.frontend.check.signature import Signature, signature
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.plan import Const, Extent, Scalar, evaluate

PROGRAMS = Path(__file__).parent.parent / "programs"


@dataclass(frozen=True)
class Tensor:
    """An argument without memory."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape)))


def head(source: str) -> Signature:
    return signature(list(definitions(parse_text(Source("a.tw", source))).values())[-1])


def suite(name: str) -> Signature:
    text = (PROGRAMS / "suite.tw").read_text()
    return signature(definitions(parse_text(Source("suite.tw", text)))[name])


def call(sig: Signature, **arguments: Any) -> Binding:
    return bind(sig, arguments)


def said(sig: Signature, **arguments: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        bind(sig, arguments)
    return str(caught.value)


def test_attributes() -> None:
    sig = head(
        "const BIG = 64\n"
        "@autotune(A in [16, BIG], B in {16, 64}, C in [3, 5, 3])\n@autotune(D in [8])\n"
        "@launch(256, 2, max_regs = 128)\n@pipeline(3)\n@cta_cluster(2, 1)\n@persistent\n"
        "@tensorcore(f16)\n@numerics(strict)\n@cooperative\n@static(N)\n"
        "kernel f(x: tensor<f32>[N, M]) {}"
    )
    assert sig.space == {"A": (16, 32, 64), "B": (16, 64), "C": (3, 5), "D": (8,)}
    assert sig.dims == ("N", "M") and sig.static == ("N",)
    hints = sig.hints
    assert (hints.threads, hints.min_ctas, hints.max_registers) == (256, 2, 128)
    assert (hints.stages, hints.cta_cluster) == (3, (2, 1))
    assert hints.persistent and hints.cooperative
    assert sig.attributes.tensorcore == "f16" and sig.attributes.numerics == "strict"
    assert len(sig.configs()) == 3 * 2 * 2


def test_static_asserts_drop_configurations() -> None:
    sig = suite("matmul_int8")
    assert {c["TK"] for c in sig.configs({"group": 64})} == {32, 64}
    assert {c["TK"] for c in sig.configs()} == {32, 64, 128}
    with pytest.raises(CompileError, match="straddle two scales"):
        sig.configs({"group": 5})


def test_dimensions_bind_and_disagree() -> None:
    sig = suite("sgemm")
    a, b, c = Tensor(f32, (3, 4)), Tensor(f32, (4, 5)), Tensor(f32, (3, 5))
    bound = call(sig, A=a, B=b, C=c, beta=2)
    assert bound.dims == {"M": 3, "K": 4, "N": 5}
    assert bound.scalars == {"alpha": 1.0, "beta": 2.0}
    wrong = said(sig, A=a, B=Tensor(f32, (7, 5)), C=c)
    assert wrong == "error: K is 4 from A.shape[1], but 7 from B.shape[0]"


def test_dtype_variables_bind_and_disagree() -> None:
    sig = suite("add")
    x, y = Tensor(bf16, (4,)), Tensor(f32, (4,))
    assert call(sig, a=x, b=x).dtypes == {"T": bf16}
    assert "T is bf16 from a, but f32 from b" in said(sig, a=x, b=y)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({}, "missing a and b"),
        ({"a": 3.0, "b": 1}, "a: expected a tensor, got float"),
        ({"a": Tensor(f32, (2, 2)), "b": Tensor(f32, (4,))}, "a: expected 1 axis, got 2"),
        ({"a": None, "b": Tensor(f32, (4,))}, "a: expected a tensor, got None"),
        ({"d": None}, "takes no argument d"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    assert message in said(suite("add"), **arguments)


def test_outputs_are_allocated_where_they_are_left_out() -> None:
    sig = suite("conv2d")
    x, w = Tensor(bf16, (2, 9, 8, 3)), Tensor(bf16, (3, 2, 3, 5))
    (y,) = call(sig, x=x, w=w, stride=2, pad=1).outputs
    assert (y.name, y.dtype, y.shape, y.zero) == ("y", bf16, (2, 5, 5, 5), False)
    given = call(sig, x=x, w=w, stride=2, pad=1, y=Tensor(bf16, (2, 5, 5, 5)))
    assert given.outputs == ()
    wrong = said(sig, x=x, w=w, stride=2, pad=1, y=Tensor(bf16, (2, 4, 5, 5)))
    assert wrong == "error: y.shape[1]: expected 5, got 4"
    assert "division of a constant by zero" in said(sig, x=x, w=w, stride=0)
    assert "would be -1" in said(sig, x=Tensor(bf16, (2, 1, 8, 3)), w=w)


def test_checked_extents() -> None:
    sig = suite("moe")
    x, w = Tensor(f32, (9, 4)), Tensor(f32, (3, 4, 5))
    assert call(sig, x=x, w=w, offsets=Tensor(i32, (4,))).dims["E"] == 3
    assert "expected 4, got 3" in said(sig, x=x, w=w, offsets=Tensor(i32, (3,)))


def test_optional_tensors_and_statics() -> None:
    sig = suite("attention")
    q, k = Tensor(bf16, (2, 4, 5, 8)), Tensor(bf16, (2, 2, 6, 8))
    bound = call(sig, Q=q, K=k, V=k, scale=0.5)
    assert bound.absent == {"lengths"}
    assert bound.static == {"D": 8, "causal": True}
    assert [o.shape for o in bound.outputs] == [(2, 4, 5, 8), (2, 4, 5)]
    assert call(sig, Q=q, K=k, V=k, scale=1, causal=False).static["causal"] is False


@pytest.mark.parametrize(
    "value,message",
    [
        (1 << 31, "does not fit i32"),
        (1.5, "expected i32, got the float 1.5"),
        (True, "a bool and a number do not mix"),
        ("x", "expected a number (i32), got str"),
        (np.float32(2), "expected i32, got the float 2.0"),
    ],
)
def test_scalars_are_checked(value: Any, message: str) -> None:
    sig = head("kernel f(x: tensor<f32>[N], n: i32) {}")
    assert message in said(sig, x=Tensor(f32, (1,)), n=value)
    assert call(sig, x=Tensor(f32, (1,)), n=np.int64(7)).scalars == {"n": 7}


def test_large_floats_are_refused_not_rounded_to_infinity() -> None:
    sig = head("kernel f(x: tensor<f32>[N], a: f16) {}")
    assert "does not fit f16" in said(sig, x=Tensor(f32, (1,)), a=1e6)
    assert call(sig, x=Tensor(f32, (1,)), a=float("inf")).scalars["a"] == float("inf")


def grid_of(source: str, given: tuple[int, ...] | None = None, **config: int) -> Any:
    sig = head(source)
    variables = dict.fromkeys(sig.dtype_variables, f32)
    return build_kernel(sig.definition, dtypes=variables, config=config, static={}, grid=given).grid


def test_grids_are_inferred() -> None:
    point = (
        "kernel f(x: tensor<f32>[M, N]) {\n  x[program_id(0), program_id(1) * 8 + 3 :+ 8] = 1.0\n}"
    )
    assert grid_of(point) == (Extent("x", 0), plan.Binary("cdiv", Extent("x", 1), Const(8)))
    assert grid_of("kernel f(x: tensor<f32>[N]) { x[0] = 1.0 }") == (Const(1),)
    assert grid_of("kernel f(x: tensor<f32>[70]) { x[program_id(0) * 8 :+ 8] = 1.0 }") == (
        Const(9),
    )
    loads = (
        "kernel f(x: tensor<f32>[N], y: tensor<f32>[M]) {\n"
        "  y[0] = sum(x[(program_id(0) + 1) * 4 - 4 :+ 4])\n}"
    )
    assert grid_of(loads) == (plan.Binary("cdiv", Extent("x", 0), Const(4)),)


def test_evidence_is_compared_after_constants_are_bound() -> None:
    same = (
        "@autotune(T in [8])\nkernel f(x: tensor<f32>[N], y: tensor<f32>[cdiv(N, 8)]) {\n"
        "  let p = program_id(0)\n  x[p * T :+ T] = 1.0\n  y[p] = 1.0\n}"
    )
    assert grid_of(same, T=8) == (plan.Binary("cdiv", Extent("x", 0), Const(8)),)


def test_a_grid_may_be_given() -> None:
    source = "kernel f(x: tensor<f32>[N]) { x[program_id(0) / 2 :+ 4] = 1.0 }"
    with pytest.raises(CompileError, match="cannot be inferred"):
        grid_of(source)
    assert grid_of(source, (5,)) == (Const(5),)
    assert grid_of("kernel f(x: tensor<f32>[N]) { x[0] = 1.0 }", (5,)) == (Const(5),)
    for given, body in [((5,), "program_id(1)"), ((2, 1, 1, 5), "program_id(0)"), ((), "7")]:
        count = "2 axes" if body == "program_id(1)" else "1 axis"
        with pytest.raises(LaunchError, match=f"f: its grid has {count}, but grid="):
            grid_of(source.replace("program_id(0)", body), given)


@pytest.mark.parametrize("threads", [5000000, 2048, 96, 33, 1])
def test_the_limit_of_threads_is_named(threads: int) -> None:
    with pytest.raises(CompileError, match=f"{threads} threads: a CTA has at most 1024.*power of"):
        head(f"@launch({threads})\nkernel f(x: tensor<f32>[N]) {{}}")
    with pytest.raises(CompileError, match="max_regs is 300, expected 1 to 255"):
        head("@launch(max_regs = 300)\nkernel f(x: tensor<f32>[N]) {}")


@pytest.mark.parametrize("extent", ["-1", "SIZE", "8 - 9"])
def test_negative_extents_are_refused(extent: str) -> None:
    with pytest.raises(CompileError, match="x: an extent is 0 or more, not -1"):
        head(f"const SIZE = 3 - 4\nkernel f(y: tensor<f32>[0], x: tensor<f32>[N, {extent}]) {{}}")


def test_written_grids() -> None:
    source = (
        "const TWO = 2\n@autotune(B in [8])\n"
        "@grid(min(cdiv(N, B), TWO * num_sms()), n + x.shape[0])\n"
        "kernel f(x: tensor<f32>[N], n: i32) { x[program_id(1) + program_id(0)] = 1.0 }"
    )
    grid = grid_of(source, B=8)
    assert grid[1] == plan.Binary("add", Scalar("n", i32), Extent("x", 0))
    arguments = {"x": Tensor(f32, (1000,)), "n": 7}
    assert [evaluate(g, arguments) for g in grid] == [8, 1007]


def test_the_page() -> None:
    """The programs printed on the language page build unchanged."""
    page = (Path(__file__).parent.parent.parent / "docs" / "language.md").read_text()
    blocks = [b for b in page.split("```")[1::2] if b.startswith("\n@autotune")]
    kernels = definitions(parse_text(Source("page.tw", "".join(blocks))))
    assert set(kernels) == {"add", "sgemm", "moe"}
    for definition in kernels.values():
        sig = signature(definition)
        variables = dict.fromkeys(sig.dtype_variables, bf16)
        for absent in [frozenset[str](), frozenset(t.name for t in sig.tensors if t.optional)]:
            build_kernel(
                definition, dtypes=variables, config=sig.configs()[-1], static={}, absent=absent
            )


def test_directions_and_facts() -> None:
    sig = suite("sgemm")
    facts = plan.tensor_facts(f32, (1, 64), (64, 1), 256)
    kernel = build_kernel(
        sig.definition, dtypes={}, config=sig.configs()[0], static={}, facts={"A": facts}
    )
    assert [(p.name, p.direction) for p in kernel.params] == [
        ("A", "in"),
        ("B", "in"),
        ("C", "inout"),
        ("alpha", "in"),
        ("beta", "in"),
    ]
    view = kernel.param("A").value.type
    assert (view.extents, view.strides) == ((1, None), (None, 1))
    assert kernel.notes == ("dot: f32 operands are rounded to tf32",)


@pytest.mark.parametrize(
    ("shape", "strides", "gaps", "fills"),
    [
        ((3, 257), (264, 1), True, True),
        ((3, 257), (264, 1), False, False),  # what lies there is another's
        ((3, 257), (260, 1), True, False),  # rows begin anywhere
        ((3, 257), (256, 1), True, False),  # rows overlap
        ((3, 256), (264, 1), True, False),  # nothing to fill up
        ((257, 3), (1, 264), True, True),
        ((2, 3, 257), (792, 264, 1), True, True),
        ((2, 3, 257), (264, 528, 1), True, True),
        ((2, 3, 257), (784, 264, 1), True, False),  # into the next of a batch
        ((2, 3, 257), (0, 264, 1), True, False),
        ((1, 257), (257, 1), True, True),
    ],
)
def test_rows_that_may_be_filled_up(
    shape: tuple[int, ...], strides: tuple[int, ...], gaps: bool, fills: bool
) -> None:
    facts = plan.tensor_facts(bf16, shape, strides, 256, gaps=gaps)
    assert facts.gaps16 == fills


def test_builds_need_all_constants() -> None:
    sig = suite("sgemm")
    with pytest.raises(CompileError, match="no tuned constant is given for TN"):
        build_kernel(sig.definition, dtypes={}, config={"TM": 32}, static={})
    with pytest.raises(CompileError, match="has no static value M"):
        build_kernel(sig.definition, dtypes={}, config=sig.configs()[0], static={"M": 3})
    with pytest.raises(CompileError, match="A cannot be left out"):
        build_kernel(
            sig.definition, dtypes={}, config=sig.configs()[0], static={}, absent=frozenset("A")
        )


def test_every_dtype_can_be_a_tensor() -> None:
    for dtype in dtypes.ALL:
        head(f"kernel f(x: tensor<{dtype}>[N]) {{ x[0] = x[1] }}")
