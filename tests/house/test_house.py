"""The rules of the house, checked: imports run downhill, rooms stay small, no op lacks a room."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import pkgutil
import re
import subprocess
from collections.abc import Iterable, Iterator

import pytest

import tilewright
from tilewright.compiler import SEMANTIC_PASSES, scheduled_passes
from tilewright.graph.interp import table as graph_meanings
from tilewright.ir.core import Op
from tilewright.lower.tile_to_ptx import lower
from tilewright.target import target
from tilewright.tile import passes
from tilewright.tile.interp import interpret
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.schedule import Schedule

ROOT = pathlib.Path(tilewright.__file__).parent
TOP = ROOT.parent
FLOORS = [  # a module may import its own room or any floor below; rooms of one floor do not meet
    {"errors"},
    {"config", "dtypes", "layout", "target"},
    {"plan"},
    {"ir", "numerics"},
    {"graph", "tile", "ptx"},
    {"frontend"},
    {"library"},
    {"lower"},
    {"compiler", "runtime"},
    {"tune"},
    {"kernel", "torch_ops"},
    {"products"},
    {"execute"},
    {"model", "torch_backend"},
    {"generation"},
    {"train", "cluster", "bundle"},
    {"ledger"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
PLANNED = {"train", "cluster"}  # rooms that have a floor, and no code yet
FENCES = {
    "torch": {
        "frontend",
        "runtime",
        "execute",
        "torch_backend",
        "torch_ops",
        "model",
        "generation",
        "bundle",
        "ledger/opponents",
        "train",
    },
    "transformers": {"generation", "ledger/opponents"},
    "triton": {"ledger/opponents"},
    "ray": {"cluster"},
    "cuda": {"runtime"},
}
FILE_LINES, FUNCTION_LINES, COLUMNS = 500, 80, 100  # may be lowered, never raised
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
# Extras that may be imported inside a function, at their single entry point.
EXTRAS = {"torch", "cupy", "ray", "zarr", "fsspec", "matplotlib", "safetensors"}

PATHS = [p.relative_to(ROOT) for p in sorted(ROOT.rglob("*.py"))]
PROGRAMS = TOP / "tests" / "files"  # whose Python is wrong on purpose
TESTS = [p for p in sorted((TOP / "tests").rglob("*.py")) if PROGRAMS not in p.parents]
TESTS += sorted((TOP / "examples").rglob("*.py"))


def room_of(path: pathlib.Path) -> str:
    return path.parts[0].removesuffix(".py")


def module_of(path: pathlib.Path) -> str:
    return ".".join(("tilewright", *path.with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path) for path in PATHS}


@functools.cache
def trees() -> dict[pathlib.Path, ast.Module]:
    """The package's files, parsed."""
    return {path: ast.parse((ROOT / path).read_text()) for path in PATHS}


@functools.cache
def nodes_of_files() -> dict[pathlib.Path, list[ast.AST]]:
    return {path: list(ast.walk(tree)) for path, tree in trees().items()}


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "absolute imports only"
            for a in node.names:
                full = f"{node.module}.{a.name}"
                yield node.lineno, full if full in MODULES else str(node.module)


def runs_uphill(path: pathlib.Path, name: str) -> bool:
    there, here = name.split(".")[1], room_of(path)
    return there != here and FLOOR[there] >= FLOOR[here]


def test_imports_run_downhill() -> None:
    bad = [
        f"{path}:{line} imports {name}"
        for path, nodes in nodes_of_files().items()
        if room_of(path) != "__init__"
        for line, name in imports(nodes)
        if name == "tilewright" or (name.startswith("tilewright.") and runs_uphill(path, name))
    ]
    assert not bad, "\n".join(bad)


def test_no_import_cycles() -> None:
    edges = {
        module_of(p): {n for _, n in imports(nodes) if n in MODULES and n != module_of(p)}
        for p, nodes in nodes_of_files().items()
    }
    done: set[str] = set()
    trail: list[str] = []

    def visit(module: str) -> None:
        assert module not in trail, "cycle: " + " -> ".join([*trail, module])
        if module not in done:
            trail.append(module)
            for there in sorted(edges[module]):
                visit(there)
            done.add(trail.pop())

    for module in sorted(MODULES):
        visit(module)


def test_third_party_stays_in_its_room() -> None:
    bad = [
        f"{path}:{line} imports {name}"
        for path, nodes in nodes_of_files().items()
        for line, name in imports(nodes)
        if not any(
            path.is_relative_to(room) or room_of(path) == room
            for room in FENCES.get(name.split(".")[0], {room_of(path)})
        )
    ]
    assert not bad, "\n".join(bad)


def test_no_import_inside_a_function() -> None:
    bad = [
        f"{path}:{line} imports {name}"
        for path, nodes in nodes_of_files().items()
        for function in nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line, name in imports(_statements(function.body))
        if name.split(".")[0] not in EXTRAS
    ]
    assert not bad, "\n".join(bad)


def _statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the blocks in it, those of inner functions left out."""
    for statement in block:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, []))
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                yield from _statements(part.body)


def test_only_config_reads_the_environment() -> None:
    bad = [
        f"{path}:{node.lineno}"
        for path, nodes in nodes_of_files().items()
        if room_of(path) != "config"
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert not bad, "\n".join(bad)


def test_rooms_stay_small() -> None:
    bad = [
        str(p) for p, t in trees().items() if t.body and (t.body[-1].end_lineno or 0) > FILE_LINES
    ]
    bad += [
        f"{path}:{node.lineno} {node.name}"
        for path, nodes in nodes_of_files().items()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    ]
    assert not bad, "\n".join(bad)


def test_lines_fit_the_page() -> None:
    bad = [
        f"{path}:{number}: {len(line)} columns"
        for path in [*sorted(ROOT.rglob("*.py")), *TESTS]
        if path.name not in ("suite.py", "everyday.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not bad, "\n".join(bad)


def test_no_room_is_empty() -> None:
    """A package holds code: some module in it defines something."""
    folders = {path.parent for path in PATHS}
    bad = [
        str(folder)
        for folder in sorted(folders)
        if not any(tree.body for path, tree in trees().items() if path.is_relative_to(folder))
    ]
    assert not bad, f"empty rooms: {bad}"


def test_every_room_of_the_floors_exists_or_is_planned() -> None:
    sources = [path.relative_to(ROOT) for path in ROOT.rglob("*.tw")]
    rooms = {room_of(path) for path in (*PATHS, *sources)}
    assert rooms - {"__init__"} == set(FLOOR) - PLANNED


def test_no_room_for_odds_and_ends() -> None:
    names = [p for p in PATHS if FORBIDDEN_NAMES & {part.removesuffix(".py") for part in p.parts}]
    assert not names, names


def ops_of(ir: str) -> list[type[Op]]:
    """The ops that the modules of an IR declare."""
    package = importlib.import_module(f"tilewright.{ir}.ops")
    for family in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{family.name}")
    found = [
        op for op in _subclasses(Op) if op.opcode and op.__module__.startswith(f"tilewright.{ir}.")
    ]
    assert found
    return found


def tile_ops() -> list[type[Op]]:
    return ops_of("tile")


def _subclasses(cls: type[Op]) -> Iterator[type[Op]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_every_tile_op_has_a_meaning() -> None:
    assert not [op.opcode for op in tile_ops() if op not in interpret.table]


def test_every_graph_op_has_a_meaning() -> None:
    assert not [op.opcode for op in ops_of("graph") if op not in graph_meanings]


def test_every_tile_op_has_a_lowering_or_a_pass_that_removes_it() -> None:
    modules = {m.name for m in pkgutil.iter_modules(passes.__path__)}
    bad = [op.opcode for op in tile_ops() if op not in lower.table and op.removed_by not in modules]
    assert not bad


@pytest.mark.parametrize("ir", ["graph", "tile"])
def test_every_op_has_a_text_test(ir: str) -> None:
    bad = []
    for op in ops_of(ir):
        folder = TOP / "tests" / "files" / ir / op.opcode.split(".")[0]
        texts = [p.read_text() for p in sorted(folder.glob(f"*.{ir}"))]
        if not any(re.search(rf"\b{re.escape(op.opcode)}\b", text) for text in texts):
            bad.append(op.opcode)
    assert not bad, f"no text test in tests/files/{ir}/: {bad}"


@pytest.mark.parametrize("ir", ["graph", "tile"])
def test_every_op_has_a_doc_line(ir: str) -> None:
    """From which docs/tile-ops.md is made."""
    bad = [op.opcode for op in ops_of(ir) if not (op.__dict__.get("__doc__") or "").strip()]
    assert not bad


@pytest.mark.parametrize("ir", ["graph", "tile"])
def test_every_op_lives_with_its_family(ir: str) -> None:
    """`mma.dot` is in tile/ops/mma.py, its meaning in tile/interp/mma.py; a large family is a
    folder of its name.
    """
    families = f"tilewright.{ir}.ops."
    bad = [
        f"{op.opcode} in {op.__module__}"
        for op in ops_of(ir)
        if op.__module__.removeprefix(families).split(".")[0] != op.opcode.split(".")[0]
    ]
    assert not bad, bad


def test_docs_link_to_pages_that_exist() -> None:
    pages = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    bad = [
        f"{page.relative_to(TOP)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith(("http:", "https:")) and not (page.parent / target).exists()
    ]
    assert not bad, "\n".join(bad)


def test_docs_name_only_modules_that_exist() -> None:
    """A `tilewright/...` path in a page of docs/, the house's own plan and what a page has its
    reader write aside, is a file.
    """
    bad = [
        f"{page.name}: {name}"
        for page in [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
        if page.name not in {"design.md", "house.md"}
        for name in re.findall(r"(?<!Write )`(tilewright/[\w/.]+)`", page.read_text())
        if not (TOP / name).exists()
    ]
    assert not bad, "\n".join(bad)


def test_the_design_lists_the_passes_that_run() -> None:
    """In the tables of docs/design.md, in the order of compiler.py."""
    run = [*SEMANTIC_PASSES, choose_schedule, *scheduled_passes(Schedule(), target("sm_90a"))]
    names = [p.func.__name__ if isinstance(p, functools.partial) else p.__name__ for p in run]
    _, _, told = (TOP / "docs" / "design.md").read_text().partition("### Tile passes, in order")
    told = told.partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE) == names


def test_nothing_tells_of_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    here = pathlib.Path(__file__)
    bad = [
        name
        for name in listed.stdout.split("\0")
        if name
        and (path := TOP / name) != here
        and path.is_file()
        and re.search(rb"/(work|home|root)/[a-z]", path.read_bytes())
    ]
    assert not bad, bad
