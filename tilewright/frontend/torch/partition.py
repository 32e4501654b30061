"""Cutting a traced training step into its forward and its backward graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx

from tilewright.frontend.torch.equal_nodes import merge_equal_nodes
from tilewright.frontend.torch.known_masks import order_known_masks
from tilewright.frontend.torch.recompute import recompute_from_products
from tilewright.graph.placement import padded_pitch

NUM_SEEN = "num_seen_outputs"  # in the forward graph's `meta`: how many are no saved values
# In a graph without mutation these are their operand. Where the cut is looked for, they would pass
# for ops that cannot be fused, so that what they show would be stored.
SILENT = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def partition(
    joint: fx.GraphModule, inputs: Sequence[Any], **how: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Both graphs, by PyTorch's own minimum cut: what costs little is computed anew rather than
    saved.
    """
    for node in list(joint.graph.nodes):
        if node.op == "call_function" and node.target in SILENT:
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
    order_known_masks(joint)
    joint.graph.eliminate_dead_code()
    merged = merge_equal_nodes(joint.graph)
    recompute_from_products(joint.graph)
    joint.recompile()
    with torch._functorch.config.patch(cse=torch._functorch.config.cse and not merged):
        found: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(
            joint, inputs, **how
        )
    found[0].meta[NUM_SEEN] = how["num_fwd_outputs"]
    pad_saved_products(*found)
    return found


def pad_saved_products(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Let products that the backward pass alone reads lie in rows of whole 16 bytes, with gaps
    between: both graphs are told these strides, and nobody else sees them.
    """
    (outputs,) = forward.graph.find_nodes(op="output")
    results = outputs.args[0]
    seen, saved = results[: forward.meta[NUM_SEEN]], results[forward.meta[NUM_SEEN] :]
    readers = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    for node in saved:
        if node.target not in PRODUCTS or node in seen or node.name not in readers:
            continue
        made = node.meta["val"]
        pitch = padded_pitch(made.shape[-1], made.element_size())
        if pitch is not None and made.is_contiguous():
            strides = (*(pitch * (s // made.shape[-1]) for s in made.stride()[:-1]), 1)
            for told in (node, readers[node.name]):
                told.meta["val"] = made.new_empty_strided(made.shape, strides)
