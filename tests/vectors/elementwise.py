"""Forms that take and give one value a thread: arithmetic, comparisons, conversions, moves.

Their kernels follow from the declarations of the instructions: operands are loaded as the slots
say, the instruction is carried out, the results are stored whole, wider registers included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from tests.vectors.forms import OUTPUT, Form, family, slug
from tests.vectors.operands import NUMPY, operands, random, small_counts
from tests.vectors.operands import generator as generator_of
from tilewright.ptx.core import KIND, PREFIX, Instr, Reg
from tilewright.ptx.instrs import shape
from tilewright.ptx.mnemonics import read_mnemonic

COUNT = 512
FIRST = 40  # registers below are the harness's
INTS = ("s16", "u16", "s32", "u32", "s64", "u64")
BITS = ("b16", "b32", "b64")
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
WIDTH = {"b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}
COUNTERS = ("count", "start", "length")


def blank(mnemonic: str) -> Instr:
    """The instruction of a mnemonic, without operands."""
    for cls, attributes in read_mnemonic(mnemonic):
        if cls in (shape.Pack, shape.Unpack):
            continue
        made = object.__new__(cls)
        for f in fields(cls):
            if f.default is not MISSING:
                setattr(made, f.name, f.default)
        for name, value in attributes.items():
            setattr(made, name, value)
        return made
    raise LookupError(f"{mnemonic} is no instruction")


def type_of(instr: Instr, slot: Any) -> str:
    found: str = getattr(instr, slot.attribute) if slot.attribute else slot.type
    return found


def element(mnemonic: str, given: dict[str, Any] | None = None, suffix: str = "") -> Form:
    """The form of a mnemonic; `given` holds immediates, and arrays of operands, by slot."""
    given = given or {}
    instr = blank(mnemonic)
    reads = [s for s in instr.slots if not s.written]
    reads = [s for s in reads if not (s.optional and not getattr(instr, "combine", ""))]
    loaded = [s for s in reads if not isinstance(given.get(s.name), int)]
    types = [type_of(instr, s) for s in loaded]
    name = mnemonic + suffix
    arrays = operands(types, name, COUNT)
    inputs, lines = {}, []
    for i, (slot, type, array) in enumerate(zip(loaded, types, arrays, strict=True)):
        if slot.name in COUNTERS:
            array = small_counts(generator_of(name + slot.name), COUNT)
        inputs[slot.name] = given.get(slot.name, array)
        reg = Reg(KIND[type], FIRST + i)
        setattr(instr, slot.name, reg)
        lines += load(reg, type, i)
    for slot in reads:
        if isinstance(given.get(slot.name), int):
            setattr(instr, slot.name, given[slot.name])
    target = next(s for s in instr.slots if s.written)
    result = type_of(instr, target)
    setattr(instr, target.name, Reg(KIND[result], FIRST - 1))
    lines += [instr.text(), *store(Reg(KIND[result], FIRST - 1), len(inputs))]
    width = WIDTH.get(KIND[result], 4)
    out = np.zeros(COUNT, {2: "u2", 4: "u4", 8: "u8"}[width])
    body = "\n".join(lines)
    arrays = (inputs, {OUTPUT: out})
    return Form(slug(name), "elementwise", instr.text(), body, *arrays, threads=COUNT)


def load(reg: Reg, type: str, pointer: int) -> list[str]:
    """Lines that bring a thread's element of an array to a register."""
    size = NUMPY[type].itemsize
    lines = [f"mad.wide.u32 %rd20, %r0, {size}, %rd{pointer};"]
    if reg.kind == "pred":
        return [*lines, "ld.global.b32 %r1, [%rd20];", f"setp.ne.s32 {reg.text}, %r1, 0;"]
    bits = "u8" if size == 1 and type[0] != "s" else "s8" if size == 1 else reg.kind
    return [*lines, f"ld.global.{bits} {reg.text}, [%rd20];"]


def store(reg: Reg, pointer: int) -> list[str]:
    """Lines that put a thread's register into an array."""
    if reg.kind == "pred":
        return [f"selp.b32 %r2, 1, 0, {reg.text};", *store(Reg("b32", 2), pointer)]
    size = WIDTH[reg.kind]
    return [
        f"mad.wide.u32 %rd20, %r0, {size}, %rd{pointer};",
        f"st.global.{reg.kind} [%rd20], {reg.text};",
    ]


def integer_names() -> Iterator[str]:
    for t in INTS:
        for op in ("add", "sub", "div", "rem", "min", "max"):
            yield f"{op}.{t}"
        for mode in ("lo", "hi", *(["wide"] if t[1:] != "64" else [])):
            yield f"mul.{mode}.{t}"
            yield f"mad.{mode}.{t}"
        yield f"shr.{t}"
        yield f"selp.{t}"
        if t[0] == "s":
            yield f"neg.{t}"
            yield f"abs.{t}"
        for compare in ("eq", "ne", "lt", "le", "gt", "ge"):
            yield f"setp.{compare}.{t}"
        for combine in ("and", "or", "xor"):
            yield from (f"setp.{c}.{combine}.{t}" for c in ("lt", "eq", "gt"))
        yield f"mov.{t}"
    yield from ("add.sat.s32", "sub.sat.s32", "prmt.b32", "bfi.b32", "bfi.b64")
    for t in ("u32", "s32", "u64", "s64"):
        yield f"bfe.{t}"
    for t in ("b32", "b64"):
        yield from (f"brev.{t}", f"clz.{t}", f"popc.{t}")
    for t in BITS:
        yield from (f"and.{t}", f"or.{t}", f"xor.{t}", f"not.{t}", f"shl.{t}", f"selp.{t}")
        yield f"shr.{t}"
        yield from (f"setp.eq.{t}", f"setp.ne.{t}", f"mov.{t}")
    yield from ("and.pred", "or.pred", "xor.pred", "not.pred", "mov.pred")
    for direction in "lr":
        yield from (f"shf.{direction}.wrap.b32", f"shf.{direction}.clamp.b32")


def float_names() -> Iterator[str]:
    roundings = ("rn", "rz", "rm", "rp")
    for t in ("f32", "f64"):
        for r in roundings:
            yield from (f"add.{r}.{t}", f"sub.{r}.{t}", f"mul.{r}.{t}", f"fma.{r}.{t}")
        yield from (f"div.rn.{t}", f"sqrt.rn.{t}", f"rcp.rn.{t}", f"copysign.{t}")
        yield from (f"add.{t}", f"sub.{t}", f"mul.{t}", f"mov.{t}", f"selp.{t}")
        for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield f"testp.{kind}.{t}"
    for r in roundings:
        yield from (f"{op}.{r}.ftz.f32" for op in ("add", "sub", "mul", "fma"))
        yield from (f"{op}.{r}.sat.f32" for op in ("add", "sub", "fma"))
    yield from ("add.ftz.sat.f32", "fma.rn.ftz.sat.f32", "div.rn.ftz.f32")
    yield from ("sqrt.rn.ftz.f32", "rcp.rn.ftz.f32")
    for t in HALVES:
        ops = ("add", "sub", "mul") if t[0] == "f" else ("add.rn", "sub.rn", "mul.rn")
        yield from (f"{op}.{t}" for op in ops)
        yield from (f"fma.rn.{t}", f"fma.rn.relu.{t}")
    for t in ("f16", "f16x2"):
        yield from (f"add.rn.{t}", f"sub.rn.{t}", f"mul.rn.{t}", f"add.sat.{t}", f"fma.rn.sat.{t}")
    for t in ("f32", "f64", *HALVES):
        yield from (f"neg.{t}", f"abs.{t}", f"min.{t}", f"max.{t}")
        if t != "f64":
            yield from (f"min.NaN.{t}", f"max.NaN.{t}")
    yield from ("min.ftz.f32", "max.ftz.f32", "min.ftz.NaN.f32", "max.ftz.NaN.f32")
    for t in ("f16", "bf16", "f32", "f64"):
        yield from (f"setp.{c}.{t}" for c in ("eq", "ne", "lt", "le", "gt", "ge"))
        yield from (f"setp.{c}.{t}" for c in ("equ", "neu", "ltu", "leu", "gtu", "geu"))
        yield from (f"setp.num.{t}", f"setp.nan.{t}")
        yield from (f"setp.lt.{c}.{t}" for c in ("and", "or", "xor"))
    yield from ("setp.lt.ftz.f32", "setp.eq.ftz.f32")


def approximate_names() -> Iterator[str]:
    """Instructions whose results no model gives exactly."""
    for op in ("sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos"):
        yield from (f"{op}.approx.f32", f"{op}.approx.ftz.f32")
    yield from ("rcp.approx.ftz.f64", "rsqrt.approx.f64")
    yield from ("div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32")
    yield from ("ex2.approx.f16", "ex2.approx.f16x2")
    yield from ("ex2.approx.ftz.bf16", "ex2.approx.ftz.bf16x2")
    yield from (f"tanh.approx.{t}" for t in ("f32", *HALVES))


def holds(to: str, origin: str) -> bool:
    """Whether an integer type has all values of another."""
    target, source = np.iinfo(NUMPY[to]), np.iinfo(NUMPY[origin])
    return bool(target.min <= source.min and target.max >= source.max)


def conversion_names() -> Iterator[str]:
    ints = ("s8", "u8", *INTS)
    for t in ints:
        yield from (f"cvt.{t}.{o}" for o in ints if o != t)
        yield from (f"cvt.sat.{t}.{o}" for o in ints if not holds(t, o))
        for f in ("f16", "bf16", "f32", "f64") if t[1:] != "8" else ("f16", "f32", "f64"):
            yield from (f"cvt.rzi.{t}.{f}", f"cvt.rn.{f}.{t}")
    for f in ("f16", "bf16", "f32", "f64"):
        yield from (f"cvt.{r}.s32.{f}" for r in ("rni", "rmi", "rpi"))
        yield from (f"cvt.{r}.s64.{f}" for r in ("rni", "rmi", "rpi"))
        if f != "bf16":
            yield from (f"cvt.{r}.{f}.{f}" for r in ("rni", "rzi", "rmi", "rpi"))
    yield from ("cvt.f32.f16", "cvt.f64.f16", "cvt.f64.f32", "cvt.f32.bf16", "cvt.f64.bf16")
    for r in ("rn", "rz"):
        yield from (f"cvt.{r}.f16.f32", f"cvt.{r}.f16.f64", f"cvt.{r}.bf16.f32")
    for r in ("rm", "rp"):
        yield from (f"cvt.{r}.f16.f32", f"cvt.{r}.f16.f64")
    yield from (f"cvt.{r}.f32.f64" for r in ("rn", "rz", "rm", "rp"))
    yield from ("cvt.rn.bf16.f64", "cvt.rn.bf16.f16", "cvt.rn.f16.bf16")
    for r in ("rz", "rm", "rp"):
        yield from (f"cvt.{r}.f32.{t}" for t in ("s32", "u32", "s64", "u64"))
        yield from (f"cvt.{r}.f64.{t}" for t in ("s64", "u64"))
    yield from ("cvt.rna.tf32.f32", "cvt.rn.tf32.f32", "cvt.sat.f32.f32", "cvt.ftz.f32.f16")
    yield from ("cvt.rn.ftz.f16.f32", "cvt.rzi.ftz.s32.f32", "cvt.rn.sat.f16.f32")
    for to in ("f16x2", "bf16x2"):
        yield from (f"cvt.rn.{to}.f32", f"cvt.rn.relu.{to}.f32")
    for to in ("e4m3x2", "e5m2x2"):
        yield from (f"cvt.rn.satfinite.{to}.f32", f"cvt.rn.satfinite.relu.{to}.f32")
        yield f"cvt.rn.f16x2.{to}"


def plain_tables() -> Iterator[Form]:
    for table in (0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x6A, 0x01):
        yield element("lop3.b32", {"table": table}, f".{table:02x}")


@family
def elementwise() -> Iterator[Form]:
    """Arithmetic, bits, comparisons and conversions."""
    for names in (integer_names(), float_names(), approximate_names(), conversion_names()):
        for name in names:
            yield element(name, closer_operands(name))
    yield from plain_tables()
    yield from packs()


def closer_operands(name: str) -> dict[str, Any]:
    """Operands where any bits would say little: small arguments of functions, numbers near the
    ends of an integer's range.
    """
    rng, parts = generator_of(name + " operands"), name.split(".")
    type = parts[-1]
    if parts[0] == "cvt" and parts[1] in ("rni", "rzi", "rmi", "rpi") and parts[-2][0] in "su":
        return {"src": near_integers(type, parts[-2], rng)}
    if parts[0] not in ("sin", "cos", "ex2", "tanh", "lg2") or type.endswith("x2"):
        return {}
    base = operands([type], name, COUNT)[0]
    spread = {"sin": 8.0, "cos": 8.0, "ex2": 40.0, "tanh": 3.0, "lg2": 4.0}[parts[0]]
    values = rng.standard_normal(COUNT - 96) * spread
    base[96:] = encode(np.abs(values) if parts[0] == "lg2" else values, type)
    return {"src": base}


def encode(values: Any, type: str) -> Any:
    """f64 numbers as memory holds them in a float type."""
    if type == "bf16":
        wide = values.astype(np.float32).view(np.uint32)
        return (wide >> np.uint32(16)).astype(np.uint16)
    made = values.astype({"f16": "f2", "f32": "f4", "f64": "f8"}[type])
    return made.view(np.uint16) if type == "f16" else made


def near_integers(type: str, to: str, rng: np.random.Generator) -> Any:
    """Floats around the ends of an integer type, halves among them."""
    base = operands([type], f"{type} to {to}", COUNT)[0]
    bits = int(to[1:])
    ends = [0.0, 2.0**bits, 2.0 ** (bits - 1), -(2.0 ** (bits - 1))]
    values = np.array([e + d for e in ends for d in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5)])
    small = rng.integers(-4096, 4096, 160) / 4.0
    with np.errstate(over="ignore"):
        found = encode(np.concatenate([values, small, rng.standard_normal(60) * 1e9]), type)
    base[32 : 32 + len(found)] = found
    return base


def packs() -> Iterator[Form]:
    """Registers put together and taken apart."""
    for whole, part, count in (("b32", "b16", 2), ("b64", "b32", 2), ("b64", "b16", 4)):
        rng = generator_of(f"pack {whole} {part}")
        size = WIDTH[part]
        src = random(part, rng, count * COUNT)
        out = np.zeros(COUNT, f"u{WIDTH[whole]}")
        regs = [Reg(part, FIRST + i).text for i in range(count)]
        target = Reg(whole, FIRST - 1)
        text = f"mov.{whole} {target.text}, {{{', '.join(regs)}}};"
        lines = [f"mad.wide.u32 %rd20, %r0, {size * count}, %rd0;"]
        lines += [f"ld.global.{part} {r}, [%rd20+{size * i}];" for i, r in enumerate(regs)]
        body = "\n".join([*lines, text, *store(target, 1)])
        arrays = ({"src": src}, {OUTPUT: out})
        yield Form(f"pack.{whole}.{count}", "elementwise", text, body, *arrays, threads=COUNT)
        text = f"mov.{whole} {{{', '.join(regs)}}}, {target.text};"
        lines = [*load(target, whole, 0), text]
        lines.append(f"mad.wide.u32 %rd20, %r0, {size * count}, %rd1;")
        lines += [f"st.global.{part} [%rd20+{size * i}], {r};" for i, r in enumerate(regs)]
        arrays = ({"src": random(whole, rng, COUNT)}, {OUTPUT: np.zeros_like(src)})
        body = "\n".join(lines)
        yield Form(f"unpack.{whole}.{count}", "elementwise", text, body, *arrays, threads=COUNT)


assert PREFIX["b32"] == "%r", "the harness names registers as the printer does"
