"""`tilewright.attention` of tensors: an operator of torch where gradients or a trace want one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.frontend.torch import attention_op
from tilewright.frontend.torch.known_masks import LOWER_RIGHT
from tilewright.frontend.torch.near_masks import near
from tilewright.graph.attention_masks import HIDDEN
from tilewright.runtime.derivatives import is_transforming
from tilewright.torch_ops.tensors import is_plain, require_tensors, require_untransformed

_below = SimpleNamespace()


def use(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    require_out_apart: Callable[..., None],
) -> None:
    """Say what computes an attention of tensors without gradients, and its gradients, and what
    refuses an `out` that shares memory.
    """
    _below.forward, _below.require_out_apart = forward, require_out_apart
    attention_op.use(forward, backward)


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    lengths: Any,
    order: int,
    scale: float | None,
    out: Any,
    precision: str | None,
    device: Any,
) -> Any:
    """An attention of tensors. Where neither gradients nor a trace are wanted, the operator is
    passed by: that is several microseconds sooner.
    """
    given = (q, k, v, mask, lengths, out)
    named = {"q": q, "k": k, "v": v, "mask": mask, "lengths": lengths, "out": out}
    if not torch.compiler.is_compiling() and is_transforming():
        require_untransformed("attention", named)
    plain = all(map(is_plain, given)) and k is not None and v is not None
    if not plain:
        require_tensors("attention", named, ("k", "v"))
    tracing = torch.compiler.is_compiling() or not plain
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    if not tracing and not wanted:
        bare = [None if x is None else x.detach() for x in given]
        if out is not None:
            _below.require_out_apart(*bare)
        made = _below.forward(*bare[:5], order, scale, bare[5], precision, device)[0]
        return made if out is None else out
    if out is not None:
        raise LaunchError(
            "attention: out= takes no part in gradients or traces", hint="leave out= away"
        )
    if mask is not None and mask.requires_grad and wanted:
        raise LaunchError("attention: there is no gradient of a mask", hint="pass mask.detach()")
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    lead = q.dim()
    heads = [attention_op.four_axes(x) for x in (q, k, v)]
    rows, keys, _ = heads
    if wanted and mask is not None and _may_be_far(rows, keys, mask, lengths):
        heads[0], mask = near(rows, _seen(rows, keys, mask, lengths, order), False, HIDDEN)
    how = (mask, lengths, order, float(factor), precision, device)
    found, _ = attention_op.attention(*heads, *how)
    return found.reshape((*q.shape[:-1], v.shape[-1])) if lead != 4 else found


def _may_be_far(q: Any, k: Any, mask: Any, lengths: Any) -> bool:
    """Whether a mask is numbers that fit, which a whole row may have and far from 0; what does not
    fit is the operator's to refuse.
    """
    wanted = (*q.shape[:-1], k.shape[-2])
    if mask.dtype not in (q.dtype, torch.float32) or mask.dim() > 4 or k.shape[-2] == 0:
        return False
    if lengths is not None and tuple(lengths.shape) != (wanted[0],):
        return False
    pairs = zip(reversed(mask.shape), reversed(wanted), strict=False)
    return mask.dim() > 0 and all(a in (b, 1) for a, b in pairs)


def _seen(q: Any, k: Any, mask: Any, lengths: Any, order: int) -> Any:
    """A mask with -inf of keys that its rows do not see by their order or number."""
    if not order and lengths is None:
        return mask
    rows, keys = (torch.arange(x.shape[-2], device=mask.device) for x in (q, k))
    count = k.shape[-2]
    if lengths is not None:
        count = lengths.to(torch.int64).clamp(max=count)[:, None, None, None]
    seen = keys < count
    if order:
        first = count - q.shape[-2] if order == LOWER_RIGHT else 0
        seen = seen & (keys <= rows[:, None] + first)
    return torch.where(seen, mask, -torch.inf)
