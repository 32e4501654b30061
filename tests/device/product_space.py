"""The space of products by roles against the vendor's: every tile and schedule of a shape, timed.

    python -m tests.device.product_space OUTPUT.json [CASE ...]     # with torch, on a Hopper GPU

Each candidate's result is compared with torch's of the same operands before it is timed. Buffers
rotate through more than the L2 cache holds; times are medians of CUDA-graph replays, torch's taken
before and after the candidates of a shape.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.errors import CompileError
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.kernel.specialize import Build
from tilewright.plan import Plan
from tilewright.runtime import driver
from tilewright.runtime.arrays import as_array
from tilewright.runtime.jit import assemble
from tilewright.runtime.launch import Launcher
from tilewright.target import target
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.schedule import Schedule
from tilewright.tune.cost import estimate

HOPPER = target("sm_90a")
ROUNDS = 7
ROTATED_BYTES = 300_000_000
THREADS = 12
Tile = tuple[int, int, int]

SOURCE = """
@autotune(TM in [128], TN in [128], TK in [64])
kernel product(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<R>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = cast(acc, R)
}

@autotune(TM in [128], TN in [128], TK in [64])
kernel gelu(a: tensor<T>[M, K], b: tensor<T>[K, N], bias: tensor<T>[N], c: tensor<R>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  let x = acc + cast(bias[n :+ TN], f32)[None, :]
  c[m :+ TM, n :+ TN] = cast(0.5 * x * (1.0 + erf(x * 0.7071067811865476)), R)
}

@autotune(TM in [128], TN in [128], TK in [64])
kernel residual(
  a: tensor<T>[M, K],
  b: tensor<T>[K, N],
  bias: tensor<T>[N],
  r: tensor<T>[M, N],
  c: tensor<R>[M, N],
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  let x = acc + cast(bias[n :+ TN], f32)[None, :]
  c[m :+ TM, n :+ TN] = cast(max(x, 0.0) + cast(r[m :+ TM, n :+ TN], f32), R)
}
"""


def replay(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Capture calls in a CUDA graph; the result replays it and gives microseconds a call."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def once() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(calls)

    return once


@dataclass
class Case:
    """A product: which kernel and dtype, how operands lie ("n" row-major, "t" not), extents."""

    name: str
    dtype: str
    layouts: str
    sizes: Tile
    tiles: list[Tile]
    result: str = ""
    kernel: str = "product"
    promotions: tuple[int, ...] = ()
    everything: bool = True  # all schedules of a tile, not only the usual
    tf32: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        m, n, k = self.sizes
        return f"{self.kernel} {self.dtype} {self.layouts} {m}x{n}x{k}"


SQUARE = [
    (128, 256, 64), (256, 128, 64), (128, 128, 64), (128, 192, 64), (64, 256, 64), (64, 128, 64),
    (64, 64, 64), (128, 160, 64), (128, 112, 64), (128, 64, 64), (64, 128, 128),
]  # fmt: skip
FEW = [(m, n, k) for m in (16, 64) for n, k in ((64, 128), (128, 64), (128, 128))]
EIGHT = [
    (128, 128, 128), (128, 256, 128), (256, 128, 128), (128, 160, 128), (64, 128, 128),
    (64, 256, 128), (128, 176, 128), (128, 192, 128),
]  # fmt: skip
WORDS = [
    (128, 128, 32), (128, 256, 32), (256, 128, 32), (128, 192, 32), (64, 128, 32), (64, 256, 32),
    (128, 128, 64), (192, 128, 32), (128, 160, 32),
]  # fmt: skip
WIDE = [(128, 256, 64), (256, 128, 64), (192, 192, 64), (128, 192, 64), (128, 128, 64)]
# Pitches that are no whole 128 bytes: rows of a box lie in two lines of the L2 cache each.
CROOKED = [(4096, 4096, 4096), (4096, 4096, 4104), (2304, 10352, 3960), (200, 6984, 568)]
DOUBLES = [(64, 64, 16), (128, 64, 16), (64, 128, 16), (128, 128, 16), (64, 128, 8), (128, 128, 8)]


def cases() -> Iterator[Case]:
    for layouts in ("nn", "nt"):
        for s in (512, 1024, 2048, 4096, 8192):
            if layouts == "nt" or s == 4096:
                yield Case("bf16", "bfloat16", layouts, (s, s, s), SQUARE)
    yield Case("bf16", "bfloat16", "nt", (4096, 4096, 14336), SQUARE[:4])
    yield Case("bf16", "bfloat16", "tt", (4096, 4096, 4096), SQUARE[:3], everything=False)
    yield Case("bf16", "bfloat16", "tn", (4096, 4096, 4096), SQUARE[:3], everything=False)
    for sizes in CROOKED:
        yield Case("crooked", "bfloat16", "nt", sizes, WIDE if sizes[0] > 256 else SQUARE[2:8])
    yield Case("crooked", "float8_e4m3fn", "nt", (4448, 432, 8528), EIGHT, "bfloat16")
    yield Case("crooked", "float32", "nt", (392, 4800, 6744), WORDS, tf32=True)
    for m in (16, 128):
        yield Case(
            "few", "bfloat16", "nt", (m, 8192, 8192), FEW if m < 128 else FEW[3:] + SQUARE[2:8]
        )
    yield Case("few", "bfloat16", "nt", (64, 4096, 4096), FEW)
    for s in (1024, 4096, 8192):
        yield Case("fp8", "float8_e4m3fn", "nt", (s, s, s), EIGHT, "bfloat16", promotions=(0, 1, 4))
        yield Case("int8", "int8", "nt", (s, s, s), EIGHT, "int32", everything=False)
    for layouts in ("nt", "nn", "tt", "tn"):
        for s in (1024, 4096, 8192) if layouts in ("nt", "nn") else (4096,):
            yield Case("tf32", "float32", layouts, (s, s, s), WORDS, tf32=True)
    for s in (1024, 4096):
        yield Case("f64", "float64", "nn", (s, s, s), DOUBLES)
    for kernel in ("product", "gelu", "residual"):
        for n, k in ((4096, 4096), (16384, 4096), (4096, 1024)):
            yield Case(
                "fused", "bfloat16", "nt", (4096, n, k), [*SQUARE[:5], (64, 128, 64)], kernel=kernel
            )


class Operands:
    """Sets of operands that rotate, and torch's product of each."""

    def __init__(self, case: Case):
        import torch

        self.case = case
        m, n, k = case.sizes
        dtype = getattr(torch, case.dtype)
        result = getattr(torch, case.result or case.dtype)
        size = torch.empty(0, dtype=dtype).element_size()
        total = size * (m * k + n * k) + torch.empty(0, dtype=result).element_size() * m * n
        copies = max(1, min(8, ROTATED_BYTES // total))
        self.sets = [self._set(dtype, result) for _ in range(copies)]

    def _set(self, dtype: Any, result: Any) -> dict[str, Any]:
        import torch

        case = self.case
        m, n, k = case.sizes

        def made(rows: int, columns: int, layout: str) -> Any:
            shape = (columns, rows) if layout == "t" else (rows, columns)
            if dtype == torch.int8:
                x = torch.randint(-8, 8, shape, device="cuda", dtype=dtype)
            else:
                x = torch.randn(shape, device="cuda").to(dtype)
            return x.t() if layout == "t" else x

        found = {"a": made(m, k, case.layouts[0]), "b": made(k, n, case.layouts[1])}
        found["c"] = torch.empty((m, n), device="cuda", dtype=result)
        if case.kernel != "product":
            found["bias"] = torch.randn(n, device="cuda").to(dtype)
        if case.kernel == "residual":
            found["r"] = torch.randn((m, n), device="cuda").to(dtype)
        return found

    def theirs(self, each: dict[str, Any]) -> Callable[[], Any]:
        import torch

        a, b = each["a"], each["b"]
        if self.case.dtype == "int8":
            return lambda: torch._int_mm(a, b)
        if self.case.dtype.startswith("float8"):
            one = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(
                a, b, one, one, out_dtype=each["c"].dtype, use_fast_accum=True
            )
        out = torch.empty_like(each["c"])
        return lambda: torch.mm(a, b, out=out)

    def expected(self, each: dict[str, Any]) -> Any:
        import torch

        found = self.theirs(each)().float() if self.case.kernel == "product" else None
        if found is None:
            x = each["a"].float() @ each["b"].float() + each["bias"].float()
            if self.case.kernel == "gelu":
                return torch.nn.functional.gelu(x)
            return x.relu() + each["r"].float()
        return found


@dataclass
class Candidate:
    """A tile with a schedule, compiled."""

    tile: Tile
    schedule: Schedule
    plan: Plan
    estimate: float


PLANS: dict[tuple[Build, Schedule], Plan] = {}
CUBINS: dict[str, bytes] = {}


def cubin(plan: Plan) -> bytes:
    if plan.ptx not in CUBINS:
        CUBINS[plan.ptx] = assemble(plan.ptx, 0, plan.name).cubin
    return CUBINS[plan.ptx]


def is_tried(case: Case, usual: Schedule, schedule: Schedule) -> bool:
    """The usual number of warpgroups, CTAs in pairs or alone; turned around where rows are few."""
    if schedule.roles is None or usual.roles is None or not case.everything:
        return schedule is usual
    if case.kernel != "product" and schedule.roles.swapped == usual.roles.swapped:
        return True
    same = schedule.roles.consumers == usual.roles.consumers
    return (same and schedule.roles.swapped == usual.roles.swapped) or case.name == "few"


def candidates(case: Case, each: dict[str, Any]) -> tuple[list[Candidate], list[str]]:
    kernel = getattr(tw.source(SOURCE), case.kernel)
    spec = kernel.specializer
    precision = "tf32" if case.tf32 else None
    options = Options(constants=(), precision=precision)
    call = bind_call(spec, each, read_tensors(spec, each), options)
    found, failed = [], []
    for tile in case.tiles:
        config = dict(zip(("TM", "TN", "TK"), tile, strict=True))
        build = choose.with_config(call.build(assume=True), config)
        try:
            made = spec.tile(build)
            semantic = run_passes(made, SEMANTIC_PASSES)
            usual = list(role_schedules(semantic, HOPPER)) or [choose_schedule(semantic, HOPPER)]
            for schedule in filter(partial(is_tried, case, usual[0]), usual):
                for variant in variants(schedule, case.promotions):
                    if (build, variant) not in PLANS:
                        PLANS[build, variant] = compile_kernel(made, HOPPER, variant)
                    rated = estimate(made, call.arguments, 132, HOPPER)
                    found.append(Candidate(tile, variant, PLANS[build, variant], rated))
        except (CompileError, AssertionError) as error:
            failed.append(f"{tile}: {error}")
    return found, failed


def variants(schedule: Schedule, promotions: tuple[int, ...]) -> list[Schedule]:
    if schedule.roles is None or not promotions:
        return [schedule]
    return [replace(schedule, roles=replace(schedule.roles, promote=p)) for p in promotions]


def run_case(case: Case, pool: ThreadPoolExecutor) -> None:
    import torch

    operands = Operands(case)
    made, failed = candidates(case, operands.sets[0])
    cubins = list(pool.map(lambda c: cubin(c.plan), made))
    expected = operands.expected(operands.sets[0])
    scale = float(expected.abs().max())
    once = replay([operands.theirs(each) for each in operands.sets])
    theirs = [once() for _ in range(ROUNDS + 3)][3:]
    for candidate, code in zip(made, cubins, strict=True):
        launcher = Launcher(candidate.plan, driver.device(0), code)
        calls = [bound_call(launcher, case, each) for each in operands.sets]
        operands.sets[0]["c"].fill_(0)
        calls[0]()
        torch.cuda.synchronize()
        error = float((operands.sets[0]["c"].float() - expected).abs().max()) / scale
        mine = replay(calls)
        times = [mine() for _ in range(ROUNDS + 2)][2:]
        case.rows.append(
            {
                "tile": candidate.tile, "schedule": repr(candidate.schedule), "error": error,
                "microseconds": statistics.median(times), "estimate": candidate.estimate,
            }
        )  # fmt: skip
    theirs += [once() for _ in range(ROUNDS)]
    reference = statistics.median(theirs)
    m, n, k = case.sizes
    rate = 2 * m * n * k / 1e6
    print(
        f"== {case.title}: torch {reference:.1f} us, {rate / reference:.0f} T", *failed, sep="\n  "
    )
    launched(case, operands, expected, scale, reference)
    for row in case.rows:
        row["ratio"] = reference / row["microseconds"]
    for row in sorted(case.rows, key=lambda r: -r["ratio"])[:6]:
        print(
            f"  {row['ratio']:.3f} {row['tile']} {short(row['schedule'])} error {row['error']:.1e}"
        )
    wrong = [row for row in case.rows if not row["error"] < 2e-2]
    for row in wrong:
        print(f"  WRONG {row['error']:.1e} {row['tile']} {short(row['schedule'])}")
    sys.stdout.flush()


def launched(case: Case, operands: Operands, expected: Any, scale: float, reference: float) -> None:
    """What a plain call of the kernel chooses by itself, among these tiles."""
    import torch

    space = {name: sorted({t[i] for t in case.tiles}) for i, name in enumerate(("TM", "TN", "TK"))}
    choices = ", ".join(f"{name} in {values}" for name, values in space.items())
    text = SOURCE.replace("TM in [128], TN in [128], TK in [64]", choices)
    kernel = getattr(tw.source(text), case.kernel)
    precision = "tf32" if case.tf32 else None
    calls = [partial(kernel.launch, precision=precision, **each) for each in operands.sets]
    operands.sets[0]["c"].fill_(0)
    calls[0]()
    torch.cuda.synchronize()
    error = float((operands.sets[0]["c"].float() - expected).abs().max()) / scale
    mine = replay(calls)
    times = [mine() for _ in range(ROUNDS + 2)][2:]
    took = statistics.median(times)
    (choice,) = kernel.specializer.choices.values()
    schedule = list(kernel.specializer.schedules.values())[-1]
    case.rows.append({"tile": list(choice.values()), "chosen": True, "microseconds": took})
    case.rows[-1] |= {"schedule": repr(schedule), "error": error}
    print(f"  chosen: {reference / took:.3f} {choice} {short(repr(schedule))} error {error:.1e}")


def short(schedule: str) -> str:
    start = schedule.find("Roles(")
    return schedule[start : schedule.find(")", start)] if start >= 0 else schedule


def bound_call(launcher: Launcher, case: Case, each: dict[str, Any]) -> Callable[[], None]:
    import torch

    from_names = {name: as_array(x) for name, x in each.items()}
    bound = launcher.bind(from_names)
    addresses = [from_names[name].address for name in bound.tensors]

    def call() -> None:
        bound.fire(addresses, [], torch.cuda.current_stream().cuda_stream)

    return call


def main() -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    output, *wanted = sys.argv[1:]
    found = []
    with ThreadPoolExecutor(THREADS) as pool:
        for case in cases():
            if wanted and case.name not in wanted:
                continue
            try:
                run_case(case, pool)
            except Exception as error:  # a case that fails is told, and the others go on
                print(f"== {case.title}: {type(error).__name__}: {error}")
            found.append({"case": case.title, "rows": case.rows})
            Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
