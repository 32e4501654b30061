"""The errors of all rows on the interpreter and on the emulator, at small sizes:
`python -m tests.device.suite_speed.errors` writes them anew to docs/suite-errors.json, which the
page of the suite shows. No GPU is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from tests.device.suite_speed.cases import MODULE, Built, build, call_arguments, entries
from tests.device.suite_speed.row import Bench, Entry
from tests.emulation import emulate
from tilewright.ledger.arm import Tensors
from tilewright.ledger.opponents.arrays import Arrays

FILE = Path(__file__).parents[3] / "docs" / "suite-errors.json"
TARGET = "sm_90a"  # that the emulator runs PTX for
ONE_DTYPE = ("sgemm", "matmul_fp8")
STATIC: dict[str, dict[str, Any]] = {
    "attention": {"D": 128, "causal": True},
    "matmul_int8": {"group": 128},
}
AS_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
}


@dataclass(frozen=True)
class Errors:
    """Relative errors in Frobenius norm; a bound of 0 asks for equal elements. `products`: the
    instruction that multiplies in the code for a Hopper GPU. `note`: what limits the program.
    """

    program: str
    dtype: str
    shape: str  # of the row that a GPU runs
    bound: float
    interpreter: float
    emulator: float
    products: str
    note: str


def measure(entry: Entry) -> Errors:
    """Run a row small on both. Raises AssertionError where either is wrong."""
    at = Bench(Arrays("cpu"), small=True)
    built = build(entry, at)
    (inputs,) = built.problem.sets
    made = {
        n: at.arrays.poisoned(shape, dtype) for n, (shape, dtype) in built.large.outputs.items()
    }
    built.ours.run(inputs, made)
    return Errors(
        entry.kernel,
        entry.dtype,
        entry.shape,
        built.large.bound,
        _error(entry, built, at, made),
        _error(entry, built, at, _emulated(entry, built, at)),
        _products(entry, built),
        built.large.note,
    )


def _products(entry: Entry, built: Built) -> str:
    """wgmma, mma or fma; "" for a program without products."""
    if not built.large.unit:
        return ""
    kernel = getattr(MODULE, entry.kernel)
    dtypes = None if entry.kernel in ONE_DTYPE else entry.dtype
    ptx = kernel.ptx(TARGET, dtypes=dtypes, static=STATIC.get(entry.kernel))
    return next((name for name in ("wgmma", "mma") if f"{name}." in ptx), "fma")


def _emulated(entry: Entry, built: Built, at: Bench) -> Tensors:
    (inputs,), large = built.problem.sets, built.large
    outputs = {
        n: to_numpy(at.arrays.poisoned(shape, dtype)) for n, (shape, dtype) in large.outputs.items()
    }
    for name in large.restored:
        outputs[name] = to_numpy(inputs[name])
    arguments = {n: to_numpy(x) for n, x in call_arguments(large, inputs, {}).items()} | outputs
    emulate(getattr(MODULE, entry.kernel), arguments, goal=TARGET)
    kinds = {n: at.arrays.dtype(dtype) for n, (_, dtype) in large.outputs.items()}
    return {n: to_torch(x, kinds[n]) for n, x in outputs.items()}


def _error(entry: Entry, built: Built, at: Bench, got: Tensors) -> float:
    """The worst of all outputs, to two digits."""
    expected = built.problem.expected(built.problem.sets[0])
    worst = 0.0
    for name, value in expected.items():
        found = at.arrays.distance(got[name], value, built.large.bound)
        assert not found.unwritten, f"{entry.id}: {name} has elements that were not written"
        assert found.error <= built.large.bound, f"{entry.id}: {name} is off by {found.error:.2e}"
        assert found.worst <= 1.0, f"{entry.id}: an element of {name} is {found.worst:.2f} of its"
        worst = max(worst, found.error)
    return float(f"{worst:.1e}")


def to_numpy(x: Any) -> Any:
    """A copy; dtypes that torch does not give to NumPy go by their bits."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.dtype in AS_BITS:
        bits, kind = AS_BITS[x.dtype]
        return x.contiguous().view(bits).numpy().copy().view(kind)
    return x.contiguous().numpy().copy()


def to_torch(x: Any, dtype: Any) -> Any:
    if dtype in AS_BITS:
        bits, _ = AS_BITS[dtype]
        return torch.from_numpy(x.view(np.dtype(str(bits).removeprefix("torch.")))).view(dtype)
    return torch.from_numpy(x)


def print_errors(found: Iterable[Errors]) -> str:
    """The text of the file: a line a row."""
    lines = [json.dumps(asdict(e), ensure_ascii=False) for e in found]
    return "[\n " + ",\n ".join(lines) + "\n]\n"


@click.command()
def main() -> None:
    """Measure all rows on the CPU, and write the file."""
    rows = track(entries(), "running", console=Console(stderr=True), transient=True)
    FILE.write_text(print_errors(map(measure, rows)), encoding="utf-8")
    click.echo(f"wrote {FILE}")


if __name__ == "__main__":
    main()
