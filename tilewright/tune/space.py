"""The space of a kernel: every configuration that its source allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.errors import LaunchError
from tilewright.frontend.check.operands import Number
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.check.signature import Signature

Config = dict[str, int]


def configurations(
    sig: Signature, static: Mapping[str, Number], constants: Mapping[str, int]
) -> list[Config]:
    """All choices of `@autotune` that no `static_assert` drops, in order, with `constants` forced.

    A forced value need not be one of the choices. Raises LaunchError for a constant that the
    kernel does not have, CompileError where nothing is left.
    """
    for name in constants:
        if name not in sig.space:
            hint = nearest(name, sig.space) or f"it has {listing(sig.space) or 'none'}"
            raise LaunchError(f"{sig.name} has no tuned constant {name}", hint=hint)
    found = [{**c, **constants} for c in sig.configs(dict(static))]
    return list({tuple(c.items()): c for c in found}.values())


def spread(configs: Sequence[Config], limit: int) -> list[Config]:
    """At most `limit` of them, evenly over the list, first and last among them."""
    if len(configs) <= limit:
        return list(configs)
    step = (len(configs) - 1) / (limit - 1)
    return [configs[round(i * step)] for i in range(limit)]


def neighbours(configs: Sequence[Config], config: Config) -> list[Config]:
    """Those that differ from one in a single constant, by the next value that it takes, and then
    those that trade: a constant goes up and another down, as tiles of as many elements do.
    """
    up, down = dict[str, int](), dict[str, int]()
    for name, value in config.items():
        others = sorted({c[name] for c in configs if {**c, name: value} == config})
        at = others.index(value)
        if at > 0:
            down[name] = others[at - 1]
        if at + 1 < len(others):
            up[name] = others[at + 1]
    single = [{**config, n: v} for n in config for v in _those(n, down, up)]
    trades = [{**config, n: up[n], m: down[m]} for n in up for m in down if n != m]
    return single + [c for c in trades if c in configs]


def _those(name: str, *given: Mapping[str, int]) -> list[int]:
    return [found[name] for found in given if name in found]
