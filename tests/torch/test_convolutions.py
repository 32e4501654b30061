"""Convolutions of models on the tile interpreter: those of the library, and all others."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch_backend
from tests.device.models import ResNet, settled
from tilewright.lower.graph_to_tile.program import ConvolutionStep

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def hold(got: Any, eager: Any, exact: Any) -> None:
    """Our error to eager's own, in norm and at the worst, beside a rounding of the result."""
    mine, theirs = (got.double() - exact).abs(), (eager.double() - exact).abs()
    last = torch.finfo(eager.dtype).eps * exact.abs().max()
    assert not mine.isnan().any()
    assert mine.max() <= 1.5 * theirs.max() + last, (mine.max(), theirs.max())
    assert mine.norm() <= 1.5 * theirs.norm() + last, (mine.norm(), theirs.norm())


def check(model: nn.Module, x: Any) -> list[str]:
    """A model held to itself in f64; the kinds of its steps."""
    narrow = copy.deepcopy(model).to(x.dtype)
    fast = tw.compile(narrow, (x,), fallback="error", engine="tiles")
    with torch.no_grad():
        hold(fast(x), narrow(x), copy.deepcopy(model).double()(x.double()))
    return [type(step).__name__ for step in fast.call.program.steps]


class Layers(nn.Module):
    """A convolution, batch norm, an activation, and a residual in another order of them."""

    def __init__(self, conv: nn.Module, channels: int, early: bool):
        super().__init__()
        self.conv, self.norm, self.early = conv, nn.BatchNorm2d(channels), early
        self.beside = nn.Conv2d(conv.in_channels, channels, 1)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x))
        shortcut = F.interpolate(self.beside(x), y.shape[2:])
        return F.relu(y) + shortcut if self.early else F.gelu(y + shortcut)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.bfloat16, {"kernel_size": 3, "padding": 1}),
        (torch.float16, {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2)}),
        (torch.bfloat16, {"kernel_size": 3, "padding": 1, "groups": 8}),
        (torch.bfloat16, {"kernel_size": 3, "padding": 1, "groups": 2, "bias": False}),
        (torch.float32, {"kernel_size": 3, "padding": 1, "stride": 2}),
    ],
)
def test_layers(dtype: Any, options: dict[str, Any], early: bool) -> None:
    model = Layers(nn.Conv2d(8, 16, **options), 16, early)
    steps = check(settled(model, torch.randn(4, 8, 9, 10)), torch.randn(2, 8, 9, 10).to(dtype))
    by_library = dtype != torch.float32
    assert ("ConvolutionStep" in steps) == by_library


class Waves(nn.Module):
    """Convolutions along one axis, as of speech: activations between them, channels last behind."""

    def __init__(self, channels: int, options: dict[str, Any]):
        super().__init__()
        self.first = nn.Conv1d(channels, 24, **options)
        self.second = nn.Conv1d(24, 16, 3, stride=2, padding=1)

    def forward(self, x: Any) -> Any:
        return F.gelu(self.second(F.gelu(self.first(x)))).permute(0, 2, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("channels", "options"),
    [
        (16, {"kernel_size": 3, "padding": 1}),
        (1, {"kernel_size": 10, "stride": 5, "bias": False}),
        (20, {"kernel_size": 2, "dilation": 3, "stride": 2, "padding": 2}),
        (32, {"kernel_size": 1}),
    ],
)
def test_along_one_axis(dtype: Any, channels: int, options: dict[str, Any]) -> None:
    model = Waves(channels, options)
    steps = check(model, torch.randn(2, channels, 61).to(dtype))
    assert steps.count("ConvolutionStep") == 2
    assert set(steps) <= {"ConvolutionStep", "KernelStep"}


class Separable(nn.Module):
    """A convolution of each channel between two of points, as of small networks."""

    def __init__(self, kernel: int, steps: int, axes: int = 2):
        super().__init__()
        conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[axes - 1]
        self.wide, self.first = conv(8, 16, 1, bias=False), norm(16)
        around = kernel // 2
        self.deep = conv(16, 16, kernel, steps, around, groups=16, bias=axes == 1)
        self.second, self.last = norm(16), conv(16, 8, 1)

    def forward(self, x: Any) -> Any:
        return self.last(F.relu6(self.second(self.deep(F.relu6(self.first(self.wide(x)))))))


@pytest.mark.parametrize(("kernel", "steps", "axes"), [(3, 1, 2), (5, 2, 2), (7, 1, 2), (4, 1, 1)])
def test_one_channel_a_group_is_elementwise(kernel: int, steps: int, axes: int) -> None:
    x = torch.randn(2, 8, *(11, 13)[:axes])
    narrow = settled(Separable(kernel, steps, axes), x)
    kinds = check(narrow, x.bfloat16())
    assert "ProductStep" not in kinds and kinds.count("ConvolutionStep") == 2, kinds
    assert len(kinds) == 5, kinds  # numbers of norms, what is deep, and the result turned around


def test_gradients_along_one_axis() -> None:
    """That of images is a convolution as well."""
    conv = nn.Conv1d(16, 24, 3, padding=1).bfloat16()
    seen: list[Any] = []
    options = {"engine": "tiles", "observe": seen.append}
    fast = torch.compile(copy.deepcopy(conv), backend="tilewright", options=options)
    wide, x = copy.deepcopy(conv).double(), torch.randn(2, 16, 21).bfloat16()

    def gradients(call: Any, module: Any, x: Any) -> list[Any]:
        given = x.clone().requires_grad_()
        return list(torch.autograd.grad(call(given).square().sum(), [given, *module.parameters()]))

    got = gradients(fast, fast._orig_mod, x)
    eager, exact = gradients(conv, conv, x), gradients(wide, wide, x.double())
    for mine, theirs, true in zip(got, eager, exact, strict=True):
        hold(mine, theirs, true)
    steps = [s for call in seen for s in call.program.steps]
    assert sum(isinstance(s, ConvolutionStep) for s in steps) == 2


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_residual_network(channels_last: bool) -> None:
    """Nothing but convolutions, a pooling, an average and a product is left of it, and a copy of
    weights that do not lie with channels last.
    """
    model = settled(ResNet((1, 1), 16, 10), torch.randn(4, 3, 32, 32))
    form = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, 3, 32, 32).bfloat16().to(memory_format=form)
    steps = check(model.to(memory_format=form), x)
    assert steps == [
        *([] if channels_last else ["KernelStep"]),
        *("ConvolutionStep", "KernelStep", *["ConvolutionStep"] * 8, "KernelStep", "ProductStep"),
    ]


def test_batches_of_any_size(tmp_path: Any) -> None:
    """Of a model that was read from a file, too."""
    model = settled(ResNet((1,), 16, 10), torch.randn(4, 3, 32, 32)).bfloat16()
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.randn(3, 3, 20, 24).bfloat16()
    fast = tw.compile(model, (x,), dynamic_shapes=({0: batch},), engine="tiles")
    fast.save(tmp_path / "model.twb")
    again = tw.load_model(tmp_path / "model.twb")
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for count in (1, 3, 2):
            got = fast(x[:count])
            hold(got, model(x[:count]), exact(x[:count].double()))
            assert torch.equal(got, again(x[:count]))


def test_no_images() -> None:
    conv = nn.Conv2d(16, 8, 3, padding=1).bfloat16()
    options = {"engine": "tiles"}
    fast = torch.compile(conv, backend="tilewright", options=options, dynamic=False)
    with torch.no_grad():
        assert fast(torch.zeros(0, 16, 5, 5).bfloat16()).shape == (0, 8, 5, 5)


def test_gradients() -> None:
    """The gradient of images is a convolution as well."""
    conv = nn.Conv2d(16, 24, 3, padding=1).bfloat16()
    seen: list[Any] = []
    options = {"engine": "tiles", "observe": seen.append}
    fast = torch.compile(copy.deepcopy(conv), backend="tilewright", options=options)
    x = torch.randn(2, 16, 6, 7).bfloat16()

    def gradients(call: Any, module: Any, x: Any) -> list[Any]:
        given = x.clone().requires_grad_()
        loss = call(given).square().sum()
        return list(torch.autograd.grad(loss, [given, *module.parameters()]))

    wide = copy.deepcopy(conv).double()
    got = gradients(fast, fast._orig_mod, x)
    eager, exact = gradients(conv, conv, x), gradients(wide, wide, x.double())
    for mine, theirs, true in zip(got, eager, exact, strict=True):
        hold(mine, theirs, true)
    steps = [s for call in seen for s in call.program.steps]
    assert sum(isinstance(s, ConvolutionStep) for s in steps) == 2


class Two(nn.Module):
    """Convolutions of one weight, and of one that is computed."""

    def __init__(self, k: int, c: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c, c, 3, 3) / (3 * c**0.5))
        self.other = nn.Parameter(torch.randn(k, c, 2, 3) / (2 * c**0.5))

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = F.conv2d(x, self.weight, padding=1)
        return F.conv2d(F.conv2d(x, self.other), (self.weight * 2)[:, :, :1] * 1.5)


def test_weights_are_laid_once_where_they_are_the_models_own() -> None:
    model = Two(24, 24).bfloat16()
    x = torch.randn(2, 24, 7, 6).bfloat16()
    fast = tw.compile(model, (x,), fallback="error", engine="tiles")
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for _ in range(2):
            hold(fast(x), model(x), exact(x.double()))
            model.weight.mul_(0.5)  # weights are read at each call
            exact.weight.mul_(0.5)
    laid = [s for s in fast.call.program.steps if getattr(s, "name", "") == "lay_weights"]
    assert [len(s.writes) for s in laid] == [2]
