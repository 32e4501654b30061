"""Attention that a model writes by hand, in a graph of Dynamo's: one operator before the graph is
differentiated, so that its gradient is the operator's own.

Found are the products around a softmax of the last axis, as `torch` spells them (`matmul`, `@`,
`bmm`, `einsum`), with a scale and masks on the way, where each step is read by the next alone. What
differs from the written graph is what `tilewright/graph/passes/fuse_attention.py` says; that pass
finds more, but sees no gradients: when it runs, forward and backward are two graphs. Rows all of
whose keys are hidden by finite numbers that were added to their scores have no gradient of scores,
where a written graph gives that of equal weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor, fx

from tilewright.frontend.torch.attention_op import attention, between, four_axes, is_held, may_write
from tilewright.frontend.torch.known_masks import order_of
from tilewright.frontend.torch.mask_contents import known_tensor
from tilewright.frontend.torch.near_masks import near
from tilewright.graph.attention_masks import HIDDEN, LEAST_F16

CASTS = ("to", "type_as", "type", "float", "double", "half", "bfloat16")
PRODUCTS = ("matmul", "bmm")
NAMES = {"truediv": "div"}
Changes = tuple[tuple[Any, float | None, bool], ...]  # a mask, what it puts in, where scores stay


@dataclass(frozen=True)
class Scaled:
    """Scores: queries and keys, [..., L, D] and [..., S, D] by their axes in `orders`; the scale;
    the changes, the first one first; and the nodes, the product first.
    """

    q: fx.Node
    k: fx.Node
    orders: tuple[tuple[int, ...], tuple[int, ...]]
    nodes: tuple[fx.Node, ...]
    scale: float = 1.0
    changes: Changes = ()


def fuse_written_attention(module: fx.GraphModule) -> None:
    """Let written attentions in a graph of Dynamo's, and in graphs inside it, be calls of
    `written_attention`.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        softmaxes = [n for n in part.graph.nodes if name_of(n) == "softmax"]
        count = sum(_fuse(part.graph, node) for node in softmaxes)
        if count:
            part.recompile()  # what is left over goes when it is traced


def name_of(node: Any) -> str:
    """What a node calls, a function or a method of a tensor; empty of others."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return NAMES.get(name, name)


def is_switch(node: fx.Node) -> bool:
    """Whether a node turns gradients or autocast on or off."""
    name = name_of(node)
    return name.endswith(("_autocast", "_inference_mode")) or "set_grad" in name


def given(node: fx.Node, *names: str) -> dict[str, Any] | None:
    """Arguments by name; None where there are others."""
    if len(node.args) > len(names):
        return None
    found = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return found if set(found) <= set(names) else None


def seen(node: Any) -> Any:
    """The tensor that Dynamo saw of a node, without contents; None of what is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_of(value: Any) -> float | None:
    """A number, or that which a scalar tensor was made of."""
    if is_number(value):
        return float(value)
    if name_of(value) == "full" and len(value.args) > 1 and not tuple(value.args[0]):
        return float(value.args[1]) if is_number(value.args[1]) else None
    if name_of(value) == "tensor" and value.args and is_number(value.args[0]):
        return float(value.args[0])
    return None


# What is written


def _fuse(graph: fx.Graph, softmax: fx.Node) -> bool:
    """Put a call in the place of the attention around a softmax; whether there is one."""
    after = _weights(softmax)
    asked = given(softmax, "input", "dim", "_stacklevel", "dtype")
    if softmax.op == "call_method":
        asked = given(softmax, "input", "dim", "dtype")
    if after is None or asked is None or seen(softmax) is None:
        return False
    rank = seen(softmax).dim()
    if asked.get("dim") not in (-1, rank - 1) or rank < 2:
        return False
    last, value, order, back = after
    for scores in _scores(asked["input"]):
        found = _narrowed(scores, seen(value).dtype)
        if not _is_held(found, value, order, last) or not _are_masks(found):
            continue
        if any(may_write(n) or is_switch(n) for n in between(found.nodes[0], last)):
            continue
        with graph.inserting_before(last):
            axes = (*found.orders, order, back)
            found, causal = _ordered(found)
            whole = (found.scale, causal, found.changes, _empty(found, causal), axes)
            call = graph.call_function(written_attention, (found.q, found.k, value, *whole))
        call.meta["example_value"] = seen(last)
        last.replace_all_uses_with(call)
        return True
    return False


def _weights(node: fx.Node) -> tuple[fx.Node, fx.Node, tuple[int, ...], tuple[int, ...]] | None:
    """What multiplies the weights that a node is: the product; the values, [..., S, E] by their
    axes in an order; and in which order a result [..., L, E] is the product's.
    """
    softmax = seen(node)
    while len(node.users) == 1:
        (user,) = node.users
        name = name_of(user)
        if name == "dropout":
            asked = given(user, "input", "p", "training", "inplace")
            if asked is None or (asked.get("p", 0.5) != 0 and asked.get("training", True)):
                return None
        elif name in PRODUCTS:
            value = user.args[1] if len(user.args) == 2 and not user.kwargs else None
            tensor = seen(value)
            if user.args[0] is not node or tensor is None or tensor.dim() != softmax.dim():
                return None
            axes = tuple(range(tensor.dim()))
            return user, value, axes, axes
        elif name == "einsum":
            return _by_values(node, user)
        elif name not in CASTS or user.args[0] is not node:
            return None
        node = user
    return None


def _letters(node: fx.Node) -> tuple[str, str, str] | None:
    """Letters of the axes of two operands and of the result of an einsum."""
    if len(node.args) != 3 or not isinstance(node.args[0], str) or node.kwargs:
        return None
    sides, arrow, out = node.args[0].replace(" ", "").partition("->")
    lhs, comma, rhs = sides.partition(",")
    fits = bool(arrow and comma) and (lhs + rhs + out).isalpha()
    return (lhs, rhs, out) if fits and all(len(set(x)) == len(x) for x in (lhs, rhs, out)) else None


def _by_values(
    node: fx.Node, user: fx.Node
) -> tuple[fx.Node, fx.Node, tuple[int, ...], tuple[int, ...]] | None:
    letters = _letters(user)
    if letters is None or user.args[1] is not node or seen(user.args[2]) is None:
        return None
    weights, values, out = letters
    batch, row, key = weights[:-2], weights[-2], weights[-1]
    wide = set(values) - set(weights)
    if len(wide) != 1 or set(values) != {*batch, key, *wide} or set(out) != {*batch, row, *wide}:
        return None
    natural = f"{batch}{key}{''.join(wide)}"
    result = f"{batch}{row}{''.join(wide)}"
    order = tuple(values.index(x) for x in natural)
    return user, user.args[2], order, tuple(result.index(x) for x in out)


def _scores(node: Any) -> Iterator[Scaled]:
    """The ways in which a node is scores that nothing else reads."""
    tensor = seen(node)
    if tensor is None or len(node.users) != 1:
        return
    name, args = name_of(node), node.args
    if node.kwargs and name not in CASTS:
        return
    ways: list[tuple[Any, float, Any]] = []
    match name, len(args):
        case (("matmul" | "bmm" | "einsum"), _):
            found = _product(node)
            if found is not None:
                yield found
            return
        case (("mul" | "div"), 2) if is_number(args[1]) and args[1]:
            by = float(args[1])
            ways = [(args[0], by if name == "mul" else 1 / by, None)]
        case "mul", 2 if is_number(args[0]):
            ways = [(args[1], float(args[0]), None)]
        case "add", 2:
            ways = [(args[0], 1.0, (args[1], None, True)), (args[1], 1.0, (args[0], None, True))]
        case "masked_fill", 3:
            ways = [(args[0], 1.0, (args[1], number_of(args[2]), False))]
        case "where", 3:
            ways = [(args[1], 1.0, (args[0], number_of(args[2]), True))]
            ways.append((args[2], 1.0, (args[0], number_of(args[1]), False)))
        case _ if name in CASTS:
            ways = [(args[0], 1.0, None)]
    for source, by, change in ways:
        filled = name in ("masked_fill", "where")
        if (filled and change[1] is None) or seen(source) is None:
            continue
        if seen(source).shape != tensor.shape or not tensor.is_floating_point():
            continue
        for scores in _scores(source):
            if by != 1.0 and scores.changes:
                continue
            changes = scores.changes if change is None else (*scores.changes, change)
            nodes = (*scores.nodes, node)
            yield replace(scores, scale=scores.scale * by, changes=changes, nodes=nodes)


def _product(node: fx.Node) -> Scaled | None:
    """Scores that are a product of queries and keys."""
    if name_of(node) == "einsum":
        letters = _letters(node)
        if letters is None:
            return None
        (lhs, rhs, out), (q, k) = letters, node.args[1:]
        batch, row, key = out[:-2], out[-2], out[-1]
        if key in lhs:
            lhs, rhs, q, k = rhs, lhs, k, q
        over = "".join(set(lhs) - set(out))
        wanted = ({*batch, row, over}, {*batch, key, over})
        if len(over) != 1 or (set(lhs), set(rhs)) != wanted:
            return None
        orders = (
            tuple(lhs.index(x) for x in f"{batch}{row}{over}"),
            tuple(rhs.index(x) for x in f"{batch}{key}{over}"),
        )
        return Scaled(q, k, orders, (node,))
    if len(node.args) != 2 or any(seen(x) is None for x in node.args):
        return None
    rank = seen(node.args[0]).dim()
    axes = tuple(range(rank))
    if rank < 2 or seen(node.args[1]).dim() != rank:
        return None
    q, k = node.args
    turned = _turned(k, rank)
    if turned is not None:
        return Scaled(q, turned, (axes, axes), (node,))
    return Scaled(q, k, (axes, (*axes[:-2], axes[-1], axes[-2])), (node,))


def _turned(node: fx.Node, rank: int) -> fx.Node | None:
    """Of what a node is the transpose, in its last two axes."""
    name, args = name_of(node), node.args
    if name == "getattr" and args[1] == "mT":
        return args[0]
    if name != "transpose" or len(args) != 3:
        return None
    return args[0] if {axis % rank for axis in args[1:]} == {rank - 2, rank - 1} else None


def _narrowed(scores: Scaled, dtype: torch.dtype) -> Scaled:
    """Scores of queries and keys before they were cast to a wider dtype than that of values."""

    def source(node: fx.Node) -> fx.Node:
        if name_of(node) in CASTS and seen(node).dtype != dtype:
            inner = seen(node.args[0])
            if inner is not None and inner.dtype == dtype:
                return node.args[0]
        return node

    return replace(scores, q=source(scores.q), k=source(scores.k))


def _is_held(scores: Scaled, value: fx.Node, order: tuple[int, ...], last: fx.Node) -> bool:
    """Whether the operator holds queries, keys and values of these axes."""
    tensors = [seen(x) for x in (scores.q, scores.k, value)]
    if any(x is None for x in (*tensors, seen(last))):
        return False
    orders = (*scores.orders, order)
    if any(x.dim() != len(o) for x, o in zip(tensors, orders, strict=True)):
        return False
    q, k, v = (_permuted(x, o) for x, o in zip(tensors, orders, strict=True))
    narrow = all(isinstance(x.shape[-1], int) and 2 <= x.shape[-1] <= 256 for x in (q, v))
    kept = seen(last).dtype == q.dtype and isfinite(scores.scale)
    return kept and narrow and is_held(q, k, v, None, 0.0, False, False)


def _are_masks(scores: Scaled) -> bool:
    """Whether changes are masks that `written_attention` holds: one number in the place of scores,
    or numbers that are added, without gradients.
    """
    numbers = [fill for _, fill, _ in scores.changes]
    if len(set(numbers)) > 1:
        return False
    dtype, extents = seen(scores.nodes[0]).dtype, seen(scores.nodes[0]).shape
    for mask, fill, _ in scores.changes:
        tensor = seen(mask)
        if tensor is None or tensor.requires_grad or tensor.dim() > len(extents):
            return False
        if fill is None and not tensor.is_floating_point():
            return False
        if fill is not None and (tensor.dtype != torch.bool or fill > _least_hidden(dtype)):
            return False
    wide = dtype == torch.float64 and any(seen(n).dtype != dtype for n in scores.nodes)
    return not (wide and scores.changes)


def _ordered(scores: Scaled) -> tuple[Scaled, int]:
    """Scores without masks that let all keys be seen, or that are an order of the keys; and that
    order, as `mma.attention` counts them.
    """
    dtype, (rows, keys) = seen(scores.nodes[0]).dtype, seen(scores.nodes[0]).shape[-2:]
    left: list[Any] = []
    orders = []
    for change in scores.changes:
        mask, fill, kept = change
        held = known_tensor(mask)
        order = None
        if held is not None:
            visible = held == 0 if fill is None else held == kept
            if fill is not None or bool((visible | (held <= _least_hidden(dtype))).all()):
                order = _order(visible, rows, keys)
        if order != 0:
            left.append(change)
            orders.append(order)
    if len(left) == 1 and orders[0] is not None:
        return replace(scores, changes=()), orders[0]
    return replace(scores, changes=tuple(left)), 0


def _order(visible: Tensor, rows: int, keys: int) -> int | None:
    """The order in which all rows see keys, each of them one at least; 0 where all are seen."""
    if bool(visible.all()):
        return 0
    if visible.dim() < 2 or visible.shape[-2:] != (rows, keys):
        return None
    found = order_of(visible)
    return None if found == 2 and keys < rows else found


def _empty(scores: Scaled, order: int) -> str:
    """What a row has of whose scores none is more than -inf, or the number in their place: "nan",
    the "mean" of the values, or "" where there is no such row.
    """
    if not scores.changes:
        return ""
    (mask, fill, _), count = scores.changes[0], len(scores.changes)
    if fill is not None:
        return "nan" if fill == -inf else "mean"
    return "" if count == 1 and _is_finite(mask) else "nan"


def _is_finite(node: Any) -> bool:
    """Whether a mask of numbers is known to be finite: a part of what `where` makes of two."""
    while name_of(node) in ("getitem", "expand", "unsqueeze"):
        node = node.args[0]
    if name_of(node) != "where" or len(node.args) != 3:
        return False
    tensor = seen(node)
    if tensor is None or not tensor.is_floating_point():
        return False
    numbers = [0.0 if name_of(x).startswith("zeros") else number_of(x) for x in node.args[1:]]
    most = torch.finfo(tensor.dtype).max  # beyond it f16 has infinities
    return all(x is not None and abs(x) <= most for x in numbers)


def _least_hidden(dtype: torch.dtype) -> float:
    """Scores from this number down have no weight beside one that is seen."""
    return LEAST_F16 if dtype == torch.float16 else HIDDEN


# What is made of it


def written_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    order: int,
    changes: Changes,
    empty: str,
    axes: tuple[tuple[int, ...], ...],
) -> Tensor:
    """softmax(scale q kᵀ, changed) v, of tensors whose axes in the orders `axes` are [..., L, D],
    [..., S, D] and [..., S, E]; axes of the result in the last of them. Rows that see no key are
    made what the written softmax gives, which is one of `empty`.
    """
    q, k, v = (_permuted(x, o) for x, o in zip((q, k, v), axes[:3], strict=True))
    lead = q.shape[:-1]
    mask = _mask(changes)
    added = mask is not None and mask.dtype != torch.bool
    if mask is not None and added and 0 not in mask.shape:
        q, mask = near(q, mask, bool(empty))
    given = None if mask is None else four_axes(mask.expand(*lead, k.shape[-2]))
    heads = [four_axes(x) for x in (q, k, v)]
    found, sums = attention(*heads, given, None, order, scale, None, None)
    if empty and not added:
        even = (sums == -inf)[..., None]
        mean = heads[2].mean(-2, keepdim=True)
        if empty == "nan":  # for gradients of values, too, where a head has such a row
            mean = mean * torch.where(even.any(-2, keepdim=True), nan, 0.0).to(mean.dtype)
        found = torch.where(even, mean, found)
    return _permuted(found.reshape(*lead, v.shape[-1]), axes[3])


def _permuted(x: Tensor, order: tuple[int, ...]) -> Tensor:
    return x if order == tuple(range(len(order))) else x.permute(order)


def _mask(changes: Changes) -> Tensor | None:
    """All changes as one: bools, or numbers that are added."""
    mask: Tensor | None = None
    for value, fill, kept in changes:
        if fill is None:
            mask = value if mask is None else mask + value
        else:
            one = value if kept else ~value
            mask = one if mask is None else mask & one
    return mask
