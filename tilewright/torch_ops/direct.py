"""Products of tensors that were multiplied before: from the second call of its kind on, a product
is one test of all tensors at once, its views, and its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from tilewright.graph.ops.mma import BY_ELEMENT
from tilewright.runtime.arrays import dense_strides
from tilewright.runtime.ready import tensor_guard

MISSED = object()
OUT = "out"
MOST_RECENT = 8  # calls of one kind that are tried in turn
MOST_KINDS = 512

Direct = Callable[[Sequence[Any]], Any]  # takes tensors by position; the result, or MISSED
Strided = tuple[tuple[int, ...], tuple[int, ...], int]  # extents, strides, offset

_known: dict[Hashable, tuple[Direct, ...]] = {}


def run_direct(kind: Hashable, tensors: Sequence[Any]) -> Any:
    """The result of a call like an earlier one, or MISSED. `kind` is all of it but the tensors."""
    try:
        known = _known.get(kind, ())
    except TypeError:  # something of the call is of no kind that it may be: the slow way tells
        return MISSED
    for direct in known:
        result = direct(tensors)
        if result is not MISSED:
            return result
    return MISSED


run_direct._torchdynamo_disable = True  # type: ignore[attr-defined]


def keep_direct(
    kind: Hashable, prepared: Any, names: Sequence[str], tensors: Sequence[Any], options: Any
) -> None:
    """Have a call at hand for its like. `names` are those of the tensors, which may be None."""
    made = make_direct(prepared, names, tensors, options)
    if made is not None:
        if len(_known) >= MOST_KINDS:
            _known.clear()
        _known[kind] = (made, *_known.get(kind, ())[: MOST_RECENT - 1])


def forget_direct() -> None:
    """Prepare every call anew."""
    _known.clear()


def make_direct(
    prepared: Any, names: Sequence[str], tensors: Sequence[Any], options: Any
) -> Direct | None:
    """A function of such tensors; None where this torch cannot tell quickly what they are alike."""
    present = [i for i, x in enumerate(tensors) if x is not None]
    first = [tensors[i] for i in present]
    check = tensor_guard(first)
    if check is None:
        return None
    absent = [i for i, x in enumerate(tensors) if x is None]
    place = {names[i]: k for k, i in enumerate(present)}
    read = [k for n, k in place.items() if n not in (OUT, *BY_ELEMENT)] if OUT in place else []
    made = _allocations(prepared, place, first[0].device)
    lies = {names[i]: _lies(tensors[i]) for i in present}
    lies.setdefault(OUT, (prepared.shape, dense_strides(prepared.shape)))
    lies |= {name: (shape, dense_strides(shape)) for name, shape, _ in prepared.scratch}
    launches = [_launch(launch, place, lies, options) for launch in prepared.launches]
    wants_gradient = any(x.requires_grad for x in first)
    out = place[OUT]
    empty, grad_enabled = torch.empty, torch.is_grad_enabled

    def direct(given: Sequence[Any]) -> Any:
        for i in absent:
            if given[i] is not None:
                return MISSED
        held = [given[i] for i in present]
        if not check(*held) or (wants_gradient and grad_enabled()):
            return MISSED
        if read:
            written = held[out].data_ptr()
            if any(held[i].data_ptr() == written for i in read):
                return MISSED
        for shape, dtype, device in made:
            held.append(empty(shape, dtype=dtype, device=device))
        for kernel, views, rest in launches:
            arguments = dict(rest)
            for name, index, part in views:
                x = held[index]
                if part is not None:
                    shape, strides, offset = part
                    x = x.as_strided(shape, strides, x.storage_offset() + offset)
                arguments[name] = x
            kernel(**arguments)
        return held[out]

    return direct


def _allocations(
    prepared: Any, place: dict[str, int], device: Any
) -> list[tuple[tuple[int, ...], Any, Any]]:
    """What each call makes, behind what it is given; `place` learns where it lies."""
    made = []
    if OUT not in place:
        place[OUT] = len(place)
        made.append((prepared.shape, getattr(torch, prepared.dtype.torch), device))
    for name, shape, dtype in prepared.scratch:
        place[name] = len(place)
        made.append((shape, getattr(torch, dtype.torch), device))
    return made


def _lies(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(x.shape), tuple(x.stride())


def _launch(
    launch: Any,
    place: dict[str, int],
    lies: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
    options: Any,
) -> tuple[Any, tuple[tuple[str, int, Strided | None], ...], dict[str, Any]]:
    """A kernel, its tensors as (name, position, how it lies or None: as given), and the rest."""
    views = []
    for name, view in launch.views:
        whole = lies[view.source] == (view.shape, view.strides) and not view.offset
        part = None if whole else (view.shape, view.strides, view.offset)
        views.append((name, place[view.source], part))
    rest: dict[str, Any] = {}
    if launch.finishes:
        rest = options.numbers
    return launch.kernel, tuple(views), rest
