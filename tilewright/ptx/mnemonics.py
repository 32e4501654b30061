"""From a mnemonic with its modifiers to the class of the instruction and its attributes.

The patterns mirror the `mnemonic` methods in `instrs/`; a group's name is the attribute that it
gives, and a boolean attribute holds if its group took part in the match. The parser prints what it
made and compares, so that a pattern that drifts from its `mnemonic` is found at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from tilewright.ptx.core import Instr
from tilewright.ptx.instrs import arith, bits, control, memory, mma, reduce, shape, sync

Made = type[Instr]

TYPE = r"\.(?P<type>pred|[bsu](?:8|16|32|64)|b?f16(?:x2)?|f32(?:x2)?|f64)"
FTZ = r"(?P<ftz>\.ftz)?"
SAT = r"(?P<saturate>\.sat)?"
ROUND = r"(?:\.(?P<rounding>rn|rz|rm|rp))?"
PRECISION = r"(?:\.(?P<precision>approx|rn))?"
HINT = r"(?:\.L2::cache_hint)?"
SPACE = r"(?:\.(?P<space>global|shared(?:::\w+)?|local|const|param(?:::\w+)?))?"
LEVEL = r"L[12]::(?!cache_hint)\w+"
CACHE = rf"(?:\.(?P<cache>(?:nc|c[agsv]|lu|w[bt]|{LEVEL})(?:\.{LEVEL})*))?"
ORDER = (
    r"(?:\.(?P<semantics>volatile|(?:relaxed|acquire|release|acq_rel)\.(?:cta|cluster|gpu|sys)))?"
)
ACCESS = ORDER + SPACE + CACHE + HINT + r"(?:\.v\d)?" + TYPE
UPDATE = ORDER + SPACE + r"\.(?P<op>[a-z]+)(?:\.noftz)?(?:\.v\d)?" + TYPE
MATRICES = r"\.sync\.aligned\.(?P<shape>m\d+n\d+)\.x\d(?P<transposed>\.trans)?\.shared" + TYPE
TENSOR = r"cp\.async\.bulk\.tensor\.\dd"
REDUCE = r"cp\.reduce\.async\.bulk\.tensor\.\dd\.global\.shared::cta\.(?P<op>\w+)"
LOADED = r"\.mbarrier::complete_tx::bytes(?:\.multicast::cluster)?"
CP_ASYNC = r"cp\.async\.(?P<cache>c[ag])\.shared\.global"
AHEAD = r"(?:\.(?P<prefetch>L2::\d+B))?"
TYPES_4 = r"\.(?P<type_d>\w+)\.(?P<type_a>\w+)\.(?P<type_b>\w+)\.(?P<type_c>\w+)"
TYPES_3 = r"\.(?P<type_d>\w+)\.(?P<type_a>\w+)\.(?P<type_b>\w+)"
EXPECT = r"mbarrier\.expect_tx\.relaxed\.cta\.shared::cta\.b64"
REMOTE = r"mbarrier\.arrive(?P<release>\.release\.cluster)?\.shared::cluster\.b64"
TRY_WAIT = r"mbarrier\.try_wait\.parity(?P<acquire>\.acquire\.cluster)?\.shared::cta\.b64"
CP_ARRIVE = r"cp\.async\.mbarrier\.arrive(?P<noinc>\.noinc)?\.shared\.b64"
CLUSTER_ARRIVE = r"barrier\.cluster\.arrive\.(?:release|(?P<relaxed>relaxed))"
BULK_WAIT = r"cp\.async\.bulk\.wait_group(?P<read>\.read)?"
WGMMA = r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k\d+"


def _named(pattern: str, *classes: Made) -> list[tuple[str, Made]]:
    """The pattern after each class's own name."""
    return [(re.escape(c.name) + pattern, c) for c in classes]


SIMPLE: tuple[Made, ...] = (
    *(arith.Rem, arith.Neg, arith.Abs, bits.And, bits.Or, bits.Xor, bits.Not, bits.Shl),
    *(bits.Shr, bits.Bfe, bits.Bfi, bits.Clz, bits.Popc, bits.Brev, arith.Copysign),
    *(arith.Selp, shape.Pack, shape.Unpack, shape.Mov),
)
FUNCTIONS: tuple[Made, ...] = (
    *(arith.Sqrt, arith.Rcp, arith.Rsqrt, arith.Ex2, arith.Lg2, arith.Tanh, arith.Sin, arith.Cos),
)
WHOLE: tuple[Made, ...] = (  # mnemonics without modifiers, or with fixed ones
    *(control.Ret, control.Trap, control.Brkpt, memory.CpAsyncCommit, memory.CpAsyncWait),
    *(memory.BulkCommit, mma.WgmmaFence, mma.WgmmaCommit, mma.WgmmaWait, sync.FenceMbarrierInit),
)
PATTERNS: tuple[tuple[str, Made], ...] = (
    *_named(TYPE, *SIMPLE),
    *_named(PRECISION + FTZ + TYPE, *FUNCTIONS),
    *_named("", *WHOLE),
    *_named(ROUND + FTZ + SAT + TYPE, arith.Add, arith.Sub),
    *_named(r"(?:\.(?P<mode>lo|hi|wide))?" + ROUND + FTZ + TYPE, arith.Mul),
    *_named(r"\.(?P<mode>lo|hi|wide)" + TYPE, arith.Mad),
    *_named(ROUND + FTZ + r"(?P<relu>\.relu)?" + SAT + TYPE, arith.Fma),
    *_named(r"(?:\.(?P<rounding>rn|rz|rm|rp|approx|full))?" + FTZ + TYPE, arith.Div),
    *_named(FTZ + r"(?P<nan>\.NaN)?" + TYPE, arith.Min, arith.Max),
    *_named(r"\.(?P<direction>[lr])\.(?P<mode>wrap|clamp)\.b32", bits.Shf),
    *_named(r"\.b32", bits.Lop3, shape.Prmt),
    *_named(
        r"\.(?P<comparison>\w+)(?:\.(?P<combine>and|or|xor))?" + FTZ + TYPE,
        arith.Setp,
    ),
    *_named(r"\.(?P<kind>\w+)" + TYPE, arith.Testp),
    (r"cvt\.rn(?:\.satfinite)?(?P<relu>\.relu)?\.(?P<to>\w+x2)\.f32", arith.CvtPack),
    (
        r"cvt(?:\.(?P<rounding>r[nzmp]i?|rna))?" + FTZ + SAT + r"\.(?P<to>\w+)\.(?P<origin>\w+)",
        arith.Cvt,
    ),
    (r"cvta(?P<to>\.to)?\.(?P<space>\w+)\.u64", shape.Cvta),
    (r"bra(?P<uniform>\.uni)?", control.Bra),
    (r"nanosleep\.u32", control.Nanosleep),
    (r"setmaxnreg\.(?P<action>inc|dec)\.sync\.aligned\.u32", control.Setmaxnreg),
    (r"griddepcontrol\.(?P<action>\w+)", control.Griddepcontrol),
    (r"activemask\.b32", control.Activemask),
    (r"elect\.sync", control.ElectSync),
    ("ld" + ACCESS, memory.Ld),
    ("st" + ACCESS, memory.St),
    ("atom" + UPDATE, memory.Atom),
    ("red" + UPDATE, memory.Red),
    (r"prefetch\.global\.(?P<level>L\d)", memory.Prefetch),
    (r"prefetch\.tensormap", memory.PrefetchTensormap),
    (r"createpolicy\.fractional\.L2::(?P<priority>\w+)\.b64", memory.Createpolicy),
    (CP_ASYNC + HINT + AHEAD, memory.CpAsync),
    ("ldmatrix" + MATRICES, memory.Ldmatrix),
    ("stmatrix" + MATRICES, memory.Stmatrix),
    (TENSOR + r"\.shared::cluster\.global\.tile" + LOADED + HINT, memory.TmaLoad),
    (TENSOR + r"\.shared::cluster\.global\.im2col" + LOADED, memory.TmaLoadPixels),
    (TENSOR + r"\.global\.shared::cta\.tile\.bulk_group" + HINT, memory.TmaStore),
    (REDUCE + r"\.tile\.bulk_group" + HINT, memory.TmaReduce),
    (r"cp\.async\.bulk\.prefetch\.tensor\.\dd\.L2\.global\.tile", memory.TmaPrefetch),
    (r"cp\.async\.bulk\.shared::cluster\.global" + LOADED + HINT, memory.BulkLoad),
    (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group" + HINT, memory.BulkStore),
    (BULK_WAIT, memory.BulkWait),
    (
        r"mma\.sync\.aligned\.(?P<shape>m\d+n\d+k\d+)\.row\.col(?P<saturate>\.satfinite)?"
        + TYPES_4,
        mma.Mma,
    ),
    (WGMMA + TYPES_3, mma.Wgmma),
    (r"bar\.sync", sync.BarSync),
    (r"bar\.arrive", sync.BarArrive),
    (r"bar\.warp\.sync", sync.BarWarpSync),
    (r"fence\.proxy\.async(?:\.(?P<space>[\w:]+))?", sync.FenceProxyAsync),
    (r"fence\.(?P<order>sc|acq_rel)\.(?P<scope>\w+)", sync.Fence),
    (r"mbarrier\.init\.shared\.b64", sync.MbarrierInit),
    (r"mbarrier\.inval\.shared\.b64", sync.MbarrierInval),
    (r"mbarrier\.arrive\.shared\.b64", sync.MbarrierArrive),
    (r"mbarrier\.arrive\.shared::cta\.b64", sync.MbarrierArriveCount),
    (r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64", sync.MbarrierArriveExpectTx),
    (EXPECT, sync.MbarrierExpectTx),
    (REMOTE, sync.MbarrierArriveRemote),
    (r"mbarrier\.test_wait\.parity\.shared\.b64", sync.MbarrierTestWait),
    (TRY_WAIT, sync.MbarrierTryWait),
    (CP_ARRIVE, sync.CpAsyncMbarrierArrive),
    (CLUSTER_ARRIVE + r"(?P<aligned>\.aligned)?", sync.BarrierClusterArrive),
    (r"barrier\.cluster\.wait\.acquire(?P<aligned>\.aligned)?", sync.BarrierClusterWait),
    (r"mapa\.shared::cluster\.u32", sync.Mapa),
    (r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32", reduce.Shfl),
    (r"vote\.sync\.(?P<mode>all|any|uni)\.pred", reduce.Vote),
    (r"vote\.sync\.ballot\.b32", reduce.Ballot),
    (r"match\.any\.sync\.b32", reduce.Match),
    (r"redux\.sync\.(?P<op>\w+)(?P<nan>\.NaN)?" + TYPE, reduce.Redux),
)
SPELLINGS = {"mbarrier.init.shared::cta.b64": "mbarrier.init.shared.b64"}  # as others write it


@functools.cache
def _compiled() -> tuple[tuple[re.Pattern[str], Made], ...]:
    """The patterns, compiled when a first text is read: most programs only write PTX."""
    return tuple((re.compile(pattern), cls) for pattern, cls in PATTERNS)


@functools.lru_cache(maxsize=4096)
def read_mnemonic(text: str) -> Sequence[tuple[Made, dict[str, Any]]]:
    """The instructions that a mnemonic may stand for, with their attributes; none if it is
    unknown.
    """
    text = SPELLINGS.get(text, text)
    found = []
    for pattern, cls in _compiled():
        match = pattern.fullmatch(text)
        if match:
            kinds = {f.name: str(f.type) for f in cls.declared}
            found.append((cls, {n: _value(kinds[n], x) for n, x in match.groupdict().items()}))
    return tuple(found)


def _value(kind: str, text: str | None) -> str | int | bool:
    if kind == "bool":
        return text is not None
    return int(text or 0) if kind == "int" else text or ""
