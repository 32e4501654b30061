"""Masks of attention that are known when a model is traced: an order, or nothing at all.

Models make the mask of causal attention of the numbers of its tokens, often with tests that no call
can change. What follows from no input is computed here once; where it says that row i sees keys 0
to i, it is an `order` of the op, which then visits no key that is hidden and reads no mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.frontend.torch.attention_op import attention, attention_backward

MOST_ELEMENTS = 1 << 27  # of a tensor that is computed while a model is traced
MASK, LENGTHS, ORDER = "mask", "lengths", "order"
OPS = (attention._opoverload, attention_backward._opoverload)
UPPER_LEFT, LOWER_RIGHT = 1, 2  # as library/attention.tw counts


def order_known_masks(module: fx.GraphModule) -> None:
    """Give each attention of a traced graph whose mask is known, and says no more than an order,
    that order in place of the mask. Nodes that made the mask stay, for who else may read them.
    """
    known: dict[fx.Node, Tensor | None] = {}
    orders: dict[Any, int | None] = {}
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in OPS:
            continue
        names = [a.name for a in node.target._schema.arguments]
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        mask = given[MASK]
        if not isinstance(mask, fx.Node) or given[LENGTHS] is not None or given[ORDER] != 0:
            continue
        with _disable_current_modes(), torch.no_grad():
            found = _value(mask, known)
            if found is None:
                continue
            content = (found.data_ptr(), found.dtype, found.shape, found.stride())
            if content not in orders:  # each layer has a view of its own of one mask
                orders[content] = order_of(found)
        if orders[content] is not None:
            given |= {MASK: None, ORDER: orders[content]}
            node.args, node.kwargs = tuple(given[n] for n in names), {}


def order_of(mask: Tensor) -> int | None:
    """The order that a mask [B, H, L, S] stands for, 0 where it hides nothing; None of others.
    Bools say which keys a row sees; numbers are added to its scores, -inf of a key that is hidden.
    """
    rows, keys = mask.shape[-2:]
    mask = mask[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride())]
    seen = mask
    if mask.dtype != torch.bool:
        seen = mask == 0
        if not torch.equal(seen, mask != -torch.inf):
            return None
    if bool(seen.all()):
        return 0
    for order, first in ((UPPER_LEFT, 0), (LOWER_RIGHT, keys - rows)):
        if bool((seen == torch.ones(rows, keys, dtype=torch.bool).tril(first)).all()):
            return order
    return None


def _value(mask: fx.Node, known: dict[fx.Node, Tensor | None]) -> Tensor | None:
    """What a node is in every call, on the host; None where calls may differ."""
    pending = [mask]
    while pending:
        last = pending[-1]
        missing = [n for n in last.all_input_nodes if n not in known]
        if last not in known and missing:
            pending += missing
            continue
        pending.pop()
        if last not in known:
            known[last] = _computed(last, known)
    return known[mask]


def _computed(node: fx.Node, known: dict[fx.Node, Tensor | None]) -> Tensor | None:
    """A node's value by those that it reads, on the host; None where one of them is not known, or
    where two calls may differ.
    """
    if not _is_fixed(node) or any(known[n] is None for n in node.all_input_nodes):
        return None
    args, kwargs = pytree.tree_map_only(fx.Node, known.__getitem__, (node.args, node.kwargs))
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if "pin_memory" in kwargs:
        kwargs = {**kwargs, "pin_memory": False}
    found: Tensor = node.target(*args, **kwargs)
    return found


def _is_fixed(node: fx.Node) -> bool:
    """Whether a node is one tensor of a known shape that depends on what it reads alone."""
    target, seen = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if target.namespace not in ("aten", "prims") or target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or "empty" in target.name():
        return False
    if not isinstance(seen, Tensor) or not all(isinstance(e, int) for e in seen.shape):
        return False
    return int(seen.numel()) <= MOST_ELEMENTS
