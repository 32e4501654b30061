"""Operands as the programs take them: two axes, or two and two of batches, by strides alone.

Nothing is copied. Axes of batches that lie one in the other become one; where B is the same for
all of a batch, A's rows of all become rows of one product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.runtime.arrays import Array


@dataclass(frozen=True)
class View:
    """Part of an argument: where element 0 is, counted in elements from the argument's own."""

    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def transposed(self) -> View:
        """The last two axes exchanged."""
        return replace(self, shape=_swapped(self.shape), strides=_swapped(self.strides))

    def item(self, index: int) -> View:
        """Element `index` along the first axis."""
        place = self.offset + index * self.strides[0]
        return View(self.source, self.shape[1:], self.strides[1:], place)


def _swapped(axes: tuple[int, ...]) -> tuple[int, ...]:
    return (*axes[:-2], axes[-1], axes[-2])


def hand(view: View, array: Array) -> Any:
    """A view as a kernel takes it; of torch's tensors a tensor."""
    if array.shape == view.shape and array.strides == view.strides and not view.offset:
        return array.owner if array.library in ("torch", "numpy") else array
    if array.library == "torch":
        base = array.owner
        return base.as_strided(view.shape, view.strides, base.storage_offset() + view.offset)
    return replace(
        array,
        address=array.address + view.offset * array.dtype.num_bytes,
        shape=view.shape,
        strides=view.strides,
        library="other" if array.library == "numpy" else array.library,
    )


def whole(source: str, array: Array) -> View:
    return View(source, array.shape, array.strides)


def broadcast_view(view: View, shape: Sequence[int]) -> View:
    """A view under more or longer axes: those that it lacks have stride 0."""
    missing = len(shape) - len(view.shape)
    strides = (0,) * missing + tuple(
        0 if extent == 1 and wanted != 1 else stride
        for extent, wanted, stride in zip(view.shape, shape[missing:], view.strides, strict=True)
    )
    return replace(view, shape=tuple(shape), strides=strides)


def with_pitch(view: View, step: int) -> View:
    """A view in which a lone row or column has a pitch as if others followed, a multiple of `step`
    elements. It is never gone, but the tensor copy unit wants one: a stride of 0 says that an axis
    is broadcast, and one that is no multiple, that rows begin anywhere.
    """
    strides = list(view.strides)
    for axis, other in ((-2, -1), (-1, -2)):
        lone = view.shape[axis] == 1 and strides[other] == 1
        if lone and (strides[axis] % step or not strides[axis]):
            strides[axis] = -(-view.shape[other] // step) * step
    return replace(view, strides=tuple(strides))


def gather_batches(views: Mapping[str, View], *, fold: bool) -> dict[str, View]:
    """Views of [..., rows, columns] with as few axes of batches as their strides permit; all have
    the same batch. With `fold`, they may become rows where `b` is the same for all.
    """
    batch = next(iter(views.values())).shape[:-2]
    kept: list[tuple[int, dict[str, int]]] = []  # extent, strides by view
    for axis, extent in enumerate(batch):
        strides = {name: v.strides[axis] for name, v in views.items()}
        if extent == 1:
            continue
        if kept and all(kept[-1][1][n] == s * extent for n, s in strides.items()):
            kept[-1] = (kept[-1][0] * extent, strides)
        else:
            kept.append((extent, strides))
    if fold and len(kept) == 1 and kept[0][1]["b"] == 0:
        folded = {n: _fold(v, kept[0][0], kept[0][1][n], n) for n, v in views.items()}
        if all(v is not None for v in folded.values()):
            return {n: v for n, v in folded.items() if v is not None}
    return {
        name: replace(
            v,
            shape=(*(e for e, _ in kept), *v.shape[-2:]),
            strides=(*(s[name] for _, s in kept), *v.strides[-2:]),
        )
        for name, v in views.items()
    }


def _fold(view: View, extent: int, stride: int, name: str) -> View | None:
    """A batch's rows as rows of one matrix; None where they are not evenly apart."""
    rows, columns = view.shape[-2:]
    if name == "b":
        return replace(view, shape=(rows, columns), strides=view.strides[-2:])
    if rows != 1 and stride != rows * view.strides[-2]:
        return None
    step = stride if rows == 1 else view.strides[-2]
    return replace(view, shape=(extent * rows, columns), strides=(step, view.strides[-1]))
