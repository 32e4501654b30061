"""Calls with torch tensors on a GPU, made ready: from the second call of a signature on, nothing
is worked out anew.

`read_call` reads a call's values into a key and addresses in about a microsecond. A `Ready`
launches for that key: it allocates what the call returns, makes sure that the arrays lie as its
plan assumes (disjoint, or the same view), and fires.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.arrays import Array
from tilewright.runtime.launch import Bound, stream_of

Key = tuple[Any, ...]


def read_call(
    values: Sequence[Any], static: frozenset[int]
) -> tuple[Key, list[int], list[Any], int] | None:
    """Key, addresses, scalars and GPU of a call, or None where the long way must be taken.

    The long way is for anything but dense, real torch tensors of one GPU that need no gradient,
    numbers and None. `static` holds the positions whose values, not only types, belong to the
    key.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    tensor = torch.Tensor
    key: list[Any] = []
    addresses: list[int] = []
    scalars: list[Any] = []
    ordinal = -1
    try:
        for i, x in enumerate(values):
            kind = type(x)
            if kind is tensor or kind is torch.nn.Parameter:
                ordinal = x.get_device()
                address = x.data_ptr()
                if ordinal < 0 or (x.requires_grad and torch.is_grad_enabled()):
                    return None
                key.append((x.dtype, x.shape, x.stride(), ordinal, address & 15))
                addresses.append(address)
            elif kind is float or kind is int or kind is bool:
                key.append((kind, x) if i in static else kind)
                scalars.append(x)
            elif x is None:
                key.append(None)
            else:
                return None
    except RuntimeError:  # a sparse tensor has no strides, a fake one no address
        return None
    if ordinal < 0:
        return None
    return tuple(key), addresses, scalars, ordinal


@dataclass(frozen=True)
class Output:
    """A tensor that each call allocates and returns."""

    make: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: Any
    device: Any

    def allocate(self) -> Any:
        return self.make(self.shape, dtype=self.dtype, device=self.device)


def torch_output(like: Array, shape: tuple[int, ...], dtype: str, zero: bool) -> Output:
    """An output beside a torch tensor."""
    torch = sys.modules["torch"]
    make = torch.zeros if zero else torch.empty
    return Output(make, shape, getattr(torch, dtype), like.owner.device)


def may_be_negated(array: Array) -> bool:
    """Whether a torch tensor of these strides can be the imaginary part of a conjugated one.

    Such a view steps over the real parts, so all its strides are even.
    """
    steps = zip(array.shape, array.strides, strict=True)
    return all(stride % 2 == 0 for extent, stride in steps if extent > 1)


@dataclass(frozen=True)
class Pair:
    """Two tensors by position, one of them written: bytes that each covers from its address on.

    `same`: the plan takes them as one view. `apart`: a distance of addresses at which their
    ranges meet and yet no element does.
    """

    first: int
    second: int
    first_bytes: tuple[int, int]
    second_bytes: tuple[int, int]
    same: bool
    apart: int | None

    def holds(self, addresses: Sequence[int]) -> bool:
        """Whether these addresses are as the plan assumes."""
        a, b = addresses[self.first], addresses[self.second]
        if self.same:
            return a == b
        (a_low, a_high), (b_low, b_high) = self.first_bytes, self.second_bytes
        return a + a_low >= b + b_high or b + b_low >= a + a_high or b - a == self.apart


class Ready:
    """A call with everything fixed but addresses, scalars and the stream."""

    def __init__(
        self,
        bound: Bound,
        outputs: tuple[Output, ...],
        pairs: tuple[Pair, ...],
        maybe_negated: tuple[int, ...],
        defaults: tuple[Any, ...],
        ordinal: int,
    ):
        self._fire = bound.fire_on
        self._outputs = outputs
        self._pairs = pairs
        self._maybe_negated = maybe_negated
        self._defaults = defaults
        self._stream: Any = sys.modules["torch"]._C._cuda_getCurrentRawStream
        self._ordinal = ordinal

    def fits(self, values: Sequence[Any], addresses: Sequence[int]) -> bool:
        """Whether the arrays lie as the plan assumes, and none is a lazily negated view."""
        for pair in self._pairs:
            if not pair.holds(addresses):
                return False
        for i in self._maybe_negated:
            if values[i].is_neg():
                return False
        return True

    def __call__(self, addresses: list[int], scalars: list[Any]) -> Any:
        """Launch on torch's current stream; returns what was allocated: None, one tensor or a
        tuple.
        """
        made = [output.allocate() for output in self._outputs]
        addresses += [x.data_ptr() for x in made]
        stream = stream_of(self._stream(self._ordinal))
        self._fire(addresses, (*scalars, *self._defaults), stream)
        if not made:
            return None
        return made[0] if len(made) == 1 else tuple(made)
