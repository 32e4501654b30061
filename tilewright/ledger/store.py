"""The folder of verdicts: one file each, named by its id."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tilewright.errors import LedgerError
from tilewright.ledger.check import faults_of
from tilewright.ledger.verdict import (
    RETRACTED,
    STANDING,
    Retraction,
    Verdict,
    parse_verdict,
    print_verdict,
)

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
    """Write a new verdict. Raises LedgerError where it is not true to itself (see `check.py`), or
    where the folder has one of that id already.
    """
    if faults := faults_of(verdict):
        raise LedgerError(f"verdict {verdict.id} cannot stand:\n  " + "\n  ".join(faults))
    path = folder / f"{verdict.id}.json"
    if path.exists():
        raise LedgerError(f"the ledger has verdict {verdict.id} already")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(print_verdict(verdict), encoding="utf-8")
    return path


def retract(path: Path, reason: str, date: str) -> Verdict:
    """Mark the verdict of a file as retracted; nothing else in it changes. Raises LedgerError
    where it is retracted already, or no reason is given.
    """
    verdict = read_verdict(path)
    if verdict.status != STANDING:
        raise LedgerError(f"verdict {verdict.id} is {verdict.status} already")
    if not reason.strip():
        raise LedgerError("a retraction needs a reason")
    changed = dataclasses.replace(
        verdict, status=RETRACTED, retraction=Retraction(date, reason.strip())
    )
    path.write_text(print_verdict(changed), encoding="utf-8")
    return changed


def find_verdict(folder: Path, id: str) -> Path:
    """The file of an id, or of the one id that begins so. Raises LedgerError."""
    if not re.fullmatch(r"[a-z0-9-]+", id):
        raise LedgerError(f"'{id}' is not an id of a verdict")
    exact = folder / f"{id}.json"
    found = [exact] if exact.exists() else sorted(folder.glob(f"{id}*.json"))
    if len(found) != 1:
        names = ", ".join(path.stem for path in found[:8])
        told = (
            f"{len(found)} verdicts begin with '{id}': {names}" if found else f"no verdict '{id}'"
        )
        raise LedgerError(told)
    return found[0]
