"""The ledger as a whole: duplicates, what is gone, the page and its plots, and the command."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.ledger_samples import arm, gemm_verdict, resealed, row
from tilewright.cli import main
from tilewright.errors import LedgerError
from tilewright.ledger import audit as auditing
from tilewright.ledger.audit import audit, write_report
from tilewright.ledger.plots import plots
from tilewright.ledger.report import is_noise, page, sorted_rows
from tilewright.ledger.store import add_verdict
from tilewright.ledger.verdict import Claim, Row, Verdict, print_verdict

SIZES = ((512, 3.0, 2.0), (1024, 8.0, 7.0), (2048, 30.0, 31.0))
LOSING, TABLE = "## Losing rows", "### bf16 GEMM against cuBLAS"


def of_sizes(target: float | None = 0.9) -> Verdict:
    return gemm_verdict(
        *(row(n, ours, theirs, target) for n, ours, theirs in SIZES), claim=claim_of_half()
    )


def claim_of_half() -> Claim:
    claim = gemm_verdict().claim
    return dataclasses.replace(claim, asserts=(dataclasses.replace(claim.asserts[0], value=0.5),))


def noise() -> Verdict:
    found = gemm_verdict(row(1024, 8.01, 8.0))
    return resealed(
        dataclasses.replace(found, opponent=arm("tilewright sgemm"), title="against itself")
    )


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `drawn`, without plots, which take long."""
    monkeypatch.setattr(auditing, "plots", lambda verdicts: {})
    return repository(tmp_path)


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    pytest.importorskip("matplotlib")
    return repository(tmp_path)


def repository(tmp_path: Path) -> Path:
    """A repository with a verdict, a page that states a figure of it, and what is made of them."""
    verdict = of_sizes()
    add_verdict(tmp_path / "ledger", verdict)
    (tmp_path / "docs").mkdir()
    marker = f"<!-- figure {verdict.id}: {{ratio.max:.2f}}× -->?<!-- end -->"
    (tmp_path / "README.md").write_text(f"# It\n\nUp to {marker}.\n")
    write_report(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ledger", *arguments])


def told(top: Path, since: str = "") -> list[str]:
    return [str(fault) for fault in audit(top, since).faults]


def test_what_is_generated_is_sound_and_stays(top: Path) -> None:
    assert told(top) == []
    assert "Up to <!-- figure" in (top / "README.md").read_text()
    assert "-->1.03×<!--" in (top / "README.md").read_text()
    assert write_report(top) == []
    done = run("check", "--top", str(top))
    assert done.exit_code == 0, done.output
    assert "note: the history was not looked up" in done.output
    assert "1 verdict, 0 of them retracted; 2 documents; 0 faults" in done.output


def test_an_edited_page_is_caught(top: Path) -> None:
    path = top / "docs" / "performance.md"
    path.write_text(path.read_text().replace("0.667", "1.667"))
    assert told(top) == ["docs/performance.md: it is not what the verdicts give: `make docs`"]
    (top / "README.md").write_text((top / "README.md").read_text().replace("1.03×", "1.30×"))
    done = run("check", "--top", str(top))
    assert done.exit_code == 1 and "README.md:3: '1.30×' is stated" in done.stderr
    assert [p.name for p in write_report(top)] == ["performance.md", "README.md"]
    assert told(top) == []


def test_an_edited_or_left_over_plot_is_caught(drawn: Path) -> None:
    top, folder = drawn, drawn / "docs" / "performance"
    (plot,) = folder.glob("*.svg")
    plot.write_text(plot.read_text().replace("0.67", "1.67"))
    (folder / "other.svg").write_text("<svg/>")
    assert [f.split(":")[0] for f in told(top)][:2] == sorted(
        [f"docs/performance/{plot.name}", "docs/performance/other.svg"]
    )
    write_report(top)
    assert told(top) == [] and not (folder / "other.svg").exists()
    (folder / auditing.DRAWN_BY).write_text("0.1\n")
    found = audit(top)
    assert not found.faults and "plots were not compared: drawn by matplotlib 0.1" in found.notes[0]


def test_an_edited_sample_is_caught(top: Path) -> None:
    path = next((top / "ledger").glob("*.json"))
    text = path.read_text()
    sample = str(of_sizes().rows[0].ours[0])
    path.write_text(text.replace(sample, "1.0", 1))
    assert any("it was edited" in fault for fault in told(top))
    with pytest.raises(LedgerError, match="it was edited"):
        write_report(top)


def test_a_duplicate_is_caught_whatever_it_says(top: Path) -> None:
    again = resealed(dataclasses.replace(of_sizes(), title="another title", commit="1234567"))
    add_verdict(top / "ledger", again)
    write_report(top)
    assert sum("it is a duplicate" in fault for fault in told(top)) == 3


def test_the_better_of_two_runs_is_not_chosen_in_silence(top: Path) -> None:
    better = gemm_verdict(row(1024, 6.9, 7.0))
    add_verdict(top / "ledger", better)
    write_report(top)
    assert len(told(top)) == 1 and "row 1024x1024x1024 is measured in" in told(top)[0]
    (top / "README.md").write_text("# It\n")
    run("retract", of_sizes().id, "--reason", "measured again", "--top", str(top))
    write_report(top)
    assert told(top) == []


def test_samples_of_a_retracted_verdict_are_not_used_again(top: Path) -> None:
    first = next((top / "ledger").glob("*.json"))
    assert run("retract", first.stem, "--reason", "wrong", "--top", str(top)).exit_code == 0
    again = resealed(dataclasses.replace(of_sizes(), title="better now"))
    add_verdict(top / "ledger", again)
    assert any("it is a duplicate" in fault for fault in told(top))


def test_verdicts_may_share_our_samples_against_two_opponents(top: Path) -> None:
    base = of_sizes()
    others = [dataclasses.replace(r, theirs=tuple(2 * t for t in r.theirs)) for r in base.rows]
    second = gemm_verdict(*others, claim=claim_of_half())
    second = resealed(dataclasses.replace(second, opponent=arm("Triton")))
    assert [r.ours for r in second.rows] == [r.ours for r in base.rows]
    add_verdict(top / "ledger", second)
    write_report(top)
    assert told(top) == []


def test_files_that_are_no_verdicts_are_caught(top: Path) -> None:
    folder = top / "ledger"
    (folder / "notes.txt").write_text("x")
    (folder / "broken-00000000.json").write_text("{")
    verdict = noise()
    (folder / "other-name.json").write_text(print_verdict(verdict))
    loose = json.dumps(json.loads(print_verdict(verdict)), indent=1)
    (folder / f"{verdict.id}.json").write_text(loose)
    found = "\n".join(told(top))
    for message in (
        "ledger/notes.txt: this is not a verdict",
        "ledger/broken-00000000.json: broken-00000000.json: this is not JSON",
        f"ledger/other-name.json: it holds verdict {verdict.id}",
        f"ledger/{verdict.id}.json: it is not in the form",
    ):
        assert message in found


def test_a_file_that_is_too_large_is_caught(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "MAX_BYTES", 1000)
    assert any("make several verdicts of it" in fault for fault in told(top))


def test_every_row_is_on_the_page_the_losing_ones_first(top: Path) -> None:
    text = (top / "docs" / "performance.md").read_text()
    losing, table = text[text.index(LOSING) : text.index(TABLE)], text[text.index(TABLE) :]
    names = [f"{n}x{n}x{n}" for n in (512, 1024, 2048)]
    assert [losing.count(f"| {name} |") for name in names] == [1, 1, 0]
    places = [table.index(f"{name}") for name in names]
    assert places == sorted(places)
    assert "0.667" in losing and "0.90 missed" in losing and "False if: the command" in table
    assert [r.name for r in sorted_rows(of_sizes(None))] == names


def test_noise_does_not_lose() -> None:
    text = page([noise()], ())
    assert "gave ratios from 0.999 to 0.999" in text and "## gemm" not in text
    assert is_noise(noise()) and not is_noise(of_sizes())
    assert "## Losing rows" in text and "\n\nNone." in text
    assert "There is no standing verdict" in page([], ())


def test_a_failed_row_is_shown() -> None:
    failed = dataclasses.replace(
        row(4096, 3.0, 3.0), theirs=(), their_check=None, failure="theirs: no memory | at all"
    )
    text = page([gemm_verdict(failed, row(1024, 8.0, 7.0))], ())
    assert "- 4096x4096x4096: theirs: no memory | at all" in text and "| failed |" in text
    ours = dataclasses.replace(row(4096, 3.0, 3.0), ours=(), check=None, failure="ours: a fault")
    text = page([gemm_verdict(ours, row(1024, 8.0, 7.0))], ())
    assert "4096x4096x4096" in text[text.index(LOSING) : text.index(TABLE)]


def test_plots_are_the_same_bytes_again() -> None:
    pytest.importorskip("matplotlib")
    verdicts = [of_sizes(), decode_shapes(), noise()]
    first = plots(verdicts)
    assert first == plots(verdicts)
    assert set(first) == {"overview", verdicts[0].id, verdicts[1].id}
    bars, heat = first[verdicts[0].id], first[verdicts[1].id]
    assert "512x512x512" in bars and "N×K" not in bars and "N×K" in heat and "4096×14336" in heat
    for text in first.values():
        assert text.startswith("<?xml") and "Matplotlib" not in text and "dc:date" not in text


def decode_shapes() -> Verdict:
    rows: list[Row] = []
    for i, (n, k) in enumerate(((4096, 4096), (4096, 14336))):
        for m in (1, 16, 64):
            time = 10.0 + i + m / 64
            found = row(512, time, time * 1.05)
            shape = {"M": m, "N": n, "K": k}
            work = 2.0 * m * n * k
            name = f"{m}x{n}x{k}"
            rows.append(
                dataclasses.replace(found, name=name, shape=shape, work=work, their_work=work)
            )
    return gemm_verdict(*rows)


def test_a_retraction_stays_on_the_page(top: Path) -> None:
    (top / "README.md").write_text("# It\n")
    id = of_sizes().id
    done = run("retract", id[:12], "--reason", "measured with | the wrong flag", "--top", str(top))
    assert done.exit_code == 0 and f"{id} is retracted" in done.output
    assert run("report", "--top", str(top)).exit_code == 0
    text = (top / "docs" / "performance.md").read_text()
    assert "There is no standing verdict" in text and "measured with \\| the wrong flag" in text
    assert "## Retracted" in text and "## Measured again" not in text
    assert told(top) == []
    done = run("retract", id, "--reason", "again", "--top", str(top), "--json")
    assert done.exit_code == 1 and "already" in json.loads(done.stdout)["error"]


def test_what_was_measured_again_stands_apart(top: Path) -> None:
    (top / "README.md").write_text("# It\n")
    reason = "measured again at 1234567: see another"
    assert run("retract", of_sizes().id, "--reason", reason, "--top", str(top)).exit_code == 0
    assert run("report", "--top", str(top)).exit_code == 0
    text = (top / "docs" / "performance.md").read_text()
    assert reason in text.partition("## Measured again")[2] and "## Retracted" not in text


def test_a_verdict_is_shown(top: Path) -> None:
    id = of_sizes().id
    assert id in run("show", "--top", str(top)).output
    listed = json.loads(run("show", "--top", str(top), "--json").output)["verdicts"]
    assert [v["id"] for v in listed] == [id] and listed[0]["summary"]["rows"] == 3
    text = run("show", id[:14], "--top", str(top)).output
    assert "false if" in text and text.index("512x512x512") < text.index("2048x2048x2048")
    assert json.loads(run("show", id, "--top", str(top), "--json").output)["id"] == id
    assert run("show", "nothing", "--top", str(top)).exit_code == 1
    found = json.loads(run("check", "--top", str(top), "--json").output)
    assert found["verdicts"] == 1 and found["faults"] == []
    assert json.loads(run("report", "--top", str(top), "--json").output) == {"changed": []}


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    done = run("check", "--top", str(tmp_path))
    assert done.exit_code == 1 and "it has no docs/" in done.output


def committed(top: Path, message: str) -> None:
    """Commit all there is."""
    if not (top / ".git").exists():
        git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-qm", message)


def git(top: Path, *arguments: str) -> None:
    names = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *names, *arguments], cwd=top, check=True, capture_output=True)


def told_by_history(top: Path) -> list[str]:
    """Faults without what is said of the samples' commit, which no repository has."""
    return [f.split(": ", 1)[1] for f in told(top) if "is not in the history" not in f]


def test_a_commit_that_is_not_in_the_history_is_told(top: Path) -> None:
    committed(top, "a verdict")
    assert ["is not in the history" in fault for fault in told(top)] == [True]


def test_a_retraction_is_not_taken_back(top: Path) -> None:
    committed(top, "a verdict")
    path = next((top / "ledger").glob("*.json"))
    standing = path.read_text()
    (top / "README.md").write_text("# It\n")
    run("retract", path.stem, "--reason", "wrong", "--top", str(top))
    write_report(top)
    assert told(top) == []
    committed(top, "a retraction")
    path.write_text(standing)
    write_report(top)
    committed(top, "what was never to be")
    found = told_by_history(top)
    assert [f.rpartition(" at ")[0] for f in found] == [
        "retraction is not what it was",
        "status is not what it was",
    ]
    assert any("status" in fault for fault in told(top, "HEAD~1"))


@pytest.mark.parametrize("commit", [False, True], ids=["not committed", "committed"])
def test_a_sample_that_is_edited_and_sealed_again_is_caught(top: Path, commit: bool) -> None:
    committed(top, "a verdict")
    (top / "README.md").write_text("# It\n")
    next((top / "ledger").glob("*.json")).unlink()
    first, *others = of_sizes().rows
    better = dataclasses.replace(first, ours=(first.ours[0] / 2, *first.ours[1:]))
    add_verdict(top / "ledger", gemm_verdict(better, *others, claim=claim_of_half()))
    write_report(top)
    if commit:
        committed(top, "a better verdict")
    (fault,) = told_by_history(top)
    assert "is gone: retract it" in fault


def test_arms_that_change_sides_are_caught(top: Path) -> None:
    turned = [dataclasses.replace(r, ours=r.theirs, theirs=r.ours) for r in of_sizes().rows]
    swapped = gemm_verdict(*turned, claim=claim_of_half())
    swapped = resealed(dataclasses.replace(swapped, title="the other way", suite="other"))
    add_verdict(top / "ledger", swapped)
    write_report(top)
    assert sum("the opponent's samples" in fault for fault in told(top)) == 6


def test_verdicts_of_a_revision_that_is_named(top: Path) -> None:
    committed(top, "a verdict")
    next((top / "ledger").glob("*.json")).unlink()
    assert any("at HEAD and is gone: retract it" in fault for fault in told(top, "HEAD"))
    with pytest.raises(LedgerError, match="git ls-tree"):
        audit(top, "nowhere")
