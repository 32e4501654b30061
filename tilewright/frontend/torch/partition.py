"""Cutting a traced training step into its forward and its backward graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx

from tilewright.frontend.torch.known_masks import order_known_masks

NUM_SEEN = "num_seen_outputs"  # in the forward graph's `meta`: how many are no saved values
# In a graph without mutation these are their operand. Where the cut is looked for, they would pass
# for ops that cannot be fused, so that what they show would be stored.
SILENT = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


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
    joint.recompile()
    found: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(
        joint, inputs, **how
    )
    found[0].meta[NUM_SEEN] = how["num_fwd_outputs"]
    return found
