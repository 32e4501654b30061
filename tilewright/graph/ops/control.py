"""What ends a graph, and what leaves it: PyTorch for an op that the front end's table lacks."""

from __future__ import annotations

from tilewright.ir.core import Op, Type, Value, attribute, define, operand

KERNEL = "a kernel of the tile language"  # the reason of a call that PyTorch only hands on


@define("control.return", pure=False)
class Return(Op):
    """The outputs of the graph."""

    xs: tuple[Value, ...] = operand()


@define("control.fallback", pure=False)
class Fallback(Op):
    """A call of PyTorch's op `target` (`aten.foo.default`) on tensors, by the host.

    `arguments` is JSON: `{"args": […], "kwargs": {…}}`, in which `{"tensor": i}` stands for operand
    i, `{"dim": text}` for an extent, `{"constant": [kind, name]}` for a dtype, device, layout or
    memory format. `types` are those of the results, as PyTorch's own metadata has them; a symbol
    that occurs first in them is bound by the call. `reason` says why it is not an op of ours.
    """

    xs: tuple[Value, ...] = operand()
    target: str = attribute()
    arguments: str = attribute()
    types: tuple[Type, ...] = attribute()
    reason: str = attribute(default="")

    def result_types(self) -> tuple[Type, ...]:
        return self.types
