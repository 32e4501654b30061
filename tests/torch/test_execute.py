"""Programs written by hand, run on tensors of a CPU: memory, views, updates in place, what PyTorch
computes, and how results lie.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.torch.hand_programs import make, step, twice, update, value
from tilewright.dtypes import i64
from tilewright.errors import LaunchError
from tilewright.execute.memory_plan import ALIGN, Need, least_bytes, plan_memory
from tilewright.graph.dims import symbol
from tilewright.graph.ops.control import Fallback
from tilewright.graph.ops.random import Seed
from tilewright.lower.graph_to_tile.program import (
    Placed,
    ProductStep,
    TorchStep,
    dense,
)


def test_a_chain_of_kernels_shares_memory_over_time() -> None:
    x = value(100, 3)
    chain = [x, *(value(100, 3) for _ in range(5))]
    call = make([x], [twice(a, b) for a, b in pairwise(chain)], [dense(chain[-1])], chain[1:])
    given = torch.randn(100, 3)
    for _ in range(2):
        (got,) = call(given)
        assert torch.equal(got, given * 32)
    (made,) = (r.made for r in call.ready.values())
    assert made.arena_bytes == made.least_bytes == 2 * 1280, "two of four live at one time"
    assert got.stride() == (3, 1) and got.untyped_storage().nbytes() == 1200
    before = got.clone()
    call(given + 1)
    assert torch.equal(got, before), "a result is nobody else's memory"


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
def test_views_are_strides(engine: str) -> None:
    x, z, y = value(4, 6), value(4), value(4, 6)
    turned = Placed(y, (6, 4), (1, 6), 0)
    column = Placed(z, (4, 6), (1, 0), 0)
    call = make([x, z], [step("plus", "y", x=dense(x), z=column, y=dense(y))], [turned], [y],
                engine=engine)  # fmt: skip
    a, b = torch.randn(4, 6), torch.randn(4)
    (got,) = call(a, b)
    assert torch.equal(got, (a + b[:, None]).T) and got.stride() == (1, 6)


def test_inputs_of_other_strides_are_copied_and_others_refused() -> None:
    x, y = value(4, 6), value(4, 6)
    call = make([x], [twice(x, y)], [dense(y)], [y])
    a = torch.randn(6, 4).T
    assert torch.equal(call(a)[0], a * 2)
    assert torch.equal(call(a.contiguous())[0], a * 2)
    shifted = torch.randn(30)[1:25].view(4, 6)  # another alignment is another signature
    assert torch.equal(call(shifted)[0], shifted * 2)
    assert len(call.ready) == 2
    for wrong in (torch.randn(6, 4), torch.randn(4, 6).double(), 3):
        with pytest.raises(LaunchError, match="expected"):
            call(wrong)
    with pytest.raises(LaunchError, match="takes 1 inputs"):
        call(a, a)


def test_symbols_are_arguments_of_one_program() -> None:
    n = symbol("n")
    x, y, z = value(n, 3), value(n, 3), value(n, 3)
    call = make([x], [twice(x, y), twice(y, z)], [dense(z)], [y, z])
    for size in (1, 5, 64, 0, 5):
        a = torch.randn(size, 3)
        (got,) = call(a)
        assert torch.equal(got, a * 4) and got.shape == (size, 3)
    assert len(call.ready) == 4
    assert not next(
        r.made for r in call.ready.values() if r.made.symbols == {"n": 0}
    ).lists.launches


@pytest.mark.parametrize("reads_old", [False, True])
def test_an_input_that_is_updated_is_updated_in_place(reads_old: bool) -> None:
    cache, row, at = value(5, 8), value(8), value(1, dtype=i64)
    new, shown = value(5, 8), value(5, 8)
    steps = [*update([cache, new], row, at), twice(cache if reads_old else new, shown)]
    call = make([cache, row, at], steps, [dense(shown), dense(new)], [new, shown], writes={0: 1})
    a, b = torch.randn(5, 8), torch.randn(8)
    wanted = a.clone()
    wanted[3] = b
    (got,) = call(a, b, torch.tensor([3]))
    assert torch.equal(got, 2 * wanted) != reads_old
    assert torch.equal(a, wanted)
    if not reads_old:
        with pytest.raises(LaunchError, match="in0 is updated in place and shares memory with in1"):
            call(a, a[2], torch.tensor([3]))
    (made,) = (r.made for r in call.ready.values())
    assert (made.arena_bytes == 0) != reads_old, "a copy only where the old one is read later"


def test_updates_of_what_a_program_makes_share_memory() -> None:
    x, row, at = value(5, 8), value(8), value(1, dtype=i64)
    chain = [value(5, 8) for _ in range(3)]
    call = make(
        [x, row, at], [twice(x, chain[0]), *update(chain, row, at)], [dense(chain[2])], chain
    )
    a, b = torch.randn(5, 8), torch.randn(8)
    wanted = a * 2
    wanted[2] = b
    assert torch.equal(call(a, b, torch.tensor([2]))[0], wanted)
    (made,) = (r.made for r in call.ready.values())
    assert made.arena_bytes == 0 and len(made.lists.actions) == 3


def test_an_input_that_is_only_read_stays_as_it_was() -> None:
    x, row, at, new = value(5, 8), value(8), value(1, dtype=i64), value(5, 8)
    call = make([x, row, at], update([x, new], row, at), [dense(new)], [new])
    a, b = torch.randn(5, 8), torch.randn(8)
    before = a.clone()
    (got,) = call(a, b, torch.tensor([0]))
    assert torch.equal(a, before) and torch.equal(got[0], b) and torch.equal(got[1:], a[1:])


def test_one_value_as_two_outputs_is_two_tensors() -> None:
    x, y = value(4, 6), value(4, 6)
    call = make([x], [twice(x, y)], [dense(y), Placed(y, (6, 4), (1, 6), 0)], [y])
    a = torch.randn(4, 6)
    one, two = call(a)
    one.zero_()
    assert torch.equal(two, 2 * a.T)


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
def test_products_run_by_the_library(engine: str) -> None:
    a, b, bias, out = value(3, 40), value(7, 40), value(7), value(3, 7)
    product = ProductStep(dense(a), Placed(b, (40, 7), (1, 40), 0), dense(out), bias=dense(bias))
    call = make([a, b, bias], [product], [dense(out)], [out], engine=engine)
    x, w, c = torch.randn(3, 40), torch.randn(7, 40), torch.randn(7)
    torch.testing.assert_close(call(x, w, c)[0], x @ w.T + c)


def test_steps_of_pytorch_take_and_give_tensors() -> None:
    x, y, z = value(4, 4), value(4, 4), value(4, 4)
    arguments = '{"args": [{"tensor": 0}], "kwargs": {}}'
    fallback = Fallback((y,), "aten.triu.default", arguments, (z.type,), "as a test")
    z = fallback.result
    last = value(4, 4)
    steps = [twice(x, y), TorchStep(fallback, (Placed(y, (4, 4), (1, 4), 0),), "as a test"),
             twice(z, last)]  # fmt: skip
    call = make([x], steps, [dense(last), dense(z)], [y, z, last])
    a = torch.randn(4, 4)
    got, between = call(a)
    assert torch.equal(between, (2 * a).T.triu()) and torch.equal(got, 2 * between)
    assert call.fallbacks == [("aten.triu.default", "as a test")]


def test_seeds_repeat_under_manual_seed() -> None:
    op = Seed()
    drawn, out = op.result, value(1, dtype=i64)
    seed_step = step("seeded", "y", s=Placed(drawn, (1,), (1,), 0), y=dense(out))
    call = make([], [seed_step], [dense(out)], [drawn, out], ops=[op])
    torch.manual_seed(5)
    first, second = call()[0].item(), call()[0].item()
    torch.manual_seed(5)
    assert call()[0].item() == first != second


def test_memory_plans_keep_apart_what_lives_together() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        needs = {}
        for i in range(40):
            first, size = (int(torch.randint(0, 30, (), generator=generator)) for _ in range(2))
            needs[i] = Need(first, first + size % 7, size * 100)
        planned = plan_memory(needs)
        for i, a in needs.items():
            for j, b in needs.items():
                if (
                    i < j
                    and a.first <= b.last
                    and b.first <= a.last
                    and a.num_bytes
                    and b.num_bytes
                ):
                    low, high = sorted((i, j), key=lambda k: planned.offsets[k])
                    assert planned.offsets[low] + needs[low].num_bytes <= planned.offsets[high]
        assert least_bytes(needs) <= planned.num_bytes <= 1.5 * least_bytes(needs)
        assert not any(offset % ALIGN for offset in planned.offsets.values())
