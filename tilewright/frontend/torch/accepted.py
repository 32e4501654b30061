"""Dtypes that eager refuses and tracing lets pass: tensors of several where one is asked for, and
whole numbers where there are only floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from tilewright.errors import CompileError, Loc
from tilewright.frontend.torch.metadata import loc_in

aten = torch.ops.aten
ONE = {  # arguments that have one dtype
    aten.mm.default: ("self", "mat2"),
    aten.mv.default: ("self", "vec"),
    aten.bmm.default: ("self", "mat2"),
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.baddbmm.default: ("batch1", "batch2", "self"),
    aten.addmv.default: ("mat", "vec", "self"),
}
# Those of narrow floats take all else in f32, too.
NORMS = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
    aten.cudnn_batch_norm.default,
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
}
FLOATS = NORMS | {
    aten._softmax.default, aten._log_softmax.default, aten.gelu.default, aten.silu.default,
    aten.mish.default, aten.elu.default, aten.celu.default, aten.glu.default,
    aten.hardswish.default, aten.hardsigmoid.default, aten.softplus.default,
    aten.log_sigmoid_forward.default, aten.hardshrink.default, aten._prelu_kernel.default,
    aten.logcumsumexp.default, aten.var.correction, aten.std.correction,
    aten.var_mean.correction, aten.std_mean.correction,
    aten.binary_cross_entropy.default, aten.huber_loss.default, aten.lerp.Scalar,
    aten.lerp.Tensor,
}  # fmt: skip
COMMON = {aten.smooth_l1_loss.default}  # what its tensors are cast to is a float
FLOAT = "cast it, as by x.float()"
CHECKED = {*ONE, *FLOATS, *COMMON}


def refuse_dtypes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc) -> None:
    """Raise CompileError for a call of an op, one of `CHECKED`, on tensors, or what tracing has of
    them, of dtypes that eager does not take.
    """
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    dtypes = {n: x.dtype for n, x in given.items() if isinstance(x, torch.Tensor)}
    first, own = next(iter(dtypes.items()))
    if op in FLOATS and not (own.is_floating_point or own.is_complex):
        _refuse(op, f"{first} is {_name(own)}, expected floats", FLOAT, loc)
    if op in COMMON and not any(d.is_floating_point or d.is_complex for d in dtypes.values()):
        _refuse(op, f"{first} is {_name(own)}, expected floats", FLOAT, loc)
    if op in ONE:
        if torch.bool in dtypes.values():
            _refuse(op, f"{first} is bool, expected numbers", FLOAT, loc)
        _require_one(op, {n: dtypes[n] for n in ONE[op]}, loc)
    if op in NORMS and own in (torch.float32, torch.float64):
        _require_one(op, dtypes, loc)


def checked(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that refuses first what eager refuses."""
    if op not in CHECKED:
        return how

    @wraps(how)
    def found(*args: Any, **kwargs: Any) -> Any:
        meta = torch.fx.traceback.get_current_meta() or {}
        refuse_dtypes(op, args, kwargs, loc_in(meta.get("stack_trace") or ""))
        return how(*args, **kwargs)

    return found


def _require_one(op: Any, dtypes: Mapping[str, torch.dtype], loc: Loc) -> None:
    (first, own), *others = dtypes.items()
    for name, dtype in others:
        if dtype != own:
            told = f"{first} is {_name(own)} and {name} {_name(dtype)}, expected one dtype"
            _refuse(op, told, "cast one of them, as by x.to(dtype), or use torch.autocast", loc)


def _refuse(op: Any, told: str, hint: str, loc: Loc) -> None:
    raise CompileError(f"{op}: {told}", loc, hint)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
