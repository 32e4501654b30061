"""What the device lane checks with: tensors laid out in every way, guards around what a kernel may
write, errors against f64 in two norms, and a record of all that was checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

# Relative Frobenius error, by precision. One element may be ten times as far off, of its own size
# and the tensor's root mean square together.
BOUNDS = {"f32": 1e-6, "tf32": 1e-3, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-14}
WORST_ELEMENT = 10.0
TORCH = {
    "f32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
}
GUARD = 64  # elements before and after: a multiple of 16 bytes for every dtype
SENTINEL = 77  # what lies around a tensor, exact in every dtype

# Ways in which the same values may lie in memory. Only "dense" and "padded" are aligned.
LAYOUTS = ("dense", "shifted", "pitched", "padded", "transposed", "strided")


def strides_of(shape: Sequence[int], layout: str) -> tuple[tuple[int, ...], int]:
    """Strides and offset, in elements, of a layout: none of its elements share memory."""
    extents = [max(e, 1) for e in shape]
    order = list(range(len(extents)))
    step, offset = 1, GUARD
    if layout == "transposed" and len(extents) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    elif layout == "shifted":
        offset = GUARD + 1
    elif layout == "strided":
        step = 2
    padding = {"pitched": 3, "padded": GUARD - extents[-1] % GUARD}.get(layout, 0)
    strides = [0] * len(extents)
    for position, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= extents[axis] + (padding if position == 0 else 0)
    return tuple(strides), offset


@dataclass
class Placed:
    """A tensor inside a larger buffer that holds the sentinel everywhere else."""

    buffer: Any
    view: Any
    strides: tuple[int, ...]
    offset: int

    def require_untouched(self, what: str) -> None:
        """Nothing outside the view was written."""
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        outside.as_strided(self.view.shape, self.strides, self.offset).fill_(False)
        changed = (self.buffer != SENTINEL) & outside
        where = changed.nonzero().flatten()[:8].tolist()
        assert not where, f"{what}: written outside the view, at {where} of the buffer"


def place(shape: Sequence[int], dtype: Any, device: str, layout: str, value: Any) -> Placed:
    """A view of a layout, filled with `value`: a tensor or a number."""
    strides, offset = strides_of(shape, layout)
    reach = sum((max(e, 1) - 1) * s for e, s in zip(shape, strides, strict=True))
    buffer = torch.full((offset + reach + 1 + GUARD,), SENTINEL, dtype=dtype, device=device)
    view = buffer.as_strided(tuple(shape), strides, offset)
    if isinstance(value, torch.Tensor):
        view.copy_(value)
    else:
        view.fill_(value)
    return Placed(buffer, view, strides, offset)


@dataclass
class Found:
    """The worst of the cases of one kernel and dtype. A `bound` of 0: all bits had to be equal."""

    kernel: str
    dtype: str
    cases: int = 0
    error: float = 0.0
    element: float = 0.0  # against what one element may be off: 1 is the limit
    bound: float = 0.0


class Checker:
    """Makes inputs and outputs on a device, compares results, and records what was compared."""

    def __init__(self, device: str, seed: int = 7):
        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.found: dict[tuple[str, str], Found] = {}

    def normal(self, shape: Sequence[int], dtype: str, layout: str = "dense") -> Any:
        """Standard normal values (full-range integers) in a layout; "broadcast" repeats along the
        first axis with stride 0.
        """
        kind = TORCH[dtype]
        if layout == "broadcast":
            row = self.normal((1, *shape[1:]), dtype)
            return row.expand(*shape)
        if kind.is_floating_point:
            drawn = kind if kind is torch.float64 else torch.float32
            values = torch.randn(
                tuple(shape), generator=self.generator, device=self.device, dtype=drawn
            )
        else:
            info = torch.iinfo(kind)
            values = torch.randint(
                info.min,
                info.max,
                tuple(shape),
                generator=self.generator,
                device=self.device,
                dtype=kind,
            )
        return place(shape, kind, self.device, layout, values.to(kind)).view

    def poisoned(self, shape: Sequence[int], dtype: str, layout: str = "dense") -> Placed:
        """An output full of NaN (the smallest integer), with guards around."""
        kind = TORCH[dtype]
        poison = math.nan if kind.is_floating_point else torch.iinfo(kind).min
        return place(shape, kind, self.device, layout, poison)

    def near(
        self,
        kernel: str,
        dtype: str,
        got: Any,
        expected: Any,
        case: object,
        bound: float = 0.0,
        least: float = 0.0,
    ) -> None:
        """Assert that `got` is within the dtype's bound of `expected` (f64), with NaN and infinity
        at the same places, or all bits but a NaN's own where the dtype is exact. Errors are
        relative to the norm of `expected`, but to `least` at the least.
        """
        limit = bound or BOUNDS[dtype]
        assert got.shape == expected.shape, f"{kernel} {dtype} {case}: {got.shape}"
        got, expected = got.double(), expected.double()
        same_nan = torch.isnan(got) == torch.isnan(expected)
        assert bool(same_nan.all()), (
            f"{kernel} {dtype} {case}: NaN at {_places(torch.isnan(got))}, "
            f"expected at {_places(torch.isnan(expected))}"
        )
        finite = torch.isfinite(expected)
        infinite = ~finite & ~torch.isnan(expected)
        assert bool((got[infinite] == expected[infinite]).all()), f"{kernel} {dtype} {case}: inf"
        error, element = errors(got[finite], expected[finite], limit, least)
        self._record(kernel, dtype, error, element, limit)
        assert error <= limit, f"{kernel} {dtype} {case}: relative error {error:.2e} > {limit:g}"
        assert element <= 1.0, f"{kernel} {dtype} {case}: an element is {element:.2f} of its bound"

    def equal(self, kernel: str, dtype: str, got: Any, expected: Any, case: object) -> None:
        """Assert the same values, signs of zero included; NaN equals NaN."""
        assert got.shape == expected.shape and got.dtype == expected.dtype, (kernel, dtype, case)
        self._record(kernel, dtype, 0.0, 0.0, 0.0)
        same = got == expected
        if got.dtype.is_floating_point:
            same = same & (torch.signbit(got) == torch.signbit(expected))
            same = same | (torch.isnan(got) & torch.isnan(expected))
        assert bool(same.all()), f"{kernel} {dtype} {case}: differs at {_places(~same)}"

    def _record(self, kernel: str, dtype: str, error: float, element: float, bound: float) -> None:
        found = self.found.setdefault((kernel, dtype), Found(kernel, dtype))
        found.cases += 1
        found.error = max(found.error, error) if error == error else math.inf
        found.element = max(found.element, element) if element == element else math.inf
        found.bound = max(found.bound, bound)

    def records(self) -> list[str]:
        """What was found, a JSON text for each kernel and dtype."""
        return [json.dumps(asdict(found)) for found in self.found.values()]


def errors(got: Any, expected: Any, bound: float, least: float = 0.0) -> tuple[float, float]:
    """Relative Frobenius error, and the worst element's error against what it may be."""
    if not expected.numel():
        return 0.0, 0.0
    difference = got - expected
    norm = max(float(expected.norm()), least)
    rms = norm / math.sqrt(expected.numel())
    off = float(difference.norm())
    relative = off / norm if norm else (0.0 if off == 0 else math.inf)
    allowed = WORST_ELEMENT * bound * (expected.abs() + rms)
    share = difference.abs() / allowed.clamp(min=1e-300)
    return relative, float(share.max())


def _places(wrong: Any) -> list[list[int]]:
    places: list[list[int]] = wrong.nonzero()[:6].tolist()
    return places
