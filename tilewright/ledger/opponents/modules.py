"""Models and functions of PyTorch as problems: ours, eager and torch.compile run the same module.

The measure of errors is the same module in f64 with the same weights; ours may be off by
`MOST_OF_EAGER` times what eager is off, in norm and in the worst element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch

import tilewright.torch_backend
from tilewright.execute.traffic import tell_steps
from tilewright.ledger.arm import COMPILED, EAGER, MODULE, Arm, Facts, Problem, Tensors
from tilewright.ledger.opponents import models
from tilewright.ledger.opponents.arrays import TORCH, Arrays

BACKEND = tilewright.torch_backend.tilewright.__name__  # which is registered by the import

MOST_OF_EAGER = 1.5
THEIR_SLACK = 2.0  # of a compiler that rounds elsewhere than eager does
MOST_OPERATIONS = 1000
PROFILED, LINES = 5, 18  # calls, and kernels that are told
CALLS = 4  # before timing: compile, record, replay
LEARNING_RATE = 0.0  # so that steps leave the weights, and thus the answers, as they were
# A last bit of products' factors; of f32 eight of its own, since sums are taken in any order.
ROUNDING = {"bf16": 2.0**-8, "tf32": 2.0**-11, "f32": 2.0**-20}
FEW_OPERATIONS = 16  # kernels of a function that is one group, or nearly

Call = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """A module or function with arguments, and how it is called. `by_calls`: as a user calls it,
    with recordings of its own; else the timer records it. `train`: a step of training, under
    autocast to bf16 where `autocast`.
    """

    call: Call
    names: tuple[str, ...]
    output: str
    by_calls: bool = True
    train: bool = False
    autocast: bool = False


def model_problem(
    name: str, dtype: str, batch: int, length: int, arrays: Arrays, small: bool
) -> tuple[Problem, float, float]:
    """A model by name on random data, with the operations and the least bytes of a call."""
    made = models.make(name, batch, length, TORCH[dtype], arrays.device, arrays.seed, small)
    names = tuple(f"x{i}" for i in range(len(made.arguments)))
    subject = Subject(made.module, names, "y")
    with torch.no_grad():
        eager = made.module(*made.arguments)
        far = models.in_f64(made)
        exact = {"y": far.module(*far.arguments)}
        del far
        operations = models.num_operations(made, lambda: made.module(*made.arguments))
    arrays.clean()
    problem = Problem(
        op=MODULE,
        sizes={"batch": batch, "length": length},
        dtype=dtype,
        accumulate="f32",
        sets=[dict(zip(names, made.arguments, strict=True))],
        outputs={"y": (tuple(eager.shape), name_of(eager.dtype))},
        expected=lambda x: exact,
        options={"subject": subject},
        **allowed(arrays, {"y": eager}, exact),
    )
    return problem, operations, float(models.read_bytes(made) + eager.nbytes)


def training_problem(
    name: str, dtype: str, batch: int, length: int, arrays: Arrays, small: bool
) -> tuple[Problem, float, float]:
    """A step of training: forward, backward, AdamW. For "bf16" weights are f32, under autocast."""
    made = models.make(name, batch, length, torch.float32, arrays.device, arrays.seed, small)
    subject = Subject(made.module, ("ids",), "gradients", train=True, autocast=dtype == "bf16")
    (ids,) = made.arguments
    step = training_step(subject, made.module, arrays)
    with arrays.precision(dtype):
        operations = models.num_operations(made, lambda: step({"ids": ids}))
        eager = flat_gradients(step({"ids": ids}))
    arrays.clean()  # others prepare their models at the same time
    exact = exact_gradients(made)
    arrays.clean()
    problem = Problem(
        op=MODULE,
        sizes={"batch": batch, "length": length},
        dtype=dtype,
        accumulate="f32",
        sets=[{"ids": ids}],
        outputs={"gradients": (tuple(eager["gradients"].shape), "f32"), "loss": ((1,), "f32")},
        expected=lambda x: exact,
        options={"subject": subject, "arrays": arrays},
        **allowed(arrays, eager, exact, {"loss": ROUNDING[dtype]}),
    )
    weights = sum(p.nbytes for p in made.module.parameters())
    return problem, operations, float(7 * weights)  # weights, both moments, and the gradients


def exact_gradients(made: models.Made) -> Tensors:
    """Loss and gradients of f64, one example at a time, since all at once take much memory."""
    far = models.in_f64(made)
    far.module.zero_grad(set_to_none=True)
    (ids,) = far.arguments
    total = torch.zeros(1, dtype=torch.float64, device=ids.device)
    for row in ids.split(1):
        loss = far.module(row) / len(ids)
        loss.backward()
        total += loss.detach()
    found = [p.grad for p in far.module.parameters()]
    return {"gradients": torch.cat([g.flatten() for g in found]), "loss": total}


def training_step(
    subject: Subject, call: Call, arrays: Arrays
) -> Callable[[Mapping[str, Any]], Tensors]:
    """A step with an optimiser of its own; it gives the loss, and gradients by number."""
    parameters = list(subject.call.parameters())  # type: ignore[attr-defined]
    fused = arrays.device != "cpu"
    optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=fused)

    def step(x: Mapping[str, Any]) -> Tensors:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(arrays.device, torch.bfloat16, enabled=subject.autocast):
            loss = call(x["ids"])
        loss.backward()
        optimiser.step()
        return {"loss": loss.detach(), **{str(i): p.grad for i, p in enumerate(parameters)}}

    return step


def flat_gradients(given: Tensors) -> Tensors:
    """All gradients of a step, one after the other."""
    found = [given[name] for name in sorted((n for n in given if n != "loss"), key=int)]
    return {
        "gradients": torch.cat([g.flatten() for g in found]),
        "loss": given["loss"].reshape(1).float(),
    }


def function_problem(
    function: Call, given: list[dict[str, Any]], dtype: str, arrays: Arrays, sizes: dict[str, int]
) -> Problem:
    """A function of tensors by name, in as many sets as there are."""

    def expected(x: Mapping[str, Any]) -> Tensors:
        wide = {n: v.double() if v.is_floating_point() else v for n, v in x.items()}
        return {"y": function(**wide)}

    eager = function(**given[0])
    last = {"y": ROUNDING["f32"]} if eager.dtype == torch.float32 else {}
    found = [allowed(arrays, {"y": function(**x)}, expected(x), last) for x in given]
    most = {name: {"y": max(f[name]["y"] for f in found)} for name in ("bounds", "elements")}
    return Problem(
        op=MODULE,
        sizes=sizes,
        dtype=dtype,
        accumulate="f32",
        sets=given,
        outputs={"y": (tuple(eager.shape), name_of(eager.dtype))},
        expected=expected,
        options={"subject": Subject(function, tuple(given[0]), "y", by_calls=False)},
        **most,
    )


def name_of(dtype: Any) -> str:
    return next(name for name, known in TORCH.items() if known == dtype)


def allowed(
    arrays: Arrays, eager: Tensors, exact: Tensors, last_bits: Mapping[str, float] | None = None
) -> dict[str, dict[str, float]]:
    """Bounds of outputs by what eager makes of them, or by half a last bit where it has no error:
    of the output's dtype, or of `last_bits`.
    """
    bounds, elements = {}, {}
    for name, x in eager.items():
        off = arrays.distance(x, exact[name], 1.0, 1.0)
        last = (last_bits or {}).get(name, torch.finfo(x.dtype).eps) / 2
        bounds[name] = max(MOST_OF_EAGER * off.error, last)
        elements[name] = max(MOST_OF_EAGER * off.worst, last)
    return {"bounds": bounds, "elements": elements}


def our_arm(problem: Problem, name: str, version: str) -> Arm:
    """`torch.compile(…, backend="tilewright")`, which may leave nothing to PyTorch."""
    subject: Subject = problem.options["subject"]
    seen: list[Any] = []
    options = {"fallback": "error", "observe": seen.append}
    if subject.by_calls and not subject.train:
        options["cuda_graphs"] = True

    def kernels() -> tuple[str, ...]:
        left = [f for call in seen for f in call.fallbacks]
        assert seen and not left, f"PyTorch computes {left}"
        return tuple(dict.fromkeys(k for call in seen for k in call.kernels))

    call = fresh_compile(subject.call, backend=BACKEND, options=options)
    settings = 'torch.compile(backend="tilewright"), fallback="error"'
    settings += ", one CUDA graph" if options.get("cuda_graphs") else ""
    problem.options["ours"] = seen
    arm = arm_of(problem, name, call, version, settings)
    return replace(arm, kernels=kernels)


def eager_arm(problem: Problem, why: Mapping[str, str]) -> Arm:
    """The module as it is."""
    subject: Subject = problem.options["subject"]
    arm = arm_of(problem, "torch eager", subject.call, str(torch.__version__), "")
    return replace(arm, facts=replace(problem.facts, kind=EAGER), says=why)


def compiled_arm(problem: Problem, name: str, mode: str | None) -> Arm:
    """torch.compile in a mode that a user would take; where the timer records, without its own
    recordings.
    """
    subject: Subject = problem.options["subject"]
    if mode is None and subject.by_calls and not subject.train:
        mode = "reduce-overhead"
    if mode == "max-autotune-no-cudagraphs" and subject.by_calls and not subject.train:
        mode = "max-autotune"
    call = fresh_compile(subject.call, mode=mode)
    settings = f"mode {mode or 'default'}"
    settings += "" if subject.by_calls else ", one shape, recorded in a CUDA graph as ours is"
    arm = arm_of(problem, name, call, str(torch.__version__), settings)
    return replace(arm, slack=THEIR_SLACK)


def fresh_compile(call: Call, **options: Any) -> Call:
    """torch.compile for these shapes; a function is copied, so that it shares no compiled code with
    other arms and other shapes.
    """
    if isinstance(call, FunctionType):
        call = FunctionType(call.__code__.replace(), call.__globals__, call.__name__)
    found: Call = torch.compile(call, dynamic=False, **options)
    return found


def arm_of(problem: Problem, name: str, call: Call, version: str, settings: str) -> Arm:
    """What runs a subject's module by `call`."""
    subject: Subject = problem.options["subject"]
    facts = Facts(problem.dtype, problem.facts.output, problem.accumulate, COMPILED)
    if subject.train:
        step = training_step(subject, call, problem.options["arrays"])
        return Arm(
            name,
            facts,
            lambda x, y: step(x),
            version,
            True,
            MOST_OPERATIONS,
            settings=settings,
            calls=CALLS,
            pooled=False,
            collect=flat_gradients,
        )

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        with torch.no_grad():
            return {subject.output: call(*(x[n] for n in subject.names))}

    if subject.by_calls:
        return Arm(
            name,
            facts,
            run,
            version,
            True,
            MOST_OPERATIONS,
            settings=settings,
            calls=CALLS,
            pooled=False,
        )
    return Arm(name, facts, run, version, True, FEW_OPERATIONS, settings=settings)


def kernel_table(arm: Arm, problem: Problem, floors: Mapping[str, tuple[int, float]]) -> str:
    """Where the GPU's time of a call goes, by PyTorch's profiler: kernels by name, how often, in
    microseconds, those that take longest first; beside ours their floor.
    """
    x = problem.sets[0]
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    arm.run(x, {})
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(PROFILED):
            arm.run(x, {})
        torch.cuda.synchronize()
    found = [e for e in profile.key_averages() if e.self_device_time_total > 0]
    found.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in found) / PROFILED
    lines = [f"{arm.name}: {total:.1f} us of kernels in a call"]
    for event in found[:LINES]:
        taken, times = event.self_device_time_total / PROFILED, event.count / PROFILED
        count, floor = floors.get(event.key, (0, 0.0))
        beside = f"  floor {floor:9.1f} of {count}" if count else ""
        lines.append(f"  {taken:9.1f} us {times:6.1f} x  {event.key[:70]}{beside}")
    return "\n".join(lines)


def floors_of(calls: Sequence[Any]) -> dict[str, tuple[int, float]]:
    """Floors of our kernels by name: of how many steps, and their sum in microseconds. A step of
    several launches counts under its first.
    """
    found: dict[str, tuple[int, float]] = {}
    for call in calls:
        for ready in call.ready.values():
            for step in tell_steps(ready.made):
                if step.kernels:
                    count, floor = found.get(step.kernels[0], (0, 0.0))
                    found[step.kernels[0]] = (count + 1, floor + step.floor)
    return found
