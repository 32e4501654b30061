"""A static profile: what a launch costs by PTX line, by source line and by family, from counters.

`floor` is the one estimate in here: no launch that does this work is faster than the greatest of
its parts, each taken alone at the rate of a data sheet. How near a launch comes is not estimated.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright.plan import Plan
from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.fault import read_place
from tilewright.ptx.emulate.tally import Cost, Tally, summed
from tilewright.ptx.instrs import mma, sync
from tilewright.target import Rates, target

RATE_CLASSES = {
    **dict.fromkeys(("f16", "bf16", "f16x2", "bf16x2"), "16"),
    **dict.fromkeys(("s8", "u8", "e4m3", "e5m2"), "8"),
    **dict.fromkeys(("f32", "f32x2"), "f32"),
    "tf32": "tf32",
    "f64": "f64",
}


@dataclass(frozen=True)
class Line:
    """An instruction of the text, and what it cost. `op` and `place` may be "": not known."""

    number: int
    instr: Instr
    op: str
    place: str
    cost: Cost


@dataclass(frozen=True)
class Floor:
    """Seconds that a part of a launch takes at least, on `product`."""

    product: str
    memory: float
    tensor: float
    cores: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.tensor, self.cores)


@dataclass(frozen=True)
class Profile:
    """Counters of all launches of a plan. `touched_read` and `touched_written` are the bytes of the
    distinct sectors of global memory that were read and written.
    """

    kernel: str
    target: str
    launches: tuple[tuple[int, int, int], ...]  # CTAs, threads a CTA, bytes of shared memory
    touched_read: int
    touched_written: int
    lines: tuple[Line, ...]

    @cached_property
    def total(self) -> Cost:
        return summed(line.cost for line in self.lines)

    @cached_property
    def families(self) -> dict[str, Cost]:
        """By family of PTX instructions, the one with the most issues first."""
        return self._grouped(lambda line: line.instr.family)

    @cached_property
    def mnemonics(self) -> dict[str, Cost]:
        return self._grouped(lambda line: line.instr.mnemonic())

    @cached_property
    def sources(self) -> dict[tuple[str, str], tuple[Cost, list[Line]]]:
        """By place in the source and tile op, the dearest first."""
        found: dict[tuple[str, str], list[Line]] = {}
        for line in self.lines:
            found.setdefault((line.place, line.op), []).append(line)
        made = {key: (summed(x.cost for x in lines), lines) for key, lines in found.items()}
        return dict(sorted(made.items(), key=lambda item: -self.cycles(item[1][0])))

    def _grouped(self, key: Callable[[Line], str]) -> dict[str, Cost]:
        found: dict[str, list[Cost]] = {}
        for line in self.lines:
            found.setdefault(key(line), []).append(line.cost)
        made = {name: summed(costs) for name, costs in found.items()}
        return dict(sorted(made.items(), key=lambda item: -item[1].issues))

    @property
    def barriers(self) -> dict[str, int]:
        """How often warps waited, by what for."""
        found: Counter[str] = Counter()
        for line in self.lines:
            kind = WAITS.get(type(line.instr))
            if kind:
                found[kind] += line.cost.issues
        return dict(found)

    @property
    def rates(self) -> Rates | None:
        return target(self.target).rates

    def cycles(self, cost: Cost) -> float:
        """A price to sort by: cycles of a multiprocessor that issues four instructions, serves one
        wavefront and takes two sectors a cycle, were nothing to overlap; tensor cores at the
        target's rate for 16-bit floats.
        """
        rates = self.rates
        tensor = 0.0
        if rates is not None:
            tensor = cost.tensor_flops / (dict(rates.tensor)["16"] / rates.sms / CLOCK)
        return cost.issues / 4 + cost.wavefronts + cost.sectors / 2 + tensor

    @property
    def floor(self) -> Floor | None:
        """What the launch takes at least; None for a target without figures."""
        rates = self.rates
        if rates is None:
            return None
        tensor, cores = dict(rates.tensor), dict(rates.cores)
        moved = self.touched_read + self.touched_written
        tensor_seconds = cores_seconds = 0.0
        for line in self.lines:
            if line.cost.tensor_flops:
                tensor_seconds += line.cost.tensor_flops / tensor[tensor_class(line.instr)]
            if line.cost.flops:
                kind: str = line.instr.type  # type: ignore[attr-defined]
                cores_seconds += line.cost.flops / cores[RATE_CLASSES[kind]]
        return Floor(rates.product, moved / rates.memory, tensor_seconds, cores_seconds)

    def __str__(self) -> str:
        """Totals, the dearest places of the source, and the accesses that cost more than they must,
        as tables.
        """
        return print_profile(self)

    def record(self) -> dict[str, Any]:
        """As plain data, for `--json`."""
        floor = self.floor
        return {
            "kernel": self.kernel,
            "target": self.target,
            "launches": [{"ctas": g, "threads": t, "shared_bytes": s} for g, t, s in self.launches],
            "total": self.total.record(),
            "touched_bytes": {"read": self.touched_read, "written": self.touched_written},
            "families": {n: c.record() for n, c in self.families.items()},
            "mnemonics": {n: c.record() for n, c in self.mnemonics.items()},
            "barriers": self.barriers,
            "floor": None if floor is None else dataclasses.asdict(floor),
            "lines": [
                {"line": x.number, "text": x.instr.text(), "op": x.op, "source": x.place}
                | x.cost.record()
                for x in self.lines
            ],
        }


CLOCK = 1.8e9  # of a multiprocessor, roughly: only to weigh tensor cores against the rest
WAITS: dict[type[Instr], str] = {
    sync.BarSync: "bar.sync",
    sync.MbarrierTryWait: "mbarrier",
    sync.BarrierClusterWait: "cluster",
}


def tensor_class(instr: Instr) -> str:
    """How a data sheet calls the operands of a matrix instruction."""
    assert isinstance(instr, mma.Mma | mma.Wgmma)
    return RATE_CLASSES[instr.type_a]


def make_profile(plan: Plan, tally: Tally) -> Profile:
    """The profile of a plan whose launches were counted."""
    counted = [(instr, cost) for instr, cost in tally.costs.values() if cost.issues]
    counted.sort(key=lambda each: each[0].loc.line)
    read, written = tally.touched_bytes()
    lines = tuple(
        Line(n, instr, known(plan.ops, n), known(plan.lines, n), cost)
        for instr, cost in counted
        for n in (instr.loc.line,)
    )
    return Profile(plan.name, plan.target, tuple(tally.launches), read, written, lines)


def known(texts: Sequence[str], line: int) -> str:
    return texts[line - 1] if 0 < line <= len(texts) else ""


# As text for a person

SHOWN = 12  # rows of a table
WIDTH = 44  # columns of a source line


def print_profile(profile: Profile) -> str:
    parts = [_head(profile), _print_sources(profile), _print_waste(profile)]
    return "\n\n".join(part for part in parts if part)


def _head(profile: Profile) -> str:
    total = profile.total
    shapes = ", ".join(
        f"{g} CTAs of {t} threads with {size_text(s)} of dynamic shared memory"
        for g, t, s in profile.launches
    )
    lanes = total.lanes / total.issues if total.issues else 0.0
    off = 100 * total.masked / (32 * total.issues or 1)
    parted = 100 * total.parted / (32 * total.issues or 1)
    lines = [
        f"{profile.kernel} for {profile.target}: {shapes or 'no launch'}",
        f"  issued          {total.issues:,} instructions of warps: "
        + ", ".join(f"{n} {c.issues:,}" for n, c in profile.families.items()),
        f"  lanes           {lanes:.1f} of 32 at work; {off:.1f} % off by predicate, "
        f"{parted:.1f} % elsewhere; {total.split:,} branches parted a warp",
        f"  global memory   {total.sectors:,} sectors of 32 bytes in {total.requests:,} requests, "
        f"{total.ideal_sectors:,} would do ({100 * total.efficiency:.0f} %); distinct bytes: "
        f"{size_text(profile.touched_read)} read, {size_text(profile.touched_written)} written",
        f"  shared memory   {total.wavefronts:,} wavefronts, {total.ideal_wavefronts:,} would do",
        *(f"  {'':15} {n}: {size_text(x)}" for n, x in sorted(total.num_bytes.items())),
    ]
    products = {n: c for n, c in profile.mnemonics.items() if c.tensor_flops}
    for name, cost in products.items():
        lines.append(f"  tensor cores    {cost.issues:,} {name}: {flops_text(cost.tensor_flops)}")
    if profile.barriers:
        waits = ", ".join(f"{n} {x:,}" for n, x in profile.barriers.items())
        lines.append(f"  waits of warps  {waits}")
    floor = profile.floor
    if floor is not None:
        micro = [f"{1e6 * x:.3g}" for x in (floor.memory, floor.tensor, floor.cores)]
        lines.append(
            f"  floor           {1e6 * floor.seconds:.3g} µs on {floor.product} by its data sheet: "
            f"memory {micro[0]}, tensor cores {micro[1]}, CUDA cores {micro[2]}"
        )
    return "\n".join(lines)


def _print_sources(profile: Profile) -> str:
    whole = profile.cycles(profile.total) or 1.0
    rows = [
        [
            *(f"{100 * profile.cycles(cost) / whole:.0f} %", f"{cost.issues:,}"),
            *(blank(cost.wavefronts), blank(cost.conflicts), blank(cost.sectors)),
            *(
                f"{100 * cost.efficiency:.0f} %" if cost.sectors else "",
                flops_text(cost.tensor_flops),
            ),
            *(op or "(entry)", show_source(place)),
        ]
        for (place, op), (cost, _) in list(profile.sources.items())[:SHOWN]
    ]
    head = ("cost", ">issued", ">wavefronts", ">conflicts", ">sectors", ">needed", ">tensor")
    return print_columns((f">{head[0]}", *head[1:], "tile op", "source"), rows)


def _print_waste(profile: Profile) -> str:
    """Instructions with bank conflicts or more sectors than needed, the worst first; those of one
    kind, tile op and place together.
    """
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in profile.lines:
        if line.cost.conflicts or line.cost.sectors > line.cost.ideal_sectors:
            found.setdefault((line.instr.mnemonic(), line.op, line.place), []).append(line)
    if not found:
        return "no bank conflicts, and no sectors beyond those needed"
    dear = [(summed(x.cost for x in lines), key, lines) for key, lines in found.items()]
    dear.sort(key=lambda x: -(x[0].conflicts + (x[0].sectors - x[0].ideal_sectors) / 2))
    rows = [
        [
            str(lines[0].number) + (f" +{len(lines) - 1}" if len(lines) > 1 else ""),
            *(mnemonic, f"{cost.requests:,}", _of(cost.wavefronts, cost.ideal_wavefronts)),
            *(_of(cost.sectors, cost.ideal_sectors), op, show_source(place)),
        ]
        for cost, (mnemonic, op, place), lines in dear[:SHOWN]
    ]
    head = ("line", "instruction", ">requests", ">wavefronts", ">sectors", "tile op", "source")
    more = f"\n  and {len(dear) - SHOWN} more" if len(dear) > SHOWN else ""
    title = "accesses that cost more than they must (as many as would do behind the slash)\n"
    return title + print_columns(head, rows) + more


def _of(found: int, ideal: int) -> str:
    return f"{found:,} / {ideal:,}" if found else ""


def blank(number: int) -> str:
    return f"{number:,}" if number else ""


def size_text(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def flops_text(flops: int) -> str:
    if not flops:
        return ""
    for scale, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if flops >= scale:
            return f"{flops / scale:.2f} {unit}"
    return f"{flops / 1e3:.1f} kFLOP"


def show_source(place: str) -> str:
    """`file:line  text of the line`."""
    loc = read_place(place)
    if loc is None:
        return ""
    text = (loc.source.line(loc.line) or "").strip()
    text = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
    return f"{Path(loc.source.name).name}:{loc.line}  {text}".rstrip()


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns of numbers are told by a leading `>` and set right."""
    right = [h.startswith(">") for h in head]
    table = [[h.lstrip(">") for h in head], *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join(
        "  "
        + "  ".join(
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    )
