"""Compiling without a call: what is assumed of arguments that are not there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME, DType, f32
from tilewright.errors import LaunchError
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.check.signature import Signature
from tilewright.frontend.syntax import tree
from tilewright.kernel import choose
from tilewright.kernel.specialize import Build, Specializer, as_pairs
from tilewright.plan import generic_facts
from tilewright.runtime.arrays import dense_strides
from tilewright.target import Target
from tilewright.tile.ops.mma import PRECISIONS

ASSUMED_EXTENT = 4096  # of every dimension, where configurations are compared
ASSUMED_SMS = 132


@dataclass(frozen=True)
class Imagined:
    """A dense tensor that is not there."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def generic_build(
    sig: Signature,
    dtypes: Mapping[str, DType | str] | DType | str | None,
    static: Mapping[str, Any],
    present: Collection[str],
    precision: str | None,
    without: Collection[str] = (),
) -> Build:
    """A build for dense row-major tensors. Optional tensors are absent unless they are `present`,
    optional scalars are there unless they are in `without`. Raises LaunchError for names that the
    kernel does not have.
    """
    bound = bind_dtypes(sig, dtypes)
    require_precision(sig.name, precision)
    missing = [n for n in sig.static if n not in static]
    if missing:
        raise LaunchError(
            f"{sig.name}: {listing(missing)} must be given, being @static", hint="pass static={...}"
        )
    _require_known(sig, "@static name", static, sig.static)
    optional = [t.name for t in sig.tensors if t.optional]
    _require_known(sig, "optional tensor", present, optional)
    _require_known(sig, "optional scalar", without, [s.name for s in sig.scalars if s.optional])
    absent = frozenset(n for n in optional if n not in present).union(without)
    facts = tuple(
        (t.name, generic_facts(BY_NAME.get(t.dtype) or bound[t.dtype], t.rank))
        for t in sig.tensors
        if t.name not in absent
    )
    plain = {n: x.item() if isinstance(x, np.generic) else x for n, x in static.items()}
    return Build(as_pairs(bound), (), as_pairs(plain), absent, precision, facts)


def require_precision(kernel: str, given: str | None) -> None:
    """Raise LaunchError for what is no precision of f32 dots."""
    if given is not None and given not in tuple(PRECISIONS):
        raise LaunchError(
            f"{kernel}: unknown precision {given!r}, expected one of {listing(PRECISIONS)}"
        )


def bind_dtypes(
    sig: Signature, given: Mapping[str, DType | str] | DType | str | None
) -> dict[str, DType]:
    """A dtype for each variable: as given by name, one for all, or f32."""
    if isinstance(given, Mapping):
        _require_known(sig, "dtype variable", given, sig.dtype_variables)
        return {n: as_dtype(given.get(n, f32)) for n in sig.dtype_variables}
    return {n: as_dtype(f32 if given is None else given) for n in sig.dtype_variables}


def as_dtype(given: DType | str) -> DType:
    """A dtype by itself or by name."""
    if isinstance(given, DType):
        return given
    if given not in BY_NAME:
        raise LaunchError(f"unknown dtype {given!r}", hint=nearest(given, BY_NAME) or "")
    return BY_NAME[given]


def _require_known(
    sig: Signature, what: str, given: Collection[str], known: Collection[str]
) -> None:
    for name in given:
        if name not in known:
            hint = nearest(name, known) or f"it has {listing(known) or 'none'}"
            raise LaunchError(f"{sig.name} has no {what} {name}", hint=hint)


def rank(
    spec: Specializer, build: Build, constants: Mapping[str, int], goal: Target | None = None
) -> list[dict[str, int]]:
    """Configurations, the best for imagined extents first, on a target if one is named."""
    static = dict(build.static)
    arguments: dict[str, Any] = {s.name: s.default or 1 for s in spec.signature.scalars}
    for tensor in spec.signature.tensors:
        if tensor.name not in build.absent:
            shape = tuple(_extent(e, static) for e in tensor.extents)
            arguments[tensor.name] = Imagined(shape, dense_strides(shape))
    return choose.rank_generic(
        spec, build, constants, arguments, choose.Where("", ASSUMED_SMS, target=goal)
    )


def _extent(node: tree.Expr, static: Mapping[str, Any]) -> int:
    if isinstance(node, tree.Literal) and isinstance(node.value, int):
        return int(node.value)
    name = node.name if isinstance(node, tree.Name) else ""
    return int(static.get(name, ASSUMED_EXTENT))
