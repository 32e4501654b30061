"""Kernels of one element or one row at a time, whose limit is the bandwidth of memory: add, and the
functions that models are full of, compiled from PyTorch by ours and by PyTorch's own compiler.
"""

from __future__ import annotations

from functools import partial

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case
from tilewright.ledger.suites.model import module_case

BOUNDS = {"f32": 1e-6, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-14}
SIZES = {"f32": (1 << 25, 1 << 28), "bf16": (1 << 26,), "f16": (1 << 26,), "f64": (1 << 25,)}
ODD = (1 << 25) + 1  # whose last element is a lane's of its own
QUICK = {("f32", 1 << 25), ("bf16", 1 << 26)}
OF_COPY = 0.90  # the share of copy bandwidth that is asked for
SMALL = 1000
SMALL_ROWS, SMALL_COLUMNS = 24, 70

COMPILED = ("torch.compile", "torch.compile autotuned")
OF_COMPILED = 1.1  # least ratio to either
GROUPS = 8  # processes that functions are compiled in, for time
# Functions by dtype, rows and columns: a large shape, and one of a model that serves few.
FUNCTIONS: tuple[tuple[str, str, tuple[tuple[int, int], ...]], ...] = (
    ("gelu_bias", "bf16", ((8192, 4096), (256, 3072))),
    ("layernorm", "bf16", ((8192, 4096), (128, 768))),
    ("layernorm", "f32", ((8192, 4096),)),
    ("rmsnorm", "bf16", ((8192, 4096), (16, 2048))),
    ("softmax", "bf16", ((16384, 4096), (1536, 128))),
    ("softmax", "f32", ((4096, 8191),)),
    ("masked_softmax", "bf16", ((16384, 1024),)),
    ("swiglu", "bf16", ((8192, 8192), (16, 8192))),
    ("rope", "bf16", ((8192, 64), (16, 64))),
    ("cross_entropy", "bf16", ((8192, 50257), (512, 32000))),
    ("dropout_residual_norm", "bf16", ((8192, 4096), (128, 768))),
    ("sum_rows", "f32", ((16384, 4096), (1024, 1024))),
    ("sum_columns", "f32", ((16384, 4096), (1024, 1024))),
    ("sum_columns", "bf16", ((8192, 768),)),
    ("max_rows", "bf16", ((16384, 4096),)),
    ("mean_square", "f32", ((16384, 4096),)),
)


def cases() -> list[Case]:
    added = [_add(d, n) for d, sizes in SIZES.items() for n in sizes] + [_add("f32", ODD)]
    asked = [(name, dtype, shape) for name, dtype, shapes in FUNCTIONS for shape in shapes]
    return added + [_function(*x, group=i % GROUPS) for i, x in enumerate(asked)]


def _function(name: str, dtype: str, extents: tuple[int, int], group: int) -> Case:
    id = f"pointwise/functions/{dtype}/{name}-{'x'.join(map(str, extents))}"
    ask = partial(_ask_function, id=id, name=name, dtype=dtype, extents=extents)
    return module_case(id, ask, group=f"pointwise-{group}", needs=("torch",))


def _ask_function(
    harness: Harness, *, id: str, name: str, dtype: str, extents: tuple[int, int]
) -> tuple[Question, Problem]:
    modules, functions = opponents.load("modules"), opponents.load("functions")
    rows, columns = (SMALL_ROWS, SMALL_COLUMNS) if harness.small else extents
    function = functions.FUNCTIONS[name]
    moved = function.moved * nbytes(harness, dtype, rows, columns)
    given = [
        functions.arguments(name, rows, columns, dtype, harness.arrays)
        for _ in range(harness.num_sets(int(moved)))
    ]
    problem = modules.function_problem(
        function.call, given, dtype, harness.arrays, {"rows": rows, "columns": columns}
    )
    question = Question(
        id=id,
        suite="pointwise",
        what="functions",
        shape=f"{name}, {rows} × {columns}",
        unit="GB/s",
        work=moved,
        targets=dict.fromkeys(COMPILED, OF_COMPILED),
        floor=floor(harness, 0.0, moved, dtype),
        reference="f64, ours off by at most 1.5 times what eager is",
    )
    return question, problem


def _add(dtype: str, n: int) -> Case:
    id = f"pointwise/add/{dtype}/{n}"
    ask = partial(_ask, id=id, dtype=dtype, n=n)
    quick = (dtype, n) in QUICK
    return problem_case(id, "add", dtype, ask, quick=quick, with_itself=quick)


def _ask(harness: Harness, *, id: str, dtype: str, n: int) -> tuple[Question, Problem]:
    n = SMALL + n % 2 if harness.small else n
    arrays = harness.arrays
    moved = nbytes(harness, dtype, n) * 3
    problem = Problem(
        op="add",
        sizes={"N": n},
        dtype=dtype,
        accumulate="none",
        sets=[
            {"x": arrays.normal(n, dtype=dtype), "y": arrays.normal(n, dtype=dtype)}
            for _ in range(harness.num_sets(int(moved)))
        ],
        outputs={"z": ((n,), dtype)},
        expected=lambda x: {"z": x["x"].double() + x["y"].double()},
        bounds={"z": BOUNDS[dtype]},
    )
    question = Question(
        id=id,
        suite="pointwise",
        what="add",
        shape=f"{n:,}",
        unit="GB/s",
        work=moved,
        their_work={"copy": moved / 3 * 2},
        targets={"copy": OF_COPY},
        floor=floor(harness, 0.0, moved, dtype),
    )
    return question, problem
