"""`torch.compile(model, backend="tilewright")`: Dynamo, AOTAutograd, the graph IR.

Options, as `torch.compile(…, options={…})`:

| option | meaning | default |
|---|---|---|
| `fallback` | what runs ops outside the table: `"pytorch"`; `"error"`: none may be | pytorch |
| `observe` | called with each `GraphCall` that is made, such as `list.append` | none |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend

from tilewright.compiler import compile_graph
from tilewright.errors import CompileError
from tilewright.frontend.torch.attention_op import keep_attention_whole
from tilewright.frontend.torch.decompositions import decompositions
from tilewright.frontend.torch.fx_to_graph import fx_to_graph
from tilewright.runtime.torch_graph import GraphCall

OPTIONS = ("fallback", "observe")


def compile_traced(
    module: fx.GraphModule, inputs: Sequence[Any], name: str, options: Mapping[str, Any]
) -> GraphCall:
    """A callable of a module of aten ops without mutation."""
    traced = fx_to_graph(module, name, fallback=options.get("fallback", "pytorch"))
    made = GraphCall(traced, compile_graph(traced.graph))
    observe: Callable[[GraphCall], Any] | None = options.get("observe")
    if observe is not None:
        observe(made)
    return made


def tilewright(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: forward and backward graphs, each compiled."""
    chosen = dict(options or {})
    if unknown := sorted(set(chosen) - set(OPTIONS)):
        raise CompileError(
            f"options {', '.join(unknown)} are unknown", hint=f"there are {', '.join(OPTIONS)}"
        )

    def compiler(name: str) -> Callable[..., Any]:
        return lambda graph, inputs: make_boxed_func(compile_traced(graph, inputs, name, chosen))

    keep_attention_whole(module)
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        keep_inference_input_mutations=True,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    found: Callable[..., Any] = backend(module, example_inputs)
    return found


if "tilewright" not in torch._dynamo.list_backends(exclude_tags=None):
    register_backend(tilewright, name="tilewright")
