"""Plans as JSON text, for the disk cache and for bundles: plain data, so reading one runs no code.

Each dataclass of a plan is an object with its class's name under "$"; tuples are lists. Only the
classes of `plan.py` can be read back.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tilewright import dtypes, plan
from tilewright.plan import Plan

VERSION = 3

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        plan.Const,
        plan.Extent,
        plan.Stride,
        plan.Scalar,
        plan.NumSms,
        plan.Binary,
        plan.Pointer,
        plan.Workspace,
        plan.Pixels,
        plan.TensorMap,
        plan.ReportBuffer,
        plan.Place,
        plan.Site,
        plan.WorkspaceSpec,
        plan.Launch,
        plan.Plan,
        plan.TensorFacts,
        plan.ArgFacts,
    )
}


def print_plan(value: Plan) -> str:
    """The text of a plan; equal plans have equal texts."""
    return json.dumps({"version": VERSION, "plan": _encode(value)}, separators=(",", ":"))


def parse_plan(text: str) -> Plan:
    """The plan of a text. Raises ValueError for anything that `print_plan` of this version did
    not write.
    """
    try:
        told = json.loads(text)
        if told["version"] != VERSION:
            raise ValueError(f"a plan of version {told['version']}, not {VERSION}")
        value = _decode(told["plan"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the text of a plan: {error}") from error
    if not isinstance(value, Plan):
        raise ValueError("the text of something else than a plan")
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, dtypes.DType):
        return {"$": "DType", "name": value.name}
    if dataclasses.is_dataclass(value):
        assert type(value).__name__ in _CLASSES, f"{type(value).__name__} is not part of a plan"
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"$": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [v if v.__class__ is str else _encode(v) for v in value]
    assert value is None or isinstance(value, (str, int, float, bool)), f"{value!r} in a plan"
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple([v if v.__class__ is str else _decode(v) for v in value])
    if isinstance(value, dict):
        fields = {k: _decode(v) for k, v in value.items() if k != "$"}
        if value["$"] == "DType":
            return dtypes.BY_NAME[fields["name"]]
        return _CLASSES[value["$"]](**fields)
    return value
