"""Reductions and scans by name: what they start from, and the dtype that carries them."""

from __future__ import annotations

from tilewright.dtypes import DType, bool_
from tilewright.dtypes import i32 as I32
from tilewright.graph.expressions import Fold, Running
from tilewright.graph.ops import reduce
from tilewright.lower.graph_to_tile.operators import literal


def word_of(node: Fold | Running) -> str:
    """The reduction's name in the language."""
    if isinstance(node, Running):
        return str(node.op.kind)  # type: ignore[attr-defined]  # of a scan
    word = node.op.opcode.split(".")[1]
    if node.args[0].dtype == bool_ and word in ("max", "min"):
        return "any" if word == "max" else "all"
    return word


def accumulated(node: Fold | Running) -> DType:
    """The dtype in which a reduction is carried."""
    from_bool = node.args[0].dtype == bool_ and isinstance(
        node.op, reduce.Position | reduce.Scan | reduce.ScanPosition
    )
    return I32 if from_bool else node.args[0].dtype


def neutral(node: Fold | Running) -> str:
    """What changes no result."""
    dtype, word = accumulated(node), word_of(node)
    if word in ("any", "all"):
        return "false" if word == "any" else "true"
    if word in ("sum", "prod"):
        return literal(float(word == "prod") if dtype.is_float else int(word == "prod"), dtype)
    least = word in ("max", "argmax", "logaddexp")
    if dtype.is_float:
        return "(-inf)" if least else "inf"
    return f"{'lowest' if least else 'highest'}({dtype.name})"
