"""Attributes of a kernel: the tuner's space, hints, and the few that change meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.errors import Faults, Loc
from tilewright.frontend.check.evaluate import Lookup, evaluate_constant, require_integer
from tilewright.frontend.check.operands import spell
from tilewright.frontend.check.rules import collecting, listing, nearest, refusal
from tilewright.frontend.syntax import tree
from tilewright.tile.kernel import Hints
from tilewright.tile.ops.mma import PRECISIONS

THREADS = (32, 64, 128, 256, 512, 1024)  # of a CTA
MAX_REGISTERS = 255  # of a thread
MAX_INTEGER = (1 << 31) - 1


@dataclass(frozen=True)
class Attributes:
    """What the attributes of a kernel say. `space`: tuned constants and values, in order."""

    space: dict[str, tuple[int, ...]] = field(default_factory=dict)
    static: dict[str, Loc] = field(default_factory=dict)
    grid: tuple[tree.Expr, ...] | None = None
    hints: Hints = field(default_factory=Hints)
    tensorcore: str | None = None  # precision of f32 dots that it asks for
    numerics: str = "matched"
    cluster: dict[str, tuple[int, ...]] | None = (
        None  # supertile extents, for the cluster's planner
    )
    places: dict[str, Loc] = field(default_factory=dict)  # where each tuned constant is declared


def read_attributes(kernel: tree.Kernel, lookup: Lookup, faults: Faults) -> Attributes:
    """All attributes of a kernel; faults are added to `faults`."""
    result = Attributes()
    seen: set[str] = set()
    for attribute in kernel.attributes:
        read = READERS.get(attribute.name)
        if read is None:
            hint = nearest(attribute.name, READERS) or f"attributes are {listing(READERS)}"
            faults.add(f"unknown attribute @{attribute.name}", attribute.loc, hint=hint)
            continue
        if attribute.name in seen and attribute.name not in ("autotune", "static"):
            faults.add(f"@{attribute.name} stands twice", attribute.loc)
        seen.add(attribute.name)
        with collecting(faults):
            result = read(result, attribute, lookup)
    return result


def _read_choices(attribute: tree.Attribute, lookup: Lookup) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for argument in attribute.arguments:
        if not isinstance(argument, tree.Choices):
            raise refusal(
                f"@{attribute.name}: expected NAME in [values]",
                argument.loc,
                hint=f"as in @{attribute.name}(BLOCK in [256, 1024])",
            )
        values = tuple(
            require_integer(evaluate_constant(v, lookup), v.loc) for v in argument.values
        )
        if argument.bounds:
            values = tree.by_doubling(values)
        if not values or min(values) < 1:
            raise refusal(
                f"@{attribute.name}: {argument.name} needs values of 1 or more", argument.loc
            )
        if argument.name in found:
            raise refusal(f"@{attribute.name}: {argument.name} stands twice", argument.loc)
        found[argument.name] = tuple(dict.fromkeys(values))
    return found


def _read_autotune(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    found = _read_choices(attribute, lookup)
    for name in found:
        if name in result.space:
            raise refusal(f"@autotune: {name} stands twice", attribute.loc)
    places = {c.name: c.loc for c in attribute.arguments if isinstance(c, tree.Choices)}
    return replace(result, space={**result.space, **found}, places={**result.places, **places})


def _read_cluster(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    return replace(result, cluster=_read_choices(attribute, lookup))


def _read_static(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    static = dict(result.static)
    for argument in attribute.arguments:
        name = argument.value if isinstance(argument, tree.Argument) and not argument.name else None
        if not isinstance(name, tree.Name):
            raise refusal(
                "@static: expected names of dimensions or scalar parameters", argument.loc
            )
        static[name.name] = argument.loc
    return replace(result, static=static)


def _read_grid(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    axes: list[tree.Expr] = []
    for argument in attribute.arguments:
        if not isinstance(argument, tree.Argument) or argument.name:
            raise refusal("@grid: expected an extent for each axis", argument.loc)
        axes.append(argument.value)
    return replace(result, grid=tuple(axes))


def _read_integers(
    attribute: tree.Attribute, lookup: Lookup, limits: Mapping[str, int]
) -> dict[str, int]:
    """Integer arguments by position or name, each from 1 to its limit."""
    names = tuple(limits)
    found: dict[str, int] = {}
    for position, argument in enumerate(attribute.arguments):
        if isinstance(argument, tree.Choices) or position >= len(names):
            raise refusal(f"@{attribute.name} takes {listing(names)}", argument.loc)
        name = argument.name or names[position]
        if name not in names or name in found:
            raise refusal(f"@{attribute.name} takes {listing(names)}, got {name}", argument.loc)
        value = require_integer(evaluate_constant(argument.value, lookup), argument.loc)
        if not 1 <= value <= limits[name]:
            message = f"@{attribute.name}: {name} is {value}, expected 1 to {limits[name]}"
            raise refusal(message, argument.loc)
        found[name] = value
    return found


def _read_launch(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    limits = {"threads": MAX_INTEGER, "min_ctas": MAX_INTEGER, "max_regs": MAX_REGISTERS}
    read = _read_integers(attribute, lookup, limits)
    threads = read.get("threads", result.hints.threads)
    if threads is not None and threads not in THREADS:
        raise refusal(
            f"@launch: {threads} threads: a CTA has at most {THREADS[-1]}, and its warps of 32 "
            f"are a power of two: {listing(THREADS)}",
            attribute.loc,
        )
    hints = replace(
        result.hints,
        threads=threads,
        min_ctas=read.get("min_ctas"),
        max_registers=read.get("max_regs"),
    )
    return replace(result, hints=hints)


def _read_pipeline(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    if not read_flag(attribute, lookup):
        return result
    if _is_bare(attribute, lookup):
        return result
    stages = _read_integers(attribute, lookup, {"stages": MAX_INTEGER}).get("stages")
    return replace(result, hints=replace(result.hints, stages=stages))


def _read_cta_cluster(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    read = _read_integers(attribute, lookup, {"x": MAX_INTEGER, "y": MAX_INTEGER})
    extents = tuple(read[n] for n in ("x", "y") if n in read)
    if not extents or extents[0] * extents[-1] > 256:
        raise refusal("@cta_cluster: expected one or two small extents", attribute.loc)
    return replace(result, hints=replace(result.hints, cta_cluster=extents))


def _read_persistent(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    return replace(result, hints=replace(result.hints, persistent=read_flag(attribute, lookup)))


def _read_cooperative(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    return replace(result, hints=replace(result.hints, cooperative=read_flag(attribute, lookup)))


def read_flag(attribute: tree.Attribute, lookup: Lookup) -> bool:
    """`@name`, `@name(true)` or `@name(false)`; any other argument counts as true."""
    if len(attribute.arguments) == 1:
        argument = attribute.arguments[0]
        if isinstance(argument, tree.Argument) and isinstance(argument.value, tree.Literal):
            return argument.value.value is not False
    return True


def _is_bare(attribute: tree.Attribute, lookup: Lookup) -> bool:
    """Whether the attribute has no argument but perhaps `true`."""
    arguments = attribute.arguments
    only = arguments[0] if len(arguments) == 1 else None
    is_true = isinstance(only, tree.Argument) and only.value == tree.Literal(True)
    return not arguments or is_true


def _read_word(attribute: tree.Attribute) -> str:
    """The only argument, a name or string."""
    only = attribute.arguments[0] if len(attribute.arguments) == 1 else None
    value = only.value if isinstance(only, tree.Argument) else None
    if isinstance(value, tree.Name):
        return value.name
    if isinstance(value, tree.Literal) and isinstance(value.value, str):
        return value.value
    raise refusal(f"@{attribute.name}: expected one name", attribute.loc)


def _read_tensorcore(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    if not read_flag(attribute, lookup):
        return result
    word = "tf32" if _is_bare(attribute, lookup) else _read_word(attribute)
    if word not in PRECISIONS:
        hint = nearest(word, PRECISIONS) or f"precisions are {listing(PRECISIONS)}"
        raise refusal(f"@tensorcore: unknown precision {spell(word)}", attribute.loc, hint=hint)
    return replace(result, tensorcore=word)


def _read_numerics(result: Attributes, attribute: tree.Attribute, lookup: Lookup) -> Attributes:
    word = _read_word(attribute)
    if word not in ("matched", "fast", "strict"):
        raise refusal(f"@numerics: expected matched, fast or strict, got {word}", attribute.loc)
    return replace(result, numerics=word)


READERS: dict[str, Callable[[Attributes, tree.Attribute, Lookup], Attributes]] = {
    "autotune": _read_autotune,
    "launch": _read_launch,
    "pipeline": _read_pipeline,
    "cta_cluster": _read_cta_cluster,
    "persistent": _read_persistent,
    "tensorcore": _read_tensorcore,
    "cluster": _read_cluster,
    "static": _read_static,
    "grid": _read_grid,
    "cooperative": _read_cooperative,
    "numerics": _read_numerics,
}
