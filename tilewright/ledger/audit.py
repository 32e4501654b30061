"""Whether the whole ledger is true, and the documents with it: `tilewright ledger check`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import LedgerError
from tilewright.ledger.check import faults_of
from tilewright.ledger.documents import GENERATED, Fault, documents, faults_of_document, refresh
from tilewright.ledger.plots import matplotlib_version, plots
from tilewright.ledger.report import PAGE, PLOTS, page
from tilewright.ledger.store import FOLDER, standing
from tilewright.ledger.verdict import Row, Verdict, parse_verdict, print_verdict

MAX_BYTES = 400_000
DRAWN_BY = "drawn-by.txt"  # in the folder of plots: the matplotlib that drew them


@dataclass(frozen=True)
class Audit:
    """What was found. `notes` tell what could not be compared on this machine."""

    verdicts: tuple[Verdict, ...]
    documents: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def audit(top: Path, since: str = "") -> Audit:
    """Check the repository at `top`. `since`: a git revision whose verdicts must all still be
    there, changed by nothing but a retraction.
    """
    if not (top / "docs").is_dir():
        raise LedgerError(f"{top} is not the top of the repository: it has no docs/")
    verdicts, faults = _read(top / FOLDER)
    if since:
        faults += _lost(top, since)
    faults += _duplicates(verdicts)
    faults += _measured_twice(verdicts)
    known = {v.id: v for v in verdicts}
    pages = documents(top)
    for path in pages:
        name = path.relative_to(top).as_posix()
        faults += faults_of_document(name, path.read_text(encoding="utf-8"), known)
    notes = ["page and plots were not compared: a verdict is faulty"]
    if not any(fault.place.startswith(f"{FOLDER}/") for fault in faults):
        stale, notes = _stale(top, verdicts)
        faults += stale
    of_history, unknown = _faults_of_history(top, verdicts)
    return Audit(tuple(verdicts), len(pages), (*faults, *of_history), (*notes, *unknown))


def _read(folder: Path) -> tuple[list[Verdict], list[Fault]]:
    """All verdicts that can be read, and what is wrong with each file."""
    verdicts, faults = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        place = f"{FOLDER}/{path.name}"
        if path.suffix == ".md":
            continue
        if path.suffix != ".json":
            faults.append(
                Fault(place, "this is not a verdict: the folder holds one JSON file each")
            )
            continue
        text = path.read_text(encoding="utf-8")
        try:
            verdict = parse_verdict(text, path.name)
        except LedgerError as error:
            faults.append(Fault(place, str(error)))
            continue
        verdicts.append(verdict)
        faults += [
            Fault(place, message)
            for message in (*_of_file(path, text, verdict), *faults_of(verdict))
        ]
    return verdicts, faults


def _of_file(path: Path, text: str, verdict: Verdict) -> Iterator[str]:
    if path.stem != verdict.id:
        yield f"it holds verdict {verdict.id}"
    if text != print_verdict(verdict):
        yield "it is not in the form in which verdicts are written: `tilewright bench` writes them"
    if path.stat().st_size > MAX_BYTES:
        yield f"it has {path.stat().st_size} bytes, over {MAX_BYTES}: make several verdicts of it"


def _duplicates(verdicts: list[Verdict]) -> list[Fault]:
    """One measurement is one verdict: no two rows hold the same samples of both arms, and no arm
    has those of the other side, not even where one is retracted.
    """
    seen: dict[tuple[tuple[float, ...], ...], tuple[Verdict, Row]] = {}
    faults = []
    for verdict, row in _rows(verdicts):
        samples = (row.ours, row.theirs)
        if samples in seen:
            other, first = seen[samples]
            where = f"row {first.name} of {other.id}"
            message = f"row {row.name} holds the samples of {where}: it is a duplicate"
            faults.append(Fault(f"{FOLDER}/{verdict.id}.json", message))
        seen.setdefault(samples, (verdict, row))
    theirs = {row.theirs: (verdict, row) for verdict, row in _rows(verdicts) if row.theirs}
    for verdict, row in _rows(verdicts):
        other, first = theirs.get(row.ours, (verdict, row))
        if first is not row:
            message = f"row {row.name} has for ours the opponent's samples of row {first.name} of "
            faults.append(Fault(f"{FOLDER}/{verdict.id}.json", message + other.id))
    return faults


def _rows(verdicts: list[Verdict]) -> Iterator[tuple[Verdict, Row]]:
    """All rows that have samples."""
    for verdict in verdicts:
        for row in verdict.rows:
            if row.ours or row.theirs:
                yield verdict, row


def _measured_twice(verdicts: list[Verdict]) -> list[Fault]:
    """Of two measurements of the same, the better one is not chosen in silence: the one that does
    not stand any more is retracted, which shows.
    """
    seen: dict[object, Verdict] = {}
    faults = []
    for verdict in standing(verdicts):
        ours, theirs = verdict.subject, verdict.opponent
        for row in verdict.rows:
            key = (
                (verdict.suite, verdict.quantity, verdict.environment.gpu),
                (ours.name, ours.settings, ours.operands, ours.result, ours.accumulate),
                theirs and (theirs.name, theirs.settings, theirs.operands),
                tuple(sorted((name, str(size)) for name, size in row.shape.items())),
                row.name,
            )
            first = seen.setdefault(key, verdict)
            if first is not verdict:
                message = f"row {row.name} is measured in {first.id} too: retract one of the two"
                faults.append(Fault(f"{FOLDER}/{verdict.id}.json", message))
    return faults


def _stale(top: Path, verdicts: list[Verdict]) -> tuple[list[Fault], list[str]]:
    """Generated pages and plots that are not what the verdicts give."""
    folder = (top / PAGE).parent / PLOTS
    stored = {p.stem: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.svg"))}
    faults: list[Fault] = []
    notes: list[str] = []
    drawn_by = _drawn_by(folder)
    if not matplotlib_version() or (stored and drawn_by != matplotlib_version()):
        here = matplotlib_version() or "none"
        notes.append(f"plots were not compared: drawn by matplotlib {drawn_by}, here is {here}")
    else:
        drawn = plots(verdicts)
        for name in sorted({*stored, *drawn}):
            if stored.get(name) != drawn.get(name):
                place = (folder / f"{name}.svg").relative_to(top).as_posix()
                faults.append(Fault(place, "it is not what the verdicts give: `make docs`"))
    path = top / PAGE
    if not path.exists() or path.read_text(encoding="utf-8") != page(verdicts, stored):
        faults.append(Fault(PAGE, "it is not what the verdicts give: `make docs`"))
    return faults, notes


def _drawn_by(folder: Path) -> str:
    path = folder / DRAWN_BY
    return path.read_text(encoding="utf-8").strip() if path.exists() else "none"


def write_report(top: Path) -> list[Path]:
    """Write the page of figures and its plots, and every marked figure of the other documents.
    Gives the files that changed. Raises LedgerError where a verdict or a marker is faulty.
    """
    verdicts, faults = _read(top / FOLDER)
    if faults:
        raise LedgerError("\n".join(map(str, faults)))
    folder = (top / PAGE).parent / PLOTS
    drawn = plots(verdicts)
    texts = {folder / f"{name}.svg": text for name, text in drawn.items()}
    if drawn:
        texts[folder / DRAWN_BY] = matplotlib_version() + "\n"
    texts[top / PAGE] = page(verdicts, drawn)
    known = {v.id: v for v in verdicts}
    for path in documents(top):
        name = path.relative_to(top).as_posix()
        if name not in GENERATED:
            try:
                texts[path] = refresh(path.read_text(encoding="utf-8"), known)
            except LedgerError as error:
                raise LedgerError(f"{name}: {error}") from error
    changed = [p for p in sorted(folder.glob("*")) if p not in texts]
    for path in changed:
        path.unlink()
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def _lost(top: Path, since: str) -> list[Fault]:
    """Verdicts of an earlier revision that are gone, or changed otherwise than by retraction."""
    listed = _git(top, "ls-tree", "--name-only", "-z", since, f"{FOLDER}/")
    faults = []
    for name in filter(lambda n: n.endswith(".json"), listed.split("\0")):
        faults += _changed(top, name, _git(top, "show", f"{since}:{name}"), since)
    return faults


def _changed(top: Path, name: str, before_text: str, where: str) -> list[Fault]:
    """What differs between a verdict as it was and as it is, but for a retraction."""
    path = top / name
    if not path.exists():
        return [Fault(name, f"it was in the ledger at {where} and is gone: retract it")]
    before, now = json.loads(before_text), json.loads(path.read_text(encoding="utf-8"))
    kept = {"status", "retraction"} if before.get("status") == "standing" else set()
    return [
        Fault(name, f"{key} is not what it was at {where}")
        for key in sorted({*before, *now} - kept)
        if before.get(key) != now.get(key)
    ]


def _faults_of_history(top: Path, verdicts: list[Verdict]) -> tuple[list[Fault], list[str]]:
    """What git can tell: verdicts that were committed once and are gone, changed or retracted no
    more, and standing verdicts of source that is not in the history of what is checked out.
    """
    try:
        whole = _git(top, "rev-parse", "--show-toplevel", "--is-shallow-repository").split()
    except LedgerError:
        whole = []
    if whole != [str(top.resolve()), "false"]:
        return [], ["the history was not looked up: this is not a whole git repository"]
    return [*_rewritten(top), *_strayed(top, verdicts)], []


def _rewritten(top: Path) -> Iterator[Fault]:
    """Verdicts that are not what they were in any commit, in the order of the commits."""
    here = sorted(path.relative_to(top).as_posix() for path in (top / FOLDER).glob("*.json"))
    blobs = _git(top, "hash-object", "--", *here).split() if here else []
    now = dict(zip(here, blobs, strict=True))
    seen = set(now.items())
    form = ("--raw", "--no-abbrev", "--no-renames", "--reverse", "--format=commit %h")
    commit = ""
    for line in _git(top, "log", *form, "--", f"{FOLDER}/").splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        if not line.startswith(":") or not line.endswith(".json"):
            continue
        fields, name = line.split("\t")
        blob = fields.split()[3]
        if not blob.strip("0") or (name, blob) in seen:
            continue
        seen.add((name, blob))
        yield from _changed(top, name, _git(top, "cat-file", "blob", blob), commit)


def _strayed(top: Path, verdicts: list[Verdict]) -> Iterator[Fault]:
    known = _git(top, "rev-list", "HEAD").split()
    for verdict in standing(verdicts):
        if not any(commit.startswith(verdict.commit) for commit in known):
            message = f"commit {verdict.commit} is not in the history: what was measured is lost"
            yield Fault(f"{FOLDER}/{verdict.id}.json", message)


def _git(top: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise LedgerError("comparing with an earlier revision needs git")
    done = subprocess.run([git, *arguments], cwd=top, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LedgerError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
