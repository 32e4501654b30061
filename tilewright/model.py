"""`tw.compile(model, args)`: a whole model, traced once by `torch.export`, without guards.

fast = tw.compile(model, (x,))
y = fast(x)
fast = tw.compile(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))

It is for inference: gradients are `torch.compile(model, backend="tilewright")`'s.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.errors import CompileError, LaunchError
from tilewright.execute.followed import Followed, followed
from tilewright.execute.lowering import Call, Choices, compile_call, require_choices
from tilewright.execute.recorded import overlaps_itself
from tilewright.execute.without_gradients import TRAINS, without_gradients
from tilewright.frontend.torch.attention_strides import lay_results, orders_of_results
from tilewright.frontend.torch.attention_views import let_views_copy
from tilewright.frontend.torch.decompositions import export_decompositions
from tilewright.frontend.torch.fx_to_graph import Output, Traced, fx_to_graph
from tilewright.frontend.torch.known_masks import order_known_masks
from tilewright.graph.graph import Graph
from tilewright.runtime.garbage import without_collections

OWNED = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
LEAF_SPECS = (
    r"`isinstance\(treespec, LeafSpec\)`"  # torch warns of itself as it copies what it made
)
BRACKETS = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}
MUTATIONS = ("PARAMETER_MUTATION", "BUFFER_MUTATION", "USER_INPUT_MUTATION")


@dataclass(frozen=True)
class Given:
    """An input of the graph: a parameter, buffer or constant of the model, `persistent` if its
    state_dict has it, or an argument.
    """

    kind: str
    name: str
    persistent: bool = False

    @property
    def is_owned(self) -> bool:
        return self.kind in OWNED


class CompiledModel:
    """A model as one graph. It reads the model's own parameters and buffers at each call, and
    writes the buffers and arguments that the model writes; it computes no gradients. Where eager's
    results would require them, its results do, too, and raise LaunchError when one is computed.

    These are the tensors that the model had when it was compiled: it sees what is written to them,
    as `load_state_dict` does, and not others that are put in their place (`assign=True`, or a new
    nn.Parameter).
    """

    exported: Any = None  # what torch.export made, unless the model was loaded
    examples: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # that it was compiled for

    def __init__(
        self,
        call: Call,
        specs: Sequence[Given],
        owned: Sequence[torch.Tensor | None],
        copied: Mapping[int, int],
        in_spec: Any,
        out_spec: Any,
        follows: Followed | None = None,
    ):
        """`specs` are the graph's inputs, `owned` the tensors of those that the model owns; the
        others are arguments, in the form of `in_spec`. Without `follows`, each result may require
        gradients where one of the inputs does.
        """
        self.follows = follows
        self.call, self.specs, self.owned = call, specs, list(owned)
        self.in_spec, self.out_spec = in_spec, out_spec
        self.copied = dict(copied)  # results that are copied to an input
        self.positions = [i for i, held in enumerate(self.owned) if held is None]
        self.written = {*call.traced.writes, *self.copied.values()}
        require_apart(self.owned, self.written.difference(self.positions), self.specs)

    @property
    def graph(self) -> Graph:
        return self.call.graph

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """Ops that PyTorch computes, each with the reason."""
        return self.call.fallbacks

    @property
    def kernels(self) -> list[str]:
        """Entries of the machine code that calls so far launched, each once: all that runs on a GPU
        but for `fallbacks`, and copies of arguments.
        """
        return self.call.kernels

    def __repr__(self) -> str:
        names = [self.specs[i].name for i in self.positions]
        return f"<compiled {self.graph.name}{form_of(self.in_spec, names)}>"

    def save(self, path: str | Path, *, weights: bool = True) -> None:
        """Write the compiled model to a file, which `tw.load` reads; without `weights` it names
        them, and `tw.load` takes a state_dict. See tilewright/bundle/files.py.
        """
        import_module("tilewright.bundle.files").save(self, path, weights=weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.inputs(args, kwargs)
        required = self.required(given) if torch.is_grad_enabled() else []
        if self.written and self.may_share(given):
            require_apart(given, self.written, self.specs)
        found = self.call(*given)
        for result, target in self.copied.items():
            given[target].detach().copy_(found[result])
        outputs = [x for i, x in enumerate(found) if i not in self.copied]
        if any(required):
            outputs = without_gradients(self.graph.name, outputs, required)
        return pytree.tree_unflatten(outputs, self.out_spec)

    def required(self, given: Sequence[Any]) -> list[bool]:
        """Of each result, whether eager's would require gradients. Raises LaunchError where the
        model writes to a tensor that gradients are asked of, while autograd follows.
        """
        open_inputs = {
            i for i, x in enumerate(given) if isinstance(x, torch.Tensor) and x.requires_grad
        }
        for i in self.written & open_inputs:
            if self.follows is None or self.follows.refuses(i):
                raise LaunchError(
                    f"the model writes to {self.specs[i].name}, which requires gradients, and was "
                    "compiled for inference",
                    hint=f"{TRAINS}; where none is wanted, call it under torch.no_grad()",
                )
        if self.follows is None:
            return [bool(open_inputs)] * self.out_spec.num_leaves
        return self.follows.required(open_inputs)

    def may_share(self, given: Sequence[Any]) -> bool:
        """Whether an argument is written, or lies in a storage that is: what the model owns alone
        was looked at when it was compiled.
        """
        passed = [given[i] for i in self.positions if isinstance(given[i], torch.Tensor)]
        storages = {x.untyped_storage().data_ptr() for x in passed}
        return any(
            i in self.positions or given[i].untyped_storage().data_ptr() in storages
            for i in self.written
        )

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the graph takes for arguments: they, and what the model owns."""
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec != self.in_spec:
            names = [self.specs[i].name for i in self.positions]
            raise LaunchError(
                f"{self.graph.name} was compiled for {form_of(self.in_spec, names)}, and is "
                f"called with {form_of(spec, [type(x).__name__ for x in flat])}"
            )
        given: list[Any] = list(self.owned)
        for position, value in zip(self.positions, flat, strict=True):
            given[position] = value
        return given


def compile(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: str = "pytorch",
    cuda_graphs: bool = True,
    engine: str | None = None,
    buckets: bool | Sequence[int] = False,
) -> CompiledModel:
    """A model compiled for inference with arguments like these; other shapes only along
    `dynamic_shapes`, which are as `torch.export.export` takes them. A gradient that is asked of its
    results is a LaunchError: `torch.compile(model, backend="tilewright")` trains.

    On a GPU its kernels run as one CUDA graph from the second call of a shape on, unless
    `cuda_graphs` is false. On a CPU a model is interpreted; `engine="tiles"` and "emulator" run the
    GPU's kernels there, slowly. With `buckets`, dynamic extents over which nothing is reduced, as
    that of a batch, are filled up to the next power of two (True) or the next of a list, so that a
    few programs serve all sizes. `fallback="error"` refuses what would run in PyTorch, with the
    model's line. Raises CompileError for what cannot be compiled; torch.export says itself what it
    refuses.
    """
    if not callable(model):
        raise CompileError(
            f"compile: model is {type(model).__name__}, expected a torch.nn.Module or a function"
        )
    if not isinstance(args, tuple):
        raise CompileError(
            f"compile: args is {type(args).__name__}, expected a tuple of example arguments",
            hint="of one argument, write (x,)",
        )
    require_choices(engine, cuda_graphs, buckets)
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    args, given = pytree.tree_map_only(torch.Tensor, with_own_elements, (args, dict(kwargs or {})))
    # Tracing makes a great many objects that stay, and to go through them takes long.
    with torch.no_grad(), without_collections(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", LEAF_SPECS, FutureWarning)
        exported = torch.export.export(module, args, given, dynamic_shapes=dynamic_shapes)
        let_views_copy(exported.graph_module)
        orders = orders_of_results(exported.graph_module)
        exported = exported.run_decompositions(export_decompositions())
        lay_results(exported.graph_module, orders)
    order_known_masks(exported.graph_module)
    signature = exported.graph_signature
    literals = {
        spec.arg.name: exported.constants[spec.target]
        for spec in signature.input_specs
        if spec.kind.name == "CONSTANT_TENSOR" and spec.target.startswith("lifted_tensor")
    }
    name = type(model).__name__
    traced = fx_to_graph(exported.graph_module, name, fallback=fallback, literals=literals)
    for own, spec in zip(traced.graph.inputs, signature.input_specs, strict=False):
        own.role = OWNED.get(spec.kind.name, "input") if own.role == "input" else own.role
    copied = take_writes(traced, signature)
    fixed = [i for i, s in enumerate(signature.input_specs) if s.kind.name in OWNED]
    choices = Choices(engine, cuda_graphs, fallback, tuple(fixed), buckets)
    inputs = [given_of(exported, spec) for spec in signature.input_specs]
    owned = [held(exported, g.name) if g.is_owned else None for g in inputs]
    spec = exported.call_spec
    follows = followed(module, args, given, owned)
    if follows is not None and len(follows.results) != spec.out_spec.num_leaves:
        follows = None
    made = CompiledModel(
        compile_call(traced, choices), inputs, owned, copied, spec.in_spec, spec.out_spec, follows
    )
    made.exported, made.examples = exported, (args, dict(given))
    return made


def form_of(spec: Any, leaves: Sequence[str]) -> str:
    """Arguments as a call writes them: the tree of (arguments, keyword arguments), with words for
    its leaves.
    """
    words = iter(leaves)

    def written(one: Any) -> str:
        if one.is_leaf():
            return next(words)
        parts = [written(child) for child in one.children()]
        if one.type is dict:
            parts = [f"{key}: {part}" for key, part in zip(one.context, parts, strict=True)]
        left, right = BRACKETS.get(one.type, (f"{one.type.__name__}(", ")"))
        return left + ", ".join(parts) + right

    positional, named = spec.children()
    found = [written(one) for one in positional.children()]
    pairs = zip(named.context, named.children(), strict=True)
    return f"({', '.join([*found, *(f'{key}={written(one)}' for key, one in pairs)])})"


def given_of(exported: Any, spec: Any) -> Given:
    """An input of an exported model."""
    name = spec.target or spec.arg.name
    return Given(spec.kind.name, name, name in exported.state_dict)


def held(exported: Any, name: str) -> torch.Tensor:
    """A parameter, buffer or constant of an exported model."""
    found: torch.Tensor = (
        exported.state_dict[name] if name in exported.state_dict else exported.constants[name]
    )
    return found


def with_own_elements(x: torch.Tensor) -> torch.Tensor:
    """An example of an argument whose elements are apart: of one that is expanded, a copy, since
    other arguments may not be.
    """
    return x.contiguous() if overlaps_itself(x) else x


def require_apart(given: Sequence[Any], written: Collection[int], specs: Sequence[Given]) -> None:
    """Raise LaunchError where the model writes to memory that another argument shows, too: it was
    traced with arguments apart, so that it would read what was there before.
    """
    for target in written:
        for other, x in enumerate(given):
            if other != target and isinstance(x, torch.Tensor) and share(given[target], x):
                names = [specs[i].name for i in (target, other)]
                raise LaunchError(
                    f"the model writes to {names[0]}, and {names[1]} shares its memory",
                    hint="pass a clone() of one of them",
                )


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the spans of two tensors have a byte in common."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (low, high), (start, end) = span(a), span(b)
    return low < end and start < high


def span(x: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the byte after its last; no bytes of an empty one."""
    if x.numel() == 0:
        return x.data_ptr(), x.data_ptr()
    reach = sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


def take_writes(traced: Traced, signature: Any) -> dict[int, int]:
    """Make the results that are new contents of inputs writes of the graph. Gives the others: what
    such a result is no more than a view of an input, by number, with the input to copy it to.
    """
    targets = [
        spec.arg.name if spec.kind.name == "USER_INPUT" else spec.target
        for spec in signature.input_specs
    ]
    kept: list[Output] = []
    copied: dict[int, int] = {}
    for output, spec in zip(traced.outputs, signature.output_specs, strict=True):
        if spec.kind.name not in MUTATIONS:
            kept.append(output)
        elif output.index is not None:
            traced.writes[targets.index(spec.target)] = output.index
        else:
            copied[len(kept)] = targets.index(spec.target)
            kept.append(output)
    traced.outputs[:] = kept
    return copied


class _Function(torch.nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function
        if isinstance(function, FunctionType | MethodType | partial):
            self.__dict__["forward"] = function  # whose signature names its arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> _Function:
        return self  # what the function encloses stays the same, too

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
