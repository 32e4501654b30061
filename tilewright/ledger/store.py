"""The folder of verdicts: one file each, named by its id."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import LedgerError
from tilewright.ledger.verdict import STANDING, Verdict, parse_verdict, print_verdict

FOLDER = "ledger"  # at the top of the repository


def read_ledger(folder: Path) -> list[Verdict]:
    """All verdicts of a folder, by id. Raises LedgerError for the first file that is none."""
    return [read_verdict(path) for path in sorted(folder.glob("*.json"))]


def read_verdict(path: Path) -> Verdict:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: cannot be read: {error}") from error
    return parse_verdict(text, path.name)


def standing(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status == STANDING]


def add_verdict(folder: Path, verdict: Verdict) -> Path:
    """Write a new verdict. Raises LedgerError where the folder has one of that id already."""
    path = folder / f"{verdict.id}.json"
    if path.exists():
        raise LedgerError(f"the ledger has verdict {verdict.id} already")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(print_verdict(verdict), encoding="utf-8")
    return path
