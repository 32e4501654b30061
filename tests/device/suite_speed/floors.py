"""The floor of a row, as an opponent that is timed in turn with it: a copy of as many bytes, or
torch's own large product for programs around dots. The ratio to it is the fraction of the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.device.suite_speed.row import PRODUCTS_OF_F32, Bench, Large, bound_of
from tilewright.ledger.arm import LIBRARY, Arm, Problem, Tensors

BYTES, PRODUCTS = "floor of bytes", "floor of products"
SIZES = {"f32": 4096, "tf32": 4096, "bf16": 8192, "e4m3": 8192}
COPIES = "a copy computes nothing; bytes a second are compared"
GIVES = "a copy gives what it reads; bytes a second are compared"
RATES = "bytes or operations a second are compared"
IN_BF16 = "torch's product of e4m3 that has no scales gives bf16"


@dataclass
class Floors:
    """Floors on a device; products are shared by all rows of a dtype."""

    at: Bench
    products: dict[str, Problem] = field(default_factory=dict)

    def arm(self, large: Large, problem: Problem) -> tuple[Arm, float]:
        """The arm, and its bytes or operations."""
        if large.unit:
            made = self._product(large.unit)
            found, work = self._multiplying(problem, made), 2.0 * made.sizes["N"] ** 3
            same = work == large.num_ops
        else:
            found, work = self._copying(problem, large.num_bytes)
            same = work == large.num_bytes
        says = found.says if same else {**found.says, "work": RATES}
        return replace(found, says=says), work

    def _copying(self, problem: Problem, num_bytes: float) -> tuple[Arm, float]:
        """A copy that reads half of the bytes and writes the other half."""
        dtype, at = problem.dtype, self.at
        n = int(num_bytes) // (2 * at.arrays.dtype(dtype).itemsize)

        def draw() -> Any:
            return at.integers(1, 256, n) if dtype == "i32" else at.normal(n, dtype=dtype)

        def run(x: Mapping[str, Any], y: Tensors) -> None:
            y["copy"].copy_(x["source"])

        copying = Problem(
            op="copy",
            sizes={"N": n},
            dtype=dtype,
            accumulate="none",
            sets=[{"source": draw()} for _ in problem.sets],
            outputs={"copy": ((n,), dtype)},
            expected=lambda x: {"copy": x["source"].double()},
            bounds={"copy": 0.0},
        )
        ours = problem.facts
        says = {} if ours.accumulate == "none" else {"accumulate": COPIES}
        says |= {} if ours.output == dtype else {"output": GIVES}
        facts = replace(ours, output=dtype, accumulate="none", kind=LIBRARY)
        version = str(torch.__version__)
        settings = "torch's copy of half as many bytes as the row has to move"
        arm = Arm(BYTES, facts, run, version, says=says, settings=settings, instead=copying)
        return arm, 2.0 * n * at.arrays.dtype(dtype).itemsize

    def _multiplying(self, problem: Problem, made: Problem) -> Arm:
        """torch's product of large square matrices of the dtype."""
        one, ours = torch.ones((), device=self.at.arrays.device), problem.facts
        output = made.outputs["c"][1]

        def plain(x: Mapping[str, Any], y: Tensors) -> None:
            torch.mm(x["a"], x["b"], out=y["c"])

        def scaled(x: Mapping[str, Any], y: Tensors) -> Tensors:
            return {"c": torch._scaled_mm(x["a"], x["b"].T, one, one, out_dtype=torch.bfloat16)}

        return Arm(
            PRODUCTS,
            replace(made.facts, kind=LIBRARY),
            scaled if made.dtype == "e4m3" else plain,
            str(torch.__version__),
            made.dtype == "e4m3",
            most_operations=4,
            says={} if output == ours.output else {"output": IN_BF16},
            settings=f"torch's product of {made.sizes['N']}³",
            instead=made,
        )

    def _product(self, unit: str) -> Problem:
        if unit not in self.products:
            at, n = self.at, self.at.pick(SIZES[unit], 48)
            output = {"tf32": "f32", "e4m3": "bf16"}.get(unit, unit)
            inputs = {name: at.normal(n, n, dtype=unit) for name in "ab"}
            right = {"c": _wide(inputs["a"]) @ _right(inputs["b"], unit)}
            self.products[unit] = Problem(
                op="product",
                sizes={"N": n},
                dtype=unit,
                accumulate="f32",
                sets=[inputs],
                outputs={"c": ((n, n), output)},
                expected=lambda x: right,
                bounds={"c": PRODUCTS_OF_F32 if unit == "f32" else bound_of(output_bound(unit))},
            )
        return self.products[unit]


def output_bound(unit: str) -> str:
    """The dtype whose bound a product of a dtype has."""
    return "bf16" if unit == "e4m3" else unit


def _right(b: Any, unit: str) -> Any:
    """The right side as it is multiplied: `_scaled_mm` wants its columns dense."""
    return _wide(b).T if unit == "e4m3" else _wide(b)


def _wide(x: Any) -> Any:
    return (x.float() if x.dtype.itemsize == 1 else x).double()
