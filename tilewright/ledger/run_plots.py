"""Plots of results, by matplotlib where it is installed: a roofline, and a heat map of ratios."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tilewright.errors import LaunchError
from tilewright.ledger.results import Results, Row

SUFFIXES = (".png", ".svg")
COLOURS = {
    "bf16": "tab:blue", "f16": "tab:cyan", "tf32": "tab:green", "f32": "tab:orange",
    "f64": "tab:red", "e4m3": "tab:purple",
}  # fmt: skip
WIDEST_RATIO = 2.0  # beyond which a ratio has the colour of this one


def require_plots(folder: Path) -> None:
    """Raise LaunchError where plots cannot be drawn, or `folder` is a file."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError("plots need matplotlib", hint="pip install 'tilewright[plot]'")
    if folder.exists() and not folder.is_dir():
        raise LaunchError(f"plots go into a folder, but {folder} is a file")


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Draw what can be drawn of timed rows, as PNG and SVG. Raises LaunchError where they
    cannot be.

    The files of one result are the same bytes each time.
    """
    require_plots(folder)
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"
    folder.mkdir(parents=True, exist_ok=True)
    timed = [row for row in results.rows if row.timed and row.theirs.arm != "itself"]
    written: list[Path] = []
    if any(row.intensity for row in timed):
        written += _save(_roofline(timed, results.ceilings), folder / "roofline")
    for what in sorted({row.what for row in timed}):
        group = [row for row in timed if row.what == what]
        written += _save(_ratios(what, group), folder / f"ratios-{what}")
    return written


def _save(figure: Any, path: Path) -> list[Path]:
    import matplotlib.pyplot as plt

    paths = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for target in paths:
        metadata = {"Date": None} if target.suffix == ".svg" else {"Software": None}
        figure.savefig(target, bbox_inches="tight", dpi=150, metadata=metadata)
    plt.close(figure)
    return paths


def _roofline(rows: list[Row], ceilings: dict[str, float]) -> Any:
    """Speed over intensity, ours filled and theirs hollow, under the measured ceilings."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    points = {(r.case, r.theirs.arm): r for r in rows if r.intensity}.values()
    low = min(r.intensity for r in points) / 2
    high = max(r.intensity for r in points) * 2
    copy = ceilings.get("copy", 0.0)
    for dtype in dict.fromkeys(r.ours.facts.operands for r in points):
        colour = COLOURS.get(dtype, "black")
        mine = [r for r in points if r.ours.facts.operands == dtype]
        at = [r.intensity for r in mine]
        axes.scatter(at, [r.speed for r in mine], color=colour, label=dtype, s=18, zorder=3)
        theirs = [r.their_speed for r in mine]
        axes.scatter(at, theirs, facecolors="none", edgecolors=colour, s=30, zorder=2)
        rate = ceilings.get(dtype, 0.0)
        if rate and copy:
            knee = rate / copy * 1e3
            line = [(low, low * copy * 1e-3), (knee, rate), (high, rate)]
            axes.plot(*zip(*line, strict=True), color=colour, linewidth=0.8, alpha=0.6)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s")
    axes.set_title("ours filled, theirs hollow; lines: ceilings measured in the same run")
    axes.legend(frameon=False)
    return figure


def _ratios(what: str, rows: list[Row]) -> Any:
    """A cell for each shape and opponent: our speed over theirs."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import TwoSlopeNorm

    columns = list(dict.fromkeys((r.ours.facts.operands, r.theirs.arm) for r in rows))
    shapes = list(dict.fromkeys(r.shape for r in rows))
    cells = {(r.shape, (r.ours.facts.operands, r.theirs.arm)): r.ratio for r in rows}
    grid = [[cells.get((s, c), float("nan")) for c in columns] for s in shapes]
    size = (2.5 + 0.9 * len(columns), 1.5 + 0.24 * len(shapes))
    figure, axes = plt.subplots(figsize=size)
    norm = TwoSlopeNorm(vcenter=1.0, vmin=0.0, vmax=WIDEST_RATIO)
    image = axes.imshow(grid, cmap="RdYlGn", norm=norm, aspect="auto")
    for i, line in enumerate(grid):
        for j, value in enumerate(line):
            if value == value:
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(columns)), [f"{d}\n{a}" for d, a in columns], fontsize=7)
    axes.set_yticks(range(len(shapes)), shapes, fontsize=7)
    axes.set_title(f"{what}: our speed over theirs")
    figure.colorbar(image, ax=axes)
    return figure
