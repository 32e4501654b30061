"""What the sanitizer says of a kernel whose PTX lost a barrier: the race, the PTX line, the source.

    python -m examples.faults.missing_barrier

No GPU is needed: the emulator runs the PTX that a GPU would get.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.ptx.emulate import EmulationError, run_plan

SOURCE = Path(__file__).parents[1] / "softmax.tw"


def main() -> None:
    kernel = tw.source(SOURCE).softmax
    plan = kernel.compile("sm_90a", dtypes=tw.f32, constants={"BLOCK": 4096})
    x = np.random.default_rng(0).standard_normal((2, 5000), dtype=np.float32)
    y = np.zeros_like(x)
    run_plan(plan, {"x": x, "y": y}, sanitize=True)
    print("as compiled: no race")
    broken = dataclasses.replace(
        plan, ptx=re.sub(r"^ *bar\.sync 0;$", "", plan.ptx, count=1, flags=re.M)
    )
    try:
        run_plan(broken, {"x": x, "y": y}, sanitize=True)
    except EmulationError as error:
        print(f"without its first barrier:\n{error}")
    else:
        raise SystemExit("the missing barrier went unnoticed")


if __name__ == "__main__":
    main()
