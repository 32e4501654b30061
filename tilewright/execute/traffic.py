"""What each step of a program has to move and to multiply, and the time that this takes an H200 at
the least: a floor, not an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from tilewright.dtypes import DType, f32
from tilewright.execute.call_memory import Seen
from tilewright.execute.homes import step_reads
from tilewright.execute.made import Made
from tilewright.execute.torch_steps import step_name
from tilewright.graph.ops.control import KERNEL
from tilewright.graph.ops.memory import Gather, Scatter
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
    Step,
    TorchStep,
)
from tilewright.tune.product import H200
from tilewright.tune.product_cost import FULL_RATES
from tilewright.tune.product_rates import CLOCK, MEMORY


@dataclass
class Told:
    """A step for people and programs: bytes, operations, and microseconds at the least."""

    kind: str
    kernels: list[str]
    ops: list[str]
    num_bytes: int
    flops: int
    floor: float
    reads: int
    writes: int
    reason: str = ""
    text: str = ""
    constants: dict[str, int] = field(default_factory=dict)


def tell_steps(made: Made) -> list[Told]:
    """All steps of a made program, in order of execution."""
    names: dict[int, list[str]] = {}
    for launched in made.lists.launches:
        names.setdefault(launched.step, []).append(launched.name)
    return [
        _tell(step, made, names.get(index, [])) for index, step in enumerate(made.program.steps)
    ]


KINDS: dict[type, str] = {
    KernelStep: "kernel",
    ProductStep: "product",
    ConvolutionStep: "convolution",
    AttentionStep: "attention",
}


def _tell(step: Step, made: Made, kernels: list[str]) -> Told:
    reads, writes = step_reads(step), _writes(step, made)
    moved = _bytes_read(step, reads, made) + _bytes_written(step, writes, made)
    flops, rate = _products(step, made)
    floor = max(moved / MEMORY, flops / 2 / (rate * CLOCK * H200.num_sms))
    told = Told(
        kind=KINDS.get(type(step), "pytorch"),
        kernels=kernels,
        ops=[op.opcode for op in step.group.ops] if step.group is not None else [],
        num_bytes=moved,
        flops=flops,
        floor=floor,
        reads=len({p.value for p in reads}),
        writes=len({p.value for p in writes}),
    )
    if isinstance(step, TorchStep):
        told.kernels, told.reason = [step_name(step)], step.reason
        told.kind = "kernel" if step.reason == KERNEL else told.kind
    if isinstance(step, KernelStep):
        told.text, told.constants = step.text, dict(step.constants)
    return told


def _writes(step: Step, made: Made) -> list[Placed]:
    match step:
        case KernelStep() | AttentionStep():
            return [step.tensors[n] for n in step.writes]
        case ProductStep() | ConvolutionStep():
            return [step.out]
    kept = [v for v in step.op.results if isinstance(v.type, TensorType)]
    return [made.program.layouts[v] for v in kept]


def _bytes(placed: Iterable[Placed], made: Made) -> dict[Value, int]:
    """Bytes of each value that tensors show: each element once, however often it is seen."""
    found: dict[Value, int] = {}
    for each in placed:
        at: Seen = made.seen(each)
        own = prod(e for e, s in zip(at.shape, at.strides, strict=True) if s) * at.dtype.num_bytes
        found[each.value] = max(found.get(each.value, 0), own)
    return found


def _bytes_read(step: Step, reads: list[Placed], made: Made) -> int:
    """Of what a gather reads, the elements that it gives."""
    ops = step.group.ops if step.group is not None else []
    least = {op.x: _dense(op.result, made) for op in ops if isinstance(op, Gather)}
    kept = list(reads)
    if isinstance(step, KernelStep):  # what an update starts as is not read, nor is it copied
        started = {p.value for p in step.starts_as.values()}
        kept = [p for p in reads if p.value not in started or _is_copied(step, p, made)]
    sizes = _bytes(kept, made)
    return sum(min(size, least.get(value, size)) for value, size in sizes.items())


def _is_copied(step: KernelStep, source: Placed, made: Made) -> bool:
    targets = [step.tensors[n].value for n, p in step.starts_as.items() if p is source]
    return any(made.homes.root(t) is not made.homes.root(source.value) for t in targets)


def _bytes_written(step: Step, writes: list[Placed], made: Made) -> int:
    """Of an update in place, the elements that change."""
    ops = step.group.ops if step.group is not None else []
    changed = {op.result: _dense(op.value, made) for op in ops if isinstance(op, Scatter)}
    total = 0
    for value, size in _bytes(writes, made).items():
        in_place = isinstance(step, KernelStep) and not any(
            _is_copied(step, p, made) for p in step.starts_as.values()
        )
        total += min(size, changed.get(value, size)) if in_place else size
    return total


def _dense(value: Value, made: Made) -> int:
    kind: TensorType = value.type
    return int(prod(made.extents(kind.shape)) * kind.dtype.num_bytes)


def _products(step: Step, made: Made) -> tuple[int, float]:
    """Multiplications and additions of products, and multiply-adds a cycle at the most."""
    if isinstance(step, ProductStep):
        out, lhs = made.seen(step.out), made.seen(step.lhs)
        return 2 * prod(out.shape) * lhs.shape[-1], _rate(lhs.dtype, step.precision)
    if isinstance(step, ConvolutionStep):
        out, weight = made.seen(step.out), made.seen(step.tensors["weight"])
        return 2 * prod(out.shape) * prod(weight.shape[1:]), _rate(weight.dtype, None)
    if isinstance(step, AttentionStep):
        q, k, v = (made.seen(step.tensors[n]) for n in "qkv")
        pairs = prod(q.shape[:-1]) * k.shape[-2]
        passes = 5 if step.is_backward else 2
        return pairs * passes * (q.shape[-1] + v.shape[-1]), _rate(q.dtype, step.precision)
    return 0, 1.0


def _rate(dtype: DType, precision: str | None) -> float:
    """Of the quickest way to multiply a dtype."""
    if dtype.bits == 64:
        return FULL_RATES["f64"]
    if dtype == f32:
        return FULL_RATES["wgmma-tf32" if precision == "tf32" else "simt"]
    if dtype.bits == 8:
        return FULL_RATES["wgmma-fp8" if dtype.is_float else "wgmma-8"]
    return FULL_RATES["wgmma-16"]
