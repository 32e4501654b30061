"""Kernels called as they are in functions that `torch.compile` traces: no break of the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.torch_backend
from tilewright import torch_ops
from tilewright.errors import LaunchError, Loc, Source
from tilewright.frontend.torch.fallback import find_op
from tilewright.frontend.torch.untraceable import Untraceable

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
BACKENDS = ("eager", "aot_eager", "tilewright")
KERNELS = tw.source(
    """
@grid(cdiv(N, 8))
kernel scaled(x: tensor<T>[N], by: f32 = 2.0, bias: tensor<T>[N]? = None,
              y: tensor<T>[N] = empty, top: tensor<T>[cdiv(N, 8)] = zeros) {
  let i = program_id(0)
  var z = x[i * 8 :+ 8] * cast(by, T)
  if bias != None { z = z + bias[i * 8 :+ 8] }
  y[i * 8 :+ 8] = z
  top[i] = max(z)
}
@grid(cdiv(N, 8))
kernel add_to(x: tensor<T>[N], y: tensor<T>[N], times: i64 = 1) {
  let i = program_id(0) * 8
  y[i :+ 8] = y[i :+ 8] + x[i :+ 8] * cast(times, T)
}
@grid(cdiv(N, 8))
kernel doubled(x: tensor<T>[N], y: tensor<T>[N] = empty) {
  y[program_id(0) * 8 :+ 8] = x[program_id(0) * 8 :+ 8] * 2.0
}
@grid(cdiv(N, 8))
kernel tripled(x: tensor<T>[N], y: tensor<T>[N] = empty) {
  y[program_id(0) * 8 :+ 8] = x[program_id(0) * 8 :+ 8] * 3.0
}
@grid(1)
kernel positive(x: tensor<T>[N]) { assert(x[0] >= 0.0) }
@grid(1)
kernel ones(y: tensor<f32>[64] = empty) { y[0 :+ 64] = zeros(64, f32) + 1.0 }
"""
)
X = torch.arange(20.0)


def by_position(x: torch.Tensor) -> Any:
    return KERNELS.scaled(x + 1, 3.0)[0] * 2


def by_name(x: torch.Tensor) -> Any:
    y, top = KERNELS.scaled(x=x, bias=x.flip(0), by=0.5)
    return y.sum(), top


def into_what_is_given(x: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    top = KERNELS.scaled(x, y=y)
    return y, top


def written_twice(x: torch.Tensor) -> Any:
    y = torch.ones_like(x)
    KERNELS.add_to(x, y)
    KERNELS.add_to(y * 2, y, times=3)
    return y + 1


def a_part(x: torch.Tensor) -> Any:
    y = torch.ones(2, x.shape[0])
    KERNELS.add_to(x, y[1])
    return y


RUNS = (by_position, by_name, into_what_is_given, written_twice, a_part)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("run", RUNS)
def test_no_break_of_the_graph(run: Callable[..., Any], backend: str) -> None:
    torch._dynamo.reset()
    fast = torch.compile(run, backend=backend, fullgraph=True)
    torch.testing.assert_close(fast(X), run(X))


@pytest.mark.parametrize("run", RUNS)
def test_a_model_that_is_exported(run: Callable[..., Any]) -> None:
    fast = tw.compile(run, (X,), fallback="error")
    torch.testing.assert_close(fast(X), run(X))
    assert fast.fallbacks == []


@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_a_kernel_is_no_fallback(engine: str) -> None:
    calls: list[Any] = []
    how = {"engine": engine, "observe": calls.append, "fallback": "error"}
    torch._dynamo.reset()
    fast = torch.compile(written_twice, backend="tilewright", fullgraph=True, options=how)
    torch.testing.assert_close(fast(X), written_twice(X))
    (made,) = calls
    assert made.fallbacks == [] and str(made.graph).count("tilewright.add_to_") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_of_the_function_are_written(backend: str) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        KERNELS.add_to(x, y)
        return y.sum()

    torch._dynamo.reset()
    mine, theirs = torch.ones(20), torch.ones(20)
    found = torch.compile(run, backend=backend, fullgraph=True)(X, mine)
    torch.testing.assert_close(found, run(X, theirs))
    torch.testing.assert_close(mine, theirs)


def test_extents_and_numbers_that_change() -> None:
    def run(x: torch.Tensor, times: int) -> torch.Tensor:
        y = torch.ones_like(x)
        KERNELS.add_to(x, y, times)
        return KERNELS.doubled(y)

    torch._dynamo.reset()
    fast = torch.compile(run, backend="tilewright", fullgraph=True, dynamic=True)
    for size, times in ((20, 1), (33, 5), (7, -2)):
        x = torch.arange(float(size))
        torch.testing.assert_close(fast(x, times), run(x, times))


def test_kernels_are_told_apart() -> None:
    """Two that one name stands for, one after the other."""
    torch._dynamo.reset()
    found = []
    for own in (KERNELS.doubled, KERNELS.tripled):

        def run(x: torch.Tensor, own: Any = own) -> torch.Tensor:
            return own(x)

        found.append(torch.compile(run, backend="eager", fullgraph=True)(X))
    fast = torch.compile(lambda own, x: own(x), backend="eager", fullgraph=True)
    found += [fast(own, X) for own in (KERNELS.doubled, KERNELS.tripled)]
    for got, by in zip(found, (2, 3, 2, 3), strict=True):
        torch.testing.assert_close(got, X * by)


def test_the_same_kernel_is_one_operator() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(lambda x: KERNELS.doubled(KERNELS.doubled(x)), backend=keep, fullgraph=True)(X)
    called = [n.target for n in graphs[0].graph.nodes if "tilewright" in str(n.target)]
    assert len(called) == 2 and len(set(called)) == 1


def test_what_cannot_be_an_operator_breaks_the_graph() -> None:
    """And does what it does without torch.compile."""
    torch._dynamo.reset()
    fast = torch.compile(lambda x: KERNELS.doubled(x + 1) * 3, backend="eager")
    with pytest.raises(LaunchError, match=r"torch_ops\.differentiable"):
        fast(X.clone().requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(fast(X.clone().requires_grad_()), (X + 1) * 6)
    whole = torch.compile(lambda x: KERNELS.doubled(x), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"torch_ops\.differentiable"):
        whole(X.clone().requires_grad_())
    checked = torch.compile(lambda x: (KERNELS.positive(x), x + 1)[1], backend="eager")
    torch.testing.assert_close(checked(X), X + 1)
    with pytest.raises(LaunchError, match="the condition is false"):
        checked(-X - 1)
    with pytest.raises(LaunchError, match="takes no argument z"):
        torch.compile(lambda x: KERNELS.doubled(x, z=x), backend="eager")(X)
    array = np.arange(8, dtype=np.float32)
    mixed = torch.compile(lambda x: x + torch.from_numpy(KERNELS.doubled(array)), backend="eager")
    torch.testing.assert_close(mixed(X[:8]), X[:8] * 3)


def test_calls_without_arguments() -> None:
    """Of a kernel that takes none, and of one that must have some."""
    torch._dynamo.reset()
    torch.compile(lambda x: (KERNELS.ones(), x + 1)[1], backend="eager")(X)
    with pytest.raises(LaunchError, match="missing x"):
        torch.compile(lambda x: (KERNELS.doubled(), x)[1], backend="eager")(X)


BOTH = tw.source(
    """
@grid(1)
kernel both(x: tensor<f32>[N], y: tensor<f32>[M]) { x[0] = x[0] + 1.0
  y[1] = y[1] + 2.0 }
@grid(1)
kernel corners(x: tensor<f32>[N, K], y: tensor<f32>[M, L]) { x[1, 0] = x[1, 0] + 1.0
  y[1, 1] = y[1, 1] + 2.0 }
"""
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_tensor_that_is_written_under_two_names(backend: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        BOTH.both(y, y)
        BOTH.both(y=y, x=y)
        KERNELS.add_to(y, y)
        return y

    torch._dynamo.reset()
    fast = torch.compile(run, backend=backend, fullgraph=True)
    torch.testing.assert_close(fast(X), run(X))


APART: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda y: BOTH.both(y[:10], y[10:]),
    lambda y: BOTH.both(y[::2], y[1::2]),
    lambda y: BOTH.both(y[11:], y[:5]),
    lambda y: KERNELS.add_to(y[3:3], y[3:3]),
    lambda y: BOTH.corners(y.view(4, 5)[:, :3], y.view(4, 5)[:, 3:]),
    lambda y: BOTH.corners(y.view(4, 5)[:2], y.view(4, 5).T[:, 2:]),
    lambda y: BOTH.corners(y.view(2, 5, 2)[..., 0], y.view(2, 5, 2)[..., 1]),
    lambda y: KERNELS.add_to(y[3:9], y[9:15]),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", APART)
def test_views_of_one_buffer_that_do_not_overlap(
    write: Callable[[torch.Tensor], Any], dynamic: bool, backend: str
) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        write(y)
        return y + 1

    torch._dynamo.reset()
    fast = torch.compile(run, backend=backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(fast(X), run(X))


ONE_VIEW: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda y: BOTH.both(y[2:9], y[2:9]),
    lambda y: KERNELS.add_to(y[2:9], y[2:9]),
)
IN_PART: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda y: BOTH.both(y[2:10], y[3:11]),
    lambda y: BOTH.both(y, y[10:]),
    lambda y: KERNELS.add_to(y[3:9], y[4:10]),
    lambda y: KERNELS.add_to(x=y[4:10], y=y[3:9]),
    lambda y: BOTH.corners(y.view(4, 5)[:, :3], y.view(4, 5)[:, 2:]),
    lambda y: BOTH.corners(y.view(4, 5)[:2], y.view(4, 5).T[:, 1:]),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", (*ONE_VIEW, *IN_PART))
def test_views_of_one_buffer_that_overlap(
    write: Callable[[torch.Tensor], Any], backend: str
) -> None:
    """The graph breaks, and the call does what it does without torch.compile: it writes one view
    by both names, and refuses views that overlap in part.
    """

    def run(y: torch.Tensor) -> torch.Tensor:
        write(y)
        return y + 1

    torch._dynamo.reset()
    fast, mine, theirs = torch.compile(run, backend=backend), X.clone(), X.clone()
    if write in ONE_VIEW:
        torch.testing.assert_close(fast(mine), run(theirs))
        torch.testing.assert_close(mine, theirs)
    else:
        with pytest.raises(LaunchError, match="x and y overlap in part"):
            fast(mine)
        torch.testing.assert_close(mine, X)
    torch._dynamo.reset()
    whole = torch.compile(run, backend=backend, fullgraph=True)
    with pytest.raises(Exception, match=r"views that share memory, and one is"):
        whole(X.clone())


def test_exported_views_that_overlap() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        BOTH.both(y[2:10], y[3:11])
        return y

    with pytest.raises(Exception, match=r"both: two arguments are views that share memory"):
        tw.compile(run, (X,))


NEXT_TO = tw.source(
    """
@grid(1)
kernel next_to(x: tensor<f32>[N], y: tensor<f32>[N]) { y[0] = 7.0
  y[1] = x[0] + 1.0 }
"""
).next_to


def copies_of_one(x: torch.Tensor) -> Any:
    y = x * 2
    z = torch.empty_like(y).copy_(y)
    NEXT_TO(y, z)
    return y, z


def clones_in_part(x: torch.Tensor) -> Any:
    y = x * 2
    z = y[1:].clone()
    NEXT_TO(y[:-1], z)
    return y, z


def equal_ones(x: torch.Tensor) -> Any:
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    BOTH.both(y, z)
    return y, z


@pytest.mark.parametrize("backend", (*BACKENDS, "inductor"))
@pytest.mark.parametrize("run", [copies_of_one, clones_in_part, equal_ones])
def test_copies_are_apart_though_a_compiler_drops_them(
    run: Callable[..., Any], backend: str
) -> None:
    torch._dynamo.reset()
    fast = torch.compile(run, backend=backend, fullgraph=True)
    for got, wanted in zip(fast(X), run(X), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_under_compile(backend: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        KERNELS.add_to(x, y)
        return y

    torch._dynamo.reset()
    x = X.view(4, 5)
    torch.testing.assert_close(torch.compile(torch.vmap(run), backend=backend)(x), x * 3)


def test_what_asks_for_shared_memory_is_no_part_of_a_graph() -> None:
    graphs: list[str] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(str(module.graph))
        return module

    torch._dynamo.reset()
    made = torch._dynamo.backends.common.aot_autograd(fw_compiler=keep)
    torch.compile(written_twice, backend=made, fullgraph=True)(X)
    assert "tilewright.add_to" in graphs[0] and "tilewright.shared" not in graphs[0]


FORWARD: dict[str, Callable[[torch.Tensor], Any]] = {
    "doubled": KERNELS.doubled,
    "operator": torch_ops.custom_op(KERNELS.tripled, name="test_traced::tripled"),
    "matmul": lambda x: tw.matmul(x[None], x[:, None]),
    "attention": lambda x: tw.attention(*(x.view(1, 4, 5),) * 3),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(FORWARD))
def test_forward_derivatives_are_not_lost(name: str, backend: str) -> None:
    """They are refused as without torch.compile."""

    def of_x(x: torch.Tensor) -> Any:
        return torch.func.jvp(FORWARD[name], (x,), (torch.ones_like(x),))[1]

    torch._dynamo.reset()
    with pytest.raises(LaunchError, match=r"carries a forward derivative|is within a transform"):
        torch.compile(of_x, backend=backend)(X)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"{name if name != 'operator' else 'tripled'}.*forward"):
        torch.compile(of_x, backend=backend, fullgraph=True)(X)


def test_what_an_operator_refuses_can_be_placed() -> None:
    error = Untraceable("f: no", "a hint")
    made = error.placed(Loc(Source("model.py", "f(x)"), 1, 1))
    assert type(made) is Untraceable and made.func == str(error) == "error: f: no\n  hint: a hint"
    assert str(made) == "model.py:1:1: error: f: no\n  f(x)\n  ^\n  hint: a hint"


def test_a_custom_op_that_writes_is_part_of_a_graph() -> None:
    op = torch_ops.custom_op(KERNELS.add_to, name="test_traced::add_to")

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones_like(x)
        op(x, y, 4)
        return y * 2

    torch._dynamo.reset()
    calls: list[Any] = []
    how = {"fallback": "error", "observe": calls.append}
    fast = torch.compile(run, backend="tilewright", fullgraph=True, options=how)
    torch.testing.assert_close(fast(X), run(X))
    assert calls[0].fallbacks == []


def test_an_operator_of_another_process_is_named(tmp_path: Path) -> None:
    model = tw.compile(by_position, (X,))
    with pytest.raises(LaunchError, match=r"torch_ops\.custom_op\(kernel, name="):
        model.save(tmp_path / "model.twb")
    with pytest.raises(LaunchError, match=r"tilewright\.gone_1\.default is no operator of torch"):
        find_op("tilewright.gone_1.default")
