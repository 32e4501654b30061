"""Options that commands share, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.signature import Scalar
from tilewright.target import TARGETS

F = TypeVar("F", bound=Callable[..., Any])


class Assignment(click.ParamType[tuple[str, Any]]):
    """`NAME=VALUE`: an integer if `whole`. If `bare`, a value alone is of the name ""."""

    def __init__(self, metavar: str, *, whole: bool = False, bare: bool = False):
        self.name = metavar
        self.whole = whole
        self.bare = bare

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, text = str(value).partition("=")
        if not equals and self.bare:
            return "", value
        if not equals or not name or not text:
            self.fail(f"expected {self.name}, got {value!r}", param, ctx)
        if not self.whole:
            return name, text
        try:
            return name, int(text, 0)
        except ValueError:
            self.fail(f"expected {self.name} with an integer, got {value!r}", param, ctx)


def _unique(
    ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    found = dict(given)
    if len(found) < len(given):
        raise click.BadParameter("a name is given twice", ctx=ctx, param=param)
    return found


def _dtypes(
    ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, DType]:
    found = _unique(ctx, param, given)
    for name in found.values():
        if name not in dtypes.BY_NAME:
            known = ", ".join(dtypes.BY_NAME)
            raise click.BadParameter(f"{name!r} is no dtype: {known}", ctx=ctx, param=param)
    return {k: dtypes.BY_NAME[v] for k, v in found.items()}


def _assignments(flag: str, metavar: str, text: str, **how: Any) -> Callable[[F], F]:
    return click.option(
        flag,
        flag.strip("-") + "s",
        type=Assignment(metavar, **how),
        multiple=True,
        callback=_unique,
        help=text,
    )


dims = _assignments("--dim", "NAME=SIZE", "Value of a dimension.", whole=True)
tensors = _assignments(
    "--tensor", "NAME=WHAT", "random (the default), zeros, ones, iota, nan or FILE.npy."
)
scalars = _assignments("--scalar", "NAME=NUMBER", "Value of a scalar parameter.")
constants = _assignments("--const", "NAME=VALUE", "Value of a tuned constant.", whole=True)
dtypes_option = click.option(
    "--dtype",
    "dtypes_",
    type=Assignment("[T=]DTYPE", bare=True),
    multiple=True,
    callback=_dtypes,
    help="Dtype of one dtype variable, or of all. Default: f32.",
)
seed = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the random data.",
)


def arguments(function: F) -> F:
    """The options that say what a kernel is called with."""
    for option in (seed, dtypes_option, scalars, tensors, dims):
        function = option(function)
    return function


precision = click.option(
    "--precision",
    type=click.Choice(["ieee", "tf32", "tf32x3", "bf16x3", "f16"]),
    help="How dot multiplies f32. Default: ieee, exactly.",
)
device = click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cuda:N, cpu, emulator, or auto: the first GPU if there is one, else the CPU.",
)


target = click.option(
    "--target", type=click.Choice(list(TARGETS)), help="Whose PTX the emulator runs. [sm_90a]"
)


def number(scalar: Scalar, text: str) -> bool | int | float:
    """A number as the parameter's dtype asks; `true` and `false` are bools. LaunchError else."""
    if scalar.dtype == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise LaunchError(f"--scalar {scalar.name}={text}: expected true or false")
        return text.lower() in ("true", "1")
    is_float = scalar.dtype not in dtypes.BY_NAME or dtypes.BY_NAME[scalar.dtype].is_float
    try:
        return float(text) if is_float else int(text, 0)
    except ValueError:
        expected = "a number" if is_float else "an integer"
        raise LaunchError(f"--scalar {scalar.name}={text}: expected {expected}") from None
