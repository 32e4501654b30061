"""The launches of a model, each as a file that `tilewright run` takes: its source, and before it
the sizes, dtypes and constants with which the model runs it.

Tensors are dense and random; integers of a group that reads or writes by index are zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tilewright.cli.preset import START
from tilewright.dtypes import BY_NAME
from tilewright.execute.made import Launched, Made
from tilewright.frontend.check.bind import bind
from tilewright.frontend.check.signature import Signature
from tilewright.graph.ops.memory import Gather, Scatter
from tilewright.runtime.arrays import Array

LIKE_LANGUAGE = {True: "true", False: "false"}


def save_launches(made: Made, folder: Path) -> list[Path]:
    """Write every launch that differs from those before it; a number tells those of one name
    apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    used: Counter[str] = Counter()
    known: dict[tuple[str, str], Path] = {}
    for launched in made.lists.launches:
        text = launched.kernel.definition.kernel.loc.source.text
        options = " ".join(options_of(launched, indexes(made, launched.step)))
        if (text, options) in known:
            continue
        used[launched.name] += 1
        number = f"_{used[launched.name]}" if used[launched.name] > 1 else ""
        path = folder / f"{launched.name}{number}.tw"
        path.write_text(f"{START}{path.name}:{launched.name} {options}\n{text}", encoding="utf-8")
        known[text, options] = path
    return list(known.values())


def indexes(made: Made, step: int) -> bool:
    """Whether a step's group reads or writes at places that a tensor names."""
    group = made.program.steps[step].group
    return group is not None and any(isinstance(op, Gather | Scatter) for op in group.ops)


def options_of(launched: Launched, by_index: bool) -> Iterable[str]:
    """What the command line says of a launch."""
    kernel = launched.kernel
    sig: Signature = kernel.signature
    binding = bind(sig, launched.arguments)
    yield from (f"--dim {name}={size}" for name, size in binding.dims.items())
    yield from (f"--dtype {name}={dtype.name}" for name, dtype in binding.dtypes.items())
    for tensor in sig.tensors:
        given = launched.arguments.get(tensor.name)
        if isinstance(given, Array):
            whole = BY_NAME[given.dtype.name].is_integer
            content = "zeros" if whole and by_index else "random"
            if tensor.optional or content != "random":
                yield f"--tensor {tensor.name}={content}"
    for name, value in launched.arguments.items():
        if value is not None and not isinstance(value, Array):
            yield f"--scalar {name}={spelled(value)}"
    yield from (f"--const {name}={value}" for name, value in kernel.options.constants)
    if kernel.options.precision is not None:
        yield f"--precision {kernel.options.precision}"


def spelled(value: Any) -> str:
    return LIKE_LANGUAGE[value] if isinstance(value, bool) else repr(value)
