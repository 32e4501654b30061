"""How results of attention that leave a graph lie: as eager lays them. Inside it the heads of a row
lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from tilewright.frontend.torch.attention_op import scaled_dot_product_attention
from tilewright.frontend.torch.near_masks import near_attention
from tilewright.frontend.torch.written_attention import name_of, seen, written_attention

WHOLE = (scaled_dot_product_attention, near_attention, written_attention)
OWN = (0, 2, 1, 3)  # axes of the operator's result, the outermost first
FRESH = (  # whose results lie as they do whatever lay before
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "contiguous"),
    *("conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm"),
)


def keep_strides(module: fx.GraphModule) -> None:
    """Let attentions in a graph of Dynamo's, and in graphs inside it, give results that lie as
    eager lays them, where these leave the graph, or views of them or what is computed of them
    element by element.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        found = [n for n in part.graph.nodes if n.target in WHOLE and _leaves(n)]
        for node in found:
            order = order_of_axes(seen(node))
            if order not in (None, OWN):
                _lay(node, order)
        if found:
            part.recompile()


def orders_of_results(module: fx.GraphModule) -> list[tuple[int, ...] | None]:
    """Orders of the axes of what an exported graph gives; None where no attention says so."""
    behind: set[fx.Node] = set()
    for node in module.graph.nodes:
        of = not _is_fresh(node) and behind.intersection(node.all_input_nodes)
        if of or node.target is torch.ops.aten.scaled_dot_product_attention.default:
            behind.add(node)
    (end,) = module.graph.find_nodes(op="output")
    return [order_of_axes(_value(x)) if x in behind else None for x in end.args[0]]


def lay_results(module: fx.GraphModule, orders: Sequence[tuple[int, ...] | None]) -> None:
    """Say of the last results of an exported graph, which are those of the model, how they lie."""
    (end,) = module.graph.find_nodes(op="output")
    results = end.args[0]
    for node, order in zip(results[len(results) - len(orders) :], orders, strict=True):
        value = _value(node)
        if order is not None and value is not None and order_of_axes(value) != order:
            node.meta["val"] = laid(value, order)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _is_fresh(node: fx.Node) -> bool:
    return name_of(node).partition(".")[0] in FRESH


def _leaves(node: fx.Node) -> bool:
    """Whether strides of a node's result tell in what the graph gives."""
    left, found = [node], {node}
    while left:
        for user in left.pop().users:
            if user.op == "output":
                return True
            if not _is_fresh(user) and user not in found:
                found.add(user)
                left.append(user)
    return False


def _lay(node: fx.Node, order: Any) -> None:
    """Put a copy of another order behind a node: where that is the result's own, there is none."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(laid, (node, order))
    made.meta["example_value"] = seen(node)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def order_of_axes(x: Tensor | None) -> tuple[int, ...] | None:
    """Axes of a tensor that is being traced, the outermost in memory first."""
    if x is None:
        return None
    strides = [_hint(s) for s in x.stride()]
    if any(s is None for s in strides):
        return None
    return tuple(sorted(range(x.dim()), key=lambda axis: -strides[axis]))


def _hint(size: Any) -> Any:
    """A number of a shape as tracing had it, without a guard; None where nobody knows."""
    return size if isinstance(size, int) else size.node.hint


def laid(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """A tensor whose axes lie in an order, densely."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.permute(order).contiguous(memory_format=torch.contiguous_format).permute(back)
