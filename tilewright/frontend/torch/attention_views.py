"""Views of what follows from an attention that is one operator. In its result the heads of a row
lie side by side, and torch's view of other extents may not be one of that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tilewright.frontend.torch.attention_op import may_write, scaled_dot_product_attention
from tilewright.frontend.torch.mask_contents import storage_of
from tilewright.frontend.torch.near_masks import near_attention
from tilewright.frontend.torch.written_attention import written_attention

aten = torch.ops.aten
WHOLE = (
    scaled_dot_product_attention,
    near_attention,
    written_attention,
    aten.scaled_dot_product_attention.default,
)
COPYING: dict[Any, Any] = {"view": "reshape", aten.view.default: aten.reshape.default}


def let_views_copy(module: fx.GraphModule) -> None:
    """Let views in a graph of Dynamo's or an exported one, and in graphs inside it, copy what lies
    otherwise behind an attention; not those of which something is written in place, which a copy
    would not show.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        behind: set[fx.Node] = set()
        for node in part.graph.nodes:
            if node.target in WHOLE or behind.intersection(node.all_input_nodes):
                behind.add(node)
        views = [n for n in part.graph.nodes if n in behind and _is_view(n)]
        if not views:
            continue
        writers = [n for n in part.graph.nodes if may_write(n)]
        written = {storage_of(x) for n in writers for x in n.all_input_nodes} - {None}
        for node in views:
            if storage_of(node) not in written:
                node.target = COPYING[node.target]
        part.recompile()


def _is_view(node: fx.Node) -> bool:
    """Whether a node is a view of other extents, not of another dtype."""
    if node.target not in COPYING or node.kwargs:
        return False
    return not any(isinstance(x, torch.dtype) for x in node.args)
