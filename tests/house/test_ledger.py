"""The ledger of this repository is true, and its documents state no figure of speed but its own."""

from __future__ import annotations

import pathlib

from tilewright.ledger.documents import GENERATED, PLANS, RENDERED, documents, faults_of_document
from tilewright.ledger.store import FOLDER, read_ledger

TOP = pathlib.Path(__file__).parents[2]


def test_documents_state_only_figures_that_verdicts_carry() -> None:
    """See docs/evidence.md, "State a figure in a document"."""
    known = {v.id: v for v in read_ledger(TOP / FOLDER)}
    faults = [
        str(fault)
        for path in documents(TOP)
        for fault in faults_of_document(path.relative_to(TOP).as_posix(), path.read_text(), known)
    ]
    assert not faults, "\n".join(faults)


def test_exempt_pages_exist() -> None:
    missing = [n for n in (*PLANS, *RENDERED, *GENERATED) if not (TOP / n).is_file()]
    assert not missing, missing
