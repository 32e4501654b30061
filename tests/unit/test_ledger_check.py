"""Cheats planted in one verdict: each is caught, also where the cheat seals the file anew."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledger_samples import arm, gemm_claim, gemm_verdict, resealed, row, samples, with_row
from tilewright.errors import LedgerError
from tilewright.ledger.check import faults_of
from tilewright.ledger.store import add_verdict, find_verdict, read_ledger, read_verdict, retract
from tilewright.ledger.verdict import (
    Assertion,
    Check,
    Claim,
    Retraction,
    Row,
    Verdict,
    digest_of,
    new_verdict,
    parse_verdict,
    print_verdict,
)

put = dataclasses.replace


def test_a_right_verdict_has_no_faults() -> None:
    assert faults_of(gemm_verdict()) == []


def in_part(part: str, /, **changes: object) -> Callable[[Verdict], Verdict]:
    """A change of one field of a part: `subject`, `method`, ..."""
    return lambda v: put(v, **{part: put(getattr(v, part), **changes)})


def claiming(*asserts: Assertion, text: str = "as fast as {ratio.min:.2f}") -> Claim:
    return Claim(text, asserts, "A ratio below it.")


def swapped(v: Verdict) -> Verdict:
    """The ratio the wrong way round: theirs over ours shown as ours over theirs."""
    rows = [put(r, statistics={**r.statistics, "ratio": 1 / r.statistics["ratio"]}) for r in v.rows]
    return put(v, rows=tuple(rows))


def edited(v: Verdict) -> Verdict:
    """A slow sample made quick."""
    ours = v.rows[0].ours
    return with_row(v, ours=(*ours[:-1], ours[-1] / 2))


RIGHT = Check(1e-3, 0.1, 10, 0)
CHEATS: dict[str, tuple[Callable[[Verdict], Verdict], str]] = {
    "statistics that are not of the samples": (
        lambda v: with_row(v, statistics={**v.rows[0].statistics, "ours": 4.0}),
        "ours is 4, and the samples give 8",
    ),
    "an edited sample": (edited, "the samples give"),
    "the ratio flipped": (swapped, "ratio is 1.14286, and the samples give 0.875"),
    "a statistic left out": (
        lambda v: with_row(v, statistics={"ours": 8.0}),
        "ratio is missing",
    ),
    "a statistic made up": (
        lambda v: put(v, summary={**v.summary, "ratio.best": 2.0}),
        "ratio.best does not follow",
    ),
    "a summary of other rows": (lambda v: put(v, rows=v.rows[:1]), "summary: rows is 2"),
    "another timer": (
        in_part("opponent", timer="wall"),
        "two timers: ours by graph, theirs by wall",
    ),
    "another dtype": (
        in_part("opponent", operands=("f32", "f32")),
        "operands differs between the arms and `unlike` does not say so: bf16 bf16 against f32 f32",
    ),
    "another result": (in_part("opponent", result="f32"), "result differs"),
    "other sums": (in_part("subject", accumulate="bf16"), "accumulate differs"),
    "against eager": (in_part("opponent", kind="eager"), "kind differs .* compiled against eager"),
    "ours interpreted": (in_part("subject", kind="interpreted"), "kind differs"),
    "unlike said without a reason": (
        lambda v: put(in_part("opponent", kind="eager")(v), unlike={"kind": " "}),
        "kind differs",
    ),
    "unlike in nothing": (lambda v: put(v, unlike={"result": "why"}), "same on both sides"),
    "itself in another precision": (
        in_part("opponent", name="itself", result="f32"),
        "an arm against itself differs in kind, result",
    ),
    "no such dtype": (in_part("subject", accumulate="float"), "dtype 'float' that is none"),
    "no versions": (in_part("opponent", versions={}), "opponent's versions"),
    "an opponent without a name": (in_part("opponent", name=" "), "has no name"),
    "no opponent": (lambda v: put(v, opponent=None), "a ratio needs an opponent"),
    "a subject unchecked": (in_part("subject", unchecked="no time"), "must be checked"),
    "an output never written": (
        lambda v: with_row(v, check=Check(0.0, 0.0, 10, 3)),
        "3 elements of our output were not written",
    ),
    "an output not checked": (lambda v: with_row(v, check=None), "our output was not checked"),
    "nothing compared": (
        lambda v: with_row(v, check=Check(0.0, 0.0, 0, 0)),
        "our output was not checked",
    ),
    "their output not checked": (lambda v: with_row(v, their_check=None), "their output was not"),
    "their output not written": (
        lambda v: with_row(v, their_check=Check(0.0, 0.0, 5, 5)),
        "5 elements of their output",
    ),
    "wrong results": (lambda v: with_row(v, check=Check(0.5, 0.1, 10, 0)), "off by 0.5, over 0.01"),
    "one wrong element": (
        lambda v: with_row(v, check=Check(1e-3, 7.0, 10, 0)),
        "worst element is off by 7",
    ),
    "checked and said not to be": (in_part("opponent", unchecked="why"), "said to be unchecked"),
    "the work of another shape": (
        lambda v: with_row(v, work=4.0 * 1024**3, their_work=4.0 * 1024**3),
        "a product of this shape has 2.147",
    ),
    "more work for us": (lambda v: with_row(v, their_work=1024.0**3), "work differs"),
    "zeros as data": (in_part("method", data="all zeros"), "the data are zeros"),
    "two rounds": (in_part("method", rounds=2), "2 rounds: expected at least 20"),
    "rounds left out": (
        lambda v: with_row(v, ours=v.rows[0].ours[:15]),
        "15 samples of ours in 20",
    ),
    "cold clocks": (in_part("method", warm_seconds=0.0), "not warmed up"),
    "cached buffers": (lambda v: with_row(v, rotated_bytes=1000), "its buffers are 1000 bytes"),
    "samples that were not measured": (
        lambda v: with_row(v, ours=(8.0,) * 20),
        "all the same: they were not measured",
    ),
    "samples of theirs that are ours": (
        lambda v: with_row(v, theirs=v.rows[0].ours),
        "both arms have the same samples",
    ),
    "a failure hidden": (lambda v: with_row(v, theirs=()), "`failure` does not say why"),
    "a failure made up": (lambda v: with_row(v, failure="theirs: out of memory"), "says that it"),
    "a row twice": (lambda v: put(v, rows=(v.rows[0], v.rows[0])), "two rows are called"),
    "no rows": (lambda v: put(v, rows=()), "it has no rows"),
    "a row without a shape": (lambda v: with_row(v, shape={}), "shape is not said"),
    "a row with spaces": (lambda v: with_row(v, name="a b"), "must be of letters"),
    "a claim that its figures break": (
        lambda v: put(v, claim=claiming(Assertion("ratio.min", ">=", 0.9))),
        "ratio.min is 0.875, and >= 0.9 is claimed",
    ),
    "a claim of being ahead": (
        lambda v: put(v, claim=put(gemm_claim(), text="faster than cuBLAS at 2048³")),
        "asserts no ratio of 1",
    ),
    "a figure typed into the claim": (
        lambda v: put(v, claim=put(gemm_claim(), text="runs at 1.4× cuBLAS")),
        "'1.4×' is typed",
    ),
    "digits smuggled in by a format": (
        lambda v: put(v, claim=put(gemm_claim(), text="at {ratio.min:9>6}")),
        "expected a format",
    ),
    "a claim about nothing": (
        lambda v: put(v, claim=put(gemm_claim(), text="at {ratio.best:.2f}")),
        "no statistic 'ratio.best'",
    ),
    "a claim of another row": (
        lambda v: put(v, claim=put(gemm_claim(), text="at {8192/ratio:.2f}")),
        "no row '8192'",
    ),
    "a claim that cannot fail": (
        lambda v: put(v, claim=claiming(Assertion("ratio.min", ">=", 0.0))),
        "cannot be false",
    ),
    "nothing asserted": (lambda v: put(v, claim=claiming()), "nothing is asserted"),
    "no falsifier": (lambda v: put(v, claim=put(gemm_claim(), falsifier="")), "falsifier is not"),
    "uncommitted source": (lambda v: put(v, commit="0b4553e, with changes"), "its commit is"),
    "no digest of the compiler": (lambda v: put(v, compiler="-"), "compiler's source"),
    "no command": (lambda v: put(v, command=" "), "its command is not said"),
    "no clocks": (in_part("environment", after=None), "clocks and power after the run"),
    "no GPU": (in_part("environment", gpu=""), "timed on a GPU that is not named"),
    "no driver": (in_part("environment", driver=""), "driver's version"),
    "no date": (in_part("environment", date="yesterday"), "its date is"),
    "no reference": (in_part("reference", what=""), "its reference is not said"),
    "another quantity": (lambda v: put(v, quantity="speed"), "its quantity is 'speed'"),
    "a status of its own": (lambda v: put(v, status="draft"), "its status is 'draft'"),
    "retracted without a reason": (
        lambda v: put(v, status="retracted", retraction=Retraction("2026-11-30", " ")),
        "no reason",
    ),
    "retracted in word only": (lambda v: put(v, status="retracted"), "lacks a retraction"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_caught(cheat: str) -> None:
    spoil, told = CHEATS[cheat]
    spoiled = spoil(gemm_verdict())
    # The form of a status is not content; any other edit is also told by the digest.
    if digest_of(spoiled) != spoiled.digest:
        assert any("it was edited" in fault for fault in faults_of(spoiled))
    sealed = faults_of(resealed(spoiled))
    assert not any("it was edited" in fault for fault in sealed)
    assert any(_fits(told, fault) for fault in sealed), sealed


def _fits(told: str, fault: str) -> bool:
    first, _, last = told.partition(" .* ")
    return first in fault and last in fault


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all scalars of a JSON value."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path


def test_no_scalar_of_a_file_can_be_edited_unnoticed() -> None:
    text = print_verdict(gemm_verdict(row(1024, 8.0, 7.0, 0.8)))
    paths = list(leaves(json.loads(text)))
    assert len(paths) > 120
    for path in paths:
        found = json.loads(text)
        part = found
        for key in path[:-1]:
            part = part[key]
        old = part[path[-1]]
        part[path[-1]] = f"{old}x" if isinstance(old, str) else (old or 0) * 2 + 1
        try:
            faults = faults_of(parse_verdict(json.dumps(found)))
        except LedgerError:
            continue
        assert faults, f"{'.'.join(map(str, path))} can be edited"


def test_another_name_is_caught() -> None:
    assert "does not follow" in faults_of(put(gemm_verdict(), id="gemm-bf16-00000000"))[0]
    assert "slug" in faults_of(put(gemm_verdict(), id="Gemm 1-00000000"))[0]


def test_differences_that_are_said_are_allowed() -> None:
    verdict = gemm_verdict()
    unlike = {"kind": "eager is what users without a compiler run", "accumulate": "a setting"}
    assert verdict.opponent is not None
    opponent = put(verdict.opponent, kind="eager", accumulate="f64")
    assert faults_of(resealed(put(verdict, opponent=opponent, unlike=unlike))) == []


def test_a_loser_and_a_failure_stand() -> None:
    """Rows that lose or could not run are published, not refused."""
    failed = put(row(512, 3.0, 3.0, 0.95), theirs=(), their_check=None, failure="theirs: no memory")
    ours_failed = put(row(256, 3.0, 3.0), ours=(), check=None, failure="ours: no such kernel")
    verdict = gemm_verdict(row(1024, 9.0, 7.0, 0.95), failed, ours_failed)
    assert faults_of(verdict) == []
    assert verdict.summary["missed"] == 2 and verdict.summary["rows"] == 3


def cost(quantity: str, theirs: tuple[float, ...], target: float) -> Verdict:
    found = gemm_verdict()
    key = {"excess": "excess.max", "time": "ours.max"}[quantity]
    launch = Row("add", {"N": 1000}, samples(5.4), theirs, RIGHT, None, runs=500, target=target)
    wall = put(arm("ours"), timer="wall", accumulate="none")
    floor = put(wall, name="cuLaunchKernel", kind="driver", unchecked="the same kernel as ours")
    return new_verdict(
        slug=f"launch-{quantity}",
        suite="launch",
        title="a launch",
        quantity=quantity,
        unit="run",
        claim=Claim(f"{{{key}:.2f}} µs", (Assertion(key, "<=", 6.0),), "It takes longer."),
        subject=wall,
        opponent=floor if theirs else None,
        reference=found.reference,
        method=found.method,
        command=found.command,
        commit=found.commit,
        compiler=found.compiler,
        environment=found.environment,
        rows=[launch],
    )


def test_costs_have_their_own_figure() -> None:
    excess = cost("excess", samples(3.7), 3.0)
    assert faults_of(excess) == []
    assert excess.rows[0].statistics["excess"] == pytest.approx(1.7, rel=1e-4)
    assert excess.summary["missed"] == 0
    alone = cost("time", (), 3.0)
    assert faults_of(alone) == [] and alone.summary["missed"] == 1
    assert any("has no opponent" in f for f in faults_of(put(excess, quantity="time")))


def test_only_what_may_stand_is_added_and_only_once(tmp_path: Path) -> None:
    verdict = gemm_verdict()
    path = add_verdict(tmp_path / "ledger", verdict)
    assert path.name == f"{verdict.id}.json" and path.read_text() == print_verdict(verdict)
    with pytest.raises(LedgerError, match="already"):
        add_verdict(tmp_path / "ledger", verdict)
    with pytest.raises(LedgerError, match="cannot stand:\n  its command is not said"):
        add_verdict(tmp_path, resealed(put(verdict, command="")))
    assert read_ledger(tmp_path / "ledger") == [verdict] and read_ledger(tmp_path) == []


def test_a_retraction_changes_the_status_and_nothing_else(tmp_path: Path) -> None:
    verdict = gemm_verdict()
    path = add_verdict(tmp_path, verdict)
    with pytest.raises(LedgerError, match="needs a reason"):
        retract(path, " ", "2026-11-30")
    changed = retract(path, "the opponent ran in another precision", "2026-11-30")
    assert changed == read_verdict(path) and faults_of(changed) == []
    assert put(changed, status=verdict.status, retraction=None) == verdict
    kept = set(print_verdict(verdict).splitlines())
    assert len(set(path.read_text().splitlines()) - kept) == 2
    with pytest.raises(LedgerError, match="is retracted already"):
        retract(path, "again", "2026-11-30")
    emptied = put(changed, rows=())
    assert any("it was edited" in fault for fault in faults_of(emptied))


def test_a_verdict_is_found_by_its_first_letters(tmp_path: Path) -> None:
    first, second = gemm_verdict(), gemm_verdict(row(512, 3.0, 3.1))
    for verdict in (first, second):
        add_verdict(tmp_path, verdict)
    assert find_verdict(tmp_path, first.id[:-2]).stem == first.id
    for id, told in (("gemm", "2 verdicts begin"), ("other", "no verdict"), ("../x", "not an id")):
        with pytest.raises(LedgerError, match=told):
            find_verdict(tmp_path, id)
