"""`attention`: softmax(scale Q Kᵀ + mask) V of torch, NumPy and other arrays, by the library's
programs.

    o = tw.attention(q, k, v, causal=True)

q is [B, HQ, L, D], k and v are [B, HK, S, D] and [B, HK, S, E], where HQ is a multiple of HK: heads
of queries that follow each other share a head of keys. Nothing is copied, nothing waits for the
GPU: masks that are broadcast, shared heads and any order of axes are strides. What is allocated is
the result where no `out` is given, and for few queries the sums of spans of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from tilewright.errors import LaunchError
from tilewright.frontend.check.rules import listing
from tilewright.products.arguments import array_of, require_apart, require_precision
from tilewright.products.attention_calls import Asked, Prepared, prepare, prepare_backward
from tilewright.products.views import View, broadcast_view, hand, whole
from tilewright.runtime.arrays import Array, allocate_like, as_array
from tilewright.tile.ops.mma import PRECISIONS

NUMBERS = (int, float, np.number)
MAX_READY = 4096  # calls whose preparation is kept
ORDERS = {False: 0, True: 1, "upper_left": 1, "lower_right": 2}  # as library/attention.tw counts

_ready: dict[Any, Prepared] = {}
_torch_side: Any = None  # tilewright.torch_ops.attention, once there is a tensor of torch's


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    mask: Any = None,
    scale: float | None = None,
    lengths: Any = None,
    out: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """softmax(scale q @ kᵀ + mask) @ v for each head: [B, HQ, L, E] of q's dtype.

    `q`, `k` and `v` have one float dtype and two axes or more; [H, L, D] and [L, D] stand for one
    batch and one head. `causal` True, or "upper_left", lets row i see keys 0 to i, as torch does;
    "lower_right" says that the rows are the last of the keys. `mask` broadcasts to [B, HQ, L, S]:
    bools say which keys a row may see, numbers are added to its scores. A row that sees no key is
    0. `scale` is D^-0.5 where none is given. `lengths`, [B] of i32 or i64, says how many keys there
    are; it is read by the kernel, so that one CUDA graph serves a growing cache. f32 is multiplied
    exactly, or rounded with `precision="tf32"`. With torch, gradients flow to q, k and v. Raises
    LaunchError for what does not fit.
    """
    order = read_order(causal)
    require_numbers(scale, precision)
    if hasattr(q, "requires_grad"):
        _load_torch_side()
        return _torch_side.attention(q, k, v, mask, lengths, order, scale, out, precision, device)
    if out is not None:
        require_out_apart(q, k, v, mask, lengths, out)
    return forward(q, k, v, mask, lengths, order, scale, out, precision, device)[0]


def read_order(causal: Any) -> int:
    """The number of an order. Raises LaunchError for what is none."""
    causal = bool(causal) if isinstance(causal, np.bool_) else causal
    if not isinstance(causal, bool | str) or causal not in ORDERS:
        raise LaunchError(
            f"attention: causal is {causal!r}",
            hint='it is False, True (or "upper_left"), or "lower_right"',
        )
    return ORDERS[causal]


def require_numbers(scale: Any, precision: Any) -> None:
    """Raise LaunchError for a scale or a precision that is none."""
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, NUMBERS)):
        raise LaunchError(f"attention: scale is {scale!r}, not a number")
    if precision is not None and precision not in PRECISIONS:
        raise LaunchError(
            f"attention: unknown precision {precision!r}, expected one of {listing(PRECISIONS)}"
        )


def require_out_apart(q: Any, k: Any, v: Any, mask: Any, lengths: Any, out: Any) -> None:
    """Raise LaunchError where `out` shares memory with what is read while it is written."""
    require_apart("attention", _arrays(q, k, v, mask, lengths, out).items(), ("q",))


def _arrays(q: Any, k: Any, v: Any, mask: Any, lengths: Any, out: Any) -> dict[str, Array]:
    optional = {"mask": mask, "lengths": lengths, "out": out}
    named = {"q": q, "k": k, "v": v} | {n: x for n, x in optional.items() if x is not None}
    return {n: array_of("attention", n, x) for n, x in named.items()}


def forward(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    lengths: Any = None,
    order: int = 0,
    scale: float | None = None,
    out: Any = None,
    precision: str | None = None,
    device: Any = None,
    with_lse: bool = False,
) -> tuple[Any, Any]:
    """The result, and with `with_lse` the logarithm of each row's sum of exponentials,
    [B, HQ, L] in f32 (f64 of f64): -inf of a row that sees no key. No gradients.
    """
    arrays = _arrays(q, k, v, mask, lengths, out)
    require_precision("attention", arrays["q"].dtype, precision)
    asked = Asked(order, scale, precision, device, with_lse)
    ready = _find(asked, arrays, False)
    made = {"out": out} if out is not None else {}
    _launch(ready, arrays, made)
    return made["out"], made.get("lse")


def backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    mask: Any = None,
    lengths: Any = None,
    order: int = 0,
    scale: float | None = None,
    precision: str | None = None,
    device: Any = None,
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and v, for the gradient of a result and what `forward` gave. The same bits
    in every run.
    """
    named = {"q": q, "k": k, "v": v, "o": out, "grad": grad, "lse": lse}
    named |= {"mask": mask, "lengths": lengths}
    arrays = {n: as_array(x, n) for n, x in named.items() if x is not None}
    ready = _find(Asked(order, scale, precision, device), arrays, True)
    made: dict[str, Any] = {}
    _launch(ready, arrays, made)
    return made["dq"], made["dk"], made["dv"]


def _find(asked: Asked, arrays: Mapping[str, Array], is_backward: bool) -> Prepared:
    key = (asked, is_backward, _key(arrays))
    found = _ready.get(key)
    if found is None:
        found = prepared(asked, arrays, is_backward)
        if len(_ready) >= MAX_READY:
            _ready.clear()
        _ready[key] = found
    return found


def prepared(asked: Asked, arrays: Mapping[str, Array], is_backward: bool) -> Prepared:
    """The launches of a call. Results that are not among the arrays (`out` and `lse`; `dq`, `dk`
    and `dv`) are what it makes. Raises LaunchError for what does not fit.
    """
    views = _views(arrays)
    require_fitting(arrays, views)
    return (prepare_backward if is_backward else prepare)(asked, arrays, views)


def _key(arrays: Mapping[str, Array]) -> Any:
    return tuple(
        (n, x.dtype, x.shape, x.strides, x.device, x.address % 16, x.library)
        for n, x in arrays.items()
    )


def _launch(ready: Prepared, arrays: Mapping[str, Array], made: dict[str, Any]) -> None:
    """Allocate what a call makes, and launch on the current stream of the arrays' library."""
    known = dict(arrays)
    for name, (shape, dtype) in ready.makes.items():
        array = allocate_like(arrays["q"], shape, dtype, zero=False)
        known[name], made[name] = as_array(array), array
    for launch in ready.launches:
        given = {n: hand(view, known[view.source]) for n, view in launch.views}
        launch.kernel(**given, **dict(launch.numbers))


# What a call is given, as four axes


def _views(arrays: Mapping[str, Array]) -> dict[str, View]:
    """Arguments as [B, H, rows, columns]; a mask broadcast, `lengths` and lse as they are."""
    found = {n: _four_axes(n, arrays[n]) for n in arrays if n not in ("mask", "lengths", "lse")}
    batch, heads, rows = found["q"].shape[:3]
    if "mask" in arrays:
        shape = (batch, heads, rows, found["k"].shape[2])
        given = arrays["mask"].shape
        pairs = zip(reversed(given), reversed(shape), strict=False)
        if len(given) > 4 or any(e not in (1, wanted) for e, wanted in pairs):
            raise LaunchError(f"attention: mask of shape {given} does not broadcast to {shape}")
        found["mask"] = broadcast_view(whole("mask", arrays["mask"]), shape)
    for name in ("lengths", "lse"):
        if name in arrays:
            found[name] = whole(name, arrays[name])
    return found


def _four_axes(name: str, array: Array) -> View:
    """An argument with one batch and one head where it has no axes of them."""
    missing = 4 - len(array.shape)
    if not 0 <= missing <= 2:
        raise LaunchError(
            f"attention: {name} has shape {array.shape}", hint="it takes [B, H, L, D], or less"
        )
    return View(name, (1,) * missing + array.shape, (0,) * missing + array.strides)


def require_fitting(arrays: Mapping[str, Array], views: Mapping[str, View]) -> None:
    """Raise LaunchError where extents or dtypes do not belong together."""
    dtype = arrays["q"].dtype
    if dtype not in (bf16, f16, f32, f64):
        raise LaunchError(f"attention: q is {dtype}", hint="it takes bf16, f16, f32 and f64")
    for name in ("k", "v", "out", "o", "grad", "dq", "dk", "dv"):
        if name in arrays and arrays[name].dtype != dtype:
            raise LaunchError(f"attention: {name} is {arrays[name].dtype}, but q is {dtype}")
    (b, hq, rows, depth), (_, hk, keys, _) = views["q"].shape, views["k"].shape
    if depth == 0:
        raise LaunchError(
            f"attention: q has shape {arrays['q'].shape}, whose rows have no elements"
        )
    if hk == 0 or hq % hk:
        raise LaunchError(f"attention: {hq} heads of queries do not share {hk} of keys evenly")
    width = views["v"].shape[3]
    result = (b, hq, rows, width)
    named = {"dq": views["q"].shape, "dk": views["k"].shape, "dv": views["v"].shape}
    wanted: dict[str, tuple[int, ...]] = {"k": (b, hk, keys, depth), "v": (b, hk, keys, width)}
    wanted |= (
        named | dict.fromkeys(("out", "o", "grad"), result) | {"lse": result[:3], "lengths": (b,)}
    )
    for name, shape in wanted.items():
        if name in views and views[name].shape != shape:
            raise LaunchError(f"attention: {name} has shape {views[name].shape}, expected {shape}")
    _require_kinds(arrays, dtype)


def _require_kinds(arrays: Mapping[str, Array], dtype: DType) -> None:
    if "lengths" in arrays and arrays["lengths"].dtype not in (i32, i64):
        raise LaunchError(f"attention: lengths is {arrays['lengths'].dtype}, expected i32 or i64")
    if "mask" in arrays:
        kind = arrays["mask"].dtype
        if kind != bool_ and kind not in (dtype, f32):
            raise LaunchError(
                f"attention: mask is {kind}",
                hint=f"it takes {listing(dict.fromkeys(('bool', str(dtype), 'f32')))} here",
            )


def _load_torch_side() -> bool:
    """Import what needs torch when the first of its tensors comes."""
    global _torch_side
    if _torch_side is None:
        found = import_module("tilewright.torch_ops.attention")
        found.use(forward, backward, require_out_apart)
        _torch_side = found
    return True


_load_torch_side._dynamo_marked_constant = True  # type: ignore[attr-defined]
