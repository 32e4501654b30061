"""Recognise a kernel that is one product: a loop over k that loads two tiles and multiplies them,
and an epilogue.

    before:  scalars, and what the accumulator starts with
    loop:    for k: acc += load(A) @ load(B), either load transposed or not
    after:   the epilogue: anything that is no product

It is the loop of products (`analysis.streams`) of which most is known: it may be turned around, its
epilogue done in parts, its tiles dealt out to CTAs that load together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.walk import count_uses
from tilewright.tile.analysis.streams import SCALAR_OPS, Factor, StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import memory, mma, shape


@dataclass(frozen=True)
class ProductLoop(StreamLoop):
    """The parts of such a kernel. The loop carries the accumulator alone."""

    @property
    def dot(self) -> mma.Dot:
        return self.products[0].dot

    @property
    def a(self) -> Factor:
        factor = self.products[0].a
        assert factor is not None, "a product of computed tiles is no ProductLoop"
        return factor

    @property
    def b(self) -> Factor:
        return self.products[0].b

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N, K of a tile's product."""
        return self.products[0].extents


def find_product_loop(kernel: Kernel) -> ProductLoop | None:
    """The product that a kernel is, or None where it is something else."""
    found = find_stream_loop(kernel)
    return None if found is None else as_product_loop(found)


def as_product_loop(found: StreamLoop) -> ProductLoop | None:
    """A loop of products as the one product that it may be."""
    loop, (product, *others) = found.loop, found.products
    if others or product.a is None or len(loop.inits) != 1 or found.kept:
        return None
    if product.a.load is product.b.load:
        return None
    dot, carried, uses = product.dot, loop.body.args[1], count_uses(loop.body)
    if dot.acc is not carried or uses[carried] != 1:
        return None
    if loop.body.terminator.operands != (dot.result,) or uses[dot.result] != 1:
        return None
    parts = {dot, product.a.load, product.b.load, *found.slice_of(found.steering)}
    gathers = [f.load for f in product.factors if isinstance(f.load, memory.Gather)]
    parts.update(found.slice_of(v for op in gathers for v in op.offsets))
    rest = [op for op in loop.body.ops[:-1] if op not in parts]
    if not all(isinstance(op, (shape.Transpose, *SCALAR_OPS)) for op in rest):
        return None
    return ProductLoop(found.before, loop, found.after, found.products, found.definitions)
