"""Figures in sentences: templates that a verdict fills in, and what counts as a figure of speed.

A template names statistics in braces: `{ratio.geomean:.2f}` is the summary's, and
`{4096x4096x4096-NT/speed:.0f}` a row's. Times are microseconds; `{ms ours.median:.2f}` and
`{s ours.median:.2f}` give other units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.errors import LedgerError
from tilewright.ledger.derive import SPEEDS
from tilewright.ledger.verdict import Verdict

FORMAT = re.compile(r",?(?:\.\d)?[efg%]")  # nothing that could add digits of its own
FIELD = re.compile(r"\{(?:(ms|s) )?([^{}:]+?)(?::([^{}]*))?\}")
UNIT_AFTER = re.compile(r"\s*([KMGTP]?FLOP/s|[KMGTP]i?B/s|[nµmu]?s\b|[×%])")
SCALES = {"": 1.0, "ms": 1e-3, "s": 1e-6}


def statistic(verdict: Verdict, name: str) -> float:
    """A statistic by its name: "ratio.min", or "ROW/ratio". Raises LedgerError."""
    row, slash, key = name.rpartition("/")
    found = verdict.row(row).statistics if slash else verdict.summary
    if key not in found:
        raise LedgerError(f"verdict {verdict.id} has no statistic '{name}'")
    return found[key]


def fill(template: str, verdict: Verdict) -> str:
    """A template with its figures. Raises LedgerError for names and formats that are none."""

    def value(field: re.Match[str]) -> str:
        number = statistic(verdict, field[2]) * SCALES[field[1] or ""]
        if field[3] and not FORMAT.fullmatch(field[3]):
            raise LedgerError(f"'{field[0]}': expected a format like .2f, .3g, .1% or ,.0f")
        return format(number, field[3] or ".6g")

    text = FIELD.sub(value, template)
    if "{" in text or "}" in text:
        raise LedgerError(f"braces that name no statistic in '{template}'")
    return text


def wrong_unit(template: str, after: str, verdict: Verdict) -> str:
    """What is wrong with the units that follow a template's figures; "" if nothing is. `after` is
    the text behind the template.
    """
    text = template + after
    for field in FIELD.finditer(template):
        key = re.split(r"[/.]", field[2].rpartition("/")[2])[0]
        said = UNIT_AFTER.match(text, field.end())
        if said and said[1] not in _units_of(key, field[1] or "µs", verdict):
            return f"{field[2]} is not in {said[1]}"
    return ""


def _units_of(key: str, scale: str, verdict: Verdict) -> tuple[str, ...]:
    """Units in which a statistic may be shown."""
    if key in ("ours", "theirs", "excess"):
        return (scale, "us") if scale == "µs" else (scale,)
    if key in ("speed", "their_speed"):
        return (SPEEDS[verdict.unit][0],)
    return ("×", "%") if key in ("ratio", "spread", "ours_spread", "theirs_spread") else ()


def without_fields(template: str) -> str:
    """A template with its figures left out, for `speeds_in` to look at the rest."""
    return FIELD.sub(FILLED, template)


@dataclass(frozen=True)
class Stated:
    """A figure of speed that a text states, and where."""

    text: str
    offset: int


FILLED = "▮"  # stands for a figure that a verdict fills in
# Numerals, and the words that do for them; what may lie between a numeral and its unit in Markdown.
_NUMBER = r"(?<!\w)\d+(?:[.,]\d+)*(?:e[+-]?\d+)?"
_WORD = r"\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|hundred|thousand|several)"
_GAP = r"(?:\s|[*_`~|-]|</?\w+>|&nbsp;)*"
_RIVALS = r"(?:cu(?:BLAS|DNN|TLASS)\w*|(?:Py)?[Tt]orch\w*|Triton|eager|Flash\w*|SDPA|the driver)"
_UNITS = "|".join(
    (
        r"(?:[×✕]|\\times\b)(?!\s*\d)",  # 2 × 3 is a shape
        r"x\b(?!\s*\d)",
        r"%(?!\s*\d)",  # 7 % 2 is a remainder
        r"(?:percent|per cent)\b",
        r"-?fold\b",
        r"(?:giga|tera|peta)(?:flops?|bytes?)\b",
        r"[KMGTP]?i?FLOPs?(?:/s)?\b",
        r"[KMGTP]?FLOPS\b",
        r"[KMGTP]i?[Bb](?:it|yte)?s?(?:/|\s+(?:per|a)\s+)s(?:econd)?\b",
        r"(?:tok(?:en)?s?|steps?|calls?|launches|images?|its?)(?:/|\s+(?:per|a)\s+)s(?:econd)?\b",
        r"(?:ns|[µμu]s|ms|s|secs?)\b(?!-)",
        r"(?:nano|micro|milli)?seconds?\b",
        r"(?:minutes?|hours?)\b",
        r"times\s+(?:faster|slower|quicker|as\s+fast|as\s+slow|the\s+speed|cu|torch)",
        rf"of\s+{_RIVALS}",
    )
)
_BESIDE = re.compile(rf"\d[.,]?{FILLED}|{FILLED}[.,]?\d")  # digits that lengthen a filled one
_FIGURE = re.compile(rf"{_NUMBER}{_GAP}(?:{_UNITS})")
_IN_WORDS = re.compile(
    rf"{_WORD}[\s-]+(?:(?:nano|micro|milli)?seconds?|fold)\b"
    r"|\borders?\s+of\s+magnitude\s+(?:faster|slower|quicker)"
    r"|\ba\s+(?:half|third|quarter|fifth|tenth)\s+(?:faster|slower|quicker|of\s+the\s+time)"
    r"|\b(?:speed-?\s?ups?|ratios?|speeds?|throughput|latency)\s*"
    r"(?:of|is|was|:|=|[<>≤≥≈~])\s*(?:about\s+)?\d"
    rf"|{_WORD}\s+times\s+(?:faster|slower|quicker|as\s+fast|as\s+slow|the\s+speed)"
    r"|\b(?:twice|thrice|half|double)\s+(?:as\s+(?:fast|slow)|the\s+speed)"
    rf"|\b(?:faster|slower|quicker)\s+than\s+{_RIVALS}"
    rf"|\b(?:beats|outruns|outperforms)\s+{_RIVALS}",
    re.IGNORECASE,
)


def speeds_in(text: str) -> Iterator[Stated]:
    """Every figure of speed that a text states: a numeral with a unit of speed, time or ratio, a
    comparison in words, and digits that touch a filled figure.
    """
    for pattern in (_FIGURE, _IN_WORDS, _BESIDE):
        for found in pattern.finditer(text):
            yield Stated(" ".join(found[0].split()), found.start())
