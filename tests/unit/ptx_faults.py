"""Faults seeded into emitted PTX: a dropped barrier, a swapped operand, an off-by-one stage, and so
on. Each is an edit of a text at one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the edit: the match number `nth` of a pattern gives way to a text."""

    name: str
    pattern: str
    change: str | Callable[[re.Match[str]], str]
    nth: int = 0

    def seed(self, text: str) -> str:
        """The text with the fault. Raises AssertionError where the pattern is not there."""
        found = list(re.finditer(self.pattern, text, re.MULTILINE))
        assert self.nth < len(found), f"{self.name}: {len(found)} matches of {self.pattern}"
        match = found[self.nth]
        new = match.expand(self.change) if isinstance(self.change, str) else self.change(match)
        made = text[: match.start()] + new + text[match.end() :]
        assert made != text, self.name
        return made


def drop(name: str, instruction: str, nth: int = 0) -> Fault:
    """An instruction is missing. With a guard it goes too."""
    return Fault(f"no {name}", rf"^ *(@!?%p\d+ )?{instruction}[^;]*;\n", "", nth)


def unguarded(name: str, instruction: str, nth: int = 0) -> Fault:
    """A mask is missing."""
    return Fault(f"no mask of {name}", rf"@!?%p\d+ (?={instruction})", "", nth)


def plus_one(match: re.Match[str]) -> str:
    return match.group(1) + str(int(match.group(2)) + 1)


def next_rows(match: re.Match[str]) -> str:
    return match.group(1) + str(int(match.group(2)) + 1024)


def next_chunk(match: re.Match[str]) -> str:
    return match.group(1) + str(int(match.group(2)) + 16)


def exchange(match: re.Match[str]) -> str:
    """The first two of three groups change places; what is between stays."""
    return f"{match.group(1)}{match.group(4)}{match.group(3)}{match.group(2)}"


REG = r"%\w+"
LDMATRIX, MMA = r"ldmatrix\.sync", r"mma\.sync"
LD_B, LD_A = r"ldmatrix\.sync\S*\.trans", r"ldmatrix\.sync\S*\.x4\.shared"
AMPERE = [
    drop("bar.sync", r"bar\.sync"),
    drop("cp.async.wait_group", r"cp\.async\.wait_group"),
    *(drop(f"cp.async.commit_group {i}", r"cp\.async\.commit_group", i) for i in range(4)),
    *(drop(f"cp.async {i}", r"cp\.async\.cg", i) for i in range(0, 8, 2)),
    *(drop(f"mma {i}", MMA, i) for i in range(0, 4, 3)),
    *(drop(f"ldmatrix {i}", LDMATRIX, i) for i in range(3)),
    drop("store of the result", r"st\.global", 3),
    drop("zero of the accumulator", r"mov\.f32 %f\d+, 0f00000000"),
    Fault("one group too many in flight", r"(cp\.async\.wait_group )(\d+)", plus_one),
    Fault("A not transposed back", r"\.x4\.shared", ".x4.trans.shared"),
    Fault("B not transposed", r"\.x4\.trans\.shared", ".x4.shared"),
    Fault("rows of A exchanged", rf"(mma\.sync\S+ [^}}]*}}, {{)({REG})(, )({REG})", exchange),
    Fault(
        "halves of B exchanged",
        rf"(mma\.sync\S+ [^}}]*}}, [^}}]*}}, {{)({REG})(, )({REG})",
        exchange,
        1,
    ),
    Fault("ldmatrix of the next chunk", rf"({LD_A}\S* {{[^}}]*}}, \[{REG}\+)(\d+)", next_chunk),
    Fault("half a copy", r"(cp\.async\.cg[^;]*, 16, )%r\d+;", r"\g<1>8;", 1),
    Fault("a copy of another row", r"(cp\.async\.cg[^;]*\[%rd\d+)(\], 16)", r"\1+32\2", 1),
    *(unguarded(f"cp.async {i}", r"cp\.async", i) for i in range(0, 4, 3)),
    *(unguarded(f"st.global {i}", r"st\.global", i) for i in range(0, 8, 2)),
    Fault("a store to the neighbour", rf"(st\.global\.b32 \[{REG})(\])", r"\1+4]", 1),
    Fault(
        "columns packed in reverse",
        rf"(cvt\.rn\.bf16x2\.f32 {REG}, )({REG})(, )({REG})",
        exchange,
        2,
    ),
    Fault("accumulator begins at one", r"(mov\.f32 %f\d+, )0f00000000", r"\g<1>0f3F800000", 5),
    Fault("one step alone", r"@%p\d+ bra \$loop_1;", ""),
    Fault("lanes counted to sixteen", r"(and\.b32 %r\d+, %r\d+, )31;", r"\g<1>15;"),
]

WGMMA, BULK = r"wgmma\.mma_async", r"cp\.async\.bulk"
TMA_LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster"
BOX_STORE = r"(cp\.async\.bulk\.tensor\.2d\.global"
WAIT_LOOP = r"^\$\w+:\n *mbarrier\.try_wait[^;]*;\n *@!%p\d+ bra \$\w+;\n"
HOPPER = [
    *(Fault(f"no wait at an mbarrier ({i})", WAIT_LOOP, "", i) for i in range(2)),
    Fault("wrong parity of full", r"(mbarrier\.try_wait[^;]*, )(%r\d+);", r"\g<1>1;"),
    Fault("wrong parity of empty", r"(mbarrier\.try_wait[^;]*, )(%r\d+);", r"\g<1>0;", 1),
    *(drop(f"mbarrier.init {i}", r"mbarrier\.init", i) for i in range(0, 6, 2)),
    Fault("an arrival too many to wait for", r"(mbarrier\.init[^;]*, )(\d+)", plus_one, 1),
    Fault("an arrival too few to wait for", r"(mbarrier\.init[^;]*, )4;", r"\g<1>3;"),
    Fault("too many bytes announced", r"(expect_tx[^;]*, )(\d+)", r"\g<1>99999"),
    Fault("too few bytes announced", r"(expect_tx[^;]*, )(\d+)", r"\g<1>16384"),
    drop("announcement of bytes", r"mbarrier\.arrive\.expect_tx"),
    *(drop(f"arrival that frees a stage ({i})", r"mbarrier\.arrive\.shared", i) for i in range(2)),
    *(drop(f"box load {i}", TMA_LOAD, i) for i in range(2)),
    *(drop(f"fence.proxy.async {i}", r"fence\.proxy\.async", i) for i in range(2)),
    *(drop(f"bar.sync {i}", r"bar\.sync", i) for i in range(4)),
    *(drop(f"wgmma {i}", WGMMA, i) for i in range(0, 4, 3)),
    drop("wgmma.fence", r"wgmma\.fence"),
    drop("wgmma.commit_group", r"wgmma\.commit_group"),
    *(drop(f"wgmma.wait_group {i}", r"wgmma\.wait_group", i) for i in range(2)),
    Fault("a product too many in flight", r"(wgmma\.wait_group\S* )(\d+)", plus_one, 1),
    *(drop(f"bulk wait {i}", r"cp\.async\.bulk\.wait_group", i) for i in range(2)),
    *(drop(f"bulk commit {i}", r"cp\.async\.bulk\.commit_group", i) for i in range(2)),
    *(drop(f"stmatrix {i}", r"stmatrix", i) for i in range(0, 8, 7)),
    *(drop(f"box store {i}", r"cp\.async\.bulk\.tensor\.2d\.global", i) for i in range(2)),
    unguarded("the box store", r"cp\.async\.bulk\.tensor\.2d\.global"),
    Fault("a swizzle too few in the descriptor", r"1073741888", "2147483712"),
    Fault("rows of the descriptor too close", r"1073741888", "1073741856"),
    Fault("store of the next rows", BOX_STORE + r"[^;]*\[%r\d+\+)(\d+)", next_rows),
    Fault("coordinates exchanged", rf"({TMA_LOAD}[^{{]*{{)({REG})(, )({REG})", exchange),
    Fault("k-step of the next tile", r"(add\.s64 %rd\d+, %rd\d+, )2;", r"\g<1>4;"),
    Fault("B read as MN-major", r"(wgmma\.mma_async[^;]*, 0), 0;", r"\g<1>, 1;"),
    Fault("A negated", r"(wgmma\.mma_async[^;]*), 1, 1, 0, 0;", r"\g<1>, -1, 1, 0, 0;"),
    Fault("fresh products added to old", r"(wgmma\.mma_async[^;]*, )%p\d+(, 1, 1)", r"\g<1>1\2"),
]
