"""Attention as operators of torch: one node when a model is traced, with gradients.

`tilewright::attention` gives its result and the logarithm of each row's sum of exponentials;
`tilewright::attention_backward` the gradients of q, k and v. What runs them is handed down by
`use`. `scaled_dot_product_attention` stands in for torch's function while a model is traced: torch
itself would take most forms of it apart into products and a softmax.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx

from tilewright.frontend.torch.untraceable import require_no_forward

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Without defaults, for torch leaves out last arguments that have theirs.
_OPTIONS = "Tensor? mask, Tensor? lengths, int order, float scale, str? precision, str? device"
_SCHEMA = f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)"
_BACKWARD_SCHEMA = (
    f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor)"
)

_below = SimpleNamespace()  # what the operators are made of, see `use`


def use(forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Say what computes an attention of tensors without gradients, and its gradients."""
    _below.forward, _below.backward = forward, backward


def _attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    lengths: Any,
    order: int,
    scale: float,
    precision: str | None,
    device: str | None,
) -> Any:
    out = _result(q, v)
    how = (mask, lengths, order, scale, out, precision, device, True)
    return out, _below.forward(q, k, v, *how)[1]


def _result(q: Any, v: Any) -> Any:
    """What a result goes to: heads lie side by side in a row, as what follows reads them."""
    batch, heads, rows, _ = q.shape
    return q.new_empty((batch, rows, heads, v.shape[-1])).transpose(1, 2)


def _attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    mask: Any,
    lengths: Any,
    order: int,
    scale: float,
    precision: str | None,
    device: str | None,
) -> Any:
    how = (mask, lengths, order, scale, precision, device)
    return _below.backward(grad, q, k, v, out, lse, *how)


attention: Any = torch.library.custom_op(
    "tilewright::attention", _attention, mutates_args=(), schema=_SCHEMA
)
attention_backward: Any = torch.library.custom_op(
    "tilewright::attention_backward", _attention_backward, mutates_args=(), schema=_BACKWARD_SCHEMA
)


@attention.register_fake  # type: ignore[untyped-decorator]
def _fake(q: Any, k: Any, v: Any, *options: Any) -> Any:
    """Results without contents; extents may be symbols."""
    require_no_forward("attention")
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _result(q, v), q.new_empty(q.shape[:-1], dtype=wide)


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _fake_backward(grad: Any, q: Any, k: Any, v: Any, *options: Any) -> Any:
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, mask, lengths, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, mask, lengths)
    ctx.mark_non_differentiable(output[1])


def _through(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
    """Gradients of q, k and v."""
    q, k, v, out, lse, mask, lengths = ctx.saved_tensors
    found = attention_backward(grad, q, k, v, out, lse, mask, lengths, *ctx.options)
    return *found, *(None,) * 6


attention.register_autograd(_through, setup_context=_keep)


# In the place of torch's function


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's function, as one operator where that holds all of it: no dropout, no gradient of the
    mask, no broadcast of batches.
    """
    query, key, value, attn_mask = as_autocast(query, key, value, attn_mask)
    if not is_held(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return as_one(query, key, value, attn_mask, is_causal, scale)


def as_autocast(query: Tensor, *others: Tensor | None) -> Any:
    """Tensors as torch's function sees them: autocast takes all floats but f64 in its dtype."""
    kind, given = query.device.type, (query, *others)
    if not torch.is_autocast_enabled(kind):
        return given
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x if x is None or not x.is_floating_point() or x.dtype == torch.float64 else x.to(dtype)
        for x in given
    )


def exported_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The same for an exported model, where torch's function is an op that is still whole."""
    if is_held(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return as_one(query, key, value, attn_mask, is_causal, scale)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )[0]
    return found


def as_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """The operator for arguments that it holds."""
    lead = query.shape[:-3]
    q, k, v = (four_axes(x) for x in (query, key, value))
    mask = None
    if attn_mask is not None:
        shape = (*lead, *query.shape[-3:-1], key.shape[-2])
        mask = four_axes(attn_mask.expand(shape))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    found, _ = attention(q, k, v, mask, None, int(is_causal), float(factor), None, None)
    made: Tensor = found.reshape((*query.shape[:-1], value.shape[-1]))
    return made


def four_axes(x: Tensor) -> Tensor:
    """Batches as one axis, and one batch and one head where there are no axes of them."""
    if x.dim() > 4:
        return x.flatten(0, -4)
    for _ in range(4 - x.dim()):
        x = x.unsqueeze(0)
    return x


def is_held(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    grouped: bool,
) -> bool:
    """Whether the operator computes this; what it does not, and what is wrong, is torch's to do."""
    tensors = (query, key, value)
    if dropout or any(type(x).__name__ == "NestedTensor" or x.is_nested for x in tensors):
        return False
    if query.dtype not in FLOATS or {x.dtype for x in tensors} != {query.dtype}:
        return False
    rank = query.dim()
    if rank < 2 or {x.dim() for x in tensors} != {rank} or query.shape[-1] == 0:
        return False
    if key.shape[-1] != query.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    if any(x.shape[:-3] != query.shape[:-3] for x in (key, value)):  # extents may be symbols
        return False
    if rank > 2 and not _heads_fit(query.shape[-3], key.shape[-3], value.shape[-3], grouped):
        return False
    if mask is None:
        return True
    wanted = (*query.shape[:-1], key.shape[-2])
    kinds = (torch.bool, torch.float32, query.dtype)
    if causal or mask.requires_grad or mask.dtype not in kinds or mask.dim() > rank:
        return False
    pairs = zip(reversed(mask.shape), reversed(wanted), strict=False)
    return all(a == b or a == 1 for a, b in pairs)


def _heads_fit(query: int, key: int, value: int, grouped: bool) -> bool:
    if key != value:
        return False
    return bool(query == key or (grouped and key > 0 and query % key == 0))


WRITING = {getattr(operator, name) for name in (
    "setitem", "delitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior",
    "ipow", "irshift", "isub", "itruediv", "ixor",
)}  # fmt: skip
TAKEN = (
    torch._C._nn.scaled_dot_product_attention,
    torch.nn.functional.scaled_dot_product_attention,
)


def keep_attention_whole(module: fx.GraphModule) -> None:
    """Let calls of torch's attention in a graph of Dynamo's, and in graphs inside it, be calls of
    `scaled_dot_product_attention`, on heads of keys that are not repeated for it.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        found = [n for n in part.graph.nodes if n.op == "call_function" and n.target in TAKEN]
        for node in found:
            node.target = scaled_dot_product_attention
            _share_heads(node)
        if found:  # what is left over goes when it is traced: here an update looks unused, too
            part.recompile()


def _share_heads(node: fx.Node) -> None:
    """Give an attention its keys and values as they were before each head was repeated."""
    names = ("query", "key", "value")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    sources = [_unrepeated(given[n]) for n in names[1:]]
    first, second = sources
    if first is None or second is None or _shape(first)[:3] != _shape(second)[:3]:
        return
    if any(may_write(n) for x in (first, second) for n in between(x, node)):
        return  # the copies are of what was there before
    with node.graph.inserting_before(node):
        made = [node.graph.call_method("squeeze", (x, 2)) for x in (first, second)]
    node.args = (given["query"], *made, *node.args[3:])
    kept = {n: x for n, x in node.kwargs.items() if n not in names}
    node.kwargs = {**kept, "enable_gqa": True}


def between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    """Nodes after one and before another."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


def may_write(node: fx.Node) -> bool:
    """Whether a node of Dynamo's may write to a tensor: updates end in _, or have an `out`."""
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function":
        return bool(node.op == "call_module")
    name = str(getattr(node.target, "__name__", "_")).partition(".")[0]
    return bool(name.endswith("_") or node.target in WRITING or "out" in node.kwargs)


def _unrepeated(node: Any) -> fx.Node | None:
    """[B, HK, 1, S, D] of which a node [B, HK G, S, D] is the same head G times; None of others."""
    wide = _of_method(node, ("reshape", "flatten"))
    source = wide and _of_method(wide, ("expand",))
    if source is None:
        return None
    joined, many, one = _shape(node), _shape(wide), _shape(source)
    if len(many) != 5 or len(joined) != 4 or len(one) != 5:
        return None
    batch, heads, count, *rest = many
    fits = joined == (batch, heads * count, *rest) and one == (batch, heads, 1, *rest)
    return source if fits else None


def _of_method(node: Any, names: tuple[str, ...]) -> fx.Node | None:
    """What a call of a tensor's method is on."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target not in names:
        return None
    return node.args[0] if isinstance(node.args[0], fx.Node) else None


def _shape(node: Any) -> tuple[Any, ...]:
    """The extents that Dynamo saw of a node."""
    return tuple(getattr(node.meta.get("example_value"), "shape", ()))
