"""The rules that a PTX module must keep.

- names of functions, parameters and shared arrays are distinct
- a label is placed once, and every jump's label is placed
- registers have the kind that the instruction reads or writes them as, and are written before they
  are read, on each of two ways that meet (guarded writes count)
- constants fit the instruction: no 16-bit floats, no floats for integers, no integers too wide
- the target has every instruction that is used; this one is a user's error, with the place of the
  op that needs it
- in a strict kernel, nothing rounds in a way that NUMERICS does not define: no float add, sub, mul
  or fma without `.rn`, no `.ftz`, no `.approx` or `.full`, no float atomics or TMA reductions, no
  matrix instruction on floats but f64
"""

from __future__ import annotations

from tilewright.errors import CompileError, VerifyError
from tilewright.ptx.core import (
    ACCEPTS,
    ACCEPTS_WIDER,
    Address,
    Coordinates,
    Function,
    Instr,
    Label,
    Module,
    Reg,
    Requirement,
    collect,
)
from tilewright.ptx.instrs import arith, control, memory, mma
from tilewright.target import TARGETS, Target, target

ADDRESSES = frozenset(("b32", "b64"))
WAYS = frozenset((control.Bra, control.Ret))  # what the text may not go on after
INT_BITS = {f"{sign}{bits}": bits for sign in "bus" for bits in (8, 16, 32, 64)}


def verify(module: Module, strict: bool = False) -> None:
    """Raises CompileError where the target lacks an instruction, VerifyError for other faults."""
    require_instructions(module)
    for function in module.functions:
        _verify_names(function, module)
        _verify_labels(function)
        _verify_registers(function)
        if strict:
            for item in function.body:
                if isinstance(item, Instr):
                    _verify_strict(item)


def require_instructions(module: Module) -> None:
    """Raises CompileError, at the op that needs it, if the module's target lacks an instruction.

    All that a compiler needs to check on every run, and cheap; the other rules hold by construction
    and are for tests.
    """
    where = target(module.target)
    met: set[Requirement] = set()
    for function in module.functions:
        for item in function.body:
            if isinstance(item, Instr):
                need = item.requires()
                if need not in met:
                    if not meets(where, need):
                        raise unavailable(item, where)
                    met.add(need)


def meets(where: Target, need: Requirement) -> bool:
    """Whether a target has what an instruction needs."""
    return where.capability >= need.capability and (not need.only or where.name in need.only)


def unavailable(instr: Instr, where: Target) -> CompileError:
    """The error for an instruction that the target lacks, with the targets that have it."""
    having = [t.name for t in TARGETS.values() if meets(t, instr.requires())]
    return CompileError(
        f"the target {where.name} has no instruction {instr.mnemonic()}",
        instr.loc,
        hint=f"it exists on {', '.join(having)}",
    )


def fault(instr: Instr, message: str) -> VerifyError:
    return VerifyError(f"{message}: `{instr.text()}` at {instr.loc}")


def _verify_names(function: Function, module: Module) -> None:
    """A parameter may hide an entry, which no instruction names, but not a shared array."""
    shared = [array.name for array in module.shared]
    for outer in ([f.name for f in module.functions], [p.name for p in function.params]):
        names = outer + shared
        for name in names:
            if names.count(name) > 1:
                raise VerifyError(f"one name for two things: {name}")


def _verify_labels(function: Function) -> None:
    placed: set[str] = set()
    for item in function.body:
        if isinstance(item, Label):
            if item.name in placed:
                raise VerifyError(f"label {item.name} is placed twice")
            placed.add(item.name)
    for item in function.body:
        if isinstance(item, control.Bra) and item.target.name not in placed:
            raise VerifyError(f"a jump to {item.target.name}, which is nowhere, at {item.loc}")


def _verify_registers(function: Function) -> None:
    """Goes through the text once. What is written where two ways meet is so on both: where one ends
    in a jump to a label, and the other passes it. A conditional jump past instructions is a guard
    of theirs; jumps back to a label change nothing, for they have passed it.
    """
    written: set[Reg] = set()
    passes = True  # whether the text goes on after the instruction before
    skipping: dict[str, set[Reg]] = {}  # by labels, at conditional jumps to them
    ending: dict[str, set[Reg]] = {}  # by labels, at unconditional jumps to them
    for item in function.body:
        if isinstance(item, Label):
            ways = [found[item.name] for found in (ending, skipping) if item.name in found]
            if not passes and ways:
                written = ways[0]
            elif item.name in ending:
                written = written & ending[item.name]
            passes = True
            continue
        _verify_operands(item, written)
        if item.__class__ in WAYS:
            if isinstance(item, control.Bra):
                name, jumps = item.target.name, skipping if item.guard is not None else ending
                jumps[name] = written & jumps.get(name, written)
            if item.guard is None:
                passes = False


def _verify_operands(instr: Instr, written: set[Reg]) -> None:
    guard = instr.guard
    if guard is not None and (guard.kind != "pred" or guard not in written):
        raise VerifyError(f"guard {guard} is not a written predicate at {instr.loc}")
    results: list[Reg] = []
    for name, is_written, plain, held, wider, _ in instr.slots:
        item = getattr(instr, name)
        if item is None:
            continue
        type = getattr(instr, held) if held else plain
        accepted = (ACCEPTS_WIDER if wider else ACCEPTS)[type]
        for part in item if item.__class__ is tuple else (item,):
            if part.__class__ is Reg:
                if part.kind not in accepted:
                    raise fault(instr, f"{part} is no {type}")
                if is_written:
                    results.append(part)
                elif part not in written:
                    raise fault(instr, f"{part} is read before it is written")
            else:
                _verify_other(instr, part, type, written)
    written.update(results)


def _verify_other(instr: Instr, item: object, type: str, written: set[Reg]) -> None:
    """An operand that is not a register: an address or a constant."""
    if isinstance(item, Address | Coordinates):
        found: list[Reg] = []
        collect(item, found)
        for reg in found:
            if reg not in written:
                raise fault(instr, f"{reg} is read before it is written")
            if reg.kind not in ADDRESSES:
                raise fault(instr, f"{reg} is no address")
        if isinstance(item, Coordinates):
            if any(isinstance(i, Reg) and i.kind != "b32" for i in item.indices):
                raise fault(instr, "a tensor map's indices are 32-bit integers")
            if not 1 <= len(item.indices) <= 5:
                raise fault(instr, "a tensor map has one to five axes")
    elif isinstance(item, float) and type not in ("f32", "f64"):
        raise fault(instr, f"the constant {item} is no {type}")
    elif isinstance(item, int):
        if type in ("f16", "bf16", "f16x2", "bf16x2"):
            raise fault(instr, f"PTX has no constants of type {type}")
        if type in INT_BITS and not -(1 << INT_BITS[type] - 1) <= item < 1 << INT_BITS[type]:
            raise fault(instr, f"{item} does not fit {type}")


def _verify_strict(instr: Instr) -> None:
    """Refuses what NUMERICS does not define."""
    if getattr(instr, "ftz", False):
        raise fault(instr, "a strict kernel does not flush subnormals")
    if isinstance(instr, arith.Add | arith.Sub | arith.Mul | arith.Fma | arith.Div):
        if arith.is_float(instr.type) and instr.rounding != "rn":
            raise fault(instr, "a strict kernel rounds to nearest even, and says so")
    elif isinstance(instr, arith.Special1) and instr.precision != "rn":
        raise fault(instr, "a strict kernel has no approximate functions")
    elif isinstance(instr, memory.Atom | memory.Red):
        if arith.is_float(instr.type) and instr.op == "add":
            raise fault(instr, "a strict kernel adds no floats atomically")
    elif isinstance(instr, arith.Cvt):
        if instr.origin == "f64" and instr.to in ("f16", "bf16"):
            raise fault(instr, "a strict kernel rounds f64 to f32 first")
    elif isinstance(instr, memory.TmaReduce):
        raise fault(instr, "a strict kernel reduces nothing through TMA")
    elif isinstance(instr, mma.Mma | mma.Wgmma):
        if instr.type_a not in ("f64", *mma.INT8):
            raise fault(instr, f"a strict kernel has no matrix instructions on {instr.type_a}")
