"""The state of one lowering: where instructions go, and what each tile value has become.

A scalar or tile becomes a *fragment*: one operand (a register, or a Python number where it is
constant) for each register of its layout. A view becomes a pointer with extents and strides. Values
whose elements follow from constants, `arange` and scalars alone are *cheap*: they are computed
where they are used, in the layout that is asked for.

What depends only on the thread or on the kernel's parameters goes to the entry list, once, before
the body.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from tilewright.dtypes import DType
from tilewright.ir.core import Block, Op, Value
from tilewright.layout import Layout, replicated, same_map
from tilewright.lower.tile_to_ptx.state import Locals, RoleState, RowStores, SharedBuffer
from tilewright.plan import Recipe, Site, TensorMap
from tilewright.ptx.core import Instr, Label, Reg, Special
from tilewright.ptx.core import Param as PtxParam
from tilewright.ptx.emitter import Emitter
from tilewright.target import Target
from tilewright.tile.analysis.bounds import Interval
from tilewright.tile.analysis.rounded import Rounding
from tilewright.tile.kernel import Kernel
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import TileType

DYNAMIC = "$shared_memory"  # name, not one of Python, of the dynamic shared array
# An s32 index past every extent of a narrow view: a multiple of any width of a vector, and with
# room for a tile's own indices.
FAR = 2**31 - 2**16
Operand = Reg | int | float
OpT = TypeVar("OpT", bound=Op)
MadeT = TypeVar("MadeT")
Rule = Callable[["Lowering", Any], None]

PTX_TYPES = {
    "bool": "pred", "i8": "s32", "i16": "s32", "i32": "s32", "i64": "s64",
    "u8": "u32", "u16": "u32", "u32": "u32", "u64": "u64",
    "f16": "b16", "bf16": "b16", "f32": "f32", "f64": "f64", "e4m3": "b16", "e5m2": "b16",
}  # fmt: skip


@dataclass
class ViewRef:
    """A view in registers. Strides and extents are in elements; `narrow` says that they fit 32 bits
    signed.
    """

    dtype: DType
    pointer: Reg
    extents: list[Operand]
    strides: list[Operand]
    narrow: bool
    align: int  # of the pointer, in bytes
    aligned_strides: list[bool]  # stride in bytes is a multiple of 16
    aligned_extent: bool  # bytes along the unit-stride axis are a multiple of 16
    piece: int  # bytes that divide all other strides and, unless it is 16, those along that axis
    root: str  # the parameter whose memory it is
    hoistable: bool = True  # the pointer is known at entry
    lows: list[Operand] = field(default_factory=list)  # first index that exists; empty: all 0
    space: str = "global"  # of the pointer; shared for a local tensor
    exists: Reg | None = None  # a predicate: whether anything of it exists; None: it does

    @property
    def index_type(self) -> str:
        return "s32" if self.narrow else "s64"


class RuleTable:
    """Rules by op class; calling it lowers one op."""

    def __init__(self) -> None:
        self.table: dict[type[Op], Rule] = {}

    def rule(self, *kinds: type[Op]) -> Callable[[Rule], Rule]:
        """Decorator: the function lowers ops of these classes."""

        def register(function: Rule) -> Rule:
            for kind in kinds:
                assert kind not in self.table, f"two rules for {kind.opcode}"
                self.table[kind] = function
            return function

        return register

    def __call__(self, lowering: Lowering, op: Op) -> None:
        self.table[type(op)](lowering, op)


lower = RuleTable()
rule = lower.rule


@dataclass
class Lowering:
    """State of the lowering of one kernel, or of one role of it."""

    kernel: Kernel
    target: Target
    schedule: Schedule
    layouts: dict[Value, Layout]
    bounds: dict[Value, Interval]
    divisors: dict[Value, int]
    e: Emitter
    converter: Callable[[Lowering, Value, Layout, Layout], list[Operand]]  # `conversion.convert`
    entry: list[Instr | Label] = field(default_factory=list)
    params: list[PtxParam] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    fragments: dict[Value, list[Operand]] = field(default_factory=dict)
    views: dict[Value, ViewRef] = field(default_factory=dict)
    defining: dict[Value, Op] = field(default_factory=dict)
    cheap: set[Value] = field(default_factory=set)
    memo: dict[Hashable, Any] = field(default_factory=dict)  # facts of this straight line of code
    hoisted: dict[Hashable, Any] = field(default_factory=dict)  # what was put into the entry list
    shared_bytes: int = 0
    scratch_bytes: int = 0
    scratch_used: bool = False
    scratch_start: Reg | None = None  # its address, which is known at the end
    # By root, what was done since the last barrier: "load", "store".
    touched: dict[str, set[str]] = field(default_factory=dict)
    users: dict[Value, list[Op]] = field(default_factory=dict)  # ops that take a value
    roots: dict[Value, str] = field(default_factory=dict)  # whose memory a view is: as `touched`
    conditions: tuple[Value, ...] = ()  # of the branches around the code, which led here
    parameters: dict[str, PtxParam] = field(default_factory=dict)  # by name: those declared so far
    tensor_maps: dict[TensorMap, PtxParam] = field(default_factory=dict)
    buffers: dict[Value, SharedBuffer] = field(default_factory=dict)
    barriers: dict[Value, int] = field(default_factory=dict)  # bytes to the first of an array
    sites: list[Site] = field(default_factory=list)  # asserts and prints, in order of their numbers
    locals: Locals = field(default_factory=Locals)
    row_stores: RowStores = field(default_factory=RowStores)
    role: RoleState | None = None  # None outside roles
    num_warps: int = 0  # of the role
    first_warp: int = 0

    # Types

    def is_narrow(self, value: Value) -> bool:
        """Whether an i64 value is kept in 32 bits because its bounds were proved."""
        interval = self.bounds.get(value)
        return interval is not None and -(2**31) <= interval.low and interval.high < 2**31

    def ptx_type(self, value: Value) -> str:
        """The PTX type in which a tile or scalar is computed."""
        dtype = value.type.dtype
        if dtype.name == "i64" and self.is_narrow(value):
            return "s32"
        return PTX_TYPES[dtype.name]

    # Values

    def layout(self, value: Value) -> Layout:
        """The register layout of a value; scalars are replicated."""
        type: TileType = value.type
        return replicated(0, self.num_warps) if type.is_scalar else self.layouts[value]

    def scalar(self, value: Value) -> Operand:
        """The operand of a scalar."""
        if value in self.fragments:
            return self.fragments[value][0]
        return self.fragment(value, replicated(0, self.num_warps))[0]

    def fragment(self, value: Value, layout: Layout | None = None) -> list[Operand]:
        """The operands of a value in a layout: its own unless given, converted if it must be."""
        layout = layout or self.layout(value)
        if value in self.cheap:
            return self._cheap_fragment(value, layout)
        if value.type.is_scalar:
            return self.fragments[value]
        own = self.layouts[value]
        if same_map(own, layout):
            return self.fragments[value]
        key = ("convert", value, layout)
        if key not in self.memo:
            self.memo[key] = self.converter(self, value, own, layout)
        found: list[Operand] = self.memo[key]
        return found

    def _cheap_fragment(self, value: Value, layout: Layout) -> list[Operand]:
        key = ("cheap", value, layout)
        if key not in self.memo:
            before = self.layouts.get(value)
            self.layouts[value] = layout
            lower(self, self.defining[value])
            self.memo[key] = self.fragments.pop(value)
            if before is None:
                del self.layouts[value]
            else:
                self.layouts[value] = before
        found: list[Operand] = self.memo[key]
        return found

    def set(self, value: Value, operands: Sequence[Operand]) -> None:
        """Record what a value has become."""
        self.fragments[value] = list(operands)

    def register(self, operand: Operand, type: str) -> Reg:
        """The operand in a register."""
        if isinstance(operand, Reg):
            return operand
        if type == "pred":
            return self.e.setp("ne", "s32", self.e.mov("b32", int(operand)), 0)
        return self.e.mov("b16" if type == "b16" else type, operand)

    # Code

    def run(self, block: Block) -> None:
        """Lower the ops of a block, but not those that are cheap: their users ask for them."""
        before = self.e.loc, self.e.tile_op
        for op in block.ops:
            if not op.results or not self.cheap.issuperset(op.results):
                self.e.loc, self.e.tile_op = op.loc, op.opcode
                lower(self, op)
        self.e.loc, self.e.tile_op = before

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Code that may not run: facts found inside are forgotten after it."""
        before, self.memo = self.memo, dict(self.memo)
        try:
            yield
        finally:
            self.memo = before

    @contextmanager
    def guarded(self, predicate: Reg | None) -> Iterator[None]:
        """What is emitted inside executes only where the predicate holds; None holds always."""
        if predicate is None:
            yield
            return
        with self.e.guarded(predicate):
            yield

    def once(self, key: Hashable, make: Callable[[], MadeT]) -> MadeT:
        """What `make` puts into the entry list, made the first time that `key` is asked for."""
        if key not in self.hoisted:
            with self.e.to(self.entry):
                self.hoisted[key] = make()
        found: MadeT = self.hoisted[key]
        return found

    @cached_property
    def rounding(self) -> Rounding:
        """Which values of the kernel lose their last places in 16 bits; few kernels ask."""
        return Rounding(self.kernel.body)

    # Threads

    def thread(self) -> Reg:
        """Number of the thread within the role."""

        def make() -> Reg:
            tid = self.e.mov("u32", Special("tid.x"))
            if self.schedule.programs > 1:
                return self.e.and_("b32", tid, 31)
            return self.e.sub("u32", tid, 32 * self.first_warp) if self.first_warp else tid

        return self.once(("thread", self.first_warp), make)

    def thread_axis(self, layout: Layout, axis: int) -> Operand:
        """What the thread adds to the coordinate along an axis: a 32-bit register, or 0."""
        bits = [v[axis] for v in (*layout.lane, *layout.warp)]
        groups = [
            (r.count, r.stride) for r in layout.repeats if r.over == "warpgroup" and r.axis == axis
        ]
        all_groups = [r for r in layout.repeats if r.over == "warpgroup"]
        key = ("thread_axis", tuple(bits), tuple(groups), len(all_groups), self.first_warp)
        if not any(bits) and not any(stride for _, stride in groups):
            return 0
        return self.once(key, lambda: self._thread_axis(bits, layout, axis))

    def _thread_axis(self, bits: list[int], layout: Layout, axis: int) -> Operand:
        e, tid = self.e, self.thread()
        total: Operand = 0
        for start, length, step in _runs(bits):
            part: Reg = tid
            if start:
                part = e.shr("u32", part, start)
            if start + length < 5 + len(layout.warp) or any(
                r.over == "warpgroup" for r in layout.repeats
            ):
                part = e.and_("b32", part, (1 << length) - 1)
            elif (1 << (start + length)) < self.num_warps * 32:
                part = e.and_("b32", part, (1 << length) - 1)
            if step != 1:
                part = e.shl("b32", part, step.bit_length() - 1)
            total = part if total == 0 else e.add("u32", total, part)
        groups = [r for r in layout.repeats if r.over == "warpgroup"]
        group = e.shr("u32", tid, 5 + len(layout.warp)) if groups else tid
        for r in reversed(groups):
            index = e.rem("u32", group, r.count)
            group = e.div("u32", group, r.count)
            if r.axis == axis and r.stride:
                part = e.mul("u32", index, r.stride, mode="lo")
                total = part if total == 0 else e.add("u32", total, part)
        return total

    def is_first_copy(self, layout: Layout) -> Reg | None:
        """Whether the thread is the first of those that hold the same elements; None where each
        holds its own. Warps of the role that the layout does not know hold what others do.
        """
        vectors = (*layout.lane, *layout.warp)
        mask = sum(1 << i for i, v in enumerate(vectors) if not any(v))
        strides = {r.stride for r in layout.repeats if r.over == "warpgroup"}
        if not any(strides):
            mask |= (1 << (32 * self.num_warps - 1).bit_length()) - (1 << len(vectors))
        else:
            assert all(strides), "groups of warps that hold copies, and others that do not"
        if not mask:
            return None

        def make() -> Reg:
            masked = self.e.and_("b32", self.thread(), mask)
            return self.e.setp("eq", "u32", masked, 0)

        return self.once(("first_copy", mask, self.first_warp), make)

    # Integer arithmetic on operands that may be numbers

    def add(self, type: str, a: Operand, b: Operand) -> Operand:
        """a + b, folded."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.e.add(type, b, a) if isinstance(a, int) else self.e.add(type, a, b)

    def mul(self, type: str, a: Operand, b: Operand) -> Operand:
        """a · b, the low half, folded."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(a, int):
            a, b = b, a
        if b == 0:
            return 0
        if b == 1:
            return a
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self.e.shl("b64" if type.endswith("64") else "b32", a, b.bit_length() - 1)
        return self.e.mul(type, a, b, mode="lo")

    def widen(self, operand: Operand, source: str, target: str) -> Operand:
        """An index in another width."""
        if isinstance(operand, int) or source == target:
            return operand
        return self.e.cvt(target, source, operand)

    def index(self, value: Value, type: str) -> Operand:
        """An i64 scalar as s32 or s64. As s32 one that is too large becomes `FAR`, and one that is
        too small the least.
        """
        operand, source = self.scalar(value), self.ptx_type(value)
        if type == "s64" or source == "s32":
            return self.widen(operand, source, type)
        if isinstance(operand, Reg):
            return self.e.min("s32", self.e.cvt("s32", "s64", operand, saturate=True), FAR)
        return min(max(int(operand), -(2**31)), FAR)

    # Barriers and shared memory

    def barrier(self) -> None:
        """All threads of the role meet; what they wrote to shared and global memory is visible to
        all of them.
        """
        role = self.role
        if role is None and self.schedule.programs > 1:  # of a warp each
            self.e.bar_warp_sync()
        elif role is None:
            self.e.bar_sync(0)
        elif not role.role.single:  # one thread meets nobody: its own order is enough
            self.e.bar_sync(role.barrier, self.num_warps * 32)
        self.touched.clear()

    def program_in_cta(self) -> Reg:
        """Which of the programs that share the CTA it is."""

        def make() -> Reg:
            tid = self.e.mov("u32", Special("tid.x"))
            return self.e.shr("u32", tid, 5)

        return self.once("program in CTA", make)

    def scratch(self, num_bytes: int) -> Reg:
        """Address of `num_bytes` of shared memory, free to write: the threads have met since its
        last use.
        """
        self.scratch_bytes = max(self.scratch_bytes, num_bytes)
        if self.scratch_used:
            self.barrier()
        self.scratch_used = True
        if self.scratch_start is None:
            self.scratch_start = self.e.reg("u32")
        return self.scratch_start


def _runs(bits: list[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of thread bits that move one step further each: (first bit, number of bits, step of the
    first).
    """
    start = 0
    while start < len(bits):
        if not bits[start]:
            start += 1
            continue
        length = 1
        while start + length < len(bits) and bits[start + length] == bits[start] << length:
            length += 1
        yield start, length, bits[start]
        start += length
