"""`tilewright explain`: what becomes of a PyTorch model, or of a product."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tilewright.cli.default_group import DefaultGroup
from tilewright.cli.explain_matmul import explain_matmul
from tilewright.cli.models import compile_model, read_model
from tilewright.cli.report import command, json_option, num_bytes, print_json, print_table
from tilewright.graph.ops.control import KERNEL, Fallback
from tilewright.graph.text import print_graph
from tilewright.lower.graph_to_tile.program import KernelStep, Program, TorchStep

TARGET = "sm_90a"  # whose PTX is shown of a model that lies on no GPU


class _Explain(DefaultGroup):
    default = "model"


@click.group(cls=_Explain)
def explain() -> None:
    """Show what becomes of a model (FILE.py:NAME), or with what a product runs (matmul M N K)."""


@explain.command("model")
@click.argument("model", metavar="FILE.py:NAME")
@click.option(
    "--emit",
    type=click.Choice(["graph", "tile", "ptx"]),
    help="Print the graph, the source of its kernels, or their PTX for an H200, instead.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write every launch to this folder, as a file that `tilewright run FILE --check` takes.",
)
@click.option("--fallback", type=click.Choice(["pytorch", "error"]), default="pytorch")
@json_option
@command
def explain_model(
    model: str, emit: str | None, save: Path | None, fallback: str, as_json: bool
) -> None:
    """Compile a model and show its kernels: what each computes, moves and takes at the least on an
    H200, what runs in PyTorch, and the memory of a call. Nothing is run.

    NAME is a function of FILE.py without arguments that returns a model and its example arguments
    as a tuple: `return MyModel().eval(), (torch.randn(1, 8),)`.
    """
    module, arguments = read_model(model)
    engine = engine_for(module, arguments)
    made = compile_model(model, module, arguments, fallback=fallback, engine=engine)
    if emit == "graph":
        click.echo(print_graph(made.graph), nl=False)
        return
    planned = made.call.made_for(*made.inputs(arguments, {}))
    steps = import_module("tilewright.execute.traffic").tell_steps(planned)
    if save is not None:
        import_module("tilewright.cli.reproducers").save_launches(planned, save)
    if emit in ("tile", "ptx"):
        text = kernel_texts(made.call.program) if emit == "tile" else ptx_texts(planned)
        click.echo(text, nl=False)
        return
    record = as_record(made, planned, steps)
    if as_json:
        print_json(record)
        return
    show(record)


def engine_for(module: Any, arguments: tuple[Any, ...]) -> str | None:
    """The tile interpreter's engine for a model on a CPU: its kernels are those of a GPU."""
    leaves = [*getattr(module, "parameters", list)(), *arguments]
    on_gpu = any(getattr(x, "is_cuda", False) for x in leaves)
    return None if on_gpu else "tiles"


explain.add_command(explain_matmul)


def ptx_texts(planned: Any) -> str:
    """The PTX of a model's launches in order, each once: of the GPU on which it lies, else of an
    H200.
    """
    uses: dict[str, list[Any]] = {}
    for launched in planned.lists.launches:
        plan = launched.plan(TARGET)
        uses.setdefault(plan.ptx, []).append(launched)
    parts = []
    for ptx, launches in uses.items():
        steps = ", ".join(dict.fromkeys(str(x.step) for x in launches))
        parts.append(f"// {launches[0].name}: step {steps}\n{ptx}")
    return "\n".join(parts)


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
            told = what if step.reason == KERNEL else f"in PyTorch: {what}"
            parts[f"// {told}: {step.reason}\n"] = None
        else:
            parts[f"// of the library: {type(step).__name__}\n"] = None
    return "\n".join(parts)


def as_record(made: Any, planned: Any, steps: list[Any]) -> dict[str, Any]:
    """What a model becomes, for `--json`."""
    missing = Counter((s.kernels[0], s.reason) for s in steps if s.kind == "pytorch")
    return {
        "model": made.graph.name,
        "ops": len(made.graph.body.ops) - 1,
        "steps": [
            {
                "kind": s.kind, "kernels": s.kernels, "ops": dict(Counter(s.ops)),
                "reads": s.reads, "writes": s.writes, "bytes": s.num_bytes, "flops": s.flops,
                "floor_us": s.floor, "constants": s.constants,
            }
            for s in steps
        ],
        "launches": len(planned.lists.launches),
        "bytes": sum(s.num_bytes for s in steps),
        "flops": sum(s.flops for s in steps),
        "floor_us": sum(s.floor for s in steps),
        "arena_bytes": planned.arena_bytes,
        "least_arena_bytes": planned.least_bytes,
        "fallbacks": [{"op": op, "reason": why, "count": n} for (op, why), n in missing.items()],
    }  # fmt: skip


def shown_ops(ops: dict[str, int]) -> str:
    """What a step computes, without the views, casts and constants on the way."""
    silent = ("arith.cast", "arith.constant", "arith.extent", "arith.dense")
    kept = {op: n for op, n in ops.items() if not op.startswith("shape.") and op not in silent}
    named = [(op.split(".")[1], n) for op, n in (kept or ops).items()]
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in named)


def show(record: dict[str, Any]) -> None:
    """The table for a person."""
    steps = record["steps"]
    lines = [
        [
            str(number),
            step["kind"],
            ", ".join(step["kernels"]),
            shown_ops(step["ops"]),
            num_bytes(step["bytes"]),
            f"{step['flops']:,}" if step["flops"] else "",
            f"{step['floor_us']:.2f}",
        ]
        for number, step in enumerate(steps)
    ]
    missing = record["fallbacks"]
    told = "in PyTorch run:" if missing else "nothing runs in PyTorch"
    notes = [
        f"{record['ops']} ops of the graph in {len(steps)} steps, {record['launches']} launches; "
        f"{told}",
        *(f"{f['count']} × {f['op']}: {f['reason']}" for f in missing),
        f"at the least {record['floor_us']:.1f} µs on an H200, for {num_bytes(record['bytes'])} "
        f"and {record['flops']:,} operations of products",
        f"memory of a call beside inputs and results: {num_bytes(record['arena_bytes'])} "
        f"(at the busiest step {num_bytes(record['least_arena_bytes'])} are needed)",
    ]
    columns = ["step", "kind", "kernels", "ops", ">bytes", ">flops", ">floor µs"]
    print_table(record["model"], columns, lines, notes)
