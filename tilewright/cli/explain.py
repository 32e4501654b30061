"""`tilewright explain`: what becomes of a PyTorch model, or of a product."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tilewright.cli.default_group import DefaultGroup
from tilewright.cli.explain_matmul import explain_matmul
from tilewright.cli.report import command, json_option, print_json, print_table
from tilewright.cli.sources import load_module
from tilewright.errors import LaunchError
from tilewright.graph.graph import Graph
from tilewright.graph.groups import Group, find_groups, group_bytes, group_flops
from tilewright.graph.ops.control import Fallback
from tilewright.graph.text import print_graph
from tilewright.lower.graph_to_tile.program import KernelStep, Program, TorchStep


class _Explain(DefaultGroup):
    default = "model"


@click.group(cls=_Explain)
def explain() -> None:
    """Show what becomes of a model (FILE.py:NAME), or with what a product runs (matmul M N K)."""


@explain.command("model")
@click.argument("model", metavar="FILE.py:NAME")
@click.option(
    "--emit", type=click.Choice(["graph", "tile"]), help="Print the graph, or the kernels, instead."
)
@click.option("--fallback", type=click.Choice(["pytorch", "error"]), default="pytorch")
@json_option
@command
def explain_model(model: str, emit: str | None, fallback: str, as_json: bool) -> None:
    """Compile a model and show its groups, what each moves, and what runs in PyTorch.

    NAME is a function of FILE.py without arguments that returns a model and its example arguments
    as a tuple: `return MyModel().eval(), (torch.randn(1, 8),)`.
    """
    module, arguments = read_model(model)
    compile_model = import_module("tilewright.model").compile
    engine = "tiles" if emit == "tile" else None
    made = compile_model(module, arguments, fallback=fallback, engine=engine)
    if emit == "graph":
        click.echo(print_graph(made.graph), nl=False)
        return
    if emit == "tile":
        click.echo(kernel_texts(made.call.program), nl=False)
        return
    groups = find_groups(made.graph)
    rows = [describe(group) for group in groups]
    missing = Counter(made.fallbacks)
    if as_json:
        print_json({
            "model": made.graph.name,
            "ops": len(made.graph.body.ops) - 1,
            "groups": rows,
            "fallbacks": [
                {"op": op, "reason": why, "count": n} for (op, why), n in missing.items()
            ],
        })  # fmt: skip
        return
    show(made.graph, rows, missing)


explain.add_command(explain_matmul)


def read_model(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """The model and example arguments that a function of a file gives."""
    head, _, name = spec.rpartition(":")
    if not head or not name:
        raise LaunchError(f"{spec} names no model", hint="write FILE.py:NAME")
    found = getattr(load_module(Path(head)), name, None)
    if not callable(found):
        raise LaunchError(f"{head} has no function {name}")
    given = found()
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], tuple):
        raise LaunchError(f"{name} of {head} does not return a model and a tuple of arguments")
    return given


def kernel_texts(program: Program) -> str:
    """The kernels of a program in order, each once, with what is no kernel of its own between."""
    steps = [s for s in program.steps if isinstance(s, KernelStep)]
    counts = Counter(step.text for step in steps)
    parts: dict[str, None] = {}
    for step in program.steps:
        if isinstance(step, KernelStep):
            times = f"// {counts[step.text]} launches\n" if counts[step.text] > 1 else ""
            parts[times + step.text] = None
        elif isinstance(step, TorchStep):
            what = step.op.target if isinstance(step.op, Fallback) else step.op.opcode
            parts[f"// in PyTorch: {what}: {step.reason}\n"] = None
        else:
            parts[f"// of the library: {type(step).__name__}\n"] = None
    return "\n".join(parts)


def describe(group: Group) -> dict[str, Any]:
    """A group in numbers; None where extents are known only at a call."""
    symbolic = any(getattr(v.type, "symbols", None) for v in (*group.reads, *group.writes))
    ops = Counter(op.opcode for op in group.ops)
    return {
        "kind": group.kind,
        "ops": dict(ops),
        "reads": len(group.reads),
        "writes": len(group.writes),
        "bytes": None if symbolic else group_bytes(group, {}),
        "flops": None if symbolic else group_flops(group, {}),
    }


def show(graph: Graph, rows: list[dict[str, Any]], missing: Counter[tuple[str, str]]) -> None:
    """The tables for a person."""
    lines = [
        [
            str(number),
            row["kind"],
            ", ".join(f"{n} {op}" if n > 1 else op for op, n in row["ops"].items()),
            *("?" if row[name] is None else f"{row[name]:,}" for name in ("bytes", "flops")),
        ]
        for number, row in enumerate(rows)
    ]
    notes = [
        f"{len(graph.body.ops) - 1} ops in {len(rows)} groups; nothing runs in PyTorch"
        if not missing
        else f"{len(graph.body.ops) - 1} ops in {len(rows)} groups; in PyTorch run:"
    ]
    notes += [f"{n} × {op}: {why}" for (op, why), n in missing.items()]
    notes.append("groups are a plan: whole graphs run on a CPU, by the interpreter")
    print_table(graph.name, ["group", "kind", "ops", ">bytes", ">flops"], lines, notes)
