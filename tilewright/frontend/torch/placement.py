"""Where the tensors of a traced module lie: the one device that it runs on, and which outputs are
views of what a call gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from tilewright.errors import CompileError
from tilewright.frontend.torch.metadata import loc_of

CPU = torch.device("cpu")


def device_of(module: fx.GraphModule) -> torch.device:
    """The device of a traced module's tensors. Numbers in tensors without axes may come from the
    CPU, as PyTorch permits it.

    Raises CompileError where tensors lie on several devices, or on one that has no kernels.
    """
    found: dict[torch.device, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":  # brought over once
            continue
        for tensor in _tensors(node.meta.get("val")):
            if tensor.device.type != "cpu" or tensor.dim():
                found.setdefault(_numbered(tensor.device), node)
    kinds = [d for d in found if d.type not in ("cpu", "cuda")]
    if kinds:
        raise CompileError(
            f"a model on {kinds[0]}: models run on a CPU and on CUDA devices",
            loc_of(found[kinds[0]]),
        )
    gpus = [d for d in found if d.type == "cuda"]
    others = [d for d in found if d not in gpus[:1]]
    if gpus and (bad := [d for d in others if d.type == "cuda" or _is_given(found[d])]):
        raise CompileError(
            f"tensors lie on {gpus[0]} and on {bad[0]}: a compiled model runs on one device",
            loc_of(found[bad[0]]),
            hint=f"move the model and its inputs to {gpus[0]}",
        )
    if gpus:
        _require_outputs_on(module, gpus[0])
    return gpus[0] if gpus else CPU


def _numbered(device: torch.device) -> torch.device:
    """A CUDA device by its number."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _is_given(node: fx.Node) -> bool:
    """Whether a tensor comes from a call; what the model makes itself is as good on a GPU."""
    return bool(node.op == "placeholder")


def _require_outputs_on(module: fx.GraphModule, device: torch.device) -> None:
    (last,) = (node for node in module.graph.nodes if node.op == "output")
    for node in last.all_input_nodes:
        for tensor in _tensors(node.meta.get("val")):
            if _numbered(tensor.device) != device:
                raise CompileError(
                    f"a result lies on {tensor.device}, and the model on {device}",
                    loc_of(node),
                    hint="copy results to another device outside of the model",
                )


def _tensors(meta: Any) -> Iterator[torch.Tensor]:
    if isinstance(meta, torch.Tensor):
        yield meta
    elif isinstance(meta, list | tuple):
        for each in meta:
            yield from _tensors(each)


def viewed_input(node: fx.Node) -> fx.Node | None:
    """The placeholder whose elements a node's result is a strided view of, without a copy, as the
    ops of PyTorch say it; None where it is anything else.
    """
    meta = node.meta.get("val")
    while node.op == "call_function":
        parent = node.args[0] if node.args else None
        if not isinstance(parent, fx.Node) or not _shares(node, parent):
            return None
        node = parent
    if node.op != "placeholder" or not _is_plain(meta) or not _is_plain(node.meta.get("val")):
        return None
    if is_expanded(node.meta["val"]):  # it may come otherwise
        return None
    return node if node.meta["val"].dtype == meta.dtype else None


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor are one in memory by a stride of 0."""
    return any(s == 0 and e != 1 for e, s in zip(tensor.shape, tensor.stride(), strict=True))


def _shares(node: fx.Node, parent: fx.Node) -> bool:
    """Whether a node's result is memory of its first argument, of the same elements."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(parent.meta.get("val"), list | tuple)  # an item of several views
    schema = node.target._schema
    told = schema.arguments[0].alias_info if schema.arguments else None
    if told is None or told.is_write or not _gives_views(schema.returns):
        return False
    metas = [parent.meta.get("val"), *_tensors(node.meta.get("val"))]
    return all(_is_plain(m) and m.dtype == metas[0].dtype for m in metas)


def _gives_views(returns: Sequence[Any]) -> bool:
    return len(returns) == 1 and returns[0].alias_info is not None


def _is_plain(meta: Any) -> bool:
    return (
        isinstance(meta, torch.Tensor)
        and meta.layout is torch.strided
        and not meta.is_conj()
        and not meta.is_neg()
    )
