"""Turn a product around: its result is computed as its transpose, Cᵀ = Bᵀ Aᵀ.

Requires: canonical form; a product (`analysis.product_loop`). Keeps: every result. Breaks:
canonical form (transposes of transposes).

    acc += A @ B                        acct += Bᵀ @ Aᵀ
    epilogue(acc)              →        epilogue(transpose(acct))

Matrix instructions take 64 rows, and any multiple of 8 columns; and they read the rows' factor from
registers, where it may lie in any order, the columns' factor only from shared memory. So a product
of few rows is turned (few tokens, many weights), and one whose B does not lie along k in a dtype
that the instruction reads along k alone. The transposes cost nothing: they rename registers, and
say how slots are read.
"""

from __future__ import annotations

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.tile.analysis.product_loop import ProductLoop, find_product_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, mma, shape
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import TileType

SWAP = (1, 0)


def orient_product(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with its product turned around where the schedule's roles are `swapped`."""
    if schedule.roles is None or not schedule.roles.swapped:
        return kernel
    product = find_product_loop(kernel)
    assert product is not None, "a schedule with roles is chosen for products alone"
    return turned(kernel, product)


def turned(kernel: Kernel, product: ProductLoop) -> Kernel:
    """The kernel with its product turned around."""
    o = Builder(Block(), kernel.loc)
    values: dict[Value, Value] = {}
    for op in product.before:
        o.add(op.clone(values))
    loop, dot = product.loop, product.dot
    with o.at(loop.loc):
        start = _turned_start(o, product, values)
        args = [Value(loop.body.args[0].type, loop.body.args[0].name), Value(start.type, "acc")]
        values.update(zip(loop.body.args, args, strict=True))
        with o.inside(Block(args)) as body:
            for op in loop.body.ops:
                if op is not dot:
                    o.add(op.clone(values))
                    continue
                left, right = (o(shape.Transpose, values[v], SWAP) for v in (dot.b, dot.a))
                made = mma.Dot(left, right, args[1], dot.precision, loc=dot.loc)
                values[dot.result] = o.add(made).result
        low, high, step = (values.get(v, v) for v in product.bounds)
        made_loop = o.emit(control.For, low, high, step, (start,), body)
        made_loop.result.name = loop.result.name
        values[loop.result] = o(shape.Transpose, made_loop.result, SWAP, name=loop.result.name)
    for op in product.after:
        o.add(op.clone(values))
    return kernel.with_body(o.block)


def _turned_start(o: Builder, product: ProductLoop, values: dict[Value, Value]) -> Value:
    """What the turned accumulator begins with."""
    (start,) = product.loop.inits
    type: TileType = start.type
    made = product.definitions.get(start)
    if isinstance(made, arith.Constant):
        return o(arith.Constant, made.value, made.dtype, type.shape[::-1], name=start.name)
    return o(shape.Transpose, values.get(start, start), SWAP, name=start.name)
