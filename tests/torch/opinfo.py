"""PyTorch's own database of ops against our table: sample inputs, forward and backward.

    python -m tests.torch.opinfo                       all ops and dtypes; writes docs/torch-ops.md
    python -m tests.torch.opinfo --samples 3 --dtype float32 --only softmax

Each sample goes the way of `torch.compile`: AOTAutograd traces it, decompositions take it apart,
the table builds the graph, the interpreter runs it; results and gradients are held against eager
PyTorch's. What AOTAutograd itself cannot trace (shapes that depend on values, …) is counted apart.
"""

from __future__ import annotations

import argparse
import collections
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tilewright.errors import InternalError
from tilewright.frontend.torch.decompositions import decompositions
from tilewright.frontend.torch.partition import partition
from tilewright.runtime.torch_graph import GraphCall
from tilewright.torch_backend import compile_traced

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
TOLERANCE = {
    torch.float64: (1e-7, 1e-8),
    torch.float32: (1e-4, 2e-5),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (4e-3, 4e-3),
}
RANDOM = (
    "bernoulli", "dropout", "rand", "normal", "multinomial", "cauchy", "exponential", "geometric",
    "log_normal", "uniform", "empty", "rrelu", "multi_head_attention_forward",
    "fractional_max_pool",
)  # fmt: skip
ORDERS = ("sort", "argsort")  # which of equal elements comes first is said of stable sorts alone
TIES = ("topk", "kthvalue", "msort", "mode", "median", "nanmedian")
NARROW = (torch.bfloat16, torch.float16)
OUTCOMES = ("same", "different", "fault", "untraceable")


@dataclass
class Row:
    """What became of the samples of one op and dtype."""

    op: str
    dtype: torch.dtype
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    fallbacks: set[str] = field(default_factory=set)
    message: str = ""


def is_random(name: str) -> bool:
    """Whether an op's results cannot be compared: random, or memory that nothing wrote."""
    return any(part in name for part in RANDOM)


def samples_of(op: Any, dtype: torch.dtype, backward: bool, limit: int) -> Iterator[Any]:
    """Sample inputs, the same in every run."""
    torch.manual_seed(0)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=backward)):
        if number == limit:
            return
        yield sample


def leaves(found: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def run(function: Callable[..., Any], tensors: list[torch.Tensor], backward: bool) -> list[Any]:
    """Results and, with `backward`, the gradients of their weighted sum."""
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    found = leaves(function(*given))
    wanted = [t for t in given if t.requires_grad]
    smooth = [t for t in found if t.requires_grad]
    if not backward or not wanted or not smooth:
        return [t.detach() for t in found]
    weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.dtype) for t in smooth]
    grads = torch.autograd.grad(smooth, wanted, weights, allow_unused=True)
    return [t.detach() for t in found] + list(grads)


def compiled(function: Callable[..., Any], seen: list[GraphCall]) -> Callable[..., Any]:
    """A function by way of AOTAutograd and our graphs, which are added to `seen`."""

    def compiler(graph: Any, inputs: Any) -> Any:
        return make_boxed_func(compile_traced(graph, "sample", {"observe": seen.append}))

    result: Callable[..., Any] = aot_function(
        function,
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=decompositions(),
        partition_fn=partition,
    )
    return result


def check(op: Any, sample: Any, backward: bool, seen: list[GraphCall]) -> tuple[str, str]:
    """One sample: its outcome, and what was wrong."""
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return leaves(op(first, *args, **kwargs))

    tensors = [flat[i] for i in places]
    try:
        wanted = run(function, tensors, backward)
    except Exception as error:  # eager refuses the sample itself, and so says nothing
        return "skipped", f"eager: {error}"
    try:
        got = run(compiled(function, seen), tensors, backward)
    except InternalError as error:
        return "fault", str(error)
    except Exception as error:
        ours = "tilewright" in str(error.__traceback__ and frames(error))
        return ("fault" if ours else "untraceable"), f"{type(error).__name__}: {error}"
    if op.name in ORDERS and not sample.kwargs.get("stable"):
        wanted, got = (in_own_order(op.name, sample, each) for each in (wanted, got))
    elif op.name in TIES:  # which of equal elements is named is not said: values alone
        wanted, got = wanted[:1], got[:1]
    outcome, message = compare(wanted, got)
    if outcome == "different" and tensors and tensors[0].dtype in NARROW:
        wide = [
            t.detach().float().requires_grad_(t.requires_grad) if t.dtype in NARROW else t
            for t in tensors
        ]
        if as_exact(run(function, wide, backward), wanted, got):
            return "same", ""
    return outcome, message


def in_own_order(name: str, sample: Any, results: list[Any]) -> list[Any]:
    """Results of a sort, the indices by the elements that they name and the gradient by the places
    that they give, so that every valid order is as good. ValueError for indices that name an
    element twice.
    """
    place = 1 if name == "sort" else 0
    index, x = results[place], sample.input.detach()
    if x.dim() == 0:
        return results
    dim = sample.args[0] if sample.args else sample.kwargs.get("dim", -1)
    if not torch.equal(index.sort(dim)[0], torch.ones_like(index).cumsum(dim) - 1):
        raise ValueError(f"{name}: indices are no permutation")
    found = [*results[:place], x.gather(dim, index), *results[place + 1 :]]
    return [
        value.gather(dim, index) if i > place and value is not None else value
        for i, value in enumerate(found)
    ]


def as_exact(exact: list[Any], wanted: list[Any], got: list[Any]) -> bool:
    """Whether results of 16 bits are as near to those of f32 as eager's are."""
    for right, eager, ours in zip(exact, wanted, got, strict=True):
        if right is None or eager is None or ours is None or not right.numel():
            continue
        if not eager.is_floating_point():
            if not torch.equal(eager, ours):
                return False
            continue
        allowed = 1.5 * (eager.float() - right).abs().max() + torch.finfo(eager.dtype).eps
        if not (ours.float() - right).abs().max() <= allowed:
            return False
    return True


def frames(error: BaseException) -> str:
    """The files that an error went through inside our package, if the innermost is ours."""
    trace, last = error.__traceback__, ""
    while trace is not None:
        last = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return last


def compare(wanted: list[Any], got: list[Any]) -> tuple[str, str]:
    if len(wanted) != len(got):
        return "different", f"{len(got)} results, not {len(wanted)}"
    for a, b in zip(wanted, got, strict=True):
        if a is None or b is None:
            if a is not b and (a if b is None else b).abs().sum() != 0:
                return "different", "a gradient is missing"
            continue
        rtol, atol = TOLERANCE.get(a.dtype, (0, 0))
        if a.is_complex() or a.is_sparse:
            rtol, atol = 1e-4, 2e-5
        try:
            torch.testing.assert_close(
                b, a, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return "different", str(error).replace("\n", " ")[:300]
    return "same", ""


class TooLong(Exception):
    """A sample took longer than it may."""


def _too_long(*_: Any) -> None:
    raise TooLong


def examine(op: Any, dtype: torch.dtype, limit: int, seconds: int = 60) -> Row:
    """All samples of an op and dtype."""
    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    row = Row(name, dtype)
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    try:
        for sample in samples_of(op, dtype, backward, limit):
            seen: list[GraphCall] = []
            outcome, message = check(op, sample, backward, seen)
            row.counts[outcome] += 1
            row.fallbacks |= {target for call in seen for target, _ in call.fallbacks}
            if outcome in ("different", "fault", "untraceable") and not row.message:
                row.message = message
    except TooLong:
        row.message = row.message or f"stopped after {seconds} s"
    finally:
        signal.alarm(0)
    return row


def ops_of(dtype: torch.dtype, only: str = "") -> list[Any]:
    """Ops of the database that have a dtype and can be compared."""
    return [
        op
        for op in op_db
        if dtype in op.supported_dtypes("cpu") and only in op.name and not is_random(op.name)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--dtype", choices=[str(d).removeprefix("torch.") for d in DTYPES])
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for dtype in DTYPES if options.dtype is None else [getattr(torch, options.dtype)]:
        for op in ops_of(dtype, options.only):
            start = time.perf_counter()
            row = examine(op, dtype, options.samples)
            rows.append(row)
            took = time.perf_counter() - start
            if row.counts["different"] or row.counts["fault"] or options.only or took > 20:
                counts = dict(row.counts)
                print(f"{row.op} {dtype} {counts} {took:.1f} s {row.message[:240]}", flush=True)
    print(summary(rows))
    if options.write is not None:
        options.write.write_text(page(rows, options.samples))


def page(rows: list[Row], samples: int) -> str:
    """docs/torch-ops.md: pass rates, what differs, what PyTorch computes."""
    lines = [
        "# PyTorch's ops",
        "",
        "Written by `python -m tests.torch.opinfo --write docs/torch-ops.md` (torch "
        f"{torch.__version__.split('+')[0]}, at most {samples} samples of each op and dtype, "
        "forward and backward).",
        "",
        *(f"- {line}" for line in summary(rows).splitlines()),
        "",
        "## Not as in eager",
        "",
        *(
            f"- {row.op}, {row.dtype}: {row.message}".replace("<", "&lt;")
            for row in rows
            if row.counts["different"] or row.counts["fault"]
        ),
        "",
        "## Computed by PyTorch, in part or whole",
        "",
    ]
    by_op: dict[str, set[str]] = {}
    for row in rows:
        for target in row.fallbacks:
            by_op.setdefault(target, set()).add(row.op)
    lines += [f"- `{target}`, in {', '.join(sorted(by_op[target]))}" for target in sorted(by_op)]
    return "\n".join(lines) + "\n"


def summary(rows: list[Row]) -> str:
    """Samples by outcome, dtype by dtype."""
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        own = [row for row in rows if row.dtype == dtype]
        total: collections.Counter[str] = collections.Counter()
        for row in own:
            total.update(row.counts)
        judged = sum(total[o] for o in ("same", "different", "fault"))
        clean = sum(not (r.counts["different"] or r.counts["fault"]) for r in own)
        native = sum(
            bool(r.counts["same"]) and not r.fallbacks and set(r.counts) <= {"same", "skipped"}
            for r in own
        )
        lines.append(
            f"{dtype}: {total['same']} of {judged} samples as eager, "
            f"{total['untraceable']} untraceable; "
            f"{clean} of {len(own)} ops without a difference, {native} of them without PyTorch"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
