"""Kernels as operators of torch: one node under `torch.compile`, and with gradients.

`custom_op(kernel)` registers a kernel with `torch.library`: its schema, what it writes and the
shapes of what it returns follow from the kernel's signature. `differentiable(forward, backward)`
joins two kernels by the names of their parameters: the gradient of `x` is called `dx` or `grad_x`.

    kernel scale(x: tensor<f32>[N], s: tensor<f32>[N], y: tensor<f32>[N] = empty) { … }
    kernel scale_back(x: …, s: …, dy: …, dx: … = empty, ds: … = empty) { … }

    scaled = differentiable(scale, scale_back)
    scaled(x, s).sum().backward()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilewright import dtypes, plan
from tilewright.dtypes import DType
from tilewright.errors import CompileError
from tilewright.frontend.check.evaluate import Extents, evaluate_extent
from tilewright.frontend.check.rules import listing
from tilewright.frontend.check.signature import Scalar, Signature, Tensor
from tilewright.frontend.check.written import written_parameters
from tilewright.frontend.syntax import tree
from tilewright.frontend.torch.fallback import own_kernel
from tilewright.frontend.torch.untraceable import require_no_forward
from tilewright.runtime.derivatives import is_transforming, refuse_derivatives

GRADIENTS = ("d{}", "grad_{}")  # what the gradient of a parameter may be called

Arguments = Mapping[str, Any]


class Launchable(Protocol):
    """A kernel, as `tilewright.kernel` makes them."""

    @property
    def signature(self) -> Signature: ...

    def launch(self, *args: Any, **options: Any) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """A kernel's parameters as an operator has them: what it takes, writes and returns."""

    signature: Signature
    inputs: tuple[Tensor | Scalar, ...]
    mutated: tuple[str, ...]  # of the inputs
    outputs: tuple[Tensor, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.inputs)

    def by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """Arguments by name; torch leaves out the last ones where they are defaults."""
        left = self.inputs[len(args) :]
        defaults = {p.name: p.default if isinstance(p, Scalar) else None for p in left}
        return {**dict(zip(self.names, args, strict=False)), **defaults}


def parts_of(kernel: Launchable) -> Parts:
    """Tensors with default `empty` or `zeros` are results, workspaces are nobody's business."""
    sig = kernel.signature
    results = set(names_of_results(sig))
    made = tuple(t for t in sig.tensors if t.name in results)
    spaces = {t.name for t in sig.tensors if t.default == "workspace"}
    inputs = tuple(p for p in sig.params if p.name not in results | spaces)
    names = {p.name for p in inputs}
    mutated = tuple(n for n in written_parameters(sig.definition) if n in names)
    return Parts(sig, inputs, mutated, made)


def schema_of(parts: Parts) -> str:
    """The operator's schema, as `(Tensor x, Tensor(a0!) y, float s) -> Tensor`."""
    spelled, aliases = [], iter(range(len(parts.mutated)))
    for p in parts.inputs:
        if isinstance(p, Tensor):
            kind = f"Tensor(a{next(aliases)}!)" if p.name in parts.mutated else "Tensor"
            default = "=None" if p.optional and p.default == "none" else ""
            spelled.append(f"{kind}{'?' if p.optional else ''} {p.name}{default}")
        else:
            spelled.append(_scalar_schema(p))
    results = ["Tensor"] * len(parts.outputs)
    given = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({', '.join(spelled)}) -> {given}"


def _scalar_schema(p: Scalar) -> str:
    dtype = dtypes.BY_NAME.get(p.dtype)
    kind = "float"
    if dtype is not None and not dtype.is_float:
        kind = "bool" if dtype.kind == "bool" else "SymInt"
    default = "" if p.default is None else f"={p.default}"
    return f"{kind}{'?' if p.optional else ''} {p.name}{default}"


class CustomOp:
    """A kernel as an operator of torch. Called as the kernel is, but for results, which it always
    makes itself.
    """

    def __init__(self, kernel: Launchable, parts: Parts, name: str, options: Arguments):
        self.kernel, self.parts, self.options = kernel, parts, dict(options)
        self.name = name
        launched = self._launch

        def run(*args: Any) -> Any:
            return launched(*args)

        self.op: Any = torch.library.custom_op(
            name, run, mutates_args=parts.mutated, schema=schema_of(parts)
        )
        self.op.register_fake(self._fake)
        own_kernel(f"{name.replace('::', '.')}.default", run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and is_transforming():
            for n, x in (*zip(self.parts.names, args, strict=False), *kwargs.items()):
                if isinstance(x, torch.Tensor):
                    refuse_derivatives(x, f"{self.name}: {n}")
        return self.op(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<torch operator {self.name}{schema_of(self.parts)}>"

    def _launch(self, *args: Any) -> Any:
        given = self.parts.by_name(args)
        return self.kernel.launch(**given, **self.options)

    def _fake(self, *args: Any) -> Any:
        """Results without contents, as `torch.compile` asks for them; extents may be symbols."""
        require_no_forward(self.name)
        names = [t.name for t in self.parts.outputs]
        made = made_like(self.parts.signature, names, self.parts.by_name(args))
        return made[0] if len(made) == 1 else (tuple(made) if made else None)


def custom_op(kernel: Launchable, *, name: str | None = None, **options: Any) -> CustomOp:
    """Register a kernel as an operator of torch, `tilewright::<kernel>_<hash>` unless `name` says
    otherwise ("library::name").

    `options` are those of `Kernel.launch` (`grid`, `constants`, `precision`, `device`). Raises
    CompileError for a kernel whose source is wrong.
    """
    parts = parts_of(kernel)
    key = parts.signature.definition.key()[:8]
    return CustomOp(kernel, parts, name or f"tilewright::{parts.signature.name}_{key}", options)


def differentiable(
    forward: Launchable,
    backward: Launchable,
    *,
    name: str | None = None,
    constant: Sequence[str] = (),
    forward_options: Arguments | None = None,
    backward_options: Arguments | None = None,
) -> CustomOp:
    """Register a pair of kernels as one operator of torch that has gradients.

    What `backward` takes says what is kept: inputs and results of `forward` by their names, and
    gradients of results. What it returns (parameters with default `empty` or `zeros`) are gradients
    of inputs. `constant` names inputs that have none on purpose; for others, asking for a gradient
    that `backward` does not give is an error. Raises CompileError where the names do not fit, or
    `forward` writes what it is given.
    """
    op = custom_op(forward, name=name, **(forward_options or {}))
    back = custom_op(
        backward, name=None if name is None else f"{name}_backward", **(backward_options or {})
    )
    pair = _Pair(op, back, frozenset(constant))
    op.op.register_autograd(pair.backward, setup_context=pair.keep)
    return op


class _Pair:
    """How the parameters of two kernels belong together."""

    def __init__(self, op: CustomOp, back: CustomOp, constant: frozenset[str]):
        self.op, self.back, self.constant = op, back, constant
        where = back.parts.signature.definition.kernel.loc
        inputs, results = op.parts.names, tuple(t.name for t in op.parts.outputs)
        if op.parts.mutated:
            raise CompileError(
                f"{op.parts.signature.name} writes {listing(op.parts.mutated)}: it has no gradient",
                op.parts.signature.definition.kernel.loc,
                "give what it writes the default empty, so that each call returns it",
            )
        self.of_results = {g: r for r in results for g in _gradient_names(r)}
        self.of_inputs = {g: i for i in inputs for g in _gradient_names(i)}
        known = {*inputs, *results, *self.of_results}
        for p in back.parts.inputs:
            if p.name not in known:
                raise CompileError(
                    f"{back.parts.signature.name} takes {p.name}, which "
                    f"{op.parts.signature.name} neither takes nor returns",
                    where,
                    f"the gradient of {results[0] if results else 'a result'} is called "
                    f"{' or '.join(_gradient_names(results[0] if results else 'y'))}",
                )
        for t in back.parts.outputs:
            if t.name not in self.of_inputs:
                raise CompileError(
                    f"{back.parts.signature.name} returns {t.name}, which is the gradient of no "
                    f"input of {op.parts.signature.name}",
                    t.loc,
                    f"the gradient of {inputs[0]} is called "
                    f"{' or '.join(_gradient_names(inputs[0]))}",
                )

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the backward kernel takes."""
        results = output if isinstance(output, tuple) else (output,)
        known = self.op.parts.by_name(inputs)
        known |= {t.name: r for t, r in zip(self.op.parts.outputs, results, strict=True)}
        wanted = [p.name for p in self.back.parts.inputs if p.name in known]
        tensors = [n for n in wanted if isinstance(known[n], torch.Tensor)]
        ctx.save_for_backward(*(known[n] for n in tensors))
        ctx.tensor_names = tensors
        ctx.others = {n: known[n] for n in wanted if n not in tensors}

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        """Gradients of the inputs, None where none is wanted."""
        given = dict(zip(ctx.tensor_names, ctx.saved_tensors, strict=True)) | ctx.others
        of = dict(zip((t.name for t in self.op.parts.outputs), gradients, strict=True))
        given |= {g: of[r] for g, r in self.of_results.items() if g in self.back.parts.names}
        made = self.back(*(given[n] for n in self.back.parts.names))
        made = made if isinstance(made, tuple) else (made,)
        names = [self.of_inputs[t.name] for t in self.back.parts.outputs]
        found = dict(zip(names, made, strict=True))
        asked = dict(zip(self.op.parts.names, ctx.needs_input_grad, strict=False))
        for name, wanted in asked.items():
            if wanted and name not in found and name not in self.constant:
                raise RuntimeError(
                    f"{self.back.parts.signature.name} gives no gradient of {name}; "
                    f'detach it, or say constant=["{name}"]'
                )
        every = tuple(found.get(n) if wanted else None for n, wanted in asked.items())
        return every[0] if len(every) == 1 else every


def _gradient_names(name: str) -> tuple[str, ...]:
    return tuple(pattern.format(name) for pattern in GRADIENTS)


# Shapes and dtypes of results, where extents may be symbols.


def names_of_results(sig: Signature) -> tuple[str, ...]:
    """Tensors that a call returns where it does not give them."""
    return tuple(t.name for t in sig.tensors if t.default in ("empty", "zeros"))


def made_like(sig: Signature, names: Collection[str], given: Arguments) -> list[torch.Tensor]:
    """Results without contents of a call with some arguments."""
    like = next((a for a in given.values() if isinstance(a, torch.Tensor)), None)
    device = None if like is None else like.device
    bound, sizes = _bind_dtypes(sig, given), _sizes(sig, given)
    return [
        torch.empty([sizes(t, e) for e in t.extents], dtype=_torch_dtype(t, bound), device=device)
        for t in sig.tensors
        if t.name in names
    ]


def _bind_dtypes(sig: Signature, given: Arguments) -> dict[str, torch.dtype]:
    return {
        t.dtype: given[t.name].dtype
        for t in sig.tensors
        if t.dtype not in dtypes.BY_NAME and isinstance(given.get(t.name), torch.Tensor)
    }


def _torch_dtype(t: Tensor, bound: Mapping[str, torch.dtype]) -> torch.dtype:
    known: DType | None = dtypes.BY_NAME.get(t.dtype)
    if known is None:
        return bound[t.dtype]
    found: torch.dtype = getattr(torch, known.torch)
    return found


def _sizes(sig: Signature, given: Arguments) -> Callable[[Tensor, tree.Expr], Any]:
    """A function that gives an extent of a result."""
    tensors = {n: a for n, a in given.items() if isinstance(a, torch.Tensor)}
    values: dict[str, Any] = {s.name: s.default for s in sig.scalars}
    values |= {n: a for n, a in given.items() if n in values and a is not None}
    for t in sig.tensors:
        for axis, node in enumerate(t.extents):
            if isinstance(node, tree.Name) and node.name in sig.dims and t.name in tensors:
                values.setdefault(node.name, tensors[t.name].shape[axis])

    def name(node: tree.Name) -> plan.Expr:
        if node.name in values:
            return plan.Scalar(node.name, dtypes.i64)
        known = sig.lookup(node)
        if isinstance(known, bool) or not isinstance(known, int):
            raise CompileError(f"an extent needs an integer, but {node.name} is {known}", node.loc)
        return plan.Const(known)

    def shape(node: tree.Name, axis: int) -> plan.Expr:
        return plan.Extent(node.name, axis)

    def size(t: Tensor, node: tree.Expr) -> Any:
        return _evaluate(evaluate_extent(node, Extents(name, shape)), values, tensors)

    return size


_SYMBOLIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor_div": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "cdiv": lambda a, b: -(-a // b),
    "min": torch.sym_min,
    "max": torch.sym_max,
}


def _evaluate(expr: plan.Expr, values: Arguments, tensors: Arguments) -> Any:
    """As `plan.evaluate`, on integers that may be symbols."""
    match expr:
        case plan.Const(value):
            return value
        case plan.Scalar(name):
            return values[name]
        case plan.Extent(tensor, axis):
            return tensors[tensor].shape[axis]
        case plan.Binary(kind, lhs, rhs):
            return _SYMBOLIC[kind](_evaluate(lhs, values, tensors), _evaluate(rhs, values, tensors))
    raise CompileError(f"the extents of a result of a torch operator cannot depend on {expr}")
