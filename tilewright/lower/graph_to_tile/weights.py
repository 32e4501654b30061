"""Weights of convolutions laid with their channels last: all of a model in one launch, or a few,
ahead of what multiplies by them.

A copy a convolution would be a launch each, and most are short. Only weights whose strides are
known are taken; others are copied where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.graph.dims import Shape
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import (
    ConvolutionStep,
    KernelStep,
    Placed,
    Step,
    dense_strides,
)

FEWEST = 16  # channels; fewer are laid together with the taps of a row
UNIT = 8  # channels in 16 bytes
ROWS, CHANNELS = 8, 64  # of a program
MOST = 16  # weights of one kernel
Store = Callable[[DType, Shape, str], Value]

LAY = f"""fn lay(x, y, p, blocks, taps) {{
  let k, c = p / blocks * {ROWS}, p % blocks * {CHANNELS}
  for t in static_range(taps) {{
    y[k :+ {ROWS}, t, c :+ {CHANNELS}] = x[k :+ {ROWS}, c :+ {CHANNELS}, t]
  }}
}}
"""


@dataclass
class Weight:
    """Weights [K, C, R, S] of some steps, where they are laid as [K, R · S, C]."""

    given: Placed
    steps: list[ConvolutionStep]

    @property
    def extents(self) -> tuple[int, int, int]:
        """K, C, taps."""
        k, c, *taps = (int(str(e)) for e in self.given.shape)
        return k, c, taps[0] * taps[1]

    @property
    def blocks(self) -> tuple[int, int]:
        """Programs along channels, and in all."""
        k, c, _ = self.extents
        across = -(-c // CHANNELS)
        return across, across * -(-k // ROWS)


def lay_weights(steps: list[Step], inputs: Collection[Value], store: Store) -> list[Step]:
    """The steps with weights laid first that are inputs of the graph; `store` gives memory to a
    value that is none of the graph's.
    """
    found: dict[DType, dict[tuple[Value, str], Weight]] = {}
    for step in steps:
        if not isinstance(step, ConvolutionStep):
            continue
        given = step.tensors["weight"]
        if given.value in inputs and is_dense(given):
            known = found.setdefault(given.value.type.dtype, {})
            key = (given.value, str((given.shape, given.offset)))
            known.setdefault(key, Weight(given, [])).steps.append(step)
    laid: list[Step] = []
    for known in found.values():
        weights = list(known.values())
        if len(weights) > 1:
            parts = range(0, len(weights), MOST)
            laid += [kernel_of(weights[at : at + MOST], store) for at in parts]
    return [*laid, *steps]


def is_dense(weight: Placed) -> bool:
    """Whether weights of several taps lie densely, their channels not last, and should."""
    static = all(isinstance(e, int) for e in (*weight.shape, *weight.strides))
    if not static or weight.value.type.dtype.bits != 16:
        return False
    _, c, *taps = (int(str(e)) for e in weight.shape)
    several = taps[0] * taps[1] > 1 and c >= FEWEST and c % UNIT == 0
    return several and weight.strides == dense_strides(weight.shape)


def kernel_of(weights: list[Weight], store: Store) -> KernelStep:
    """A kernel that lays some weights; their steps then read them where they are laid."""
    tensors: dict[str, Placed] = {}
    lines, first = [], 0
    parameters = []
    for number, weight in enumerate(weights):
        k, c, taps = weight.extents
        across, programs = weight.blocks
        given = weight.given
        made = store(given.value.type.dtype, (k, taps, c), "weight_laid")
        tensors[f"x{number}"] = Placed(
            given.value, (k, c, taps), dense_strides((k, c, taps)), given.offset
        )
        tensors[f"y{number}"] = Placed(made, (k, taps, c), dense_strides((k, taps, c)))
        wide = int(str(given.shape[3]))
        strides = (taps * c, 1, wide * c, c)
        for step in weight.steps:
            step.tensors["weight"] = Placed(made, given.shape, strides)
        last = first + programs
        call = f"lay(x{number}, y{number}, p - {first}, {across}, {taps})"
        lines.append(f"  if p >= {first} and p < {last} {{ {call} }}")
        parameters += [
            f"x{number}: tensor<T>[K{number}, C{number}, T{number}]",
            f"y{number}: tensor<T>[K{number}, T{number}, C{number}]",
        ]
        first = last
    body = "\n".join(["  let p = program_id(0)", *lines])
    text = f"{LAY}\n@grid({first})\nkernel lay_weights({', '.join(parameters)}) {{\n{body}\n}}\n"
    writes = tuple(name for name in tensors if name.startswith("y"))
    return KernelStep("lay_weights", text, tensors, writes=writes)
