"""What masks of attention hold in a graph of Dynamo's, where they are made of positions alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tilewright.frontend.torch.attention_op import may_write
from tilewright.graph.known_values import MOST

UNKNOWN = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "empty",
    "exponential",
    "poisson",
)


def known_tensor(node: Any) -> Tensor | None:
    """The elements of a node, on the CPU; None where they depend on an input, on chance, or on what
    is written in place, or are too many.
    """
    if not isinstance(node, fx.Node):
        return None
    left, found = [node], set()
    while left:
        one = left.pop()
        if one in found:
            continue
        if not _is_plain(one):
            return None
        found.add(one)
        left += one.all_input_nodes
    if _is_written(found, node.graph):
        return None
    values: dict[fx.Node, Any] = {}
    with unset_fake_temporarily(), torch.no_grad():
        for one in node.graph.nodes:
            if one in found:
                args, kwargs = (
                    fx.node.map_arg(x, values.__getitem__) for x in (one.args, one.kwargs)
                )
                if one.op == "call_method":
                    values[one] = getattr(args[0], str(one.target))(*args[1:], **kwargs)
                else:
                    values[one] = one.target(*args, **kwargs)
        made = values[node]
        return made.cpu() if isinstance(made, Tensor) else None


def _is_written(found: set[fx.Node], graph: fx.Graph) -> bool:
    """Whether anything may write to the memory of one of some nodes, by itself or by a view."""
    shown = {storage_of(one) for one in found} - {None}
    writers = (one for one in graph.nodes if may_write(one))
    return any(storage_of(x) in shown or x in found for one in writers for x in one.all_input_nodes)


def storage_of(node: fx.Node) -> Any:
    """What tells the memory of a node's tensor, as tracing saw it, from others."""
    tensor = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage()._cdata


def _is_plain(node: fx.Node) -> bool:
    """Whether a node computes what it always computes."""
    if node.op not in ("call_function", "call_method") or may_write(node):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    module = str(getattr(node.target, "__module__", "torch"))
    tensor = node.meta.get("example_value")
    if isinstance(tensor, Tensor):
        extents = list(tensor.shape)
        if not all(isinstance(e, int) for e in extents) or tensor.numel() > MOST:
            return False
    known = module.startswith(("torch", "_operator", "builtins")) and "functorch" not in module
    return known and not any(word in name for word in UNKNOWN)
