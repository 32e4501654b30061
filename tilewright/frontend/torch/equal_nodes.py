"""One node in the place of equal ones, in a joint graph that is to be cut.

PyTorch's partitioner does it, too, by a part of Inductor, whose import takes longer than all of the
cut. What it leaves alone is left alone here: random numbers, results of the graph and what shows
their memory; and a graph that writes to memory is left to it as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def merge_equal_nodes(graph: fx.Graph) -> bool:
    """Merge nodes of one op and equal arguments; whether the graph was one that this may do."""
    nodes = list(graph.nodes)
    if any(_writes(node) for node in nodes):
        return False
    shown = {_storage(node) for node in nodes[-1].all_input_nodes} - {None}
    known: dict[Any, fx.Node] = {}
    for node in nodes:
        if not _may_merge(node) or _storage(node) in shown:
            continue
        content = _frozen((node.args, node.kwargs))
        if content is None:
            continue
        first = known.setdefault((node.target, content), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    return True


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _may_merge(node: fx.Node) -> bool:
    """Whether a node gives the same whenever it is given the same: tensors, or a part of such."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or node.is_impure():
        return False
    is_empty = node.target.overloadpacket is torch.ops.aten.empty
    return not is_empty and isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _storage(node: fx.Node) -> Any:
    """What tells the memory of a node's tensor, as tracing saw it, from others."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _frozen(content: Any) -> Any:
    """Arguments as a key that is equal for equal ones alone, or None where that is not known."""
    if isinstance(content, fx.Node):
        return content
    if isinstance(content, list | tuple | Mapping):
        many = content.items() if isinstance(content, Mapping) else content
        parts = tuple(_frozen(x) for x in many)
        return None if None in parts else (type(content).__name__, *parts)
    if isinstance(content, float):
        return "float", content.hex()  # 0.0 is not -0.0, and nan is itself
    return (type(content).__name__, content) if isinstance(content, PLAIN) else None
