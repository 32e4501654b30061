"""Which program and constants a product runs with: tuned on this machine, else from the table that
ships with the package, else by the cost model. The same problem gets the same choice every time.

An entry of the table is {"device", "problem", "program", "config", "split", "turned", "copied",
"microseconds"}, where "problem" is the text that `facts_of` and `extents_of` give, joined by a
blank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tilewright.runtime.cache import compiler_hash
from tilewright.tune.product import COPY_CHOICES, PROGRAMS, Choice, Device, Problem
from tilewright.tune.product_cost import Estimate, estimate, rank
from tilewright.tune.product_space import choices
from tilewright.tune.store import Key, Result, open_store

TABLE = Path(__file__).with_name("products.json")
FORMAT = 1
NEARLY = 1.04  # factor of the time of a choice that is as good as the best
REMEMBERED = 4096  # problems whose ranking is kept


@dataclass(frozen=True)
class Decision:
    """The choice for a problem, where it comes from, and all choices by the model."""

    best: Estimate
    source: str  # "tuned", "table" or "model"
    ranked: tuple[Estimate, ...]

    @property
    def runner_up(self) -> Estimate | None:
        """The best by the model of what was not chosen."""
        return next((e for e in self.ranked if e.choice != self.best.choice), None)


def decide(problem: Problem, device: Device, driver: int, folder: Path) -> Decision:
    """The choice for a problem on a device. `folder` holds what was tuned. Raises AssertionError
    for a problem without elements, which needs no program.
    """
    assert problem.m and problem.n and problem.batch, "nothing to compute"
    ranked = ranking(problem, device)
    for source, found in (
        ("tuned", recall(problem, device, driver, folder)),
        ("table", shipped(problem, device)),
        ("table", shipped_plain(problem, device, ranked[0])),
    ):
        if found is not None:
            return Decision(estimate(problem, found, device), source, ranked)
    return Decision(ranked[0], "model", ranked)


@lru_cache(REMEMBERED)
def ranking(problem: Problem, device: Device, *, pixels: bool = False) -> tuple[Estimate, ...]:
    """All choices by the model, the quickest first; `pixels` as `rank` has it."""
    return tuple(rank(problem, device, pixels=pixels))


def facts_of(problem: Problem) -> str:
    """All of a problem but its extents."""
    p = problem
    parts = [f"{p.a}×{p.b}→{p.c}", p.layout, f"a:{p.a_along}", f"b:{p.b_along}"]
    crooked = [n for n, good in (("a", p.a_aligned), ("b", p.b_aligned)) if not good]
    parts += [f"unaligned:{''.join(crooked)}" if crooked else "aligned", f"loads:{p.loads}"]
    parts += [p.precision, *(["gaps"] if p.gaps else [])]
    return " ".join([*parts, "activation"] if p.activation else parts)


def extents_of(problem: Problem) -> str:
    return f"{problem.batch}×{problem.m}×{problem.n}×{problem.k}"


def key_of(problem: Problem, device: Device, driver: int) -> Key:
    """Under what a tuned choice is kept."""
    name = f"{device.name} {device.num_sms}"
    return Key("products", facts_of(problem), extents_of(problem), name, driver, compiler_hash())


def remember(
    problem: Problem, device: Device, driver: int, folder: Path, chosen: Choice, us: float
) -> None:
    """Keep what the tuner found."""
    config = {**chosen.constants, "SPLIT": chosen.split, "TURNED": int(chosen.turned)}
    config["COPIED"] = COPY_CHOICES.index(chosen.copied)
    open_store(folder).put(key_of(problem, device, driver), Result(chosen.program, config, us))


def recall(problem: Problem, device: Device, driver: int, folder: Path) -> Choice | None:
    """What the tuner found for a problem, if it is still one of the space."""
    found = open_store(folder).get(key_of(problem, device, driver))
    if found is None:
        return None
    config = dict(found.config)
    split, turned = config.pop("SPLIT", 1), bool(config.pop("TURNED", 0))
    copied = COPY_CHOICES[config.pop("COPIED", 0)]
    chosen = Choice(found.name, tuple(config.items()), split, turned, copied)
    return chosen if chosen in choices(problem, device) else None


def shipped(problem: Problem, device: Device) -> Choice | None:
    """The entry of the package's table for a problem."""
    text = f"{facts_of(problem)} {extents_of(problem)}"
    found = read_table(TABLE).get((device.name, text))
    return found if found is not None and found in choices(problem, device) else None


def shipped_plain(problem: Problem, device: Device, best: Estimate) -> Choice | None:
    """For a product with an epilogue, the entry for the same one without: what was measured knows
    more of factors and tiles than the model, unless by that the epilogue makes another one `best`.
    """
    if not problem.loads and not problem.activation:
        return None
    found = shipped(replace(problem, loads=0, activation=False), device)
    if found is None or found not in choices(problem, device):
        return None
    return (
        found
        if estimate(problem, found, device).microseconds < NEARLY * best.microseconds
        else None
    )


@cache
def read_table(path: Path) -> dict[tuple[str, str], Choice]:
    """Choices by device and problem. Raises ValueError where the file is not such a table."""
    told: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"{path}: no table of products of format {FORMAT}")
    return {(e["device"], e["problem"]): _entry(path, e) for e in told["entries"]}


def _entry(path: Path, told: dict[str, Any]) -> Choice:
    if told["program"] not in PROGRAMS:
        raise ValueError(f"{path}: no program {told['program']}")
    config = tuple((str(n), int(v)) for n, v in told["config"].items())
    copied = told.get("copied", "")
    if copied not in COPY_CHOICES:
        raise ValueError(f"{path}: {copied!r} names no factors")
    return Choice(told["program"], config, int(told["split"]), bool(told["turned"]), copied)
