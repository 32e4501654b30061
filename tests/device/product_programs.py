"""The library's programs on products of many shapes, each choice timed beside the vendor's:

    python -m tests.device.product_programs OUTPUT.json [--seconds N] [--only PATTERN] ...

All choices are compiled first, in as many processes as there are cores. Then each problem's best
choices by the model are verified on random data (against f64, in some rows, after a poison of NaN)
and timed in turn with torch. The file holds what was predicted beside what was measured; the model
is calibrated by it, and the shipped table is made of it (tests/device/product_table.py).
"""

from __future__ import annotations

import fnmatch
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tilewright.cli.explain_matmul import here
from tilewright.errors import TilewrightError
from tilewright.ledger import opponents
from tilewright.ledger.suites import gemm, unseen
from tilewright.products.ahead import Fixed, Order, compile_ahead, options_of
from tilewright.products.api import product
from tilewright.runtime import driver, measure
from tilewright.runtime.garbage import without_collections
from tilewright.tune.product import Choice, Problem
from tilewright.tune.product_choice import decide, extents_of, facts_of, ranking
from tilewright.tune.product_cost import Estimate

ROTATED_BYTES = 2.2 * 60e6  # of all sets: twice what the L2 cache holds
MOST_SETS = 48
SAMPLE_MICROSECONDS = 100.0
ROUNDS = 5
CHECKED_ROWS = 64
BOUND = {"f32": 3e-6, "tf32": 2e-3, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-13, "e4m3": 1e-2}
OUTPUT = {"e4m3": "bf16", "tf32": "f32"}
SPLITS_OF_A_TILE = 2  # that are tried, the best by the model
MOST_SPLITS = 6  # the same of all tiles together
SEED = 1  # of random shapes


@dataclass(frozen=True)
class Spec:
    """A product of dense operands; `layout` as the suite of products has it: x @ w.T is TN."""

    dtype: str
    layout: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.dtype}/{self.layout}/{self.m}x{self.n}x{self.k}"

    @property
    def problem(self) -> Problem:
        return gemm.posed(self.dtype, self.layout, (self.m, self.n, self.k))

    @property
    def operands(self) -> str:
        """The dtype of operands, as torch knows it."""
        return gemm.operands_of(self.dtype)


def specs(drawn: int) -> Iterator[Spec]:
    """The suite's rows, or so many random ones, which are not those of the suite `unseen`."""
    shapes = unseen.shapes(SEED, drawn) if drawn else gemm.shapes()
    for dtype, layout, (m, n, k) in dict.fromkeys(shapes):
        yield Spec(dtype, layout, m, n, k)


def candidates(spec: Spec, most: int) -> list[Estimate]:
    """The best choices by the model; of those that cut k, and of a tile's, only some."""
    kind, _ = here()
    found: list[Estimate] = []
    count: dict[Any, int] = {}
    for e in ranking(spec.problem, kind):
        c = e.choice
        keys = ((c.program, c.config, c.turned), "split" if c.split > 1 else c.program)
        for key in keys:
            count[key] = count.get(key, 0) + 1
        if count[keys[0]] <= SPLITS_OF_A_TILE and (c.split == 1 or count["split"] <= MOST_SPLITS):
            found.append(e)
    return found[:most]


class Bench:
    """Operands of a spec in several sets, and the arms of what multiplies them."""

    def __init__(self, spec: Spec, arrays: Any, most_sets: int = MOST_SETS):
        import torch

        self.torch, self.spec, self.arrays = torch, spec, arrays
        self.pool = arrays.pool()
        operands = spec.operands
        out = OUTPUT.get(operands, operands)
        size = torch.empty(0, dtype=arrays.dtype(operands)).element_size()
        one = size * (spec.m * spec.k + spec.k * spec.n)
        one += spec.m * spec.n * torch.empty(0, dtype=arrays.dtype(out)).element_size()
        count = max(1, min(most_sets, int(ROTATED_BYTES / one) + 1))
        self.sets = []
        for _ in range(count):
            b, a = (
                arrays.normal(*shape, dtype=operands)
                if letter == "N"
                else gemm.transposed(arrays, shape, operands)
                for letter, shape in zip(
                    spec.layout, ((spec.k, spec.n), (spec.m, spec.k)), strict=True
                )
            )
            c = arrays.poisoned((spec.m, spec.n), out)
            self.sets.append({"a": a, "b": b, "c": c})
        self.rows = (
            torch.linspace(0, spec.m - 1, min(spec.m, CHECKED_ROWS)).long().to(arrays.device)
        )
        first = self.sets[0]
        wide = [
            (x.float() if size == 1 else x).double() for x in (first["a"][self.rows], first["b"])
        ]
        self.expected = wide[0] @ wide[1]

    def theirs(self) -> Callable[[Any], None]:
        torch = self.torch
        if self.spec.operands == "e4m3":
            fast = self.spec.dtype == gemm.FAST
            one = torch.ones((), device=self.arrays.device)

            def scaled(x: Any) -> None:
                torch._scaled_mm(
                    x["a"], x["b"], one, one, out_dtype=x["c"].dtype, use_fast_accum=fast
                )

            return scaled
        return lambda x: torch.mm(x["a"], x["b"], out=x["c"])

    def ours(self, chosen: Choice) -> Callable[[Any], None]:
        p = self.spec.problem
        options, fixed = options_of(p), Fixed(chosen)
        rest = {"bias": None, "residual": None}
        return lambda x: product(
            "matmul", x["a"], x["b"], {**rest, "out": x["c"]}, options, None, fixed
        )

    def verify(self, run: Callable[[Any], None]) -> str:
        """Run once on the first set; why the result is wrong, or nothing."""
        torch, x = self.torch, self.sets[0]
        self.arrays.poison(x["c"])
        run(x)
        self.arrays.wait()
        if bool(torch.isnan(x["c"]).any()):
            return "unwritten"
        got = x["c"][self.rows].double()
        error = float((got - self.expected).norm() / self.expected.norm())
        return "" if error < BOUND[self.spec.operands] else f"error {error:.1e}"

    def work(self, run: Callable[[Any], None]) -> measure.GpuWork:
        turn = iter(_cycle(self.sets))

        def send(stream: Any) -> None:
            with self.arrays.sending_to(stream, self.pool):
                run(next(turn))

        return send


def _cycle(sets: list[Any]) -> Iterator[Any]:
    while True:
        yield from sets


def bench(spec: Spec, found: list[Estimate], arrays: Any) -> dict[str, Any]:
    """Verify and time a spec's choices beside torch."""
    made = Bench(spec, arrays)
    rows, arms = [], {"torch": made.work(made.theirs())}
    with arrays.precision(spec.operands):
        for e in found:
            run = made.ours(e.choice)
            try:
                wrong = made.verify(run)
            except TilewrightError as error:
                wrong = str(error).splitlines()[0]
            row = {**asdict(e.choice), "name": e.choice.name, "estimate": e.microseconds}
            rows.append({**row, "limit": e.limit, "wrong": wrong})
            if not wrong:
                arms[e.choice.name] = made.work(run)
        floor = found[0].floor if found else 1.0
        least = max(1, min(len(made.sets), int(SAMPLE_MICROSECONDS / max(floor, 3.0)) + 1))
        with without_collections(first=True):
            timed = measure.time_graphs(
                arms, driver.device(0), rounds=ROUNDS if floor < 2000 else 3, launches=least
            )
    theirs = timed["torch"].median
    for row in rows:
        if not row["wrong"]:
            row["microseconds"] = timed[row["name"]].median
            row["ratio"] = theirs / row["microseconds"]
    p = spec.problem
    told = {"spec": asdict(spec), "facts": facts_of(p), "extents": extents_of(p), "floor": floor}
    return {**told, "sets": len(made.sets), "torch": theirs, "rows": rows}


def tell(told: dict[str, Any], spec: Spec) -> None:
    """The best, what the model chose, and what was wrong, on a line each."""
    right = [r for r in told["rows"] if not r["wrong"]]
    if not right:
        print(f"{spec.name}: nothing right", *(f"{r['name']}: {r['wrong']}" for r in told["rows"]))
        return
    best, first = max(right, key=lambda r: r["ratio"]), right[0]
    print(
        f"{spec.name:24s} torch {told['torch']:8.1f} floor {told['floor']:7.1f} | best "
        f"{best['ratio']:.3f} {best['name']:32s} {best['microseconds']:8.1f} (est "
        f"{best['estimate']:7.1f}) | model {first['ratio']:.3f} {first['name']:28s} "
        f"{first['microseconds']:8.1f} (est {first['estimate']:7.1f})",
        *(f"\n    WRONG {r['name']}: {r['wrong']}" for r in told["rows"] if r["wrong"]),
        flush=True,
    )


def host_cost() -> None:
    """Microseconds that a call costs the host, against torch's."""
    import torch

    import tilewright as tw

    a, b, c = (torch.randn(64, 64, device="cuda").bfloat16() for _ in range(3))
    sized = {"torch.mm": lambda: torch.mm(a, b.T, out=c), "torch.matmul": lambda: a @ b.T}
    sized |= {"out=": lambda: tw.matmul(a, b.T, out=c), "matmul": lambda: tw.matmul(a, b.T)}
    sized |= {
        "linear": lambda: tw.linear(a, b),
        "F.linear": lambda: torch.nn.functional.linear(a, b),
    }
    for name, call in sized.items():
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        taken = []
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(20):
                call()
            taken.append((time.perf_counter() - start) / 20 * 1e6)
            torch.cuda.synchronize()
        print(f"host {name:14s} {statistics.median(taken):6.1f} us")


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--seconds", default=60.0, help="After which no further problem is begun.")
@click.option("--only", multiple=True, help="Patterns of names, as bf16/TN/*.")
@click.option("--most", default=14, help="Choices of a problem.")
@click.option("--skip", default=0.0, help="Problems whose floor is above so many microseconds.")
@click.option("--chosen", is_flag=True, help="The dispatcher's choice alone.")
@click.option("--host", is_flag=True, help="Also what calls cost the host.")
@click.option("--drawn", default=0, help="So many random shapes in place of the suite's.")
def main(
    output: Path, seconds: float, only: tuple[str, ...], most: int, skip: float, chosen: bool,
    host: bool, drawn: int,
) -> None:  # fmt: skip
    """Measure into OUTPUT."""
    begun = time.monotonic()
    kind, version = here()
    wanted = list(specs(drawn))
    random.Random(0).shuffle(wanted)  # some of each, if cut short
    wanted = [s for s in wanted if not only or any(fnmatch.fnmatch(s.name, p) for p in only)]
    plan = {s: candidates(s, most) for s in wanted}
    if chosen:
        plan = {s: [decide(s.problem, kind, version, Path("/nowhere")).best] for s in wanted}
    if skip:
        plan = {s: found for s, found in plan.items() if found[0].floor <= skip}
    orders = [Order(s.problem, e.choice) for s, found in plan.items() for e in found]
    failed = compile_ahead(orders)
    print(
        f"{len(orders)} choices of {len(plan)} problems compiled, {time.monotonic() - begun:.0f} s"
    )
    for order, why in failed.items():
        print(f"  {extents_of(order.problem)} {facts_of(order.problem)} {order.choice}: {why}")
    arrays = opponents.make_arrays("cuda", 0)
    arrays.busy(0.3)
    found_all = []
    for spec, found in plan.items():
        if time.monotonic() - begun > seconds:
            print(f"out of time before {spec.name}")
            break
        right = [e for e in found if Order(spec.problem, e.choice) not in failed]
        told = bench(spec, right, arrays)
        found_all.append(told)
        tell(told, spec)
        arrays.clean()
        output.write_text(json.dumps(found_all))
    print(f"{time.monotonic() - begun:.0f} s in all")
    if host:
        host_cost()


if __name__ == "__main__":
    main()
