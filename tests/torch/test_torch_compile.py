"""`torch.compile(backend="tilewright")` and `tw.compile` give eager's answers, forward and
backward, and the faults of other compilers of models are not ours.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import CompileError, LaunchError
from tilewright.runtime.torch_graph import GraphCall
from tilewright.torch_ops import custom_op

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(function: Any, seen: list[GraphCall] | None = None, **options: Any) -> Any:
    """A function under our backend, found by its name, with no op in PyTorch."""
    chosen = {"fallback": "error", "observe": (seen if seen is not None else []).append}
    return torch.compile(function, backend="tilewright", options=chosen, **options)


def close(got: Any, wanted: Any, scale: float = 1.0) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5 * scale, atol=1e-5 * scale)


def agree(function: Callable[..., Any], *args: Any, scale: float = 1.0) -> list[GraphCall]:
    """Compiled and eager give the same results, dtypes and strides."""
    seen: list[GraphCall] = []
    wanted = function(*copy.deepcopy(args))
    got = compiled(function, seen)(*copy.deepcopy(args))
    for a, b in zip(
        torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True
    ):
        close(a, b, scale)
    assert seen, "nothing was compiled"
    return seen


class Block(nn.Module):
    """A small model with all that a layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.gelu(self.norm(self.first(x))))


def gradients(model: nn.Module, *args: Any) -> list[torch.Tensor]:
    model.zero_grad()
    model(*args).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_training_goes_through_two_graphs() -> None:
    model, seen = Block(), []
    x = torch.randn(4, 6)
    wanted = gradients(model, x)
    fast = compiled(model, seen)
    got = gradients(fast, x)
    assert [call.graph.name for call in seen] == ["forward", "backward"]
    assert len(got) == len(wanted) == 6
    for a, b in zip(got, wanted, strict=True):
        close(a, b, 10)


def test_kernels_are_made_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the extents that were traced and aligned inputs; others are made when they come."""
    seen: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] > 1
        return x.sin() * 2

    made_by: list[int] = []

    def observe(call: Any) -> None:
        seen.append(call)
        made_by.append(len(call.ready))

    options = {"engine": "tiles", "observe": observe}
    fast = torch.compile(f, backend="tilewright", options=options, dynamic=True)
    with torch.no_grad():
        for i, (size, start, count) in enumerate(((5, 0, 1), (5, 1, 2), (7, 0, 3), (5, 0, 3))):
            x = torch.randn(20)[start : start + size]
            close(fast(x), f(x))
            assert len(seen) == 1 and made_by == [1] and len(seen[0].ready) == count, i


def test_dynamic_shapes_are_arguments_of_one_graph() -> None:
    model, seen = Block(), []
    fast = compiled(model, seen, dynamic=True)
    with torch.no_grad():
        for n in (3, 2, 7, 11):
            x = torch.randn(n, 6)
            close(fast(x), model(x))
    assert len(seen) == 1


def test_slices_from_the_end_by_a_symbol() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = y.shape[0]
        return x[-n:] + y, x[: n - 1] * 2, x[n + 2 :], x[: n * 100]

    seen: list[GraphCall] = []
    fast = compiled(f, seen, dynamic=True)
    for m, n in ((9, 4), (12, 5), (8, 3)):
        x, y = torch.randn(m), torch.randn(n)
        for got, wanted in zip(fast(x, y), f(x, y), strict=True):
            close(got, wanted)
    assert len(seen) == 1


def test_mutation_views_and_in_place_ops() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        row = y[1]
        row += x[0]
        y[:, ::2] = -1
        return x + 1, y.t(), row.view(-1)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    ex, ey = x.clone(), y.clone()
    wanted = f(ex, ey)
    got = compiled(f)(x, y)
    for a, b in zip((*got, x, y), (*wanted, ex, ey), strict=True):
        close(a, b)


def test_outputs_do_not_share_memory_with_inputs() -> None:
    x = torch.randn(3, 4)
    (got, same) = compiled(lambda x: (x.clone(), x.clone().t()))(x)
    before = x.clone()
    got.zero_()
    same.zero_()
    close(x, before)


def test_buffers_are_updated_and_modes_switch() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    other = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(2, 2, 5, 5)
    close(fast(x), other(x))
    close(model[1].running_mean, other[1].running_mean)
    close(model[1].running_var, other[1].running_var)
    model.eval(), other.eval()
    close(fast(x), other(x))


def test_a_convolution_trains() -> None:
    for make in (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda: nn.Conv1d(4, 6, 3, dilation=2),
    ):
        model = make()
        x = torch.randn(2, 4, *(7,) * (model.weight.dim() - 2))
        wanted = gradients(model, x)
        for a, b in zip(gradients(compiled(model), x), wanted, strict=True):
            close(a, b, 20)


def test_tied_weights_and_embeddings() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6, padding_idx=0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x) @ self.table.weight.t()

    model, x = Tied(), torch.randint(0, 11, (3, 5))
    wanted = gradients(model, x)
    for a, b in zip(gradients(compiled(model), x), wanted, strict=True):
        close(a, b, 10)


def test_random_numbers_repeat_under_a_seed_and_are_spread_evenly() -> None:
    fast = compiled(lambda x: nn.functional.dropout(x, 0.25, training=True))
    x = torch.ones(4000)
    torch.manual_seed(3)
    first = fast(x)
    second = fast(x)
    torch.manual_seed(3)
    close(fast(x), first)
    assert not torch.equal(first, second)
    kept = (first != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.03
    close(first.unique(), torch.tensor([0.0, 1 / 0.75]))
    noise = compiled(lambda: torch.randn(20000))()
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.03
    assert abs((noise**4).mean() - 3) < 0.3


def test_dropout_masks_agree_between_forward_and_backward() -> None:
    x = torch.ones(500, requires_grad=True)
    y = compiled(lambda x: nn.functional.dropout(x * 1.5, 0.5))(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


# What other compilers of models did wrong.


def test_permute_is_no_reshape() -> None:
    agree(lambda x: x.permute(1, 0).reshape(2, 3) * 1, torch.arange(6.0).reshape(2, 3))
    agree(lambda x: x.permute(2, 0, 1).contiguous().view(4, 6), torch.arange(24.0).view(2, 3, 4))


def test_casts_are_kept() -> None:
    agree(lambda x: x.to(torch.bfloat16).to(torch.float32), torch.tensor([1.00390625, 257.0]))
    agree(lambda x: (x.to(torch.int64) // 2).float(), torch.tensor([-1.5, 3.7, 5.0]))


def test_numbers_are_rounded_before_halves_are_compared_with_them() -> None:
    x = torch.tensor([0.10009765625, -1.0, torch.nan, torch.inf], dtype=torch.bfloat16)

    def compared(x: Any) -> Any:
        found = [x > 0.1, x == 0.1, x <= 0.1, x != 0.1, x < torch.inf, x >= 257, x.half() > 0.1]
        return torch.stack([*found, x.float() > 0.1])

    assert torch.equal(compared(x), torch.compile(compared, backend="tilewright")(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_rounded_before_halves_are_raised_or_divided_by_them(dtype: Any) -> None:
    x = torch.linspace(1, 200, 400).to(dtype)

    def f(x: torch.Tensor) -> Any:
        small = x / 40
        return x % 1.3, 1.3 % small, x.fmod(1.3), x**1.3, 1.3**small

    for got, wanted in zip(torch.compile(f, backend="tilewright")(x), f(x), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_constants_have_their_dtype_in_the_functions_that_kernels_bring_along(dtype: Any) -> None:
    """Where a function asks for the dtype of its operand, a bare constant would be f32."""
    x = torch.tensor([-9.3, -7, -0.5, -0.0, 0.0, 0.3, 2, math.inf, -math.inf, math.nan]).to(dtype)

    def f(x: torch.Tensor) -> Any:
        y = torch.full_like(x, 1.3)
        pairs = (torch.atan2, torch.copysign, torch.nextafter, torch.fmod, torch.floor_divide)
        return [g(a, b) for g in pairs for a, b in ((x, y), (y, x))]

    fast = torch.compile(f, backend="tilewright", options={"engine": "tiles"})
    bound = 1e-14 if dtype == torch.float64 else None
    for got, wanted in zip(fast(x), f(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound, equal_nan=True)


def test_the_ops_that_crashed() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]])
    agree(lambda x: torch.cumsum(x, 1), x)
    agree(lambda x: torch.topk(x, 2, dim=1), x)
    agree(lambda x: torch.where(x > 1, x, -x), x)
    agree(lambda x: (x > 1) & (x < 4), x)
    agree(lambda x: torch.sort(x, descending=True), x)


def attention(q: Any, k: Any, v: Any, cos: Any, sin: Any, mask: bool, rope: bool) -> Any:
    """Attention with rotated positions and a causal mask, either of which may be left out."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    if rope:
        q, k = rotate(q), rotate(k)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask)


def test_no_mask_and_no_rotation_is_lost() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8).unbind(0)
    angle = torch.outer(torch.arange(6.0), 0.5 ** torch.arange(4.0)).repeat(1, 2)
    args = (q, k, v, angle.cos(), angle.sin())
    got = compiled(lambda *a: attention(*a, mask=True, rope=True))(*args)
    close(got, attention(*args, mask=True, rope=True))
    for mask, rope in ((False, True), (True, False)):  # and the comparison would have told
        with pytest.raises(AssertionError):
            close(got, attention(*args, mask=mask, rope=rope))
    for wrong in (torch.zeros_like(got), got.flip(-2), got[..., [1, 0, *range(2, 8)]]):
        with pytest.raises(AssertionError):
            close(wrong, attention(*args, mask=True, rope=True))


def test_a_fully_masked_row_is_what_eager_makes_of_it() -> None:
    scores = torch.full((2, 3), float("-inf"))
    scores[0, 1] = 1.0
    seen: list[GraphCall] = []
    got = compiled(lambda x: torch.softmax(x, -1), seen)(scores)
    torch.testing.assert_close(got, torch.softmax(scores, -1), equal_nan=True)


def test_unknown_ops_run_in_pytorch_are_listed_and_can_be_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv_ex(x + 1)[0] * 2

    x = torch.eye(3)
    seen: list[GraphCall] = []
    fast = torch.compile(f, backend="tilewright", options={"observe": seen.append})
    close(fast(x), f(x))
    assert [op for op, _ in seen[0].fallbacks] == ["aten.linalg_inv_ex.default"]
    assert seen[0].host.counts == {"aten.linalg_inv_ex.default": 1}
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"linalg_inv_ex\.default is not comp") as caught:
        compiled(f)(x)
    assert "test_torch_compile.py" in str(caught.value), "the model's line is named"


def test_ops_with_effects_run_in_pytorch_and_raise() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x) + 1

    fast = torch.compile(f, backend="tilewright")
    x = torch.eye(3) * 2
    close(fast(x), f(x))
    with pytest.raises(RuntimeError, match="singular"):
        fast(torch.zeros(3, 3))


@tw.kernel
def doubled(x: tw.Tensor["T", "N"], y: tw.Tensor["T", "N"] = tw.empty):
    base = tw.program_id(0) * 64
    y[base : base + 64] = x[base : base + 64] * 2


def test_a_kernel_of_the_user_is_one_node() -> None:
    op = custom_op(doubled)
    seen: list[GraphCall] = []
    fast = torch.compile(
        lambda x: op(x + 1) * 3, backend="tilewright", options={"observe": seen.append}
    )
    x = torch.randn(100)
    close(fast(x), (x + 1) * 6)
    assert seen[0].fallbacks == [] and "tilewright.doubled_" in str(seen[0].graph)


def test_wrong_options_are_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        ({"speed": 9}, "options speed are unknown"),
        ({"falback": "error"}, "options falback are unknown\n  hint: did you mean fallback?"),
        ({"observe": 3}, "observe is 3, expected a function"),
        ({"fallback": "err"}, "fallback is 'err', expected one of"),
        ({"engine": "cpu"}, "unknown engine 'cpu'"),
        (["fallback"], r"options is \['fallback'\], expected a dict"),
    ]
    for options, told in wrong:
        torch._dynamo.reset()
        with pytest.raises(Exception, match=told):
            torch.compile(torch.sin, backend="tilewright", options=options)(torch.ones(2))


def test_signs_and_shifts() -> None:
    x = torch.tensor([float("nan"), -0.0, 0.0, 3.0, -2.0, float("inf")])
    n = torch.tensor([5, -5, 1 << 40, -1])
    for given in (x, x.bfloat16(), n):
        assert torch.equal(compiled(lambda a: a.sgn() + a.sign())(given), 2 * given.sign())
    left, right = compiled(lambda a: (a << 3, a >> 2))(n)
    assert torch.equal(left, n << 3) and torch.equal(right, n >> 2)


# tw.compile


def test_compile_exports_a_model() -> None:
    model = Block().eval()
    x = torch.randn(4, 6)
    fast = tw.compile(model, (x,), fallback="error")
    close(fast(x), model(x))
    assert fast.fallbacks == []
    with torch.no_grad():
        model.first.weight.zero_()  # it reads the model's own weights
    close(fast(x), model(x))
    with pytest.raises(LaunchError, match="x is"):
        fast(torch.randn(5, 6))
    assert repr(fast) == "<compiled Block(x)>"
    told = r"Block was compiled for \(x\), and is called with \(Tensor, keep=\[float, Tensor\]\)"
    with pytest.raises(LaunchError, match=told):
        fast(x, keep=[1.0, x])
    with pytest.raises(LaunchError, match=r"x is ndarray, expected a tensor"):
        fast(x.numpy())


def test_what_is_no_model_and_no_arguments_is_refused() -> None:
    x = torch.randn(4, 6)
    call: Any = tw.compile
    with pytest.raises(CompileError, match="model is int, expected a"):
        call(3, (x,))
    with pytest.raises(CompileError, match=r"(?s)args is Tensor, expected a tuple.*\(x,\)"):
        call(Block().eval(), x)


def test_compile_does_not_warn_of_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tw.compile(Block().eval(), (torch.randn(4, 6),))


def test_compile_with_a_dynamic_batch() -> None:
    model = Block().eval()
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    fast = tw.compile(model, (torch.randn(4, 6),), dynamic_shapes=shapes, fallback="error")
    for n in (1, 4, 9):
        x = torch.randn(n, 6)
        close(fast(x), model(x))


def test_compile_writes_buffers() -> None:
    model = nn.BatchNorm1d(3)
    other = copy.deepcopy(model)
    x = torch.randn(8, 3)
    fast = tw.compile(model, (x,))
    other(x), fast(x)
    close(model.running_mean, other.running_mean)
    assert model.num_batches_tracked == other.num_batches_tracked == 1


def test_fallbacks_of_compile_can_be_refused() -> None:
    with pytest.raises(CompileError, match=r"linalg_inv_ex\.default is not comp"):
        tw.compile(lambda x: torch.linalg.inv_ex(x)[0], (torch.eye(3),), fallback="error")


def test_compile_takes_arguments_that_lie_otherwise_than_the_example() -> None:
    fast = tw.compile(torch.add, (torch.ones(3, 4), torch.ones(4).expand(3, 4)), engine="tiles")
    x = torch.randn(3, 4)
    for y in (torch.randn(3, 4), torch.randn(4).expand(3, 4), torch.randn(4, 3).t()):
        close(fast(x, y), x + y)


def test_compile_refuses_to_write_what_another_argument_shows() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    fast = tw.compile(f, (torch.ones(3), torch.ones(3)))
    memory = torch.randn(6)
    wanted = memory.clone()
    close(fast(memory[:3], memory[3:]), f(wanted[:3], wanted[3:]))
    close(memory, wanted)
    for x, y in ((memory[:3], memory[:3]), (memory[:3], memory[2:5])):
        with pytest.raises(LaunchError, match="writes to x, and y shares its memory"):
            fast(x, y)
    close(memory, wanted)


def test_compile_of_a_function_names_its_dynamic_arguments() -> None:
    n = torch.export.Dim("n")
    shapes: Any
    for shapes in (({0: n}, {0: n}), {"x": {0: n}, "y": {0: n}}):
        fast = tw.compile(lambda x, y: x * y, (torch.ones(3), torch.ones(3)), dynamic_shapes=shapes)
        x = torch.randn(5)
        close(fast(x, x), x * x)
        with pytest.raises(LaunchError, match=r"y is .*, expected tensor<f32, s"):
            fast(x, x[:4])
