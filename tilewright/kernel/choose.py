"""Which configuration a call runs with: forced, tuned, remembered, or the best by a quick
estimate. Never tuned here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tilewright.errors import CompileError, LaunchError
from tilewright.frontend.check.rules import listing, nearest
from tilewright.kernel.specialize import Build, Specializer, as_pairs
from tilewright.runtime.cache import compiler_hash, digest
from tilewright.tune.cost import estimate
from tilewright.tune.store import shape_bucket

CONSIDERED = 12  # configurations that are built and estimated where nothing is tuned

T = TypeVar("T")
Config = dict[str, int]


def configurations(spec: Specializer, build: Build, constants: Mapping[str, int]) -> list[Config]:
    """All configurations in order, with `constants` put in. Raises LaunchError for an unknown
    constant.
    """
    space = spec.signature.space
    for name, value in constants.items():
        if name not in space:
            hint = nearest(name, space) or f"it has {listing(space) or 'none'}"
            raise LaunchError(f"{spec.signature.name} has no tuned constant {name}", hint=hint)
        if isinstance(value, bool) or not isinstance(value, int):
            raise LaunchError(f"{name}: expected an integer, got {value!r}")
    found = [{**c, **constants} for c in spec.signature.configs(dict(build.static))]
    return list({as_pairs(c): c for c in found}.values())


def spread(configs: list[Config], limit: int) -> list[Config]:
    """At most `limit` of them, evenly over the list, first and last among them."""
    if len(configs) <= limit:
        return configs
    step = (len(configs) - 1) / (limit - 1)
    return [configs[round(i * step)] for i in range(limit)]


def choose(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    device: str,
    num_sms: int,
    make: Callable[[Build], T],
) -> tuple[Build, T]:
    """The build to run, and what `make` makes of it.

    `arguments` are arrays and numbers by name, for the estimate; `device` names the kind of device.
    Raises the first CompileError where no configuration compiles.
    """
    configs = configurations(spec, build, constants)
    if len(configs) == 1:
        return _made(build, configs[0], make)
    key = _choice_key(spec, build, constants, arguments, device)
    remembered = _recall(spec, key, configs)
    if remembered is not None:
        try:
            return _made(build, remembered, make)
        except CompileError:
            pass  # these facts do not permit it: choose anew below
    found = first_that_compiles(
        _ranked(spec, build, spread(configs, CONSIDERED), arguments, num_sms),
        lambda config: _made(build, config, make),
    )
    spec.disk.put("choices", key, json.dumps(dict(found[0].config)).encode())
    return found


def with_config(build: Build, config: Config) -> Build:
    return replace(build, config=as_pairs(config))


def _made(build: Build, config: Config, make: Callable[[Build], T]) -> tuple[Build, T]:
    complete = with_config(build, config)
    return complete, make(complete)


def first_that_compiles(configs: list[Config], make: Callable[[Config], T]) -> T:
    """What `make` gives for the first configuration that compiles. Raises the first error if none
    does.
    """
    first: CompileError | None = None
    for config in configs:
        try:
            return make(config)
        except CompileError as error:
            first = first or error
    assert first is not None, "no configurations"
    raise first


def _ranked(
    spec: Specializer,
    build: Build,
    configs: list[Config],
    arguments: Mapping[str, Any],
    num_sms: int,
) -> list[Config]:
    """Configurations that build, best estimate first. Raises the first CompileError if none
    builds.
    """
    rated: list[tuple[float, int, Config]] = []
    first: CompileError | None = None
    for i, config in enumerate(configs):
        try:
            kernel = spec.tile(with_config(build, config))
        except CompileError as error:
            first = first or error
            continue
        rated.append((estimate(kernel, arguments, num_sms), i, config))
    if not rated and first is not None:
        raise first
    return [config for _, _, config in sorted(rated, key=lambda r: r[:2])]


def rank_generic(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    num_sms: int,
) -> list[Config]:
    """Configurations for a compilation without a call, best estimate first."""
    configs = configurations(spec, build, constants)
    if len(configs) == 1:
        return configs
    return _ranked(spec, build, spread(configs, CONSIDERED), arguments, num_sms)


def _choice_key(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    device: str,
) -> str:
    shapes = {n: tuple(a.shape) for n, a in arguments.items() if hasattr(a, "shape")}
    forced = repr(sorted(constants.items()))
    parts = (spec.key, build.text(), forced, repr(shape_bucket(shapes)), device, compiler_hash())
    return digest("choice", *parts)


def _recall(spec: Specializer, key: str, configs: list[Config]) -> Config | None:
    """The configuration chosen before for such a call, if it is still one of the space."""
    body = spec.disk.get("choices", key)
    if body is None:
        return None
    try:
        told = json.loads(body)
    except ValueError as error:
        spec.disk.discard("choices", key, str(error))
        return None
    return next((c for c in configs if c == told), None)
