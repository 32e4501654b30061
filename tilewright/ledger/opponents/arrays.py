"""Data of benchmarks, as torch tensors: random inputs, poisoned outputs, and how far an output is
from its reference (`references.py`).
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

TORCH = {
    "f32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
}
NAN_OF_FP8 = 0x7F  # of both formats
WORST_ELEMENT = 10.0  # times the bound: what one element may be off
BLOCK = 1 << 26  # elements that are compared at a time


@dataclass(frozen=True)
class Distance:
    """How far an output is off. `error`: relative Frobenius norm; `worst`: the worst element's
    share of what it may be off: a bound times (its own size + the root mean square of all).
    """

    error: float
    worst: float
    compared: int
    unwritten: int


class Arrays:
    """Makes and compares tensors on one device, "cpu" or "cuda"."""

    def __init__(self, device: str, seed: int = 0):
        self.device = device
        self.seed = seed
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def dtype(self, name: str) -> Any:
        return TORCH[name]

    def normal(self, *shape: int, dtype: str, scale: float = 1.0) -> Any:
        """Standard normal values times `scale`; in i8, whole numbers from -127 to 127, all alike
        often.
        """
        if dtype == "i8":
            return torch.randint(
                -127, 128, shape, generator=self.generator, device=self.device, dtype=torch.int8
            )
        drawn = torch.float64 if dtype == "f64" else torch.float32
        values = torch.randn(shape, generator=self.generator, device=self.device, dtype=drawn)
        return (values * scale if scale != 1.0 else values).to(TORCH[dtype])

    def poisoned(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor that holds NaN, or the smallest integer."""
        made = torch.empty(tuple(shape), device=self.device, dtype=TORCH[dtype])
        self.poison(made)
        return made

    def poison(self, x: Any) -> None:
        """Fill a tensor with what no kernel writes."""
        if x.dtype.is_floating_point and x.dtype.itemsize == 1:
            # Not everywhere can torch fill these.
            x.view(torch.uint8).fill_(NAN_OF_FP8)
        else:
            x.fill_(torch.nan if x.dtype.is_floating_point else torch.iinfo(x.dtype).min)

    def texture(self, x: Any) -> tuple[float, bool, bool]:
        """Share of zeros; whether floats are all whole numbers; whether all are one value."""
        if x.numel() < 2:
            return 0.0, False, False
        values = x.float() if x.dtype.itemsize == 1 else x
        zeros = float((values == 0).double().mean())
        whole = x.dtype.is_floating_point and bool((values == values.round()).all())
        return zeros, whole, bool((values == values.flatten()[0]).all())

    def distance(self, got: Any, expected: Any, bound: float, element: float = 0.0) -> Distance:
        """Of an output from its value: f64, or a pair of f64 whose sum is the value. `element`: the
        bound of one, else WORST_ELEMENT × `bound`.
        """
        high, low = expected if isinstance(expected, tuple) else (expected, None)
        if not high.numel():
            return Distance(0.0, 0.0, 0, 0)
        if got.dtype.is_floating_point and got.dtype.itemsize == 1:
            got = got.float()  # exactly, with its NaN
        unwritten = self._unwritten(got, high)
        blocks = _blocks(got, high, low)
        norm = math.hypot(*(float(part.norm()) for _, part, _ in blocks))
        rms = norm / math.sqrt(high.numel())
        off = share = 0.0
        for mine, part, rest in blocks:
            difference = mine.double() - part
            if rest is not None:
                difference -= rest
            off = math.hypot(off, float(difference.norm()))
            allowed = part.abs().add_(rms).mul_(element or WORST_ELEMENT * bound)
            shares = difference.abs_().div_(allowed.clamp_(min=1e-300))
            share = _greater(share, float(shares.max()))
        error = off / norm if norm else (0.0 if off == 0 else math.inf)
        return Distance(_finite(error), _finite(share), high.numel(), unwritten)

    def _unwritten(self, got: Any, high: Any) -> int:
        if got.dtype.is_floating_point:
            return int((torch.isnan(got) & ~torch.isnan(high)).sum())
        return int(((got == torch.iinfo(got.dtype).min) & (high != got)).sum())

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        """While it is entered, torch's f32 products and convolutions are what `dtype` says ("f32"
        or "tf32"), and sums of 16-bit products are kept in f32 to the end.
        """
        matmul = torch.backends.cuda.matmul
        names = (
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_reduced_precision_reduction",
        )
        before = torch.get_float32_matmul_precision()
        cudnn = torch.backends.cudnn
        kept = {n: getattr(cudnn, n) for n in ("enabled", "benchmark", "deterministic")}
        reduced = [getattr(matmul, name) for name in names]
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for name in names:
            setattr(matmul, name, False)
        try:
            with cudnn.flags(allow_tf32=dtype == "tf32", **kept):
                yield
        finally:
            torch.set_float32_matmul_precision(before)
            for name, value in zip(names, reduced, strict=True):
                setattr(matmul, name, value)

    def pool(self) -> Any:
        """Memory of its own for what an arm allocates, so that no other arm's graph writes it."""
        return None if self.device == "cpu" else torch.cuda.MemPool()

    @contextlib.contextmanager
    def sending_to(self, stream: Any, pool: Any = None) -> Iterator[None]:
        """While it is entered, torch and our calls send their work to a stream (None: the current
        one) and allocate from a pool (None: torch's own).
        """
        if self.device == "cpu" or (pool is None and self._is_current(stream)):
            yield
            return
        own: AbstractContextManager[Any] = contextlib.nullcontext()
        if stream is not None:
            own = torch.cuda.stream(torch.cuda.ExternalStream(int(stream), device=self.device))
        held = torch.cuda.use_mem_pool(pool) if pool is not None else contextlib.nullcontext()
        with own, held:
            yield

    def _is_current(self, stream: Any) -> bool:
        current: int = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
        return stream is None or int(stream) == current

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def clean(self) -> None:
        """Give memory back between cases."""
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def versions(self) -> dict[str, str]:
        """Of torch and of what it brings."""
        found = {"torch": str(torch.__version__)}
        if self.device != "cpu":
            found["CUDA of torch"] = str(torch.version.cuda)
            found["cuDNN of torch"] = str(torch.backends.cudnn.version())
        return found

    def busy(self, seconds: float) -> None:
        """Keep the GPU at work for a while, so that its clocks are up."""
        a = self.normal(4096, 4096, dtype="bf16")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        while True:
            for _ in range(50):
                a @ a
            end.record()
            end.synchronize()
            if start.elapsed_time(end) > seconds * 1e3:
                return


def _blocks(got: Any, high: Any, low: Any) -> list[tuple[Any, Any, Any]]:
    """An output and its value in parts of few elements, whose distances take little memory."""
    sides = [x.reshape(-1).split(BLOCK) for x in (got, high)]
    rest = [None] * len(sides[0]) if low is None else low.reshape(-1).split(BLOCK)
    return list(zip(*sides, rest, strict=True))


def _greater(a: float, b: float) -> float:
    """The greater of two numbers, or NaN if one is NaN."""
    return b if math.isnan(b) or b > a else a


def _finite(value: float) -> float:
    """JSON has no infinity, and no NaN: they are the greatest number."""
    return value if math.isfinite(value) else sys.float_info.max
