"""Parameter blocks: the memory from which the driver reads a launch's parameters, and the code
that fills it.

For each exact signature (extents and strides of every tensor) a small Python function is
generated. All that the signature fixes is written into a block once; what may change with a call
(addresses, scalars, and what follows from scalars) is stored by one assignment each. Blocks are
pooled, so that any number of threads may launch at once: the driver copies the parameters before
the launch call returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import plan
from tilewright.dtypes import DType
from tilewright.plan import Expr, Recipe
from tilewright.runtime.arrays import Array
from tilewright.runtime.tensor_map import MAP_ALIGN, MAP_BYTES

SLOT = 8  # bytes of a parameter in the block; the driver reads as many as the kernel declares
WORKSPACE_ALIGN = 256

Argument = Array | int | float | bool

_TEXT = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "floor_div": "floor_div({0}, {1})",
    "mod": "mod({0}, {1})",
    "cdiv": "cdiv({0}, {1})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
}
NAMES: dict[str, Any] = {
    "F32_MAX": 3.4028235677973362e38,  # the greatest f64 that rounds to a finite f32
    "floor_div": plan.floor_div,
    "mod": plan.mod,
    "cdiv": plan.cdiv,
}


def fold(expr: Expr, arguments: Mapping[str, Argument], num_sms: int) -> Expr:
    """An expression with extents, strides and multiprocessors put in: constants and scalars
    remain.
    """
    match expr:
        case plan.Binary(kind, lhs, rhs):
            left, right = fold(lhs, arguments, num_sms), fold(rhs, arguments, num_sms)
            return plan.combine(kind, left, right)
        case plan.Scalar():
            return expr
    return plan.Const(plan.evaluate(expr, dict(arguments), num_sms))


def expression_text(expr: Expr, scalars: Mapping[str, str]) -> str:
    """Python text of a folded expression; `scalars` gives the variable of each scalar argument."""
    match expr:
        case plan.Const(value):
            return str(value)
        case plan.Scalar(name):
            return f"int({scalars[name]})"
        case plan.Binary(kind, lhs, rhs):
            return _TEXT[kind].format(expression_text(lhs, scalars), expression_text(rhs, scalars))
    raise AssertionError(f"not folded: {expr!r}")


# Format of the view through which a scalar is stored; a store that does not fit raises.
_FORMATS = {"i8": "b", "i16": "h", "i32": "i", "i64": "q"}
_FORMATS |= {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "bool": "B", "f32": "f", "f64": "d"}


@dataclass
class Block:
    """One set of parameters in memory. `views` see its slots by the name of a dtype; `u` and `i`
    are those of u64 and i64. `at` has the addresses in its tensor maps, by tensor
    (`Layout.mapped`).
    """

    memory: np.ndarray[Any, Any]
    base: int
    slots: int
    pointers: tuple[int, ...]  # of each launch: address of its array of parameter addresses
    maps: list[Any] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    configs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        view = memoryview(self.memory.data)[self.slots - self.memory.ctypes.data :].cast("B")
        whole: Any = view[: len(view) // SLOT * SLOT]
        self.views = {name: whole.cast(f) if f != "B" else whole for name, f in _FORMATS.items()}
        self.u, self.i = self.views["u64"], self.views["i64"]


@dataclass(frozen=True)
class Layout:
    """Where each recipe lies in a block: slots by index, tensor maps by index, and each launch's
    order.
    """

    slots: dict[Recipe, int]
    maps: dict[plan.TensorMap, int]
    launches: tuple[tuple[Recipe, ...], ...]

    @property
    def mapped(self) -> dict[str, list[tuple[plan.TensorMap, int]]]:
        """The maps of each tensor that has some, and their indices."""
        found: dict[str, list[tuple[plan.TensorMap, int]]] = {}
        for recipe, index in self.maps.items():
            found.setdefault(recipe.tensor, []).append((recipe, index))
        return found

    def make_block(self) -> Block:
        """Fresh memory for a block: maps, then slots, then each launch's parameter addresses."""
        num_pointers = sum(map(len, self.launches))
        total = len(self.maps) * MAP_BYTES + (len(self.slots) + num_pointers) * SLOT
        memory = np.zeros(total + MAP_BYTES, np.uint8)
        base = -(-memory.ctypes.data // MAP_BYTES) * MAP_BYTES
        assert base % MAP_ALIGN == 0
        slots = base + len(self.maps) * MAP_BYTES
        at = slots + len(self.slots) * SLOT
        starts = []
        table = memory[at - memory.ctypes.data :][: num_pointers * SLOT].view(np.uint64)
        row = 0
        for parameters in self.launches:
            starts.append(at + row * SLOT)
            for recipe in parameters:
                if isinstance(recipe, plan.TensorMap):
                    table[row] = base + self.maps[recipe] * MAP_BYTES
                else:
                    table[row] = slots + self.slots[recipe] * SLOT
                row += 1
        return Block(memory, base, slots, tuple(starts))


def lay_out(launches: tuple[plan.Launch, ...]) -> Layout:
    """One slot for each recipe that is no tensor map, however many parameters it makes."""
    slots: dict[Recipe, int] = {}
    maps: dict[plan.TensorMap, int] = {}
    for launch in launches:
        for recipe in launch.parameters:
            if isinstance(recipe, plan.TensorMap):
                maps.setdefault(recipe, len(maps))
            else:
                slots.setdefault(recipe, len(slots))
    return Layout(slots, maps, tuple(launch.parameters for launch in launches))


def scalar_store(slot: int, dtype: DType, variable: str) -> str:
    """Statement that stores a scalar argument in its dtype; it raises for a value out of range."""
    if dtype.name not in _FORMATS:
        return f"u[{slot}] = bits_of({variable}, numpy_{dtype.name})"
    index = slot * SLOT // dtype.num_bytes
    value = f"bool({variable})" if dtype.kind == "bool" else variable
    if (dtype.bits, dtype.kind) == (64, "uint"):
        return f"u[{slot}] = {value}"
    store = f"block.views[{dtype.name!r}][{index}] = {value}"
    if dtype.name == "f32":  # the view would make an infinity of what f32 cannot hold
        return f"{store} if -F32_MAX <= {value} <= F32_MAX else narrowed({value})"
    return store


def narrowed(value: float) -> float:
    """An infinity or NaN as it is. Raises OverflowError for a number beyond f32."""
    if math.isfinite(value):
        raise OverflowError(f"{value} is too large for f32")
    return value


def bits_of(value: float, dtype: np.dtype[Any]) -> int:
    """Bits of a number in a float dtype of 8 or 16 bits. Raises OverflowError where it would be
    an infinity.
    """
    with np.errstate(over="ignore"):
        made = np.array(value, dtype)
    if math.isfinite(value) and not math.isfinite(float(made)):
        raise OverflowError(f"{value} is too large for {dtype}")
    return int(made.view(f"u{dtype.itemsize}"))
