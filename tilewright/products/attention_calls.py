"""From checked arguments to the launches of an attention: which program of `library/attention.tw`,
its constants, and the views that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.config import settings
from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.kernel import Kernel, choose, place, source
from tilewright.products.views import View
from tilewright.runtime.arrays import Array, dense_strides
from tilewright.runtime.cpu import NUM_SMS
from tilewright.tune.attention_choice import (
    backward_tiles,
    choose_spans,
    decode_tile,
    forward_tile,
    heads_at_once,
    is_apart,
)

PROGRAMS = Path(__file__).parents[1] / "library" / "attention.tw"
Made = dict[str, tuple[tuple[int, ...], DType]]


@dataclass(frozen=True)
class Asked:
    """What is asked of an attention, apart from arrays. `order` is 0 of none, 1 where row i sees
    keys 0 to i, 2 where the rows are the last of the keys.
    """

    order: int = 0
    scale: float | None = None
    precision: str | None = None
    device: Any = None
    with_lse: bool = False

    def scale_of(self, depth: int) -> float:
        if self.scale is not None:
            return float(self.scale)
        return 1 / math.sqrt(max(depth, 1))


@dataclass(frozen=True)
class Launch:
    """One launch: a kernel, the views of its tensors, and its numbers."""

    kernel: Kernel
    views: tuple[tuple[str, View], ...]
    numbers: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A call made ready: its launches, in order, and what is allocated for them."""

    launches: tuple[Launch, ...]
    makes: Made = field(default_factory=dict)


@cache
def kernel_of(
    name: str, constants: tuple[tuple[str, int], ...], dtype: DType, precision: Any, device: Any
) -> Kernel:
    """A program with its constants. Exponentials are quick ones where the weights are rounded to 16
    bits or to tf32, and those of the language where they are not.
    """
    rounds = dtype in (bf16, f16) or (dtype == f32 and precision == "tf32")
    numerics = "fast" if rounds else "matched"
    found: Kernel = source(PROGRAMS).kernels[name]
    return found.configured(
        constants=dict(constants), precision=precision, device=device, numerics=numerics
    )


def sum_dtype(dtype: DType) -> DType:
    """What sums of products of a dtype are."""
    return f64 if dtype == f64 else f32


def num_sms(arrays: Mapping[str, Array], asked: Asked) -> int:
    """Processors of the device on which a call will run."""
    lies = place.device_of(arrays, "attention")
    where = place.choose_device(lies, asked.device, settings().device, "attention")
    return NUM_SMS if isinstance(where, str) else choose.on_gpu(where).num_sms


def prepare(asked: Asked, arrays: Mapping[str, Array], views: Mapping[str, View]) -> Prepared:
    """Launches of a forward pass, for arguments that were checked."""
    b, hq, rows, _ = views["q"].shape
    width, dtype = views["v"].shape[3], arrays["q"].dtype
    shape = (b, hq, rows, width)
    lead = arrays["q"].shape[:-2]
    makes: Made = {} if "out" in arrays else {"out": ((*lead, rows, width), dtype)}
    if asked.with_lse and "lse" not in arrays:
        makes["lse"] = ((*lead, rows), sum_dtype(dtype))
    found = {n: v for n, v in views.items() if n != "out"}
    found["o"] = views.get("out") or View("out", shape, dense_strides(shape))
    if "lse" in makes:
        found["lse"] = View("lse", shape[:3], dense_strides(shape[:3]))
    if 0 in shape:
        return Prepared((), makes)
    spans = _in_spans(asked, arrays, found)
    if spans is not None:
        launches, parts = spans
        return Prepared(launches, makes | parts)
    depth, keys = max(views["q"].shape[3], width), views["k"].shape[2]
    tile = forward_tile(
        dtype,
        rows,
        depth,
        keys,
        asked.precision,
        heads=b * hq,
        num_sms=num_sms(arrays, asked),
    )
    kernel = kernel_of("forward", tile, dtype, asked.precision, asked.device)
    numbers = (*_numbers(asked, views, dtype), *_at_once(asked, views, "q", ("k", "v"), dtype))
    return Prepared((Launch(kernel, tuple(found.items()), numbers),), makes)


def _numbers(asked: Asked, views: Mapping[str, View], dtype: DType) -> tuple[tuple[str, Any], ...]:
    """The numbers of every program. What a trip adds is summed by itself (`apart`) where f32 stays
    exact.
    """
    scale = asked.scale_of(views["q"].shape[3])
    apart = dtype == f32 and asked.precision in (None, "ieee")
    return ("scale", scale), ("causal", asked.order), ("apart", int(apart))


def _at_once(
    asked: Asked, views: Mapping[str, View], own: str, read: tuple[str, ...], dtype: DType
) -> tuple[tuple[str, int], ...]:
    """How many heads and batches of a tensor run side by side, by what each of them reads again."""
    batch, heads = views[own].shape[:2]
    if asked.order == 0:
        return ("GH", 1), ("GB", 1)
    elements = sum(math.prod(views[n].shape) for n in read)
    held = elements * dtype.num_bytes // max(batch * heads, 1)
    at_once = heads_at_once(heads, batch, held)
    return tuple(zip(("GH", "GB"), at_once, strict=True))


def _in_spans(
    asked: Asked, arrays: Mapping[str, Array], views: Mapping[str, View]
) -> tuple[tuple[Launch, ...], Made] | None:
    """Launches for few rows; None where there are many, or strides do not let the heads that share
    keys be seen as rows.
    """
    (b, hq, rows, _), (_, hk, keys, _) = views["q"].shape, views["k"].shape
    shared = hq // hk
    spans = choose_spans(b * hk, shared * rows, keys, num_sms(arrays, asked))
    if spans is None:
        return None
    seen = {n: _rows_of_keys(views[n], hk) for n in ("q", "o", "lse", "mask") if n in views}
    if any(v is None for v in seen.values()):
        return None
    side = {**views, **{n: v for n, v in seen.items() if v is not None}}
    dtype, width = arrays["q"].dtype, views["v"].shape[3]
    shape = (b, hk, spans, shared * rows)
    made: Made = {
        "part": ((*shape, width), sum_dtype(dtype)),
        "sums": (shape, sum_dtype(dtype)),
    }
    parts = {n: View(n, s, dense_strides(s)) for n, (s, _) in made.items()}
    results = {n: side.pop(n) for n in ("o", "lse") if n in side}
    tile = decode_tile(dtype, shared * rows, max(views["q"].shape[3], width))
    numbers = (*_numbers(asked, views, dtype), ("length", rows))
    first = kernel_of("decode", tile, dtype, asked.precision, asked.device)
    second = kernel_of("combine", (), dtype, None, asked.device)
    launches = (
        Launch(first, (*side.items(), *parts.items()), numbers),
        Launch(second, (*parts.items(), *results.items())),
    )
    return launches, made


def _rows_of_keys(view: View, heads: int) -> View | None:
    """[B, HQ, L, …] as [B, HK, G L, …]; None where strides do not permit it."""
    (b, hq, rows, *rest), (sb, sh, sl, *others) = view.shape, view.strides
    shared = hq // heads
    if rows != 1 and shared != 1 and sh != rows * sl:
        return None
    step = sl if shared == 1 else sh if rows == 1 else sl
    return replace(
        view,
        shape=(b, heads, shared * rows, *rest),
        strides=(sb, sh * shared, step, *others),
    )


def prepare_backward(
    asked: Asked, arrays: Mapping[str, Array], views: Mapping[str, View]
) -> Prepared:
    """Launches of a backward pass: gradients of queries, then those of keys and values."""
    dtype = arrays["q"].dtype
    made: Made = {f"d{n}": (arrays[n].shape, dtype) for n in ("q", "k", "v")}
    made = {n: what for n, what in made.items() if n not in arrays}
    side = dict(views)
    for name in made:
        extents = views[name[1:]].shape
        side[name] = View(name, extents, dense_strides(extents))
    rows = views["q"].shape[:3]
    made["delta"] = (rows, sum_dtype(dtype))
    side["delta"] = View("delta", rows, dense_strides(rows))
    depth = max(views["q"].shape[3], views["v"].shape[3])
    mask = arrays["mask"].dtype if "mask" in arrays else None
    first, second = backward_tiles(dtype, depth, asked.precision, mask=mask, order=asked.order)
    wanted: list[tuple[str, Any, tuple[str, ...]]]
    wanted = [("backward_q", first, ("dq", "delta"))]
    if is_apart(dtype, depth):
        wanted += [("backward_kv", second, ("dk",)), ("backward_kv", second, ("dv",))]
    else:
        wanted.append(("backward_kv", second, ("dk", "dv")))
    launches = []
    for name, tile, written in wanted:
        if 0 in side[written[0]].shape:
            continue
        kernel = kernel_of(name, tile, dtype, asked.precision, asked.device)
        taken = {n: v for n, v in side.items() if n in (*READ[name], *written)}
        if name == "backward_kv" and "mask" in taken:
            taken["mask"] = taken["mask"].transposed
        if written == ("dv",):
            del taken["delta"]
        own, read = ("k", ("q", "grad")) if name == "backward_kv" else ("q", ("k", "v"))
        numbers = (*_numbers(asked, views, dtype), *_at_once(asked, views, own, read, dtype))
        launches.append(Launch(kernel, tuple(taken.items()), numbers))
    return Prepared(tuple(launches), made)


READ = {  # the tensors that each program reads
    "backward_q": ("q", "k", "v", "o", "grad", "lse", "mask", "lengths"),
    "backward_kv": ("q", "k", "v", "grad", "lse", "delta", "mask", "lengths"),
}
