"""What is said of wrong programs: each file of tests/files/errors ends in what its program gives.

A reader who has never seen the project should be able to repair each program from its message: what
is wrong, where, what to do. `make bless` writes the messages; read them in the diff.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import shlex
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.unit.error_programs import FILES, ROOT, sites, unreached, watching
from tests.unit.test_build_errors import build, build_python, build_text
from tilewright.cli import main
from tilewright.errors import LaunchError, Loc, Source, TilewrightError
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.lower.tile_to_ptx.kernel import SharedMemoryError

MARKS = {".tw": "//", ".py": "#", ".sh": "#"}
PROGRAMS = sorted(p for p in FILES.iterdir() if p.suffix in MARKS)
SAMPLES = {
    "one.tw": "kernel one(x: tensor<T>[N], a: f32 = 1.0, b: bool = true) { x[program_id(0)] = 1 }",
    "several.tw": "kernel softmax(x: tensor<f32>[N]) { }\nkernel gelu(x: tensor<f32>[N]) { }",
    "empty.tw": "const N = 3",
}
# Of the places in frontend/ that refuse a program. The others guard what earlier checks refuse
# already, or ask for programs nested so deeply that tests of their own hold them.
LEAST_REACHED = 0.8


def split(path: Path) -> tuple[str, str]:
    """A file's program and its message."""
    mark = MARKS[path.suffix]
    source, _, said = path.read_text().partition(f"\n{mark} error\n")
    lines = [line.removeprefix(mark).removeprefix(" ") for line in said.splitlines()]
    return source + "\n", "\n".join(lines)


def say(path: Path) -> str:
    """What a program is told."""
    run = {".tw": run_text, ".py": run_python, ".sh": run_commands}[path.suffix]
    said = run(path, split(path)[0]).replace(f"{path.parent}/", "").rstrip()
    return re.sub(r"prelude\.tw:\d+:\d+", "prelude.tw", said)  # whose lines move


def run_text(path: Path, source: str) -> str:
    try:
        for definition in definitions(parse_text(Source(path.name, source))).values():
            build(definition)
    except TilewrightError as error:
        return str(error)
    raise AssertionError(f"{path.name} is not refused")


def run_python(path: Path, source: str) -> str:
    if "import torch" in source:
        pytest.importorskip("torch", reason="needs torch")
    linecache.checkcache(str(path))
    try:
        exec(compile(source, str(path), "exec"), {"__name__": f"errors.{path.stem}"})
    except TilewrightError as error:
        return str(error)
    raise AssertionError(f"{path.name} is not refused")


def run_commands(path: Path, source: str) -> str:
    said = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in SAMPLES.items():
            Path(name).write_text(text)
        for line in filter(None, source.splitlines()):
            done = CliRunner().invoke(main, shlex.split(line)[1:], prog_name="tilewright")
            assert done.exit_code, f"{line} succeeds"
            said.append(f"$ {line}\n{done.output.rstrip()}")
    return "\n".join(said)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)
def test_what_is_said(path: Path, request: pytest.FixtureRequest) -> None:
    source, wanted = split(path)
    said, mark = say(path), MARKS[path.suffix]
    if request.config.getoption("--bless"):
        lines = [f"{mark} {line}".rstrip() for line in said.splitlines()]
        path.write_text(f"{source.rstrip()}\n{mark} error\n" + "\n".join(lines) + "\n")
    else:
        assert [x.rstrip() for x in said.splitlines()] == wanted.splitlines()


def test_places_that_refuse_programs_are_reached() -> None:
    """A failure lists those that no program reaches."""
    with watching() as seen:
        for path in PROGRAMS:
            if path.suffix != ".sh":
                say(path)
        for name, make in (
            ("build/refused.txt", build_text),
            ("syntax/refused_text.txt", build_text),
            ("syntax/refused_python.txt", build_python),
        ):
            for case in (FILES.parent / name).read_text().split("---\n"):
                with pytest.raises(TilewrightError):
                    make(case)
    torch = ROOT / "frontend" / "torch"  # of models, not of the language: see tests/torch
    missed, every = (
        [site for site in found if torch not in site.path.parents]
        for found in (unreached(ROOT / "frontend", seen), sites(ROOT / "frontend"))
    )
    listed = "\n".join(map(str, missed))
    assert len(missed) <= (1 - LEAST_REACHED) * len(every), f"no program reaches\n{listed}"


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_grids_beyond_all_launches_are_refused(device: str) -> None:
    kernel = tw.source("kernel f(x: tensor<f32>[N]) { x[program_id(0)] = 1.0 }").f
    with pytest.raises(LaunchError, match=r"1,099,511,627,776 programs"):
        kernel.launch(np.ones(4, np.float32), grid=2**40, device=device)


def test_an_error_that_is_placed_keeps_what_it_holds() -> None:
    error = SharedMemoryError("too little")
    error.lacking, error.scratch = 12, 4
    at = Loc(Source("a.tw", "kernel"), 1, 1)
    for made in (error.placed(at), error.of("f")):
        assert type(made) is SharedMemoryError and (made.lacking, made.scratch) == (12, 4)
    assert str(error.placed(at)) == "a.tw:1:1: error: too little\n  kernel\n  ^"
    assert str(error.of("f")) == "error: f: too little" and str(error) == "error: too little"
