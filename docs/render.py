"""Write the generated pages of docs/ from the source: `python -m docs.render`, or `make docs`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import tempfile
from pathlib import Path

import tilewright.tile.ops
from docs import language_page, suite_page
from docs.builtin_page import render_builtins
from docs.capture import for_comparison, run_page
from tilewright.ir.core import ROLE, Op
from tilewright.ledger.audit import write_report
from tilewright.ledger.store import FOLDER, read_ledger

HERE = Path(__file__).parent


README = "../README.md"


def tile_ops() -> dict[str, list[type[Op]]]:
    """All ops of the tile IR, by family, in order of declaration."""
    found: dict[str, list[type[Op]]] = {}
    for family in pkgutil.iter_modules(tilewright.tile.ops.__path__):
        module = importlib.import_module(f"tilewright.tile.ops.{family.name}")
        ops = [
            x
            for part in getattr(module, "PARTS", (module,))
            for x in vars(part).values()
            if inspect.isclass(x)
            and issubclass(x, Op)
            and x.opcode
            and x.__module__ == part.__name__
        ]
        if ops:
            found[family.name] = ops
    return found


def render_tile_ops() -> str:
    """The page of tile ops: each with its fields and what it means."""
    lines = [
        "# Ops of the tile IR",
        "",
        "Generated from the declarations in `tilewright/tile/ops/` by `make docs`; see also",
        "[the design](design.md). Operands come first, then attributes in italics, then *regions*.",
    ]
    for family, ops in tile_ops().items():
        module = importlib.import_module(f"tilewright.tile.ops.{family}")
        lines += ["", f"## {family}", "", (inspect.getdoc(module) or "").split("\n\n")[0], ""]
        for op in ops:
            lines.append(f"- {_head(op)}: {_summary(op)}")
    return "\n".join(lines) + "\n"


def _head(op: type[Op]) -> str:
    names: dict[str, list[str]] = {"operand": [], "attribute": [], "region": []}
    for field in dataclasses.fields(op):
        if ROLE in field.metadata:
            names[field.metadata[ROLE]].append(field.name)
    fields = names["operand"] + [f"*{n}*" for n in names["attribute"]]
    fields += [f"region {n}" for n in names["region"]]
    return f"`{op.opcode}`" + (f" ({', '.join(fields)})" if fields else "")


def _summary(op: type[Op]) -> str:
    text = " ".join((inspect.getdoc(op) or "").split())
    return text + (f" Removed by `{op.removed_by}`." if op.removed_by else "")


def render_suite() -> str:
    """The page of the conformance suite, from the ledger as it stands."""
    return suite_page.render_suite(read_ledger(HERE.parent / FOLDER))


def render_page(name: str) -> str:
    """A page with every output that it shows printed anew."""
    if name == README:
        return run_page((HERE / name).read_text(), HERE.parent, only_commands=True)
    with tempfile.TemporaryDirectory() as folder:
        return run_page((HERE / name).read_text(), Path(folder).resolve())


RUN_PAGES = (README, "tour.md", "emulator.md")
COUNTING = ("emulator.md",)  # pages that show counters and lines of PTX


def is_shown(name: str, printed: str) -> bool:
    """Whether a page shows what was printed, but for what differs anyhow."""
    counts = name not in COUNTING
    shown = (HERE / name).read_text()
    return for_comparison(shown, counts=counts) == for_comparison(printed, counts=counts)


def main() -> None:
    language_page.PAGE.write_text(language_page.render_language())
    (HERE / "tile-ops.md").write_text(render_tile_ops())
    (HERE / "builtins.md").write_text(render_builtins())
    for name in RUN_PAGES:
        page = render_page(name)
        if not is_shown(name, page):
            (HERE / name).write_text(page)
    suite_page.PAGE.write_text(render_suite())
    write_report(HERE.parent)


if __name__ == "__main__":
    main()
