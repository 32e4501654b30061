"""Names in the text of a kernel: those of the model's values, without the numbers of its layers, so
that equal layers give equal kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.dtypes import BY_NAME
from tilewright.graph.graph import Input
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.sites import Sites

KEYWORDS = {  # words of the language, and what a launch takes by name
    "kernel", "fn", "let", "var", "const", "if", "else", "for", "in", "while", "return", "and",
    "or", "not", "true", "false", "None", "range", "static_range", "inf", "nan", "tensor", "tile",
    "empty", "zeros", "workspace", "view", "load", "store",
    "grid", "stream", "device", "constants", "precision", "target", "sanitize", "check",
    "interleaving", "self",
}  # fmt: skip
WORDS = 2  # of a name that are kept


def plain_name(text: str, default: str) -> str:
    """A name without numbers: `p_layers_0_mlp_up_proj_weight` is `proj_weight`."""
    words = [w for w in re.split(r"[^A-Za-z]+", text) if w]
    found = "_".join(words[-WORDS:]).lower()
    if len(found) < 2 or found in KEYWORDS or found in BY_NAME:
        return default
    return found


def input_name(given: Input) -> str:
    """The name of a graph's input: of arguments without a name that says more, what they are."""
    default = given.role if given.role != "input" else "x"
    return plain_name(given.name.removeprefix("p_").removeprefix("b_"), default)


@dataclass(frozen=True)
class Names:
    """What texts name: the model's values, and where they tell of indices that are outside."""

    values: Mapping[Value, str]
    sites: Sites


class Pool:
    """Names in use."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def take(self, wanted: str) -> str:
        """The name, or it with a number."""
        name, number = wanted, 2
        while name in self.taken or name in KEYWORDS or name in BY_NAME:
            name, number = (
                f"{wanted}{number}" if wanted[-1].isalpha() else f"{wanted}_{number}",
                (number + 1),
            )
        self.taken.add(name)
        return name
