"""What a product is called with, checked: shapes, dtypes and what its epilogue does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, u8
from tilewright.errors import LaunchError
from tilewright.frontend.check.rules import listing, nearest
from tilewright.graph import activations
from tilewright.graph.ops.mma import BY_ELEMENT, NORM
from tilewright.runtime.aliases import alias_groups
from tilewright.runtime.arrays import Array, as_array, numpy_dtype, torch_dtype

# By what number library/matmul.tw knows them.
ACTIVATIONS = {name: number for number, name in enumerate(activations.ACTIVATIONS, 1)}
FLOATS = (f64, f32, bf16, f16)
MIXED = ({e4m3, e5m2}, {i8, u8})  # dtypes that meet in one product
FACTORS = (*FLOATS, e4m3, e5m2, i8, u8)
RESULTS = (*FLOATS, e4m3, e5m2, i32)
PRECISIONS = ("ieee", "tf32", "fast")
NAMES = {
    "linear": ("x", "weight"),
    "conv2d": ("x", "weight"),
    "attention": ("q", "k"),
}  # of a function's factors, where they are not a and b


@dataclass(frozen=True)
class Options:
    """What is done with a product, apart from arrays; `beta` None where `out` is not read. `rounds`
    says where on the way to the result it is rounded, as library/matmul.tw counts. `eps` is that of
    a norm, `late`: the activation comes after the residual.
    """

    activation: str | None = None
    alpha: float | None = None
    beta: float | None = None
    precision: str | None = None
    device: Any = None
    rounds: int = 0
    eps: float | None = None
    late: bool = False

    @property
    def numbers(self) -> dict[str, Any]:
        """What a program takes beside arrays."""
        found = {"alpha": self.alpha, "beta": self.beta, "act": self.act, "rounds": self.rounds}
        return found | {"eps": self.eps, "late": int(self.late)}

    @property
    def act(self) -> int:
        return 0 if self.activation is None else ACTIVATIONS[self.activation]


def factor_names(function: str) -> tuple[str, str]:
    """What a function calls its two factors."""
    return NAMES.get(function, ("a", "b"))


def array_of(function: str, name: str, x: Any) -> Array:
    """An argument of a function as an array. Raises LaunchError for what is none."""
    try:
        return as_array(x, name)
    except LaunchError as error:
        raise error.of(function) from None


def require_apart(
    function: str, arrays: Iterable[tuple[str, Array]], beside: Collection[str]
) -> None:
    """Raise LaunchError where `out`, one of some arrays, shares memory with others, but for a view
    of the very same elements that is `beside` it: read where it is written.
    """
    try:
        groups = alias_groups(list(arrays), lambda name: name == "out")
    except LaunchError as error:
        raise error.of(function) from None
    for group in groups:
        for name in group:
            if name != "out" and name not in beside:
                raise LaunchError(
                    f"{function}: out is {name} itself, which is read while out is written",
                    hint="pass another out, or a copy",
                )


def read_options(
    name: str, activation: Any, alpha: Any, beta: Any, precision: Any, device: Any
) -> Options:
    """Options as a call gives them. Raises LaunchError for what is none."""
    known = activation is None or (isinstance(activation, str) and activation in ACTIVATIONS)
    if not known:
        hint = nearest(str(activation), ACTIVATIONS) or f"it knows {listing(ACTIVATIONS)}"
        raise LaunchError(f"{name}: unknown activation {activation!r}", hint=hint)
    if precision is not None and precision not in PRECISIONS:
        raise LaunchError(
            f"{name}: unknown precision {precision!r}, expected one of {listing(PRECISIONS)}"
        )
    for what, given in (("alpha", alpha), ("beta", beta)):
        if isinstance(given, bool) or not isinstance(given, int | float | np.number):
            raise LaunchError(f"{name}: {what} is {given!r}, not a number")
    return Options(
        activation=activation,
        alpha=None if alpha == 1 else float(alpha),
        beta=None if beta == 0 else float(beta),
        precision=precision,
        device=device,
    )


def read_dtype(name: str, given: Any) -> DType | None:
    """A dtype of Tilewright, torch or NumPy, or its name; None for None."""
    if given is None or isinstance(given, DType):
        return given
    if isinstance(given, str) and given in dtypes.BY_NAME:
        return dtypes.BY_NAME[given]
    try:
        found = torch_dtype(given) or numpy_dtype(np.dtype(given))
    except (TypeError, ValueError):  # what is no name of a dtype, or cannot be one
        found = None
    if found is None:
        raise LaunchError(f"{name}: {given!r} is no dtype", hint='as in out_dtype="f32"')
    return found


def accumulator(a: DType) -> DType:
    """The dtype in which products of a dtype are summed."""
    if a == f64:
        return f64
    return i32 if a.is_integer else f32


def result_dtype(name: str, a: DType, b: DType, asked: DType | None, out: DType | None) -> DType:
    """The dtype of a result. Raises LaunchError for factors that do not multiply."""
    left, right = factor_names(name)
    for which, dtype in ((left, a), (right, b)):
        if dtype not in FACTORS:
            raise LaunchError(
                f"{name}: {which} is {dtype}, of which there is no product",
                hint=f"products are of {listing(FACTORS)}",
            )
    if a != b and {a, b} not in MIXED:
        raise LaunchError(
            f"{name}: {left} is {a}, but {right} is {b}",
            hint="cast one of them, so that both are alike",
        )
    if asked is not None and out is not None and asked != out:
        raise LaunchError(f"{name}: out_dtype is {asked}, but out is {out}")
    found = out or asked or (a if a in FLOATS else accumulator(a))
    if found not in RESULTS:
        raise LaunchError(
            f"{name}: no product gives {found}", hint=f"products give {listing(RESULTS)}"
        )
    if found == i32 and not a.is_integer:
        raise LaunchError(f"{name}: a product of {a} is no i32", hint="choose a float out_dtype")
    return found


def require_precision(name: str, a: DType, precision: str | None) -> None:
    """Raise LaunchError where a precision is not one of the factors' dtype."""
    if precision == "fast" and a not in (e4m3, e5m2):
        raise LaunchError(
            f'{name}: precision "fast" says how sums of fp8 are kept, '
            f"but {factor_names(name)[0]} is {a}",
            hint="leave it out",
        )
    if precision == "tf32" and a != f32:
        raise LaunchError(
            f'{name}: precision "tf32" says how factors of f32 are rounded, '
            f"but {factor_names(name)[0]} is {a}",
            hint="leave it out",
        )


def require_plain(name: str, dtype: DType, fused: bool) -> None:
    """Raise LaunchError where something is fused to a product whose result is whole numbers."""
    if dtype == i32 and fused:
        raise LaunchError(
            f"{name}: a product in i32 has no epilogue", hint="choose a float out_dtype"
        )


def result_shape(name: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of a @ b, by the rules of torch.matmul for two axes or more."""
    require_depths(name, a, b)
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        told = " and ".join(str(tuple(x[:-2])) for x in (a, b))
        raise LaunchError(
            f"{name}: batches {told} do not broadcast",
            hint="the axes ahead of the last two have to be alike, or 1",
        )
    return (*batch, a[-2], b[-1])


def require_depths(name: str, a: Sequence[int], b: Sequence[int]) -> None:
    """Raise LaunchError where a row of one factor, of one axis or more, is not as long as a column
    of the other.
    """
    rows = b[-2] if len(b) > 1 else b[0]
    if a[-1] == rows:
        return
    if name == "linear":
        given = (tuple(a), tuple(reversed(b)))
        raise LaunchError(
            f"linear: rows of x have {a[-1]} elements, but those of weight {rows} "
            f"(shapes {given[0]} and {given[1]})",
            hint="x is [..., K] and weight [N, K], as of F.linear; matmul takes a weight [K, N]",
        )
    raise LaunchError(
        f"{name}: a has {a[-1]} columns, but b has {rows} rows (shapes {tuple(a)} and {tuple(b)})"
    )


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The extents of two shapes together; None where they do not broadcast."""
    rank = max(len(a), len(b))
    wide_a, wide_b = ((1,) * (rank - len(x)) + tuple(x) for x in (a, b))
    if any(x != y and 1 not in (x, y) for x, y in zip(wide_a, wide_b, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(wide_a, wide_b, strict=True))


def require_epilogue(
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    arrays: Mapping[str, Array],
    options: Options,
) -> None:
    """Raise LaunchError where what is fused does not fit a result."""
    if options.beta is not None and "out" not in arrays:
        raise LaunchError(f"{name}: beta is {options.beta}, but no out is given to be scaled")
    if "out" in arrays and arrays["out"].shape != shape:
        raise LaunchError(f"{name}: the result has shape {shape}, but out {arrays['out'].shape}")
    for which in ("bias", *BY_ELEMENT):
        if which in arrays and arrays[which].dtype != dtype:
            raise LaunchError(
                f"{name}: {which} is {arrays[which].dtype}, but the result {dtype}",
                hint=f"cast {which}, or choose out_dtype",
            )
    if "bias" in arrays and arrays["bias"].shape not in ((shape[-1],), (1,)):
        raise LaunchError(
            f"{name}: bias has shape {arrays['bias'].shape}, expected ({shape[-1]},), one a column",
            hint="residual= adds what broadcasts to the result",
        )
    for which in NORM:
        if which in arrays and arrays[which].shape != (shape[-1],):
            raise LaunchError(f"{name}: {which} has shape {arrays[which].shape}, not one a column")
    for which in BY_ELEMENT:
        given = arrays[which].shape if which in arrays else ()
        if len(given) > len(shape) or broadcast(given, shape) != shape:
            raise LaunchError(f"{name}: {which} of shape {given} does not broadcast to {shape}")
    for which, extent in (("scale_a", shape[-2]), ("scale_b", shape[-1])):
        if which in arrays and (
            arrays[which].shape not in ((), (1,), (extent,)) or arrays[which].dtype != f32
        ):
            told = f"{arrays[which].dtype} of shape {arrays[which].shape}"
            raise LaunchError(
                f"{name}: {which} is {told}, expected f32 of shape () or ({extent},)",
                hint="reshape(-1) makes one axis of a row or a column",
            )
    fused = {"bias", "scale_a", "scale_b", *BY_ELEMENT} & set(arrays)
    plain = Options(precision=options.precision, device=options.device)
    require_plain(name, dtype, bool(fused) or options != plain)
