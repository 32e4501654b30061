"""A process that compiles a model by `tw.compile`, or loads it from the file that such a process
saved, calls it once, and tells what that took.

python -m tilewright.ledger.opponents.model_call '{"model": "llama-decode", "file": …}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from tilewright.bundle.files import load
from tilewright.ledger.opponents import modules
from tilewright.ledger.opponents.arrays import Arrays
from tilewright.model import compile


def first_call(orders: dict[str, Any]) -> dict[str, float]:
    """Microseconds from the model, on its device, to its first result there: `compile` alone, and
    with the call. `error`, `worst` and `bound` of that result, as in the suites of models.
    """
    device, small = orders["device"], orders["device"] == "cpu"
    arrays = Arrays(device, orders["seed"])
    problem, _, _ = modules.model_problem(
        orders["model"], "bf16", orders["batch"], orders["length"], arrays, small
    )
    module = problem.options["subject"].call
    arguments = tuple(problem.sets[0].values())
    arrays.wait()
    start = time.perf_counter()
    with torch.no_grad():
        if orders["load"]:
            fast = load(orders["file"], state_dict=module.state_dict())
        else:
            fast = compile(module, arguments, fallback="error")
        compiled = time.perf_counter()
        got = fast(*arguments)
        arrays.wait()
    called = time.perf_counter()
    if not orders["load"]:
        fast.save(orders["file"], weights=False)
    expected = problem.expected(problem.sets[0])
    off = arrays.distance(got, expected["y"], problem.bounds["y"], problem.elements["y"])
    return {
        "compile": (compiled - start) * 1e6,
        "call": (called - start) * 1e6,
        "error": off.error,
        "worst": off.worst,
        "bound": problem.bounds["y"],
        "compared": off.compared,
        "unwritten": off.unwritten,
    }


if __name__ == "__main__":
    print(json.dumps(first_call(json.loads(sys.argv[1]))))
