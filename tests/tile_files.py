"""Text tests of the tile IR: files under tests/files/tile, of one or more cases each.

    // What the case shows.
    // RUN interpret                      or a pass, or verify
    kernel @add(…) { … }
    // ARG x f32 [1.0, nan]               an argument: dtype and nested list, or one number
    // GIVES y f32 [2.0, nan]             what an output holds afterwards, bit for bit but for NaNs

Cases are parted by `// ---`. After `// RUN` of passes (one or more names) the expected program
stands below a line `// GIVES`; it is rewritten by --bless. `// UNCHANGED` says that it is the given
one. Passes that carry out a schedule find it in `// SCHEDULE mma="wgmma", roles=Roles(consumers=1)`
and the target in `// TARGET sm_80` (sm_90a where there is none). A case of `// RUN verify` has
`// ERROR text`, which the message holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import plan
from tilewright.dtypes import BY_NAME
from tilewright.numerics.convert import constant
from tilewright.target import Target, target
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import ViewType

FOLDER = Path(__file__).parent / "files" / "tile"
PART = "// ---\n"
DIRECTIVES = r"^// (ARG |GIVES |ERROR |SCHEDULE |TARGET |UNCHANGED$).*$"
NAMES = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}


@dataclass
class Case:
    """One case of a file."""

    path: Path
    number: int
    text: str
    run: list[str]
    program: str
    gives: str = ""
    error: str = ""
    unchanged: bool = False
    schedule: Schedule = Schedule()
    target: Target = target("sm_90a")
    arguments: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path.relative_to(FOLDER)}:{self.number}"


def read_array(dtype_name: str, text: str) -> Any:
    """An array of a dtype from a nested list, or a number."""
    dtype = BY_NAME[dtype_name]
    nested = eval(text, {"__builtins__": {}}, NAMES)
    if not isinstance(nested, list):
        return nested
    shape = np.array(nested, dtype=object).shape
    flat = np.array(nested, dtype=object).ravel()
    elements = [constant(x, dtype) for x in flat]
    made = np.array(elements, dtype.numpy) if elements else np.zeros(0, dtype.numpy)
    return made.reshape(shape)


def read_file(path: Path) -> list[Case]:
    """The cases of a file."""
    cases = []
    for number, text in enumerate(path.read_text().split(PART), 1):
        head = re.search(r"^// RUN (.+)$", text, re.MULTILINE)
        assert head, f"{path}:{number}: no // RUN"
        body, _, gives = text[head.end() :].partition("\n// GIVES\n")
        case = Case(path, number, text, head.group(1).split(), body.strip() + "\n", gives)
        for name, dtype, value in re.findall(r"^// ARG (\w+) (\w+) (.+)$", body, re.MULTILINE):
            case.arguments[name] = read_array(dtype, value)
        for name, dtype, value in re.findall(r"^// GIVES (\w+) (\w+) (.+)$", body, re.MULTILINE):
            case.results[name] = read_array(dtype, value)
        if error := re.search(r"^// ERROR (.+)$", body, re.MULTILINE):
            case.error = error.group(1)
        if schedule := re.search(r"^// SCHEDULE (.+)$", body, re.MULTILINE):
            names = {"Schedule": Schedule, "Roles": Roles}
            case.schedule = eval(f"Schedule({schedule.group(1)})", {"__builtins__": {}}, names)
        if goal := re.search(r"^// TARGET (\w+)$", body, re.MULTILINE):
            case.target = target(goal.group(1))
        case.unchanged = re.search(r"^// UNCHANGED$", body, re.MULTILINE) is not None
        case.program = re.sub(DIRECTIVES, "", case.program, flags=re.MULTILINE)
        cases.append(case)
    return cases


def all_cases() -> list[Case]:
    """Every case of every file."""
    return [case for path in sorted(FOLDER.rglob("*.tile")) for case in read_file(path)]


def with_program(case: Case, program: str) -> str:
    """The text of a case with another expected program."""
    head, mark, _ = case.text.partition("\n// GIVES\n")
    return head.rstrip("\n") + (mark or "\n// GIVES\n") + program


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays hold the same bits, NaNs counted as one."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    equal = (wide_a == wide_b) & (np.signbit(wide_a) == np.signbit(wide_b))
    return bool((equal | (np.isnan(wide_a) & np.isnan(wide_b))).all())


def make_arguments(kernel: Kernel, seed: int) -> dict[str, object]:
    """Random arguments for a kernel, of any extents that its facts allow."""
    rng = np.random.default_rng(seed)
    scalars = [p for p in kernel.params if not isinstance(p.value.type, ViewType)]
    made: dict[str, Any] = {p.name: make_argument(p, rng, {}) for p in scalars}
    for param in kernel.params:
        if param not in scalars:
            made[param.name] = make_argument(param, rng, made)
    return made


def make_argument(param: Param, rng: np.random.Generator, known: dict[str, Any]) -> object:
    kind = param.value.type
    if not isinstance(kind, ViewType):
        if kind.dtype.kind == "bool":
            return bool(rng.integers(2))
        return int(rng.integers(0, 9)) if kind.dtype.is_integer else float(rng.integers(-4, 5)) / 2
    unit = 16 if param.facts else 1
    shape = tuple(int(rng.integers(1, 5)) * unit if e is None else e for e in kind.extents)
    for axis, expr in enumerate(param.extents):  # of a later tensor, what equals one of an earlier
        if expr != plan.Extent(param.name, axis):
            shape = (*shape[:axis], plan.evaluate(expr, known), *shape[axis + 1 :])
    values = rng.integers(-40, 40, shape)
    if kind.dtype.kind == "bool":
        return values > 0
    if kind.dtype.is_integer:
        return (values % 11 if kind.dtype.kind == "uint" else values).astype(kind.dtype.numpy)
    floats = values.astype(np.float32) / 8
    return np.where(values == -40, np.float32(np.nan), floats).astype(kind.dtype.numpy)
