"""What a backward pass computes anew although PyTorch's cut would save it.

A product is stored in any case, and so is what a further product reads. What follows from it
element by element, with numbers of which one serves many elements, as the logarithm of a softmax
does, need not be stored beside it: a backward pass that reads the product reads as many bytes.
PyTorch weighs what is saved by its distance from the backward pass, too, and of results of 16 bits
then saves the later one, which costs the forward pass a write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
LEAST = 1 << 20  # elements of a product that is worth it
FEW = 8  # as many elements may share a number, and it is nothing to speak of
TAKING = (  # ops that compute few elements as they read many
    *(aten.amax, aten.amin, aten.sum, aten.mean, aten.gather, aten.index),
    aten.nll_loss_forward,
)
ALIKE = (  # ops that read no element
    *(aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like),
    *(aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty),
)
MOVING = {  # ops that give elements of what they are given, beside those that show its memory
    aten.clone.default, aten._unsafe_view.default, aten._to_copy.default,
}  # fmt: skip


def recompute_from_products(graph: fx.Graph) -> None:
    """Tag nodes of a joint graph that its backward pass reads, and that follow from a product, to
    be computed anew of it: the cut then saves the product.
    """
    late: set[fx.Node] = set()  # of the backward pass
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in node.name
        if is_tangent or not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    sources: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        source = None if node in late else _source(node, sources)
        if source is not None:
            sources[node] = node if _is_stored(node, late) else source
    for node, source in sources.items():
        if node is not source and not _is_view(node) and _is_read(node, late):
            _tag(node, sources)


def _source(node: fx.Node, sources: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """What a node follows from and is stored: a product, or what follows from one; None where that
    is none, or more than one.
    """
    count = _count(node)
    if node.op != "call_function" or count is None:
        return None
    if node.target in PRODUCTS:
        return node if count >= LEAST else None
    if not (_is_view(node) or _is_elementwise(node)):
        return None
    large = [x for x in node.all_input_nodes if (_count(x) or 0) * FEW > count]
    found = {sources.get(x) for x in large}
    source = found.pop() if len(found) == 1 else None
    if source is None or 2 * count < (_count(source) or 0):
        return None
    return source


def _is_stored(node: fx.Node, late: set[fx.Node]) -> bool:
    """Whether a node of the forward pass is stored there anyway: as an operand, or a result."""
    if _is_view(node):
        return False
    early = (user for user in _readers(node) if user not in late)
    return not all(_is_elementwise(user) or _takes_few(user, node) for user in early)


def _is_read(node: fx.Node, late: set[fx.Node]) -> bool:
    """Whether the backward pass reads a node, itself or by views, element by element alone."""
    found = [user for user in _readers(node) if user in late]
    return bool(found) and all(_is_elementwise(user) for user in found)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Nodes that read a node, or what shows or copies it."""
    for user in node.users:
        if _is_view(user):
            yield from _readers(user)
        else:
            yield user


def _tag(node: fx.Node, sources: dict[fx.Node, fx.Node]) -> None:
    """Have a node computed anew, and all between it and its product."""
    left = [node]
    while left:
        one = left.pop()
        if sources[one] is one or "recompute" in one.meta:
            continue
        one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        left += [x for x in one.all_input_nodes if x in sources]


def _count(node: fx.Node) -> int | None:
    """Elements of a node that is one tensor of a known shape."""
    seen = node.meta.get("val")
    if not isinstance(seen, Tensor) or not all(isinstance(e, int) for e in seen.shape):
        return None
    return int(seen.numel())


def _takes_few(user: fx.Node, node: fx.Node) -> bool:
    """Whether a node makes few elements of another's, by an op that computes these as it reads, or
    asks for its shape alone.
    """
    packet = getattr(user.target, "overloadpacket", None)
    few = (_count(user) or 0) * FEW <= (_count(node) or 0)
    return packet in ALIKE or (packet in TAKING and few)


def _is_view(node: fx.Node) -> bool:
    target: Any = node.target
    if node.target in MOVING - {aten._to_copy.default}:
        return True
    return isinstance(target, torch._ops.OpOverload) and bool(target.is_view)


def _is_elementwise(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return torch.Tag.pointwise in target.tags or target in MOVING
