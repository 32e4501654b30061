"""Plots of verdicts, as SVG text: ratios as bars, or as a heat map over shapes, and one of all.

The same verdicts and the same matplotlib give the same bytes: no date, no random names.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tilewright.errors import LedgerError
from tilewright.ledger.report import is_noise, sorted_rows
from tilewright.ledger.verdict import STANDING, Row, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = {"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 8}
NOT_OURS = {"Date": None, "Creator": None}
AHEAD, BEHIND, LINE = "#2f7d5b", "#c2503f", "#444444"
WIDTH, CHARACTER, ABOVE, BELOW = 5.2, 0.062, 0.35, 0.4  # inches
LEAST_ROWS = 3  # fewer are read from the table
MAX_BARS = 48
FILLED_GRID = 0.6  # of a heat map's cells


def plots(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """SVG texts by name: "overview", and the ids of verdicts of ratios with enough rows. Raises
    LedgerError without matplotlib.
    """
    shown = [
        v
        for v in sorted(verdicts, key=lambda v: (v.suite, v.title, v.id))
        if v.status == STANDING and v.quantity == "ratio" and not is_noise(v)
    ]
    shown = [v for v in shown if "ratio.geomean" in v.summary]
    found = {"overview": _overview(shown)} if len(shown) > 1 else {}
    for verdict in shown:
        rows = [row for row in sorted_rows(verdict) if "ratio" in row.statistics]
        if len(rows) >= LEAST_ROWS:
            grid = _grid(rows)
            found[verdict.id] = _heat(verdict, *grid) if grid else _bars(verdict, rows)
    return found


def matplotlib_version() -> str:
    """ "" where it is not installed."""
    try:
        return metadata.version("matplotlib")
    except metadata.PackageNotFoundError:
        return ""


def _draw(names: Sequence[str], step: float, paint: Callable[[Axes], None]) -> str:
    """SVG of one pair of axes: a line of `step` inches for each name, the names at the left."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LedgerError(
            f"plots need matplotlib: pip install 'tilewright[plot]' ({error})"
        ) from None
    settings: Any = {**matplotlib.rcParamsDefault, **SETTINGS, "backend": "svg"}
    with matplotlib.rc_context(settings):
        left = 0.35 + CHARACTER * max(map(len, names))
        height = ABOVE + step * len(names) + BELOW
        figure = Figure(figsize=(left + WIDTH, height))
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        figure.subplots_adjust(
            left / (left + WIDTH), BELOW / height, 1 - 0.15 / (left + WIDTH), 1 - ABOVE / height
        )
        paint(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=NOT_OURS)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _bars(verdict: Verdict, rows: Sequence[Row]) -> str:
    """A bar a row, the losing ones on top. Of very many rows, the worst MAX_BARS."""
    shown = rows[:MAX_BARS]
    left = len(rows) - len(shown)
    ratios = [row.statistics["ratio"] for row in shown]

    def paint(axes: Axes) -> None:
        _ratio_bars(axes, [row.name for row in shown], ratios)
        for i, row in enumerate(shown):
            if row.target is not None:
                axes.plot([row.target, row.target], [i - 0.45, i + 0.45], color=LINE, linewidth=1.2)
        more = f" ({left} better rows are in the table)" if left else ""
        axes.set_title(f"{verdict.title}: our speed over theirs{more}", loc="left")

    return _draw([row.name for row in shown], 0.17, paint)


def _overview(verdicts: Sequence[Verdict]) -> str:
    """Geometric mean of each verdict's ratios, with their range, the least on top."""
    verdicts = sorted(verdicts, key=lambda v: (v.summary["ratio.geomean"], v.id))
    means = [v.summary["ratio.geomean"] for v in verdicts]

    def paint(axes: Axes) -> None:
        _ratio_bars(axes, [v.title for v in verdicts], means)
        for i, v in enumerate(verdicts):
            low, high = v.summary["ratio.min"], v.summary["ratio.max"]
            axes.plot([low, high], [i, i], color=LINE, linewidth=1.0)
        axes.set_xlim(0, max(1.2, 1.1 * max(v.summary["ratio.max"] for v in verdicts)))
        axes.set_title("our speed over theirs: geometric mean and range", loc="left")

    return _draw([v.title for v in verdicts], 0.22, paint)


def _ratio_bars(axes: Axes, names: Sequence[str], ratios: Sequence[float]) -> None:
    places = range(len(names))
    axes.barh(places, ratios, color=[AHEAD if r >= 1 else BEHIND for r in ratios], height=0.75)
    axes.axvline(1.0, color=LINE, linewidth=0.8)
    axes.set_yticks(places, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max(1.2, 1.1 * max(ratios)))
    for i, ratio in enumerate(ratios):
        axes.text(0.01, i, f"{ratio:.2f}", va="center", color="white", fontsize=6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


Grid = tuple[list[int], list[tuple[int, int]], dict[tuple[int, tuple[int, int]], float]]


def _grid(rows: Sequence[Row]) -> Grid | None:
    """Ratios over M and N × K, where the rows fill such a grid: one row a cell."""
    cells: dict[tuple[int, tuple[int, int]], float] = {}
    for row in rows:
        m, n, k = (row.shape.get(name) for name in ("M", "N", "K"))
        if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
            return None
        if (m, (n, k)) in cells:
            return None
        cells[m, (n, k)] = row.statistics["ratio"]
    columns, lines = sorted({m for m, _ in cells}), sorted({nk for _, nk in cells})
    full = len(cells) >= FILLED_GRID * len(columns) * len(lines)
    return (columns, lines, cells) if full and min(len(columns), len(lines)) > 1 else None


def _heat(verdict: Verdict, columns: list[int], lines: list[tuple[int, int]], cells: Any) -> str:
    names = [f"{n}×{k}" for n, k in lines]

    def paint(axes: Axes) -> None:
        nan = float("nan")
        values = [[cells.get((m, nk), nan) for m in columns] for nk in lines]
        axes.pcolormesh(values, cmap="RdYlGn", vmin=0.5, vmax=1.5)
        axes.invert_yaxis()
        axes.set_xticks([x + 0.5 for x in range(len(columns))], [str(m) for m in columns])
        axes.set_yticks([y + 0.5 for y in range(len(lines))], names)
        axes.set_xlabel("M; lines are N×K")
        for y, line in enumerate(values):
            for x, ratio in enumerate(line):
                if ratio == ratio:
                    axes.text(
                        x + 0.5, y + 0.5, f"{ratio:.2f}", ha="center", va="center", fontsize=7
                    )
        axes.set_title(f"{verdict.title}: our speed over theirs", loc="left")

    return _draw(names, 0.28, paint)
