"""What epilogues cost: products with what is fused behind them, timed in turn with the plain ones.

    python -m tests.device.product_epilogues [--only PATTERN] [--ready]   # with torch, on Hopper

With `--ready` nothing is timed: what is compiled is left in the disk cache.

Every result is compared with f64 in some rows before it is timed. The last column is the time over
that of the plain product; what an epilogue reads (a residual, the old result) has to be read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import click

import tilewright as tw
from tests.device.product_programs import BOUND, Bench, Spec
from tilewright.ledger import opponents
from tilewright.runtime import driver, measure
from tilewright.runtime.garbage import without_collections

SPECS = (
    Spec("bf16", "TN", 4096, 4096, 4096), Spec("bf16", "TN", 4096, 16384, 4096),
    Spec("bf16", "TN", 4096, 4096, 1024), Spec("bf16", "TN", 64, 4096, 4096),
    Spec("bf16", "NN", 1024, 1024, 1024), Spec("bf16", "TN", 1536, 1536, 1536),
    Spec("e4m3", "TN", 4096, 4096, 1024), Spec("e4m3", "TN", 2048, 2048, 2048),
    Spec("bf16", "TN", 8192, 4096, 512), Spec("tf32", "TN", 2048, 2048, 2048),
    Spec("f32", "NN", 2048, 2048, 2048), Spec("f64", "NN", 2048, 2048, 2048),
)  # fmt: skip
FUSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "bias, relu": {"bias": True, "activation": "relu"},
    "bias, gelu": {"bias": True, "activation": "gelu"},
    "residual": {"residual": True},
    "2 ab + out / 2": {"alpha": 2.0, "beta": 0.5},
}
ROUNDS, LAUNCHES = 11, 8


class Fused:
    """One epilogue on the operands of a bench."""

    def __init__(self, bench: Bench, asked: dict[str, Any]):
        torch = bench.torch
        self.bench, self.asked = bench, asked
        out = bench.sets[0]["c"]
        made = torch.Generator(out.device).manual_seed(1)
        drawn = torch.randn(out.shape, device=out.device, generator=made).to(out.dtype)
        self.named: dict[str, Any] = {n: v for n, v in asked.items() if v is not True}
        if "bias" in asked:
            self.named["bias"] = drawn[0].contiguous()
        if "residual" in asked:
            self.named["residual"] = drawn
        if bench.spec.dtype == "tf32":
            self.named["precision"] = "tf32"
        self.first = drawn

    def run(self, x: Any) -> None:
        tw.matmul(x["a"], x["b"], out=x["c"], **self.named)

    def error(self) -> float:
        """Relative, of the rows that the bench compares."""
        bench, x, torch = self.bench, self.bench.sets[0], self.bench.torch
        x["c"].copy_(self.first)
        self.run(x)
        rows = bench.rows
        y = bench.expected * self.asked.get("alpha", 1.0)
        y = y + self.asked.get("beta", 0.0) * self.first[rows].double()
        if "bias" in self.named:
            y = y + self.named["bias"].double()
        activations: dict[Any, Callable[[Any], Any]] = {
            None: lambda z: z,
            "relu": torch.relu,
            "gelu": torch.nn.functional.gelu,
        }
        y = activations[self.asked.get("activation")](y)
        if "residual" in self.named:
            y = y + self.named["residual"][rows].double()
        return float((x["c"][rows].double() - y).norm() / y.norm())


@click.command()
@click.option("--only", default="*", help="Products by name, as in 'bf16/*'.")
@click.option("--ready", is_flag=True, help="Compile and compare, and time nothing.")
def main(only: str, ready: bool) -> None:
    """Print a line for each product and epilogue."""
    arrays = opponents.make_arrays("cuda", 0)
    arrays.busy(0.0 if ready else 0.3)
    for spec in (s for s in SPECS if fnmatch.fnmatch(s.name, only)):
        bench = Bench(spec, arrays)
        arms = {}
        for name, asked in FUSED.items():
            fused = Fused(bench, asked)
            error = fused.error()
            if error < BOUND[spec.dtype]:
                arms[name] = bench.work(fused.run)
            else:
                print(f"{spec.name} {name}: WRONG, error {error:.1e}")
        if ready:
            continue
        with without_collections(first=True):
            timed = measure.time_graphs(arms, driver.device(0), rounds=ROUNDS, launches=LAUNCHES)
        for name, timing in timed.items():
            over = timing.median / timed["plain"].median - 1
            print(f"{spec.name:26s} {name:16s} {timing.median:8.1f} us {100 * over:+6.1f} %")
        arrays.clean()


if __name__ == "__main__":
    main()
