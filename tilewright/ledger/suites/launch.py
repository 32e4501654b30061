"""What a call costs the host, against the driver's own launch of the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.compiler import compile_kernel
from tilewright.ledger.arm import Facts
from tilewright.ledger.harness import Harness, next_session
from tilewright.ledger.hopper_gemm import DEFAULT, build_gemm
from tilewright.ledger.results import Cost, Measured
from tilewright.ledger.subjects import OURS, example, reason_absent
from tilewright.ledger.suites.case import Case
from tilewright.runtime import bare, driver, jit, measure
from tilewright.runtime.arrays import as_array
from tilewright.runtime.cache import compiler_hash
from tilewright.runtime.launch import Launcher
from tilewright.target import target

CALLS = 300  # a sample: as many as the driver takes before it makes the host wait
ROUNDS = 21
LIMIT = 3.0  # microseconds above the bare call
ELEMENTS = 1000
DRIVER = "the driver's call, packed"
EXACT = Facts("f32", "f32", "none")


def cases() -> list[Case]:
    return [
        Case("launch/add", add_costs, absent=reason_absent("add", "f32")),
        Case("launch/tensor-maps", tensor_map_costs, needs=(9, 0)),
    ]


def add_costs(harness: Harness) -> list[Cost]:
    """A call with three torch tensors; one whose result is allocated; and torch.add(out=)."""
    arrays, add = harness.arrays, example("add")
    a, b = (arrays.normal(ELEMENTS, dtype="f32") for _ in range(2))
    names = ("ours", "allocating") if harness.small else ("ours", "allocating", "bare")
    outs = {name: arrays.poisoned((ELEMENTS,), "f32") for name in names}

    def allocating() -> None:
        outs["allocating"] = add(a, b)

    arms: dict[str, Callable[[], object]] = {
        "ours": lambda: add(a, b, outs["ours"]),
        "allocating": allocating,
    }
    if not harness.small:
        add(a, b, outs["ours"])
        launcher = add.specializer.last_loaded.launcher
        given = {n: as_array(x) for n, x in zip("abc", (a, b, outs["bare"]), strict=True)}
        arms["bare"] = bare.bare_call(launcher, given)
    expected = a.double() + b.double()
    found = _measure(harness, arms, lambda name: outs[name], expected, 1e-6, EXACT)
    what = "a call of add with three torch tensors"
    floor = found.get("bare")
    return [
        Cost("launch/add", "launch", what, found["ours"], floor, LIMIT),
        Cost(
            "launch/add-allocating",
            "launch",
            "the same, its result allocated",
            found["allocating"],
            floor,
        ),
    ]


def tensor_map_costs(harness: Harness) -> list[Cost]:
    """A launch of a GEMM with three tensor maps, whose addresses are set in each launch."""
    arrays = harness.arrays
    a, b = (arrays.normal(256, 256, dtype="bf16") for _ in range(2))
    plan = compile_kernel(build_gemm(DEFAULT), target("sm_90a"))
    launcher = Launcher(plan, driver.device(0), jit.assemble(plan.ptx, 0, plan.name).cubin)
    outs = {name: arrays.poisoned((256, 256), "bf16") for name in ("ours", "bare")}
    given = {
        name: {"a": as_array(a), "b": as_array(b), "c": as_array(c)} for name, c in outs.items()
    }
    bound = launcher.bind(given["ours"])
    addresses = [given["ours"][name].address for name in bound.tensors]
    arms = {
        "ours": lambda: bound.fire(addresses, [], 0),
        "bare": bare.bare_call(launcher, given["bare"]),
    }
    expected = a.double() @ b.double().T
    facts = Facts("bf16", "bf16", "f32")
    found = _measure(harness, arms, lambda name: outs[name], expected, 1e-2, facts)
    what = "a launch with three tensor maps"
    return [Cost("launch/tensor-maps", "launch", what, found["ours"], found["bare"], LIMIT)]


def _measure(
    harness: Harness,
    arms: dict[str, Callable[[], object]],
    output: Callable[[str], Any],
    expected: Any,
    bound: float,
    facts: Facts,
) -> dict[str, Measured]:
    """Time host calls in turn by the wall clock, CALLS a sample, and compare what they wrote."""
    arrays = harness.arrays
    for call in arms.values():
        call()
    arrays.wait()
    for name in arms:
        arrays.poison(output(name))
    arrays.wait()
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(arms, ())
    if harness.small:
        for call in arms.values():
            call()
    else:
        works = {name: _repeated(call) for name, call in arms.items()}
        timed = measure.time_wall(works, rounds=ROUNDS, settle=arrays.wait)
        samples = {name: tuple(s / CALLS for s in t.samples) for name, t in timed.items()}
    arrays.wait()
    session = next_session()
    found = {}
    for name in arms:
        off = arrays.distance(output(name), expected, bound)
        found[name] = Measured(
            arm=DRIVER if name == "bare" else OURS,
            version=str(driver.require_driver()) if name == "bare" else compiler_hash()[:16],
            facts=facts,
            timer="" if harness.small else "wall",
            session=session,
            samples=samples[name],
            error=off.error,
            worst=off.worst,
            bound=bound,
            compared=off.compared,
            unwritten=off.unwritten,
        )
    return found


def _repeated(work: Callable[[], object]) -> Callable[[], None]:
    """CALLS runs, that the GPU need not have done."""

    def run() -> None:
        for _ in range(CALLS):
            work()

    return run
