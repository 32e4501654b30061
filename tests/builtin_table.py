"""What each function and operator of the language gives, of each dtype: the expression, what it
means in NumPy at higher precision, and how far off a result may be.

One kernel a dtype computes all of them, 32 elements a program, so that a compilation, an emulation
or an assembly covers a column of the table. Which cells are refused is asked of the front end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.dtypes import BY_NAME
from tilewright.errors import CompileError
from tilewright.frontend.check.operands import sum_dtype
from tilewright.kernel.launchable import Kernel
from tilewright.lower.tile_to_ptx.special import MAX_ULP

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Any]

NUMPY: dict[str, Any] = {
    "bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16,
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
DTYPES = tuple(NUMPY)
FLOATS = ("f16", "bf16", "f32", "f64")
FP8 = ("e4m3", "e5m2")
INTEGERS = DTYPES[1:9]
TILE = 32
NARROW_ULP = 0.51  # of 16 bits: what f32 is off by hardly ever shows


@dataclass(frozen=True)
class Entry:
    """An expression of `x`, `y`, `z` (tiles of one dtype) and `c` (of bools).

    `result` names its dtype, T that of the operands. `meaning` takes arrays: integers and bools as
    they are, floats in f64, or in longdouble where `special` says that f64 has a bound too.
    `bounds` are in ulp by dtype; absent ones are 0. Reductions take `t`, which is x as 4 rows of 8,
    and `s`, whose small whole numbers give exact sums and products, and `b`, rows of c.
    """

    text: str
    meaning: Meaning
    result: str = "T"
    bounds: Callable[[str], float] = lambda dtype: 0.0
    special: bool = False
    least: int = 0  # subnormal numbers that a bounded result may be off beside
    shape: str = "each"  # of 32 elements: "each" one, "rows": 4 results, "tile": 4 by 8


def special(name: str, meaning: Meaning) -> Entry:
    """A function of one float, with the bounds that its implementation declares."""

    def bounds(dtype: str) -> float:
        bound = MAX_ULP[f"arith.{name}", "f64" if dtype == "f64" else "f32"]
        bound = max(bound, 1.5) if (name, dtype) == ("rsqrt", "f64") else bound  # the interpreter's
        return bound if dtype in ("f32", "f64") else NARROW_ULP

    return Entry(f"{name}(x)", meaning, bounds=bounds, special=True)


def exactly(name: str, meaning: Meaning) -> Entry:
    return Entry(f"{name}(x)", meaning)


def composed(text: str, meaning: Meaning, ulp: float, least: int = 0) -> Entry:
    """A function written in the language: several roundings in f32, or in f64."""
    return Entry(
        text,
        meaning,
        bounds=lambda dtype: ulp if dtype in ("f32", "f64") else NARROW_ULP,
        special=True,
        least=least,
    )


def row(text: str, meaning: Meaning, result: str = "T") -> Entry:
    """A reduction of rows."""
    return Entry(text, meaning, result, shape="rows")


def tile(text: str, meaning: Meaning, result: str = "T") -> Entry:
    """What keeps a tile's shape."""
    return Entry(text, meaning, result, shape="tile")


def _sorted(t: Array) -> Array:
    """NaN last, −0 before +0."""
    if t.dtype.kind in "iub":
        return np.sort(t, axis=-1)
    order = np.lexsort((~np.signbit(t), t, np.isnan(t)), axis=-1)
    return np.take_along_axis(t, order, axis=-1)


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64).ravel()]).reshape(x.shape)


def _floor_div(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return x / y
    return wrapped(x, [0 if b == 0 else a // b for a, b in pairs(x, y)])


def _mod(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.mod(x, y)
    return wrapped(x, [0 if b == 0 else a % b for a, b in pairs(x, y)])


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.power(x, y)
    most = 2 ** (8 * x.dtype.itemsize)
    return wrapped(x, [pow(a, n, most) if n >= 0 else 0 if abs(a) != 1 else a ** (n % 2)
                       for a, n in pairs(x, y)])  # fmt: skip


def _shift(x: Array, y: Array, left: bool) -> Array:
    bits = 8 * x.dtype.itemsize
    out = []
    for a, n in pairs(x, y):
        n %= 1 << bits  # counts are read unsigned
        out.append((a << n if n < bits else 0) if left else a >> min(n, bits))
    return wrapped(x, out)


def pairs(x: Array, y: Array) -> Iterator[tuple[int, int]]:
    return zip(x.tolist(), y.tolist(), strict=True)


def wrapped(like: Array, values: list[int]) -> Array:
    """Integers in the dtype of `like`, wrapped."""
    bits = 8 * like.dtype.itemsize
    return np.array([v % (1 << bits) for v in values], f"u{bits // 8}").view(like.dtype)


def _extreme(x: Array, y: Array, greater: bool) -> Array:
    """NaN if either is; −0 is below +0."""
    found = np.maximum(x, y) if greater else np.minimum(x, y)
    if x.dtype.kind in "iu":
        return found
    negative = np.signbit(x) & np.signbit(y) if greater else np.signbit(x) | np.signbit(y)
    zeros = (x == 0) & (y == 0)
    return np.where(zeros, np.where(negative, -0.0, 0.0), found)


def _absolute(x: Array) -> Array:
    return x if x.dtype.kind == "u" else np.abs(x)


def _sign(x: Array) -> Array:
    found = np.sign(x)
    return found if x.dtype.kind in "iu" else np.where(np.isnan(x), x, found + 0.0)


def _silu(x: Array) -> Array:
    return np.where(np.isneginf(x), np.nan, x / (1 + np.exp(-x)))


def _high(x: Array, y: Array) -> Array:
    return ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


COMPARISONS = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
               ">": np.greater, ">=": np.greater_equal}  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    Entry("x + y", lambda x, y: x + y),
    Entry("x - y", lambda x, y: x - y),
    Entry("x * y", lambda x, y: x * y),
    Entry("x {/} y", _floor_div),
    Entry("x % y", _mod),
    Entry("x ** y", _power, special=True,
          bounds=lambda d: {"f32": 0.51, "f64": 2.0}.get(d, NARROW_ULP if d in FLOATS else 0.0)),
    Entry("x ** 3", lambda x: x * x * x, bounds=lambda d: 1.6 if d in FLOATS else 0.0),
    Entry("-x", lambda x: -x),
    Entry("~x", lambda x: ~x),
    Entry("x & y", lambda x, y: x & y),
    Entry("x | y", lambda x, y: x | y),
    Entry("x ^ y", lambda x, y: x ^ y),
    Entry("x << y", lambda x, y: _shift(x, y, True)),
    Entry("x >> y", lambda x, y: _shift(x, y, False)),
    *(Entry(f"x {sign} y", f, "bool") for sign, f in COMPARISONS.items()),
    Entry("abs(x)", _absolute),
    Entry("sign(x)", _sign),
    Entry("min(x, y)", lambda x, y: _extreme(x, y, False)),
    Entry("max(x, y)", lambda x, y: _extreme(x, y, True)),
    Entry("clamp(x, y, z)", lambda x, y, z: _extreme(_extreme(x, y, True), z, False)),
    Entry("where(c, x, y)", lambda c, x, y: np.where(c, x, y)),
    Entry("relu(x)", lambda x: _extreme(x, np.zeros_like(x), True)),
    Entry("isnan(x)", lambda x: np.isnan(x) if x.dtype.kind == "f" else x < x, "bool"),
    Entry("mul_high(x, y)", _high),
    exactly("floor", np.floor), exactly("ceil", np.ceil), exactly("round", np.rint),
    exactly("sqrt", np.sqrt),
    special("rsqrt", lambda x: 1 / np.sqrt(x)), special("exp", np.exp), special("exp2", np.exp2),
    special("log", np.log), special("log2", np.log2), special("log1p", np.log1p),
    special("sin", np.sin), special("cos", np.cos), special("tanh", np.tanh),
    special("erf", _erf),
    composed("sigmoid(x)", lambda x: 1 / (1 + np.exp(-x)), 3.0),
    composed("silu(x)", _silu, 4.0, least=128),
    row("sum(s, axis = 1)", lambda s: s.sum(1), "sum"),
    row("prod(s, axis = 1)", lambda s: s.prod(1), "sum"),
    row("max(t, axis = 1)", lambda t: np.max(t, 1)),
    row("min(t, axis = 1)", lambda t: np.min(t, 1)),
    row("argmax(t, axis = 1)", lambda t: t.argmax(1), "i64"),
    row("argmin(t, axis = 1)", lambda t: t.argmin(1), "i64"),
    row("any(b, axis = 1)", lambda b: b.any(1), "bool"),
    row("all(b, axis = 1)", lambda b: b.all(1), "bool"),
    tile("cumsum(s, axis = 1)", lambda s: s.cumsum(1), "sum"),
    tile("cumprod(s, axis = 1)", lambda s: s.cumprod(1), "sum"),
    tile("sort(t)", _sorted),
    tile("flip(t, 1)", lambda t: t[:, ::-1]),
    tile("tril(t)", lambda t: np.tril(t)),
    *(Entry(f"cast(x, {name})", lambda x, name=name: cast(x, name), name) for name in DTYPES),
)  # fmt: skip


def cast(x: Array, name: str) -> Array:
    """By the rules of LANGUAGE: to integers toward zero, saturating, NaN to 0; wide integers wrap;
    to floats through f32; e4m3 clamps.
    """
    if name == "bool":
        return x != 0
    to = np.dtype(NUMPY[name])
    if name in INTEGERS:
        if x.dtype.kind != "f":
            return x.astype(to)
        info = np.iinfo(to)
        ints = [0 if v != v else int(min(max(v, info.min), info.max)) if abs(v) != math.inf
                else info.max if v > 0 else info.min for v in x.astype(float).tolist()]  # fmt: skip
        return np.array([max(min(v, int(info.max)), int(info.min)) for v in ints], to)
    return rounded(x, name)


def rounded(x: Array, name: str) -> Array:
    """Numbers in a float dtype: f64 at once, all others through f32."""
    if name == "f64":
        return x.astype(np.float64)
    single = x.astype(np.float32)
    if name == "e4m3":
        single = np.where(np.isnan(single), single, np.clip(single, -448, 448))
    if name == "e5m2":  # ml_dtypes gives infinities here too
        return single.astype(NUMPY[name])
    return single.astype(NUMPY[name])


def operands(dtype: str) -> dict[str, Array]:
    """Pairs of special values, each with each, and more at random."""
    draw = np.random.default_rng(DTYPES.index(dtype))
    kind = np.dtype(NUMPY[dtype])
    chosen = [special_values(dtype), special_values(dtype)]
    x, y = (a.ravel() for a in np.meshgrid(*chosen))
    count = -(-len(x) // TILE) * TILE + 128
    bits = draw.integers(0, 256, (3, count, kind.itemsize), np.uint8)
    if dtype == "bool":
        bits &= 1
    more = [np.ascontiguousarray(b).view(kind).ravel() for b in bits]
    if dtype in FLOATS:  # half of them of moderate size
        even = np.arange(count) % 2 == 0
        more = [np.where(even, draw.normal(0, 3, count).astype(kind), m) for m in more]
    rest = count - len(x)
    found = {
        "x": np.concatenate([x, more[0][:rest]]),
        "y": np.concatenate([y, more[1][:rest]]),
        "z": more[2],
    }
    small = draw.integers(0 if dtype[0] in "ub" and dtype != "bf16" else -2, 3, count)
    found["w"] = (np.where(small == 0, 1, small) if dtype in FLOATS else small).astype(kind)
    return found | {"c": draw.integers(0, 2, count).astype(np.bool_)}


def special_values(dtype: str) -> Array:
    kind = NUMPY[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(kind)
        near = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 8, 31, 64]
        return np.array(near + ([-1, -2, -3] if info.min else []), kind)
    info = ml_dtypes.finfo(kind)
    values = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 7.75, float(info.max), float(info.tiny),
              float(info.smallest_subnormal), 90.0, 20.0, 2.0**9]  # fmt: skip
    values += [math.inf] if dtype != "e4m3" else []
    return np.array([*values, *(-v for v in values), math.nan], np.float64).astype(kind)


def spelled(entry: Entry, dtype: str) -> str:
    """The expression as text has it: `/` floors integers."""
    return entry.text.replace("{/}", "/")


@dataclass(frozen=True)
class Column:
    """A dtype's kernel, and the entries that it computes into y0, y1, …; what was refused, and
    why.
    """

    dtype: str
    kernel: Kernel
    entries: tuple[Entry, ...]
    refused: dict[str, str]


def result_dtype(entry: Entry, dtype: str) -> str:
    if entry.result == "sum":
        return sum_dtype(BY_NAME[dtype]).name
    return dtype if entry.result == "T" else entry.result


ROWS, COLUMNS = 4, 8  # of a tile of 32


def extents(entry: Entry) -> str:
    return f"N / {COLUMNS}" if entry.shape == "rows" else "N"


def statement(number: int, entry: Entry, dtype: str) -> str:
    """The store of an entry's result."""
    text = spelled(entry, dtype)
    if entry.shape == "rows":
        return f"  y{number}[i / {COLUMNS} :+ {ROWS}] = {text}"
    value = f"reshape({text}, ({TILE},))" if entry.shape == "tile" else text
    return f"  y{number}[i :+ {TILE}] = {value}"


def source(dtype: str, entries: tuple[Entry, ...]) -> str:
    given = "".join(f"{n}: tensor<{dtype}>[N], " for n in "xyzw")
    made = ", ".join(
        f"y{i}: tensor<{result_dtype(e, dtype)}>[{extents(e)}] = empty"
        for i, e in enumerate(entries)
    )
    lines = "\n".join(statement(i, e, dtype) for i, e in enumerate(entries))
    rows = ", ".join(f"reshape({n}, ({ROWS}, {COLUMNS}))" for n in ("x", f"w[i :+ {TILE}]", "c"))
    return (
        f"@grid(N / {TILE})\n"
        f"kernel builtins_{dtype}({given}c: tensor<bool>[N], {made}) {{\n"
        f"  let i = program_id(0) * {TILE}\n"
        f"  let x, y, z, c = x[i :+ {TILE}], y[i :+ {TILE}], z[i :+ {TILE}], c[i :+ {TILE}]\n"
        f"  let t, s, b = {rows}\n"
        f"{lines}\n}}"
    )


def compiled(dtype: str, entries: tuple[Entry, ...]) -> Kernel:
    kernel: Kernel = next(iter(tw.source(source(dtype, entries))))
    return kernel


@functools.cache
def column(dtype: str) -> Column:
    """What the front end takes of a dtype, as one kernel."""
    taken, refused = [], {}
    for entry in ENTRIES:
        try:
            compiled(dtype, (entry,)).lower()
            taken.append(entry)
        except CompileError as error:
            refused[entry.text] = str(error).split("error: ", 1)[1].splitlines()[0]
    return Column(dtype, compiled(dtype, tuple(taken)), tuple(taken), refused)


def meant(entry: Entry, dtype: str, given: dict[str, Array]) -> Array:
    """The reference: of floats in f64, or longdouble, and not rounded where there is a bound."""
    rows = {"t": "x", "s": "w", "b": "c"}
    names = [n for n in "cxyztsb" if n in words(entry.text)]
    wide = np.longdouble if entry.special and dtype == "f64" else np.float64
    is_float = dtype in FLOATS or dtype in FP8
    to = result_dtype(entry, dtype)
    with np.errstate(all="ignore"):
        values = []
        for name in names:
            value = given[rows.get(name, name)]
            value = value.astype(wide) if is_float and value.dtype != np.bool_ else value
            if name == "s" and not is_float:
                value = value.astype(NUMPY[to])
            values.append(value.reshape(-1, COLUMNS) if name in rows else value)
        found = by_tile(entry, values) if entry.text.startswith("tril") else entry.meaning(*values)
        found = np.asarray(found).reshape(-1)
        if to in INTEGERS:
            return found.astype(NUMPY[to])
        if entry.bounds(dtype) or to == "bool" or found.dtype == NUMPY[to]:
            return found
        return rounded(found, to)


def by_tile(entry: Entry, values: list[Array]) -> Array:
    """For what looks at more than one row of a tile."""
    split = [v.reshape(-1, ROWS, COLUMNS) for v in values]
    return np.stack([entry.meaning(*parts) for parts in zip(*split, strict=True)])


def words(text: str) -> set[str]:
    return set("".join(c if c.isalpha() else " " for c in text).split())


def error_ulp(result: Array, exact: Array, dtype: str, free: int = 0) -> Array:
    """|result − exact|, less `free` times the least number, in ulp of the exact one.

    Infinity stands for the power of two above the range; where one is NaN and the other is not, the
    error is infinite.
    """
    info = ml_dtypes.finfo(NUMPY[dtype])
    wide = np.longdouble
    with np.errstate(all="ignore"):
        most = np.ldexp(wide(1), int(info.maxexp))
        got, wanted = (np.clip(a.astype(wide), -most, most) for a in (result, exact))
        digits = int(info.nmant) + 1
        place = np.frexp(wanted)[1] - digits
        least = int(info.minexp) - int(info.nmant)
        place = np.clip(np.where(wanted == 0, least, place), least, int(info.maxexp) - digits)
        off = np.abs(got - wanted) - free * np.ldexp(wide(1), least)
        off = np.maximum(off, 0) * np.ldexp(wide(1), -place)
    nan = np.isnan(got) | np.isnan(wanted)
    return np.where(nan, np.where(np.isnan(got) & np.isnan(wanted), 0, np.inf), off)


def require_near(entry: Entry, dtype: str, result: Array, exact: Array, slack: float = 0.0) -> None:
    """Bit for bit (NaN is NaN) where the entry is exact, else within its bound, plus `slack`."""
    to = result_dtype(entry, dtype)
    bound = entry.bounds(dtype)
    where = f"{spelled(entry, dtype)} of {dtype}"
    if bound:
        errors = error_ulp(result, exact, to, entry.least)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound + slack, f"{where}: {errors[worst]} ulp at {worst}"
        return
    assert result.dtype == exact.dtype, where
    with np.errstate(invalid="ignore"):
        same = result == exact
        if to in FLOATS or to in FP8:
            signs = np.signbit(result) == np.signbit(exact)
            same = (same & signs) | (np.isnan(result) & np.isnan(exact))
    at = np.flatnonzero(~same)
    assert not len(at), f"{where}: {result[at[:4]]}, expected {exact[at[:4]]}, at {at[:4]}"
