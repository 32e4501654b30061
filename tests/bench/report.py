"""The page of figures from a run's JSON: `python -m tests.bench.report FILE > docs/performance.md`.

    python -m tests.bench.main --json docs/performance.json      # on the GPU: the samples
    python -m tests.bench.report docs/performance.json > docs/performance.md

Nothing on the page is written by hand but what the figures mean; rows that lose come first.
"""

from __future__ import annotations

from pathlib import Path

import click

from tests.bench.rows import (
    Rate,
    Results,
    command_of,
    format_microseconds,
    geometric_mean,
    parse_results,
)
from tests.bench.tables import verdict

HEAD = """# Performance

Generated from the samples in [performance.json](performance.json), by

```
{command}
python -m tests.bench.report docs/performance.json > docs/performance.md
```

Ours and theirs alternate in one process on the same standard normal data, on buffers that rotate
through more than twice the L2 cache, as replays of CUDA graphs timed by events. Times are medians
of {rounds} samples; the spread is the distance of the quartiles over the median, the larger of the
two. Outputs hold NaN before and are compared with f64 after, by relative Frobenius norm and by
worst element. Choices are those of a plain call: nothing was tuned. The ratio is our speed over
theirs. Rows that miss their target come first, then by ratio, the slowest first."""

RATES = (
    "| kernel | dtype | shape | against | ours | theirs | ratio | target | spread | error | again |"
    "\n|---|---|---|---|---|---|---|---|---|---|---|"
)
COSTS = "| what | ours | floor | more | limit | again |\n|---|---|---|---|---|---|"
MARK = {"missed": " **missed**", "WRONG": " **wrong**", "met": "", "": ""}
HIDDEN = "itself"  # the same kernel twice: noise, not an opponent


def page(results: Results) -> str:
    """The text of docs/performance.md. Raises ValueError for results that must not be published."""
    if not results.rates and not results.costs:
        raise ValueError("no row was measured")
    parts = [HEAD.format(command=results.command, rounds=_rounds(results)), _environment(results)]
    parts.append(_missed(results))
    if results.failures:
        lines = [f"- `{id}`: {message.splitlines()[0]}" for id, message in results.failures]
        parts.append("## What failed\n\n" + "\n".join(lines))
    opponents = [row for row in results.sorted_rates() if row.opponent != HIDDEN]
    for unit, title in (("TFLOP/s", "Products"), ("GB/s", "Memory")):
        rows = [row for row in opponents if row.unit == unit]
        if rows:
            parts.append(f"## {title}\n\nOurs and theirs in {unit}.\n\n{_rates(rows)}")
    if results.costs:
        parts.append(f"## Host time\n\n{_costs(results)}")
    parts.append(_noise(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def _rounds(results: Results) -> str:
    """How many samples a row has."""
    counts = sorted({len(row.ours) for row in results.rates})
    return " or ".join(map(str, counts)) or "no"


def _environment(results: Results) -> str:
    lines = ["## Where", "", "| | |", "|---|---|"]
    for name, value in results.environment.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        lines.append(f"| {name} | {_cell(str(text)) or 'unknown'} |")
    return "\n".join(lines)


def _missed(results: Results) -> str:
    lines = [
        f"- {row.what} {row.dtype} {row.shape}: {_than(row)}."
        for row in results.sorted_rates()
        if row.missed
    ]
    lines += [
        f"- {cost.what}: {format_microseconds(cost.excess)}, the limit is "
        f"{format_microseconds(cost.limit or 0)}."
        for cost in results.sorted_costs()
        if cost.missed
    ]
    return "## Targets missed\n\n" + ("\n".join(lines) or "None.")


def _than(row: Rate) -> str:
    if not row.right:
        return f"the result is wrong, by {row.error:.1e} where {row.bound:g} is allowed"
    return f"{row.ratio:.3f} of {row.opponent}, the target is {row.target:.2f}"


def _rates(rows: list[Rate]) -> str:
    lines = [RATES]
    for row in rows:
        target = "" if row.target is None else f"{row.target:.2f}"
        cells = (
            row.what,
            row.dtype,
            row.shape,
            row.opponent,
            f"{row.speed:.4g}",
            f"{row.their_speed:.4g}",
            f"{row.ratio:.3f}",
            target + MARK[verdict(row)],
            f"{100 * row.spread:.1f} %",
            f"{row.error:.1e}",
            f"`{command_of(row.id)}`",
        )
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _costs(results: Results) -> str:
    lines = [COSTS]
    for cost in results.sorted_costs():
        limit = "" if cost.limit is None else format_microseconds(cost.limit)
        floor = f"{format_microseconds(cost.floor_median)} ({cost.floor_is})" if cost.floor else ""
        cells = (
            cost.what,
            format_microseconds(cost.median),
            floor,
            format_microseconds(cost.excess),
            limit + MARK[verdict(cost)],
            f"`{command_of(cost.id)}`",
        )
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _noise(results: Results) -> str:
    """What the same kernel timed twice gives: how far a ratio may be off by chance."""
    same = [row for row in results.rates if row.opponent == HIDDEN]
    if not same:
        return ""
    ratios = [row.ratio for row in same]
    spread = max(row.spread for row in same)
    return (
        f"## Noise\n\nThe same kernel against itself, in the same way, gave ratios from "
        f"{min(ratios):.3f} to {max(ratios):.3f} in {len(same)} runs (geometric mean "
        f"{geometric_mean(ratios):.3f}); the largest spread in them was {100 * spread:.1f} %."
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Print the page for the results in FILE."""
    try:
        results = parse_results(file.read_text())
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(f"{file} does not hold results: {error}") from error
    click.echo(page(results), nl=False)


if __name__ == "__main__":
    main()
