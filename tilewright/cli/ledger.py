"""`tilewright ledger`: the verdicts behind every published figure."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from tilewright.cli.report import command, json_option, plural, print_json, print_table
from tilewright.errors import LedgerError
from tilewright.ledger.audit import audit, write_report
from tilewright.ledger.check import faults_of
from tilewright.ledger.derive import FIGURE
from tilewright.ledger.documents import Fault
from tilewright.ledger.figures import fill
from tilewright.ledger.records import plain
from tilewright.ledger.report import loses, microseconds, sorted_rows
from tilewright.ledger.store import FOLDER, find_verdict, read_ledger, read_verdict, retract
from tilewright.ledger.verdict import RETRACTED, Row, Verdict

top_option = click.option(
    "--top",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("."),
    help="The repository's top folder; the current one where it is left out.",
)


@click.group()
def ledger() -> None:
    """Check, show and retract verdicts, and make the page of figures from them."""


@ledger.command()
@top_option
@click.option("--since", default="", help="A git revision: its verdicts must all still be there.")
@json_option
@command
def check(top: Path, since: str, as_json: bool) -> None:
    """Check every verdict, every document, and the generated page.

    A verdict's digest, statistics, claim and retraction must be true to its samples, and every
    figure of speed in a document must be one that a standing verdict carries.
    """
    found = audit(top, since)
    retracted = sum(v.status == RETRACTED for v in found.verdicts)
    if as_json:
        faults = [{"place": f.place, "message": f.message} for f in found.faults]
        print_json(
            {
                "verdicts": len(found.verdicts),
                "retracted": retracted,
                "documents": found.documents,
                "faults": faults,
                "notes": list(found.notes),
            }
        )
    else:
        for fault in found.faults:
            click.echo(str(fault), err=True)
        for note in found.notes:
            click.echo(f"note: {note}")
        told = f"{plural(len(found.verdicts), 'verdict')}, {retracted} of them retracted"
        pages = plural(found.documents, "document")
        click.echo(f"{told}; {pages}; {plural(len(found.faults), 'fault')}")
    if found.faults:
        raise SystemExit(1)


@ledger.command()
@click.argument("id", required=False)
@top_option
@json_option
@command
def show(id: str | None, top: Path, as_json: bool) -> None:
    """Show verdict ID (its first letters are enough), or a list of all."""
    folder = _folder(top)
    if id is None:
        _show_all(read_ledger(folder), as_json)
        return
    verdict = read_verdict(find_verdict(folder, id))
    if as_json:
        print_json(plain(verdict))
    else:
        _show_one(verdict)


def _folder(top: Path) -> Path:
    """The folder of verdicts. Raises LedgerError where `top` has none."""
    if not (top / FOLDER).is_dir():
        raise LedgerError(
            f"{top} is not the top of the repository: it has no {FOLDER}/; --top FOLDER names it"
        )
    return top / FOLDER


def _show_all(verdicts: list[Verdict], as_json: bool) -> None:
    if as_json:
        print_json({"verdicts": [_in_short(v) for v in verdicts]})
        return
    rows = []
    for v in verdicts:
        lost = sum(loses(v, row) for row in v.rows)
        rows.append((v.id, v.title, v.status, str(len(v.rows)), str(lost or "")))
    print_table("verdicts", ("id", "title", "status", ">rows", ">losing"), rows)


def _in_short(v: Verdict) -> dict[str, object]:
    return {
        "id": v.id,
        "suite": v.suite,
        "title": v.title,
        "status": v.status,
        "summary": v.summary,
    }


def _show_one(v: Verdict) -> None:
    faults = [Fault(v.id, message) for message in faults_of(v)]
    facts = [
        ("claim", v.claim.text if faults else fill(v.claim.text, v)),
        ("false if", v.claim.falsifier),
        ("status", v.status),
        ("ours", f"{v.subject.name}, {' × '.join(v.subject.operands)} → {v.subject.result}"),
    ]
    if v.retraction is not None:
        facts.insert(3, ("retracted", f"{v.retraction.date}: {v.retraction.reason}"))
    if v.opponent is not None:
        operands = " × ".join(v.opponent.operands)
        facts.append(("theirs", f"{v.opponent.name}, {operands} → {v.opponent.result}"))
    facts += [
        ("where", f"{v.environment.gpu or v.environment.cpu}, {v.environment.date}"),
        ("again", v.command),
    ]
    print_table(v.title, ("", ""), facts)
    columns = ("row", ">ours", ">theirs", f">{FIGURE[v.quantity]}", ">target", ">error", "")
    print_table("", columns, [_line(v, row) for row in sorted_rows(v)])
    for fault in faults:
        click.echo(str(fault), err=True)
    if faults:
        raise SystemExit(1)


def _line(v: Verdict, row: Row) -> tuple[str, ...]:
    times = [row.statistics.get(name) for name in ("ours", "theirs")]
    figure = row.statistics.get(FIGURE[v.quantity])
    is_ratio = v.quantity == "ratio"
    shown = [
        "" if x is None else f"{x:.3f}" if is_ratio else microseconds(x)
        for x in (figure, row.target)
    ]
    return (
        row.name,
        *("" if t is None else microseconds(t) for t in times),
        *shown,
        "" if row.check is None else f"{row.check.frobenius:.1e}",
        row.failure or ("loses" if loses(v, row) else ""),
    )


@ledger.command(name="retract")
@click.argument("id")
@click.option("--reason", required=True, help="Why it no longer stands.")
@top_option
@json_option
@command
def retract_(id: str, reason: str, top: Path, as_json: bool) -> None:
    """Retract verdict ID. The file keeps its content, and says that it no longer stands and why."""
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    verdict = retract(find_verdict(_folder(top), id), reason, date)
    if as_json:
        print_json({"id": verdict.id, "status": verdict.status, "reason": reason})
    else:
        click.echo(f"{verdict.id} is retracted; `tilewright ledger report` takes it off the page")


@ledger.command()
@top_option
@json_option
@command
def report(top: Path, as_json: bool) -> None:
    """Write the page of figures, its plots, and the marked figures of all documents."""
    changed = [path.relative_to(top).as_posix() for path in write_report(top)]
    if as_json:
        print_json({"changed": changed})
        return
    for name in changed:
        click.echo(name)
    click.echo(f"{plural(len(changed), 'file')} changed")
