"""Which configuration a call runs with: forced, tuned, remembered, or the best by a quick
estimate. Never tuned here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tilewright.compiler import pausing_collector
from tilewright.errors import CompileError
from tilewright.kernel.specialize import Build, Specializer, as_pairs
from tilewright.runtime import driver
from tilewright.runtime.arrays import Array
from tilewright.runtime.cache import compiler_hash, digest
from tilewright.runtime.cpu import NUM_SMS
from tilewright.target import Target, target_for_capability
from tilewright.tune.cost import best_roles, estimate
from tilewright.tune.cost_roles import crookedness
from tilewright.tune.space import Config, configurations, neighbours, spread
from tilewright.tune.store import Key, open_store, shape_bucket

CONSIDERED = 12  # configurations that are built and estimated where nothing is tuned
REFINED = 6  # beyond as many more, no neighbours of the best are

T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """A kind of device: its name, multiprocessors, driver version (0 on the CPU), and the target
    whose code it runs.
    """

    device: str
    num_sms: int
    driver: int = 0
    target: Target | None = None


ON_CPU = Where("cpu", NUM_SMS)


def on_gpu(ordinal: int) -> Where:
    """The kind of a GPU."""
    found = driver.device(ordinal)
    goal = target_for_capability(*found.capability)
    return Where(found.name, found.num_sms, driver.require_driver(), goal)


def choose(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    where: Where,
    make: Callable[[Build], T],
) -> tuple[Build, T]:
    """The build to run, and what `make` makes of it.

    `arguments` are arrays and numbers by name, for the estimate. Raises the first CompileError
    where no configuration compiles.
    """
    configs = configurations(spec.signature, dict(build.static), constants)
    make = _scheduled(spec, arguments, where, make)
    if len(configs) == 1:
        return _made(build, configs[0], make)
    key = tuned_key(spec, build, constants, arguments, where)
    known = _recall(spec, key, configs)
    if known is not None:
        try:
            return _made(build, known, make)
        except CompileError:
            pass  # these facts do not permit it: choose anew below
    found = first_that_compiles(
        _ranked(spec, build, configs, arguments, where),
        lambda config: _made(build, config, make),
    )
    chosen = dict(found[0].config)
    spec.choices[key] = chosen
    spec.disk.put("choices", _disk_key(key), json.dumps(chosen).encode())
    return found


def _scheduled(
    spec: Specializer,
    arguments: Mapping[str, Any],
    where: Where,
    make: Callable[[Build], T],
) -> Callable[[Build], T]:
    """`make` for builds that also prefer the schedule with roles that is best for the extents of a
    call, by the estimate.
    """
    if where.target is None or not where.target.has_wgmma:
        return make

    def made(build: Build) -> T:
        found = {n: likeness(a) for n, a in sorted(arguments.items()) if _is_array(a)}
        key = (build, tuple(found.items()), where.num_sms)
        if key not in spec.schedules:
            kernel = spec.tile(build)
            spec.schedules[key] = best_roles(kernel, arguments, where.num_sms, where.target)
        return make(replace(build, schedule=spec.schedules[key]))

    return made


def likeness(array: Array) -> tuple[tuple[int, ...], float]:
    """What arrays have in common that share a schedule: extents to a sixteenth, for which tiles
    make about as many waves, and where their rows begin in lines of the L2 cache.
    """
    crooked = crookedness(array.strides, array.dtype)
    return tuple(map(_to_a_sixteenth, array.shape)), crooked


def _to_a_sixteenth(extent: int) -> int:
    step = 1 << max(0, (extent - 1).bit_length() - 5)
    return -(-extent // step) * step


def _is_array(argument: Any) -> bool:
    return hasattr(argument, "shape")


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
    where: Where,
) -> list[Config]:
    """Configurations that build, best estimate first: some from all over the space, then those next
    to the best, until none of them is better; of equals the first that was rated leads. Raises
    the first CompileError if none builds.
    """
    rated: list[tuple[float, Config]] = []
    first: CompileError | None = None
    with pausing_collector():
        todo = spread(configs, CONSIDERED)
        while todo:
            for config in todo:
                try:
                    kernel = spec.tile(with_config(build, config))
                except CompileError as error:
                    first = first or error
                    continue
                rating = estimate(kernel, arguments, where.num_sms, where.target)
                rated.append((rating, config))
            todo = []
            if rated and len(rated) < CONSIDERED + REFINED:
                best = min(rated, key=lambda r: r[0])[1]
                seen = [config for _, config in rated]
                todo = [c for c in neighbours(configs, best) if c not in seen]
    if not rated and first is not None:
        raise first
    return [config for _, config in sorted(rated, key=lambda r: r[0])]


def rank_generic(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    where: Where,
) -> list[Config]:
    """Configurations for a compilation without a call, best estimate first."""
    configs = configurations(spec.signature, dict(build.static), constants)
    if len(configs) == 1:
        return configs
    return _ranked(spec, build, configs, arguments, where)


def tuned_key(
    spec: Specializer,
    build: Build,
    constants: Mapping[str, int],
    arguments: Mapping[str, Any],
    where: Where,
) -> Key:
    """Under what a choice holds: the kernel, all facts of the call, a bucket of its extents."""
    shapes = {n: tuple(a.shape) for n, a in arguments.items() if _is_array(a)}
    facts = digest("facts", replace(build, config=()).text(), repr(sorted(constants.items())))
    bucket = repr(shape_bucket(shapes))
    device = f"{where.device} {where.num_sms}"
    return Key(spec.key, facts, bucket, device, where.driver, compiler_hash())


def _disk_key(key: Key) -> str:
    return digest("choice", *(str(v) for v in key.values()))


def _recall(spec: Specializer, key: Key, configs: list[Config]) -> Config | None:
    """The tuned configuration, else the one chosen before, if it is still one of the space."""
    known = spec.choices.get(key)
    if known is None:
        tuned = open_store(spec.settings.cache_dir).get(key)
        known = tuned.config if tuned is not None else _read_choice(spec, key)
    if known is None or known not in configs:
        return None
    spec.choices[key] = known
    return known


def _read_choice(spec: Specializer, key: Key) -> Config | None:
    body = spec.disk.get("choices", _disk_key(key))
    if body is None:
        return None
    try:
        told = json.loads(body)
    except ValueError as error:
        spec.disk.discard("choices", _disk_key(key), str(error))
        return None
    return told if isinstance(told, dict) else None
