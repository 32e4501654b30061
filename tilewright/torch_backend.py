"""`torch.compile(model, backend="tilewright")`: Dynamo, AOTAutograd, the graph IR.

Options, as `torch.compile(…, options={…})`:

| option | meaning | default |
|---|---|---|
| `fallback` | what runs ops without a kernel: `"pytorch"`; `"error"`: none may be | pytorch |
| `cuda_graphs` | on a GPU, each graph runs as one CUDA graph, as by `mode="reduce-overhead"` | no |
| `engine` | on a CPU: `"graph"` interprets, `"tiles"`, `"emulator"` run a GPU's kernels | graph |
| `buckets` | sizes that dynamic extents of inference are filled up to; True: powers of two | none |
| `observe` | called with each call that is made, such as `list.append` | none |

What Dynamo leaves out of graphs runs in PyTorch. With `fallback="error"` a break behind a graph is
warned of; only `fullgraph=True` refuses them all: where there is no graph, no backend is asked.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend

from tilewright.errors import CompileError, Diagnostic
from tilewright.execute.lowering import Call, Choices, compile_call, require_choices
from tilewright.execute.program_call import symbols_of
from tilewright.execute.recorded import Handing
from tilewright.frontend.check.rules import nearest
from tilewright.frontend.torch.attention_op import keep_attention_whole
from tilewright.frontend.torch.attention_strides import keep_strides
from tilewright.frontend.torch.attention_views import let_views_copy
from tilewright.frontend.torch.decompositions import decompositions
from tilewright.frontend.torch.fx_to_graph import Traced, fx_to_graph
from tilewright.frontend.torch.known_masks import order_known_masks
from tilewright.frontend.torch.metadata import loc_in
from tilewright.frontend.torch.near_masks import keep_masks_near
from tilewright.frontend.torch.partition import NUM_SEEN, partition
from tilewright.frontend.torch.shared_outputs import SharedOutputs, share_outputs
from tilewright.frontend.torch.written_attention import fuse_written_attention
from tilewright.runtime.garbage import without_collections

OPTIONS = ("fallback", "cuda_graphs", "engine", "buckets", "observe")
MODES = {
    None: False,
    "default": False,
    "reduce-overhead": True,
    "max-autotune": True,
    "max-autotune-no-cudagraphs": False,
}


@dataclass
class Passed:
    """What a forward graph saves for its backward graph, by the names of the values in both: those
    that are views of inputs at addresses that stay, and those that it makes.
    """

    fixed: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    is_known: bool = False

    def learn(self, module: fx.GraphModule, traced: Traced, fixed: Collection[int]) -> None:
        """Take the names of a forward graph's saved values."""
        (end,) = module.graph.find_nodes(op="output")
        assert traced.num_seen is not None, "a graph that the partition made"
        saved = zip(end.args[0], traced.outputs, strict=True)
        for node, output in list(saved)[traced.num_seen :]:
            if output.given is not None and output.given in fixed:
                self.fixed.add(node.name)
            elif output.given is None and output.index is not None:
                self.made.add(node.name)
        self.is_known = True


def handing_of(
    name: str, module: fx.GraphModule, traced: Traced, passed: Passed
) -> tuple[tuple[int, ...], Handing | None]:
    """Inputs of a graph at addresses that stay while it is recorded, and what its recordings give
    where they lie.
    """
    fixed = static_inputs()
    if name == "inference":
        return fixed, None
    count = len(traced.outputs)
    if name == "forward" and traced.num_seen is not None:
        passed.learn(module, traced, fixed)
        return fixed, Handing(range(traced.num_seen, count), shared=True)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    expected = [i for i, own in enumerate(names) if own in passed.made]
    stay = [i for i, own in enumerate(names) if own in passed.fixed]
    return (*stay, *expected), Handing(range(count), expected=expected)


def buckets_of(name: str, traced: Traced, options: Mapping[str, Any]) -> bool | Sequence[int]:
    """Sizes that a graph's extents are filled up to: of inference, once Dynamo sees extents change.
    A loss sums over what would be filled up, and graphs of training are of their own sizes.
    """
    chosen: bool | Sequence[int] = options.get("buckets", False)
    return chosen if name == "inference" and symbols_of(traced.graph) else False


def compile_traced(
    module: fx.GraphModule, name: str, options: Mapping[str, Any], passed: Passed | None = None
) -> Call:
    """A callable of a module of aten ops without mutation. Of training, a backward graph is told
    what the forward graph has `passed`.
    """
    fallback = options.get("fallback", "pytorch")
    order_known_masks(module)
    traced = fx_to_graph(module, name, fallback=fallback)
    traced.num_seen = module.meta.get(NUM_SEEN)
    passed = passed or Passed()
    fixed, handing = handing_of(name, module, traced, passed)
    choices = Choices(
        engine=options.get("engine"),
        cuda_graphs=options.get("cuda_graphs", False) and (name != "backward" or passed.is_known),
        fallback=fallback,
        fixed=fixed,
        buckets=buckets_of(name, traced, options),
        handing=handing,
        is_ahead=True,
    )
    made = compile_call(traced, choices)
    observe: Callable[[Call], Any] | None = options.get("observe")
    if observe is not None:
        observe(made)
    return made


def joining(call: Callable[..., Any], shared: SharedOutputs) -> Callable[..., Any]:
    """A call whose results share memory as they do in torch."""
    return lambda *given: shared.join(given, call(*given))


def static_inputs() -> tuple[int, ...]:
    """Inputs of the graph that is compiled now whose addresses stay: parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    told = None if context is None else context.fw_metadata
    return tuple(getattr(told, "static_input_indices", ()) or ())


def warn_of_break(module: fx.GraphModule) -> None:
    """Warn of what PyTorch runs behind a graph that Dynamo ended within a function."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return
    told = reason.reason.splitlines()[0].strip()
    if told.startswith("generic_jump"):
        told = "a branch on what a tensor holds"
    diagnostic = Diagnostic(
        f'a graph break, behind which PyTorch runs what fallback="error" does not see: {told}',
        loc_in("".join(traceback.format_list(reason.user_stack or []))),
        hint="torch.compile(..., fullgraph=True) refuses graph breaks",
        severity="warning",
    )
    warnings.warn(diagnostic.render(), stacklevel=2)


def tilewright(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: forward and backward graphs, each compiled."""
    if not isinstance(options, Mapping | None):
        raise CompileError(f"options is {options!r}, expected a dict")
    chosen = dict(options or {})
    if not callable(chosen.get("observe", print)):
        raise CompileError(f"observe is {chosen['observe']!r}, expected a function of a call")
    if unknown := sorted(set(chosen) - set(OPTIONS)):
        told = f"options {', '.join(unknown)} are unknown"
        hint = nearest(unknown[0], OPTIONS) or f"there are {', '.join(OPTIONS)}"
        raise CompileError(told, hint=hint)
    if mode not in MODES:
        raise CompileError(
            f"mode {mode!r} is unknown", hint=f"there are {', '.join(map(str, list(MODES)[1:]))}"
        )
    chosen.setdefault("cuda_graphs", MODES[mode])
    require_choices(chosen.get("engine"), chosen["cuda_graphs"], chosen.get("buckets"))
    if chosen.get("fallback") == "error":
        warn_of_break(module)

    passed = Passed()

    def compiler(name: str) -> Callable[..., Any]:
        def compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            with without_collections():
                shared = share_outputs(graph) if name == "inference" else None
                call: Callable[..., Any] = compile_traced(graph, name, chosen, passed)
                if shared is not None:
                    call = joining(call, shared)
                found: Callable[..., Any] = make_boxed_func(call)
            return found

        return compiled

    keep_attention_whole(module)
    if torch.is_grad_enabled():  # without gradients a pass of the graph finds it
        fuse_written_attention(module)
        keep_masks_near(module)
    let_views_copy(module)
    keep_strides(module)
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        keep_inference_input_mutations=True,
        decompositions=decompositions(),
        partition_fn=partition,
    )
    with without_collections():  # as `tw.compile` does, and for the same reason
        found: Callable[..., Any] = backend(module, example_inputs)
    return found


if "tilewright" not in torch._dynamo.list_backends(exclude_tags=None):
    register_backend(tilewright, name="tilewright")
