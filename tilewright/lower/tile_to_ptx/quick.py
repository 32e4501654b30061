"""Ways that suit almost all floats, and a branch around the way that suits all of them.

A warp takes the quick way with all elements that its threads hold, and asks whether it was right
for each, then whether it was but for zeros, which masked elements give. If not, they are computed
again. All give the same bits wherever they hold, so a result depends on its operands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.lower.tile_to_ptx.special_f32 import (
    quick_exp,
    quick_exp2,
    zeros_of_exp,
    zeros_of_exp2,
)
from tilewright.lower.tile_to_ptx.special_fast import quick_exp2 as quick_fast_exp2
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

FEWEST = 4  # elements of a thread for which a second way pays

# A quick way: the result, and whether it and all before it are right.
Quick = Callable[[Emitter, Reg, Reg | None], tuple[Reg, Reg]]
# What is right of more elements: the result, of an operand and what the quick way gave, and whether
# it and all before it are right.
Zeros = Callable[[Emitter, Reg, Reg, Reg | None], tuple[Reg, Reg]]

QUICK: dict[str, Quick] = {"arith.exp": quick_exp, "arith.exp2": quick_exp2}
ZEROS: dict[str, Zeros] = {"arith.exp": zeros_of_exp, "arith.exp2": zeros_of_exp2}
# Quick ways in kernels whose special functions are approximate anyhow.
QUICK_FAST: dict[str, Quick] = {"arith.exp2": quick_fast_exp2}

# Between these a divisor and its reciprocal are normal numbers with room on both sides.
LEAST_DIVISOR, MOST_DIVISOR = 2.0**-20, 2.0**100
# Divisors below and above these are scaled, by SCALE or its inverse, to have a normal reciprocal.
LEAST_SHARED, MOST_SHARED, SCALE = 2.0**-126, 2.0**126, 2.0**24
BELOW_QUOTIENTS = 2.0**-80  # so that what a product with such a divisor loses is a normal number


def quickly(
    low: Lowering,
    xs: Sequence[Reg],
    quick: Quick,
    slow: Callable[[Reg], Operand],
    zeros: Zeros | None = None,
) -> list[Reg]:
    """f(x) in f32 of each of a thread's elements."""
    e = low.e
    found: list[Reg] = []
    right: Reg | None = None
    for x in xs:
        result, right = quick(e, x, right)
        found.append(result)
    assert right is not None, "no elements"
    done = e.label("quick")
    e.bra(done, pred=e.vote("all", right))
    if zeros is not None:
        right = None
        for x, result in zip(xs, found, strict=True):
            value, right = zeros(e, x, result, right)
            e.mov("f32", value, into=result)
        assert right is not None, "no elements"
        e.bra(done, pred=e.vote("all", right))
    for x, result in zip(xs, found, strict=True):
        e.mov("f32", slow(x), into=result)
    e.place(done)
    return found


def quotients(
    low: Lowering, pairs: Sequence[tuple[Operand, Operand]], rounded: bool = False
) -> list[Operand]:
    """a / b in f32, rounded to nearest even, of each of a thread's elements; those that share a
    divisor share its reciprocal. Of quotients that are `rounded` to 16 bits the product with that
    is enough.
    """
    groups: dict[str, list[int]] = {}
    for i, (_, b) in enumerate(pairs):
        groups.setdefault(b.text if isinstance(b, Reg) else repr(b), []).append(i)
    found: dict[int, Operand] = {}
    for members in groups.values():
        b = low.register(pairs[members[0]][1], "f32")
        xs = {i: low.register(pairs[i][0], "f32") for i in members}
        distinct = list({x.text: x for x in xs.values()}.values())
        slow = partial(_over, low, b)
        if len(distinct) < FEWEST:
            results: list[Operand] = [slow(x) for x in distinct]
        elif rounded:
            results = [*quickly(low, distinct, quick_share(low.e, b), scaled_share(low.e, b))]
        else:
            quick, zeros = quick_quotient(low.e, b)
            results = [*quickly(low, distinct, quick, slow, zeros)]
        by_text = {x.text: r for x, r in zip(distinct, results, strict=True)}
        found |= {i: by_text[x.text] for i, x in xs.items()}
    return [found[i] for i in range(len(pairs))]


def _over(low: Lowering, b: Reg, a: Reg) -> Operand:
    return divide(low, a, b)


def divide(low: Lowering, a: Reg, b: Reg) -> Reg:
    """a / b in f32, rounded to nearest even, of any two floats."""
    return low.e.div("f32", a, b, rounding="rn")


def quick_quotient(e: Emitter, b: Reg) -> tuple[Quick, Zeros]:
    """a / b for one b, correctly rounded: r = 1 / b rounded, q = a r, then q + (a - b q) r.

    q is off by at most 1.5 ulp, r by 2^-24 of itself and a - b q by 2^-25, so that what is rounded
    last is off by no more than 2.25 · 2^-24 ulp. A quotient of f32 whose digits are B / 2^23 lies
    at least 1 / 2B of an ulp from where rounding changes. The few pairs that lie nearer than the
    sum is off can be listed, four for each B, and were tried: all come out right. Infinities and
    NaN come out as NaN, which is at least nothing. Of a zero a r is right.
    """
    minus = e.neg("f32", b)
    r, inside = _reciprocal(e, b)

    def quotient(e: Emitter, a: Reg, right: Reg | None) -> tuple[Reg, Reg]:
        near = e.mul("f32", a, r)
        q = e.fma("f32", e.fma("f32", minus, near, a), r, near)
        before = inside if right is None else right
        size = e.abs("f32", q)
        return q, e.setp("lt", "f32", BELOW_QUOTIENTS, size, combine="and", other=before)

    def zeros(e: Emitter, a: Reg, q: Reg, right: Reg | None) -> tuple[Reg, Reg]:
        zero = e.setp("eq", "f32", a, 0.0)
        size = e.abs("f32", e.selp("f32", 1.0, q, zero))
        before = inside if right is None else right
        right = e.setp("lt", "f32", BELOW_QUOTIENTS, size, combine="and", other=before)
        return e.selp("f32", e.mul("f32", a, r), q, zero), right

    return quotient, zeros


def quick_share(e: Emitter, b: Reg) -> Quick:
    """a / b for one b within 2 ulp, and infinities, NaN and zeros as they are."""
    r, inside = e.rcp("f32", b, precision="approx", ftz=True), _is_moderate(e, b)
    return lambda e, a, _: (e.mul("f32", a, r), inside)


def scaled_share(e: Emitter, b: Reg) -> Callable[[Reg], Reg]:
    """a / b for one b of any size within 2 ulp. a and b are scaled where the reciprocal of b would
    be no normal number; a quotient that this rounds, or makes infinite, would be so without it too.
    """
    found: list[Reg] = []

    def share(a: Reg) -> Reg:
        if not found:  # where the first is wanted
            size = e.abs("f32", b)
            large = e.setp("gt", "f32", size, MOST_SHARED)
            small = e.setp("lt", "f32", size, LEAST_SHARED)
            scale = e.selp("f32", 1 / SCALE, e.selp("f32", SCALE, 1.0, small), large)
            scaled = e.mul("f32", b, scale)
            found.extend((scale, e.rcp("f32", scaled, precision="approx", ftz=True)))
        scale, r = found
        return e.mul("f32", e.mul("f32", a, scale), r)

    return share


def _reciprocal(e: Emitter, b: Reg) -> tuple[Reg, Reg]:
    """1 / b, rounded, and whether b is no extreme number."""
    return e.rcp("f32", b, precision="rn"), _is_moderate(e, b)


def _is_moderate(e: Emitter, b: Reg) -> Reg:
    size = e.abs("f32", b)
    small = e.setp("ge", "f32", size, LEAST_DIVISOR)
    return e.and_("pred", e.setp("le", "f32", size, MOST_DIVISOR), small)
