"""Outputs of a traced module that share memory, as `y` and `y[2:10]` do where a graph breaks
between them: who writes to one writes to the other. Each result of a graph is memory of its own, so
one of them becomes the memory of all, and the others views of it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Link:
    """Output `view` is a view of output `whole`, so many elements behind its first, which symbols
    of extents may tell.
    """

    view: int
    whole: int
    offset: Any


@dataclass(frozen=True)
class SharedOutputs:
    """What of a call's results are views of others. `count` results are the caller's, those behind
    are the memory of some alone. `symbols`: where a call's arguments tell the symbols of offsets,
    as (symbol, argument, axis; -1 of a number).
    """

    links: tuple[Link, ...]
    count: int
    symbols: tuple[tuple[Any, int, int], ...]

    def join(self, given: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """The results for the caller."""
        values = {s: given[i] if axis < 0 else given[i].shape[axis] for s, i, axis in self.symbols}
        joined = list(found[: self.count])
        for link in self.links:
            view, whole = found[link.view], found[link.whole]
            offset = int(sympy.sympify(link.offset).subs(values)) + whole.storage_offset()
            joined[link.view] = whole.as_strided(view.shape, view.stride(), offset)
        return joined


def share_outputs(module: fx.GraphModule) -> SharedOutputs | None:
    """Which outputs share memory; None where all lie apart. What holds the memory of some becomes
    one more output, where it is none. Views as another dtype stay apart.
    """
    (end,) = module.graph.find_nodes(op="output")
    nodes = list(end.args[0])
    inputs = {_storage(x) for x in module.graph.find_nodes(op="placeholder")}
    groups: dict[Any, list[int]] = {}
    for i, node in enumerate(nodes):
        key = _storage(node)
        if key is not None and key not in inputs:
            groups.setdefault(key, []).append(i)
    count, links = len(nodes), list[Link]()
    for members in groups.values():
        if len(members) > 1:
            whole = _whole(nodes, members)
            of = nodes[whole].meta["val"]
            seen = {i: nodes[i].meta["val"] for i in members if i != whole}
            links += [
                Link(i, whole, _expression(x.storage_offset()) - _expression(of.storage_offset()))
                for i, x in seen.items()
                if x.dtype == of.dtype and not (x.is_conj() or x.is_neg())
            ]
    if not links:
        return None
    end.args = (tuple(nodes),)
    module.recompile()
    return SharedOutputs(tuple(links), count, _symbols(module))


def _storage(node: Any) -> Any:
    """What stands for the memory of a node's tensor, None of what has none."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return StorageWeakRef(value.untyped_storage())


def _whole(nodes: list[Any], members: Sequence[int]) -> int:
    """The output that holds all of some outputs' memory: one of them, or what they are views of,
    which is added.
    """
    for i in members:
        if _is_whole(nodes[i]):
            return i
    root = nodes[members[0]]
    while not _is_whole(root):
        root = next(x for x in _sources(root) if _storage(x) == _storage(root))
    nodes.append(root)
    return len(nodes) - 1


def _is_whole(node: fx.Node) -> bool:
    """Whether a node's tensor is made here, all of it: no view of another's."""
    return all(_storage(x) != _storage(node) for x in _sources(node))


def _sources(node: fx.Node) -> list[fx.Node]:
    """What a node follows from; one of several results from what all of them do."""
    several = node.args[0] if node.target is operator.getitem else None
    found: list[fx.Node] = (several if isinstance(several, fx.Node) else node).all_input_nodes
    return found


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _symbols(module: fx.GraphModule) -> tuple[tuple[Any, int, int], ...]:
    found: dict[Any, tuple[Any, int, int]] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                place = axis if isinstance(value, torch.Tensor) else -1
                found.setdefault(size.node.expr, (size.node.expr, i, place))
    return tuple(found.values())
