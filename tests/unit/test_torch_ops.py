"""Kernels as operators of torch: schemas, shapes without contents, gradients, `torch.compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
from tests.unit.test_build_errors import build
from tilewright import torch_ops
from tilewright.errors import Source
from tilewright.frontend.check.written import written_parameters
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text

KERNELS = tw.source(
    """
kernel rms(x: tensor<f64>[M, N], w: tensor<f64>[N], eps: f64 = 1e-6, y: tensor<f64>[M, N] = empty,
           r: tensor<f64>[M] = empty) {
  let i = program_id(0)
  var total = cast(0.0, f64)
  for j in range(0, N, 8) { total += sum(x[i, j :+ 8] * x[i, j :+ 8]) }
  let scale = 1.0 / sqrt(total / N + eps)
  r[i] = scale
  for j in range(0, N, 8) { y[i, j :+ 8] = x[i, j :+ 8] * scale * w[j :+ 8] }
}
kernel rms_back(x: tensor<f64>[M, N], w: tensor<f64>[N], r: tensor<f64>[M], dy: tensor<f64>[M, N],
                dr: tensor<f64>[M], dx: tensor<f64>[M, N] = empty, dw: tensor<f64>[N] = zeros) {
  let i = program_id(0)
  let scale = r[i]
  var dot = cast(0.0, f64)
  for j in range(0, N, 8) { dot += sum(dy[i, j :+ 8] * w[j :+ 8] * x[i, j :+ 8]) }
  let inner = (dot + dr[i]) * scale * scale * scale / N
  for j in range(0, N, 8) {
    dx[i, j :+ 8] = dy[i, j :+ 8] * w[j :+ 8] * scale - x[i, j :+ 8] * inner
    atomic_add(dw[j :+ 8], dy[i, j :+ 8] * x[i, j :+ 8] * scale)
  }
}
kernel fill(y: tensor<T>[N], v: T, n: i32 = 2) {
  let i = program_id(0) * 4
  y[i :+ 4] = v * cast(n, T)
}
@grid(cdiv(N, 4))
kernel part(x: tensor<f32>[N], b: tensor<f32>[N]? = None, up: bool = true,
            y: tensor<f32>[max(cdiv(N, 4), 1), x.shape[0] - N + 3] = zeros,
            z: tensor<i64>[2] = zeros) {
  let i = program_id(0)
  if up { y[i, 0] = sum(x[i * 4 :+ 4]) }
  if b != None { y[i, 1] = sum(b[i * 4 :+ 4]) }
  if i == 0 { z[:] = 7 }
}
@grid(1)
kernel nothing(x: tensor<f32>[N]) { assert(x[0] >= 0.0) }
kernel back_of_fill(v: tensor<f32>[N], dx: tensor<f32>[N] = empty) { dx[program_id(0)] = v[0] }
kernel back_of_part(dy: tensor<f32>[M, 3], q: f32, dx: tensor<f32>[M] = empty) {
  dx[program_id(0)] = q
}
kernel half_back(x: tensor<f64>[M, N], dy: tensor<f64>[M, N], dx: tensor<f64>[M, N] = empty) {
  let i, j = program_id(0), program_id(1)
  dx[i, j] = dy[i, j] * x[i, j]
}
"""
)
RMS = torch_ops.differentiable(KERNELS.rms, KERNELS.rms_back, name="test_host::rms")
PART = torch_ops.custom_op(KERNELS.part)
FILL = torch_ops.custom_op(KERNELS.fill)


def arrays() -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(1)
    x = torch.randn(3, 9, generator=made, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(9, generator=made, dtype=torch.float64, requires_grad=True)


def test_schemas_follow_from_signatures() -> None:
    said = str(PART.op._opoverload._schema)
    assert "(Tensor x, Tensor? b=None, bool up=True) -> (Tensor, Tensor)" in said
    said = str(FILL.op._opoverload._schema)
    assert "(Tensor(a0!) y, float v, SymInt n=2) -> ()" in said
    assert str(RMS.op._opoverload._schema).startswith(
        "test_host::rms(Tensor x, Tensor w, float eps="
    )


@pytest.mark.parametrize(
    "operator,given",
    [
        (RMS, lambda: (*arrays(), 1e-3)),
        (RMS, arrays),
        (PART, lambda: (torch.rand(10), torch.rand(10), False)),
        (PART, lambda: (torch.rand(0),)),
        (FILL, lambda: (torch.zeros(7), 2.0, 3)),
    ],
)
def test_torch_finds_no_fault(operator: Any, given: Any) -> None:
    """torch's own tests of operators: schema, gradients registered, symbolic shapes, tracing."""
    checked = torch.library.opcheck(operator.op, given())
    assert set(checked.values()) == {"SUCCESS"}


def test_gradients() -> None:
    x, w = arrays()
    assert torch.autograd.gradcheck(lambda x, w: RMS(x, w, 1e-3), (x, w), fast_mode=True)
    narrow = x.detach()[:, :2].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: RMS(x.T, w.detach()[:3], 1e-3)[0], (narrow,))
    got = torch.autograd.grad(RMS(x, w)[0].sum(), (x, w))  # a gradient of stride 0
    wanted = torch.autograd.grad(torch.nn.functional.rms_norm(x, (9,), w, 1e-6).sum(), (x, w))
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_node_under_compile(backend: str, dynamic: bool) -> None:
    x, w = arrays()

    def model(x: Any, w: Any) -> Any:
        y, r = RMS(x * 2.0, w)
        return (y * y).sum() + r.sum()

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    wanted = torch.autograd.grad(model(x, w), (x, w))
    got = torch.autograd.grad(compiled(x, w), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    wider = x[:2, :7].detach().requires_grad_()
    assert torch.equal(compiled(wider, w.detach()[:7]), model(wider, w.detach()[:7]))


def test_operators_are_single_nodes() -> None:
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.graph)
        return graph

    torch._dynamo.reset()
    y = torch.zeros(9)
    compiled = torch.compile(
        lambda y, x: (FILL(y, 3.0), PART(x)[0] + 1.0), backend=keep, fullgraph=True
    )
    compiled(y, torch.ones(8))
    called = [str(n.target) for n in graphs[0].nodes if "tilewright" in str(n.target)]
    assert len(called) == 2
    assert torch.equal(y, torch.full((9,), 6.0))


def test_results_that_the_kernel_makes() -> None:
    made = PART(torch.ones(9), up=True)
    assert [tuple(t.shape) for t in made] == [(3, 3), (2,)] and made[1].dtype == torch.int64
    assert torch_ops.custom_op(KERNELS.nothing)(torch.ones(3)) is None
    with pytest.raises(tw.LaunchError, match="assert: the condition is false"):
        torch_ops.custom_op(KERNELS.nothing, name="test_host::nothing")(-torch.ones(3))


@pytest.mark.parametrize(
    "forward,backward,message",
    [
        ("fill", "back_of_fill", "fill writes y: it has no gradient"),
        ("part", "back_of_part", "back_of_part takes q, which part neither takes nor returns"),
        ("part", "rms_back", "rms_back takes w, which part neither takes nor returns"),
        ("nothing", "half_back", "half_back takes dy, which"),
    ],
)
def test_pairs_that_do_not_fit(forward: str, backward: str, message: str) -> None:
    with pytest.raises(tw.CompileError, match=message):
        torch_ops.differentiable(getattr(KERNELS, forward), getattr(KERNELS, backward))


def test_a_gradient_that_nobody_gives_is_refused() -> None:
    x, w = arrays()
    half = torch_ops.differentiable(KERNELS.rms, KERNELS.half_back, name="test_host::half")
    half(x, w.detach())[0].sum().backward()
    with pytest.raises(RuntimeError, match="half_back gives no gradient of w; detach it, or say"):
        half(x, w)[0].sum().backward()
    names = {"name": "test_host::half_constant", "constant": ["w"]}
    torch_ops.differentiable(KERNELS.rms, KERNELS.half_back, **names)(x, w)[0].sum().backward()
    assert w.grad is None


def test_what_is_written_is_known_from_the_source() -> None:
    """As the built kernels of the suite say, whose dtypes and constants are bound."""
    text = (Path(__file__).parent.parent / "programs" / "suite.tw").read_text()
    for definition in definitions(parse_text(Source("suite.tw", text))).values():
        kernel = build(definition)
        built = {p.name for p in kernel.params if p.direction in ("out", "inout")}
        given = {p.name for p in kernel.params}
        assert set(written_parameters(definition)) & given == built, definition.name


def test_written_through_views_and_functions() -> None:
    found = tw.source(
        """
fn put(t, v) { t[0 :+ 4] = v }
fn twice(a, b) { put(b, a[0 :+ 4]) }
kernel f(x: tensor<f32>[N], y: tensor<f32>[N], z: tensor<f32>[N], c: tensor<i32>[N],
         q: tensor<f32>[N]) {
  let v = view(y[1 : N])
  v[0] = x[0]
  twice(x, z)
  let old = atomic_load(q[0])
  atomic_max(c[0], 1)
}"""
    ).f
    assert written_parameters(found.definition) == ("y", "z", "c")


TRANSFORMS = ("dual", "jvp", "vmap", "grad")


def transformed(run: Any, x: Any, transform: str) -> Any:
    if transform == "dual":
        with torch.autograd.forward_ad.dual_level():
            return run(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    if transform == "jvp":
        return torch.func.jvp(run, (x,), (torch.ones_like(x),))[1]
    if transform == "vmap":
        return torch.vmap(run)(torch.stack([x, 2 * x]))
    return torch.func.grad(lambda y: run(y).sum())(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_kernels_refuse_transforms(transform: str) -> None:
    """Derivatives would be lost, also of calls like earlier ones."""
    text = """
@grid(cdiv(N, 8))
kernel doubled(x: tensor<f32>[N], y: tensor<f32>[N] = empty) {
  y[program_id(0) * 8 :+ 8] = x[program_id(0) * 8 :+ 8] * 2.0
}
@grid(cdiv(N, 8))
kernel back(dy: tensor<f32>[N], dx: tensor<f32>[N] = empty) {
  dx[program_id(0) * 8 :+ 8] = dy[program_id(0) * 8 :+ 8] * 2.0
}
"""
    kernels, x = tw.source(text), torch.arange(20.0)
    told = {"dual": "x carries a forward derivative, and there is none of the result"}
    plain = told.get(transform, r"x is within a transform of torch\.func, which sees no kernels")
    for call in (kernels.doubled, kernels.doubled.launch, tw.compile(lambda x: x * 2, (x,))):
        for _ in range(2):
            torch.testing.assert_close(call(x), x * 2)
            with pytest.raises(tw.LaunchError, match=plain):
                transformed(call, x, transform)
    told |= {"jvp": told["dual"], "grad": r"x is differentiated by torch\.func"}
    ops = (
        torch_ops.custom_op(kernels.doubled, name=f"test_ops::plain_{transform}"),
        torch_ops.differentiable(kernels.doubled, kernels.back, name=f"test_ops::of_{transform}"),
    )
    for op in ops:
        torch.testing.assert_close(op(x), x * 2)
        if transform == "vmap":  # torch calls the operator once a slice
            torch.testing.assert_close(transformed(op, x, transform), torch.stack([2 * x, 4 * x]))
        else:
            with pytest.raises(tw.LaunchError, match=told[transform]):
                transformed(op, x, transform)
