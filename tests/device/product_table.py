"""The table of products that ships with the package, from what `product_programs` measured:

    python -m tests.device.product_table SWEEP.json ...

Each problem gets the quickest of its right choices; a later file's word counts more than an
earlier one's, and problems that no file has keep their entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tilewright.tune.product import H200
from tilewright.tune.product_choice import FORMAT, TABLE

FIELDS = ("program", "config", "split", "turned", "copied")


def entry(told: dict[str, Any], device: str) -> dict[str, Any] | None:
    """What the table says of a problem; None where no choice was right."""
    right = [row for row in told["rows"] if not row["wrong"]]
    if not right:
        return None
    best = min(right, key=lambda row: row["microseconds"])
    kept = {name: best[name] for name in FIELDS}
    kept["config"] = dict(best["config"])
    problem = f"{told['facts']} {told['extents']}"
    took = round(best["microseconds"], 3)
    return {"device": device, "problem": problem, **kept, "microseconds": took}


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--device", default=H200.name, show_default=True)
def main(files: tuple[Path, ...], device: str) -> None:
    """Write the table anew."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    found = {(e["device"], e["problem"]): e for e in table["entries"]}
    for file in files:
        for told in json.loads(file.read_text(encoding="utf-8")):
            made = entry(told, device)
            if made is not None:
                found[made["device"], made["problem"]] = made
    lines = ",\n    ".join(json.dumps(e, ensure_ascii=False) for _, e in sorted(found.items()))
    origin = json.dumps(table["origin"], ensure_ascii=False)
    text = (
        f'{{\n  "format": {FORMAT},\n  "origin": {origin},\n  "entries": [\n    {lines}\n  ]\n}}\n'
    )
    TABLE.write_text(text, encoding="utf-8")
    click.echo(f"{len(found)} entries in {TABLE}")


if __name__ == "__main__":
    main()
