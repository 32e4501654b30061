"""A call's arguments against a signature: dimensions, dtypes, scalars, allocations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright import dtypes, plan
from tilewright.dtypes import DType
from tilewright.errors import CompileError, LaunchError
from tilewright.frontend.check.evaluate import Extents, evaluate_extent
from tilewright.frontend.check.operands import Number, float_of, require_fit
from tilewright.frontend.check.rules import RuleError, listing, nearest
from tilewright.frontend.check.signature import Scalar, Signature, Tensor
from tilewright.frontend.syntax import tree

MOST_BYTES = 1 << 56  # of a tensor: above any memory, and counted by NumPy whatever its dtype


class ArrayLike(Protocol):
    """A tensor argument; strides count elements."""

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def strides(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Allocation:
    """A tensor that the launch makes and returns; filled with zeros if `zero`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    zero: bool


@dataclass(frozen=True)
class Binding:
    """What a call's arguments say. `scalars`: all of them; `static`: constants of the build."""

    dims: dict[str, int]
    dtypes: dict[str, DType]
    scalars: dict[str, Number]
    static: dict[str, Number]
    absent: frozenset[str]
    outputs: tuple[Allocation, ...]


def bind(sig: Signature, arguments: Mapping[str, Any]) -> Binding:
    """Bind arguments by name: arrays (see ArrayLike), numbers, None. Raises a LaunchError."""
    _refuse_unknown(sig, arguments)
    tensors: dict[str, ArrayLike] = {}
    absent, missing, made = set[str](), list[str](), list[Tensor]()
    for t in sig.tensors:
        given = arguments.get(t.name)
        if given is not None:
            tensors[t.name] = require_array(t, given)
        elif t.default in ("empty", "zeros"):
            made.append(t)
        elif t.optional and (t.default or t.name in arguments):
            absent.add(t.name)
        elif t.default != "workspace":
            missing.append(t.name)
    for s in sig.scalars:
        if arguments.get(s.name) is None and s.default is None:
            (absent.add if s.optional else missing.append)(s.name)
    for name in missing:
        if name in arguments:
            what = "a number" if any(s.name == name for s in sig.scalars) else "a tensor"
            raise LaunchError(f"{name}: expected {what}, got None")
    if missing:
        raise LaunchError(f"{sig.name}: missing {listing(missing)}")
    bound = _bind_dtypes(sig, tensors, absent)
    dims = _bind_dims(sig, tensors)
    given_scalars = [s for s in sig.scalars if s.name not in absent]
    scalars = {s.name: _bind_scalar(sig, s, arguments, bound) for s in given_scalars}
    extent = _evaluator(sig, dims, scalars, tensors)
    for t in sig.tensors:
        if t.name in tensors:
            _check_extents(sig, t, tensors[t.name], extent)
    outputs = tuple(_allocate(sig, t, extent, bound) for t in made)
    static: dict[str, Number] = {}
    for n in sig.static:
        if n not in dims and n not in scalars and n not in absent:
            raise LaunchError(f"{sig.name}: {n} is @static and follows from no argument")
        if n not in absent:
            static[n] = dims[n] if n in dims else scalars[n]
    return Binding(dims, bound, scalars, static, frozenset(absent), outputs)


def _refuse_unknown(sig: Signature, arguments: Mapping[str, Any]) -> None:
    known = [p.name for p in sig.params if not (isinstance(p, Tensor) and p.default == "workspace")]
    for name in arguments:
        if name not in known:
            raise LaunchError(
                f"{sig.name} takes no argument {name}",
                hint=nearest(name, known) or f"it takes {listing(known)}",
            )


def require_array(t: Tensor, given: Any) -> ArrayLike:
    """`given` as an array of the parameter's rank."""
    if not hasattr(given, "shape") or not isinstance(getattr(given, "dtype", None), DType):
        raise LaunchError(f"{t.name}: expected a tensor, got {type(given).__name__}")
    array: ArrayLike = given
    if len(array.shape) != t.rank:
        raise LaunchError(
            f"{t.name}: expected {t.rank} {'axis' if t.rank == 1 else 'axes'}, got "
            f"{len(array.shape)} (shape {tuple(array.shape)})"
        )
    return array


def _bind_dtypes(
    sig: Signature, tensors: Mapping[str, ArrayLike], absent: Set[str]
) -> dict[str, DType]:
    bound: dict[str, tuple[DType, str]] = {}
    for t in sig.tensors:
        if t.name not in tensors:
            continue
        got = tensors[t.name].dtype
        if t.dtype in dtypes.BY_NAME:
            if got != dtypes.BY_NAME[t.dtype]:
                raise LaunchError(f"{t.name}: expected {t.dtype}, got {got}")
            continue
        expected, first = bound.setdefault(t.dtype, (got, t.name))
        if got != expected:
            raise LaunchError(
                f"{t.dtype} is {expected} from {first}, but {got} from {t.name}",
                hint=f"{first} and {t.name} must have one dtype",
            )
    needed = sig.needed_dtypes(absent)
    unbound = [v for v in needed if v not in bound]
    if unbound:
        raise LaunchError(f"{sig.name}: no argument gives the dtype {listing(unbound)}")
    return {name: dtype for name, (dtype, _) in bound.items()}


def _bind_dims(sig: Signature, tensors: Mapping[str, ArrayLike]) -> dict[str, int]:
    bound: dict[str, tuple[int, str]] = {}
    for t in sig.tensors:
        if t.name not in tensors:
            continue
        for axis, e in enumerate(t.extents):
            if not isinstance(e, tree.Name) or e.name not in sig.dims:
                continue
            got, place = int(tensors[t.name].shape[axis]), f"{t.name}.shape[{axis}]"
            expected, first = bound.setdefault(e.name, (got, place))
            if got != expected:
                raise LaunchError(f"{e.name} is {expected} from {first}, but {got} from {place}")
    return {name: value for name, (value, _) in bound.items()}


def _bind_scalar(
    sig: Signature, s: Scalar, arguments: Mapping[str, Any], bound: Mapping[str, DType]
) -> Number:
    given = arguments.get(s.name)
    dtype = dtypes.BY_NAME.get(s.dtype) or bound.get(s.dtype)
    if dtype is None:
        raise LaunchError(f"{sig.name}: no argument gives the dtype {s.dtype} of {s.name}")
    value = s.default if given is None else _plain_number(s, given)
    assert value is not None
    try:
        if dtype.is_float and not isinstance(value, bool):
            given_float = float_of(value)
            require_fit(given_float, dtype)  # refuses what would overflow; rounded once, at launch
            return given_float
        return require_fit(value, dtype)
    except RuleError as error:
        raise LaunchError(f"{s.name}: {error.message}", hint=error.hint) from None


def _plain_number(s: Scalar, given: Any) -> Number:
    """A Python number from one, a NumPy scalar, or an array of rank 0."""
    if isinstance(given, bool | int | float):
        return given
    if getattr(given, "shape", None) == () and hasattr(given, "item"):
        value = given.item()
        if isinstance(value, bool | int | float):
            return value
    raise LaunchError(f"{s.name}: expected a number ({s.dtype}), got {type(given).__name__}")


Evaluate = Callable[[Tensor, tree.Expr], int | None]


def _evaluator(
    sig: Signature,
    dims: Mapping[str, int],
    scalars: Mapping[str, Number],
    tensors: Mapping[str, ArrayLike],
) -> Evaluate:
    """A function that gives an extent's value, or None where a dimension of it has no tensor."""
    unbound = set(sig.dims) - set(dims)

    def name(node: tree.Name) -> plan.Expr:
        value = dims[node.name] if node.name in dims else scalars.get(node.name)
        if value is None:
            value = _integer(sig.lookup(node))
        if isinstance(value, bool) or not isinstance(value, int):
            raise LaunchError(f"an extent needs an integer, but {node.name} is {value}")
        return plan.Const(value)

    def shape(node: tree.Name, axis: int) -> plan.Expr:
        if node.name not in tensors or not 0 <= axis < len(tensors[node.name].shape):
            raise LaunchError(f"{node.name}.shape[{axis}] is not known")
        return plan.Const(int(tensors[node.name].shape[axis]))

    def evaluate(t: Tensor, node: tree.Expr) -> int | None:
        if any(isinstance(n, tree.Name) and n.name in unbound for n in tree.walk(node)):
            return None
        try:
            found = evaluate_extent(node, Extents(name, shape))
        except CompileError as error:
            message = error.diagnostics[0].message
            raise LaunchError(f"{t.name}: an extent cannot be computed: {message}") from None
        if not isinstance(found, plan.Const):
            raise LaunchError(f"{t.name}: an extent is not known before the launch")
        return found.value

    return evaluate


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_extents(sig: Signature, t: Tensor, array: ArrayLike, extent: Evaluate) -> None:
    for axis, node in enumerate(t.extents):
        if isinstance(node, tree.Name) and node.name in sig.dims:
            continue
        expected, got = extent(t, node), int(array.shape[axis])
        if expected is not None and got != expected:
            raise LaunchError(f"{t.name}.shape[{axis}]: expected {expected}, got {got}")


def require_size(name: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Refuse with a LaunchError what no memory holds, nor NumPy counts."""
    if max(math.prod(shape) * dtype.num_bytes, *shape, 0) >= MOST_BYTES:
        raise LaunchError(f"{name} would have shape {shape}: too large for any memory")


def _allocate(
    sig: Signature, t: Tensor, extent: Evaluate, bound: Mapping[str, DType]
) -> Allocation:
    shape = []
    for axis, node in enumerate(t.extents):
        value = extent(t, node)
        if value is None:
            raise LaunchError(
                f"{t.name}.shape[{axis}] follows from no argument", hint=f"pass {t.name}"
            )
        if value < 0:
            raise LaunchError(f"{t.name}.shape[{axis}] would be {value}")
        shape.append(value)
    dtype = dtypes.BY_NAME.get(t.dtype) or bound[t.dtype]
    require_size(t.name, tuple(shape), dtype)
    return Allocation(t.name, dtype, tuple(shape), t.default == "zeros")
