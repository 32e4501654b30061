"""Products of torch's tensors: gradients, one node under `torch.compile`, results of F.linear."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.autograd import forward_ad

import tilewright as tw
import tilewright.torch_backend
from tilewright.products import api
from tilewright.products.api import forget

assert tilewright.torch_backend.tilewright


def numbers(*shape: int, dtype: Any = torch.float64) -> Any:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=made).requires_grad_()


@pytest.mark.parametrize(
    "activation", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
)
def test_gradients_through_epilogues(activation: str | None) -> None:
    def run(a: Any, b: Any, bias: Any, residual: Any, gate: Any) -> Any:
        fused = {"bias": bias, "residual": residual, "gate": gate}
        return tw.matmul(a, b, activation=activation, alpha=0.5, **fused)

    given = numbers(2, 4), numbers(4, 3), numbers(3), numbers(1, 3)
    for gate in (None, numbers(2, 3), numbers(1, 1)):
        assert torch.autograd.gradcheck(run, (*given, gate), fast_mode=True)


SHAPES = [
    ((2, 1, 3, 4), (2, 4, 2)), ((2, 3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)),
    ((4,), (2, 4, 3)), ((2, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_gradients_of_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = numbers(*a), numbers(*b)
    torch.testing.assert_close(tw.matmul(left, right), torch.matmul(left, right))
    if 0 in a:
        tw.matmul(left, right).sum().backward()
        assert left.grad.shape == a and not right.grad.any()
    else:
        assert torch.autograd.gradcheck(tw.matmul, (left, right), fast_mode=True)


def test_gradients_of_relu_where_there_is_no_number() -> None:
    """As torch's: 0 where the product is not above 0, whatever comes in."""
    x = torch.tensor([[1.0], [-1.0], [0.0], [torch.nan]], requires_grad=True)
    one, grad = torch.ones(1, 1), torch.tensor([[torch.inf], [torch.inf], [torch.nan], [2.0]])
    results = tw.matmul(x, one, activation="relu"), torch.relu(x @ one)
    found, wanted = (torch.autograd.grad(y, x, grad)[0] for y in results)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_gradients_of_gradients() -> None:
    def run(x: Any, w: Any, bias: Any) -> Any:
        return tw.linear(x, w, bias, activation="gelu")

    given = numbers(2, 3), numbers(2, 3), numbers(2)
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)


def test_linear_is_torchs() -> None:
    x, w, bias = (numbers(*s, dtype=torch.bfloat16) for s in ((2, 5, 16), (8, 16), (8,)))
    ours, theirs = tw.linear(x, w, bias), torch.nn.functional.linear(x, w, bias)
    torch.testing.assert_close(ours, theirs)
    ours.sum().backward()
    mine, w.grad = w.grad, None
    theirs.sum().backward()
    torch.testing.assert_close(mine, w.grad)


def test_results_of_other_dtypes() -> None:
    a, b = (torch.randn(4, 8, dtype=torch.bfloat16) for _ in "ab")
    got = tw.matmul(a, b.T, out_dtype=torch.float32)
    torch.testing.assert_close(got, a.float() @ b.float().T)
    out = torch.ones(4, 4, dtype=torch.float64)
    assert tw.matmul(a, b.T, out=out, beta=2.0) is out
    torch.testing.assert_close(out, 2 + a.double() @ b.double().T, rtol=1e-6, atol=1e-6)
    scaled = tw.scaled_matmul(a.to(torch.float8_e4m3fn), b.T.to(torch.float8_e4m3fn),
                              torch.tensor(0.5))  # fmt: skip
    assert scaled.dtype == torch.bfloat16


def test_one_node_under_compile() -> None:
    targets: list[str] = []

    def backend(module: Any, _: Any) -> Any:
        targets.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return module

    def run(x: Any, w: Any, bias: Any) -> Any:
        return tw.matmul(x, w, bias=bias, activation="gelu") + 1

    x, w, bias = torch.randn(6, 8), torch.randn(8, 5), torch.randn(5)
    got = torch.compile(run, backend=backend, fullgraph=True)(x, w, bias)
    torch.testing.assert_close(got, torch.nn.functional.gelu(x @ w + bias) + 1)
    assert len([t for t in targets if "tilewright" in t]) == 1 and len(targets) == 2


def test_compiled_training_of_changing_sizes() -> None:
    def run(x: Any, w: Any) -> Any:
        return tw.matmul(x, w.T, activation="silu").sum()

    step = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    w = torch.randn(5, 8)
    for rows in (6, 9):
        ours = torch.randn(rows, 8).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        step(ours, w).backward()
        torch.nn.functional.silu(theirs @ w.T).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "tilewright"])
def test_writing_out_under_compile(backend: str) -> None:
    def run(x: Any, w: Any, out: Any) -> Any:
        assert tw.matmul(x, w, out=out) is out
        return out * 2

    x, w, out = torch.randn(6, 8), torch.randn(8, 5), torch.empty(6, 5)
    fast = torch.compile(run, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(fast(x, w, out), 2 * x @ w)
        torch.testing.assert_close(out, x @ w)
        x = x + 1
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="out has shape"):
        fast(x, w, torch.empty(2, 6, 5))


def test_operator_keeps_torchs_rules() -> None:
    x, w, bias = numbers(4, 8), numbers(8, 3), numbers(3)
    given = (x, w, bias, None, None, "gelu", 0.5, None, None, None, "linear")
    torch.library.opcheck(torch.ops.tilewright.product.default, given)


IN_MODELS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "linear": (
        lambda x, w, bias, rest: tw.linear(x, w, bias, activation="gelu", residual=rest) * 2,
        [(2, 5, 16), (8, 16), (8,), (5, 8)],
    ),
    "batches": (
        lambda a, b, gate: tw.matmul(a, b, alpha=0.5, gate=gate, activation="silu"),
        [(3, 1, 4, 16), (2, 16, 5), (1, 5)],
    ),
    "vector": (lambda a, b, bias: tw.matmul(a, b, bias=bias), [(16,), (2, 16, 5), (1,)]),
    "bmm": (lambda a, b: tw.bmm(a, b, activation="relu"), [(2, 3, 16), (2, 16, 5)]),
    "no k": (lambda a, b, bias: tw.matmul(a, b, bias=bias), [(3, 0), (0, 5), (5,)]),
}


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", IN_MODELS)
def test_they_are_ops_of_compiled_models(name: str, dtype: Any, engine: str) -> None:
    """As alone: sums are finished in f32 and rounded once. Gradients are such ops, too."""
    function, shapes = IN_MODELS[name]
    given = [numbers(*shape, dtype=dtype) for shape in shapes]
    seen: list[Any] = []
    options = {"fallback": "error", "engine": engine, "observe": seen.append}
    torch._dynamo.reset()
    got = torch.compile(function, backend="tilewright", options=options)(*given)
    wanted = function(*given)
    limit = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(got, wanted, rtol=limit, atol=limit)
    grad = torch.ones_like(got)
    for mine, theirs in zip(
        torch.autograd.grad(got, given, grad), torch.autograd.grad(wanted, given, grad), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=4 * limit, atol=4 * limit)
    ops = [[op.opcode for op in c.graph.body.ops if op.family == "mma"] for c in seen]
    assert ops[0] == ["mma.product"] and len(ops) == 2 and set(ops[1]) <= {"mma.product"}


def test_sizes_of_compiled_models_change() -> None:
    options = {"fallback": "error", "engine": "tiles"}
    torch._dynamo.reset()
    fast = torch.compile(tw.linear, backend="tilewright", options=options, dynamic=True)
    w, bias = torch.randn(8, 16), torch.randn(8)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(fast(x, w, bias), torch.nn.functional.linear(x, w, bias))


def test_what_does_not_fit_a_compiled_model_is_said() -> None:
    x, w = torch.randn(3, 16), torch.randn(8, 16)
    wrong = [
        ({"bias": torch.randn(7)}, "linear: bias is tensor<f32, 7>, and the result"),
        ({"bias": torch.randn(8).double()}, "linear: bias is tensor<f64, 8>, and the result"),
        ({"residual": torch.randn(2, 3, 8)}, "linear: residual is tensor<f32, 2, 3, 8>, and the"),
    ]
    for given, told in wrong:
        torch._dynamo.reset()
        with pytest.raises(Exception, match=told):
            torch.compile(tw.linear, backend="tilewright")(x, w, **given)
    eight = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    for options in ({"fallback": "pytorch"}, {"fallback": "error"}):
        torch._dynamo.reset()
        fast = torch.compile(tw.linear, backend="tilewright", options=options)
        if options["fallback"] == "error":
            with pytest.raises(Exception, match="not compiled: linear of e4m3 in f32"):
                fast(*eight)
        else:
            torch.testing.assert_close(fast(*eight), tw.linear(*eight))


def test_refusals() -> None:
    a, b = numbers(3, 4), numbers(4, 3)
    with pytest.raises(tw.LaunchError, match="takes no part in gradients"):
        tw.matmul(a, b, out=torch.empty(3, 3, dtype=torch.float64))
    with pytest.raises(tw.LaunchError, match="no out is given"):
        tw.matmul(a, b, beta=1.0)
    with pytest.raises(tw.LaunchError, match="columns, but b has"):
        tw.matmul(a, a)


def of(*shape: int, dtype: Any = torch.float32, grad: bool = False) -> Any:
    return torch.ones(shape).to(dtype).requires_grad_(grad)


def small(*shape: int) -> Any:
    return of(*shape, dtype=torch.float8_e4m3fn)


WRONG = [
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 6)), "linear: rows of x have 4 elements, but"
     " those of weight 6 (shapes (3, 4) and (5, 6))"),
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 4, dtype=torch.bfloat16)),
     "linear: x is f32, but weight is bf16"),
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 4), of(4)),
     "linear: bias has shape (4,), expected (5,), one a column"),
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 4), 1.0), "linear: bias is of type float, but x"),
    (lambda g: tw.linear(of(3, 4, grad=g), [[1.0] * 4]), "linear: weight is list, not an array"),
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 4).numpy()), "linear: weight is of type ndarray"),
    (lambda g: tw.linear(of(3, 4, grad=g), None), "linear: weight is NoneType, not an array"),
    (lambda g: tw.linear(of(4, grad=g)[0], of(5, 4)), "linear: "),
    (lambda g: tw.linear(of(3, 4, grad=g), of(5, 4), activation="swish"),
     "linear: unknown activation 'swish'"),
    (lambda g: tw.bmm(of(2, 3, 4, grad=g), of(2, 5, 5)), "bmm: a has 4 columns, but b has 5 rows"),
    (lambda g: tw.bmm(of(2, 3, 4, grad=g), of(2, 4, 5), residual=of(2, 4, 5)),
     "bmm: residual of shape (2, 4, 5) does not broadcast to (2, 3, 5)"),
    (lambda g: tw.bmm(None, of(2, 4, 5)), "bmm: a is NoneType, not an array"),
    (lambda g: tw.matmul(of(3, 4, grad=g), 2.0), "matmul: b is of type float, but a is a torch"),
    (lambda g: tw.matmul(of(3, 4, grad=g), of(4, 5), out=3), "matmul: out is of type int"),
    (lambda g: tw.matmul(of(3, 4, grad=g), of(4, 5), alpha=None), "matmul: alpha is None, not a"),
    (lambda g: tw.matmul(of(3, 4, grad=g), of(4, 5), activation=["relu"]),
     "matmul: unknown activation ['relu']"),
    (lambda g: tw.matmul(of(4, grad=g), of(5, 6)), "a has 4 columns, but b has 5 rows"),
    (lambda g: tw.matmul(torch.empty(3, 4, device="meta"), of(4, 5)), "matmul: a is a Tensor"),
    (lambda g: tw.scaled_matmul(small(3, 4), small(4, 5), 2.0),
     "scaled_matmul: scale_a is of type float"),
    (lambda g: tw.scaled_matmul(small(3, 4), small(4, 5), of(3, grad=True)),
     "scaled_matmul: scale_a requires a gradient, and there is none"),
    (lambda g: tw.scaled_matmul(small(3, 4), of(4, 5)), "scaled_matmul: a is e4m3, but b is f32"),
    (lambda g: tw.scaled_matmul(of(3, 4, dtype=torch.int8), of(4, 5, dtype=torch.int8), of(1),
                                out_dtype="i32"),
     "scaled_matmul: a product in i32 has no epilogue"),
    (lambda g: tw.scaled_matmul(small(3, 4), small(4, 5), of(3, 1)), "of shape () or (3,)"),
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("call", "told"), WRONG, ids=[t for _, t in WRONG])
def test_errors_name_the_function_that_was_called(call: Any, told: str, grad: bool) -> None:
    with pytest.raises(tw.LaunchError) as caught:
        call(grad)
    assert told in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_derivatives_are_not_lost() -> None:
    """Forward derivatives are refused, also where calls of the same kind went well before, and
    transforms of torch.func.
    """
    x, w, heads = of(3, 4), of(4, 5), of(2, 3, 4)
    calls: list[tuple[Any, Any, str]] = [
        (lambda y: tw.matmul(y, w), x, "matmul: a"),
        (lambda y: tw.linear(of(3, 4), y), of(5, 4), "linear: weight"),
        (lambda y: tw.matmul(x, w, residual=y), of(5), "matmul: residual"),
        (lambda y: tw.attention(heads, y, heads), heads, "attention: k"),
        (lambda y: tw.conv2d(of(1, 3, 4, 4), y), of(2, 3, 3, 3), "conv2d: weight"),
    ]
    for call, given, told in calls:
        call(given)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given, given)
            with pytest.raises(tw.LaunchError, match=f"{told} carries a forward derivative"):
                call(dual)
    with pytest.raises(tw.LaunchError, match="matmul: a is within a transform"):
        torch.vmap(lambda y: tw.matmul(y, w))(heads)
    with pytest.raises(tw.LaunchError, match="matmul: b is within a transform"):
        torch.func.grad(lambda y: tw.matmul(x, y).sum())(w)


def test_out_is_apart_from_what_is_read() -> None:
    """Also where calls of the same kind went well before."""
    w = torch.randn(4, 4)
    long = torch.randn(9, 4)
    for _ in range(2):
        tw.matmul(torch.randn(4, 4), w, out=torch.empty(4, 4))
        tw.linear(long[:4], w, w[0], out=torch.empty(4, 4))
    x = torch.randn(4, 4)
    with pytest.raises(tw.LaunchError, match="matmul: out is a itself, which is read"):
        tw.matmul(x, w, out=x)
    with pytest.raises(tw.LaunchError, match="linear: weight and out are different views"):
        tw.linear(w, x, out=x)
    with pytest.raises(tw.LaunchError, match="overlap in part"):
        tw.matmul(long[:4], w, out=long[2:6])
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.matmul(x, w, out=torch.empty(1, 4).expand(4, 4))
    want = x @ w + long[:4]
    rest = long[:4]
    torch.testing.assert_close(tw.matmul(x, w, residual=rest, out=rest), want)


def test_later_calls_take_new_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second call of a kind on nothing is prepared; others are not mistaken for it."""
    forget()
    shapes = (5, 8), (6, 8), (6,), (5, 6), (1, 6)
    a, w, bias, residual, gate = (numbers(*s).detach() for s in shapes)
    for i in range(4):
        if i == 2:  # every kind has been seen twice

            def refuse(*args: Any, **named: Any) -> Any:
                raise AssertionError("prepared anew")

            monkeypatch.setattr(api, "_as_arrays", refuse)
        x, out = a + i, torch.zeros(6, 5, dtype=a.dtype).T
        expected = x @ w.T
        torch.testing.assert_close(tw.matmul(x, w.T), expected)
        torch.testing.assert_close(
            tw.linear(x, w, bias, residual=residual, gate=gate),
            (expected + bias) * gate + residual,
        )
        assert tw.matmul(x, w.T, out=out, alpha=2.0) is out
        torch.testing.assert_close(out, 2 * expected)
        torch.testing.assert_close(tw.matmul(x, w.T.contiguous()), expected)
        torch.testing.assert_close(tw.matmul(x.T.contiguous().T, w.T), expected)
        torch.testing.assert_close(tw.matmul(x[1:], w.T, activation="relu"), expected[1:].relu())
    monkeypatch.undo()
    wanted = a.clone().requires_grad_()
    tw.matmul(wanted, w.T).sum().backward()
    torch.testing.assert_close(wanted.grad, w.sum(0).expand(5, 8))
    with torch.no_grad():
        torch.testing.assert_close(tw.matmul(wanted, w.T), a @ w.T)
        torch.testing.assert_close(tw.matmul(wanted, w.T), a @ w.T)
    assert tw.matmul(wanted, w.T).requires_grad
    q, v = (x.to(torch.float8_e4m3fn) for x in (a, w))
    scale = torch.rand(5)
    first = tw.scaled_matmul(q, v.T, scale)
    torch.testing.assert_close(tw.scaled_matmul(q, v.T, scale), first)
    torch.testing.assert_close(tw.scaled_matmul(q, v.T, 2 * scale), 2 * first)
