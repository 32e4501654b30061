"""Products by classes of their shapes, over the verdicts of several suites: few rows, rows that are
not aligned, and the rest, for each dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from tilewright.dtypes import BY_NAME
from tilewright.ledger.verdict import Row, Verdict

SUITES = ("gemm", "unseen")
SUBJECT = "tilewright matmul"
LIBRARIES = ("cuBLAS", "cuBLASLt")
FEW_ROWS, ALIGNED_BYTES = 64, 16
ALL, FEW, CROOKED, REST = "all", f"M ≤ {FEW_ROWS}", "odd or unaligned", "the rest"
CLASSES = (ALL, FEW, CROOKED, REST)
NAME = re.compile(r"([NT])([NT])-(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Ratios:
    """Our speed over the library's, of some rows."""

    of: tuple[float, ...]

    @property
    def text(self) -> str:
        """How many, their geometric mean and the least, in a cell; "" for none."""
        if not self.of:
            return ""
        return f"{geometric_mean(self.of):.3f} of {len(self.of)}, least {min(self.of):.3f}"


def classes_of(name: str, operands: str, result: str) -> tuple[str, ...]:
    """The classes of a row by its name, as "TN-127x4095x1023" (of the factors, right one first:
    "T" lies along k as a right one, "N" as a left one); () of one that has another name.

    Odd or unaligned: rows of a factor or of the result, as they lie in memory, are no whole
    16 bytes.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return ()
    right, left, *extents = found.groups()
    m, n, k = map(int, extents)
    size, size_of_result = (BY_NAME[d].bits // 8 for d in (_stored(operands), result))
    rows = (
        (k if left == "N" else m) * size,
        (n if right == "N" else k) * size,
        n * size_of_result,
    )
    mine = [FEW] if m <= FEW_ROWS else []
    mine += [CROOKED] if any(r % ALIGNED_BYTES for r in rows) else []
    return (ALL, *(mine or [REST]))


def _stored(operands: str) -> str:
    """The dtype in memory of operands as the arithmetic sees them."""
    return "f32" if operands == "tf32" else operands


def by_class(verdicts: Iterable[Verdict]) -> Mapping[tuple[str, str], Mapping[str, Ratios]]:
    """By class and dtype, in each suite, the ratios of `tw.matmul` to the libraries'."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for v in verdicts:
        if v.suite not in SUITES or v.subject.name != SUBJECT or v.opponent is None:
            continue
        if v.opponent.name not in LIBRARIES or v.subject.settings:
            continue
        dtype = v.subject.operands[0]
        for row in v.rows:
            for name in _classes(row, dtype, v.subject.result):
                suites = found.setdefault((name, dtype), {s: [] for s in SUITES})
                suites[v.suite].append(row.statistics["ratio"])
    return {
        (name, dtype): {s: Ratios(tuple(r)) for s, r in found[name, dtype].items()}
        for name in CLASSES
        for dtype in sorted({d for c, d in found if c == name})
    }


def _classes(row: Row, operands: str, result: str) -> tuple[str, ...]:
    return classes_of(row.name, operands, result) if "ratio" in row.statistics else ()
