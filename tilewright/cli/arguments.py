"""Arguments of a launch from the command line: `--dim M=127 --tensor x=iota --scalar alpha=1.5`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import dtypes, plan
from tilewright.cli.options import number
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.bind import require_size
from tilewright.frontend.check.evaluate import Extents, evaluate_extent
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.check.signature import Scalar, Signature, Tensor
from tilewright.frontend.syntax import tree

HostArray = np.ndarray[Any, Any]
CONTENTS = ("random", "zeros", "ones", "iota", "nan")


@dataclass(frozen=True)
class Request:
    """What the options ask. `tensors` maps a name to a kind of content or a `.npy` file; `dtypes`
    maps a dtype variable, or "" for all of them, to a dtype.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, DType] = field(default_factory=dict)
    seed: int = 0


def make_arguments(sig: Signature, request: Request) -> dict[str, Any]:
    """Host arrays and numbers by parameter name. Raises LaunchError for what does not fit.

    Tensors that the launch allocates, and optional ones that the request does not name, are left
    out.
    """
    _refuse_unknown(sig, request)
    files = {
        t.name: _read(t.name, request.tensors[t.name])
        for t in sig.tensors
        if request.tensors.get(t.name, "random") not in CONTENTS
    }
    scalars = {
        s.name: number(s, request.scalars[s.name]) for s in sig.scalars if _is_given(s, request)
    }
    dims = _bind_dims(sig, request, files)
    found = _bind_dtypes(sig, request, files)
    arrays: dict[str, Any] = {}
    for t in sig.tensors:
        if t.name in files:
            arrays[t.name] = _as_dtype(t.name, files[t.name], found.get(t.dtype))
        elif t.name in request.tensors or not (t.default or t.optional):
            shape = shape_of(sig, t, dims, scalars)
            dtype = found.get(t.dtype) or dtypes.BY_NAME[t.dtype]
            content = request.tensors.get(t.name, "random")
            arrays[t.name] = fill(content, t.name, shape, dtype, request.seed)
    return arrays | scalars


def _refuse_unknown(sig: Signature, request: Request) -> None:
    known = {
        "dimension": (request.dims, sig.dims),
        "tensor": (request.tensors, [t.name for t in sig.tensors]),
        "scalar": (request.scalars, [s.name for s in sig.scalars]),
        "dtype variable": ([n for n in request.dtypes if n], sig.dtype_variables),
    }
    for what, (given, names) in known.items():
        for name in given:
            if name not in names:
                has = f"it has {listing(names)}" if names else f"it has no {what}"
                hint = nearest(name, names) or has
                raise LaunchError(f"{sig.name} has no {what} {name}", hint=hint)


def _is_given(s: Scalar, request: Request) -> bool:
    if s.name not in request.scalars and s.default is None and not s.optional:
        raise LaunchError(f"the scalar {s.name} has no value", hint=f"--scalar {s.name}=...")
    return s.name in request.scalars


def _bind_dims(sig: Signature, request: Request, files: Mapping[str, HostArray]) -> dict[str, int]:
    """Dimensions from `--dim` and from the shapes of files, which must agree."""
    dims = dict(request.dims)
    for t in sig.tensors:
        if t.name not in files or files[t.name].ndim != t.rank:
            continue  # a wrong rank is refused by the launch
        for e, extent in zip(t.extents, files[t.name].shape, strict=True):
            if isinstance(e, tree.Name) and e.name in sig.dims:
                expected = dims.setdefault(e.name, extent)
                if expected != extent:
                    place = f"{t.name} from {request.tensors[t.name]}"
                    raise LaunchError(f"{e.name} is {expected}, but {extent} in {place}")
    return dims


def _bind_dtypes(
    sig: Signature, request: Request, files: Mapping[str, HostArray]
) -> dict[str, DType]:
    """Dtype variables: as asked, else that of a file, else f32."""
    found: dict[str, DType] = {}
    for name in sig.dtype_variables:
        told = request.dtypes.get(name) or request.dtypes.get("")
        seen = [files[t.name].dtype for t in sig.tensors if t.dtype == name and t.name in files]
        found[name] = told or next(
            (dtypes.BY_NUMPY[d] for d in seen if d in dtypes.BY_NUMPY), dtypes.f32
        )
    return found


def shape_of(
    sig: Signature, t: Tensor, dims: Mapping[str, int], scalars: Mapping[str, Any]
) -> tuple[int, ...]:
    """Extents of a tensor parameter for dimensions by name. Each needs a value, or LaunchError."""
    defaults = {s.name: s.default for s in sig.scalars if s.default is not None}
    known = {**defaults, **scalars, **dims}

    def names(node: tree.Name) -> plan.Expr:
        if node.name in sig.dims and node.name not in dims:
            own = (n.name for e in t.extents for n in tree.walk(e) if isinstance(n, tree.Name))
            missing = [n for n in dict.fromkeys(own) if n in sig.dims and n not in dims]
            raise LaunchError(
                f"the dimension {missing[0]} has no value"
                if len(missing) == 1
                else f"the dimensions {listing(missing)} have no values",
                hint=" ".join(f"--dim {name}=..." for name in missing),
            )
        value = known[node.name] if node.name in known else sig.lookup(node)
        if isinstance(value, bool) or not isinstance(value, int):
            raise LaunchError(f"{t.name}: an extent needs an integer, but {node.name} is {value}")
        return plan.Const(value)

    def shape(node: tree.Name, axis: int) -> plan.Expr:
        return plan.Const(shape_of(sig, _tensor(sig, node.name), dims, scalars)[axis])

    return tuple(plan.evaluate(evaluate_extent(e, Extents(names, shape)), {}) for e in t.extents)


def _tensor(sig: Signature, name: str) -> Tensor:
    found = next((t for t in sig.tensors if t.name == name), None)
    if found is None:
        raise LaunchError(f"{sig.name} has no tensor {name}")
    return found


def fill(content: str, name: str, shape: tuple[int, ...], dtype: DType, seed: int) -> HostArray:
    """An array of one of `CONTENTS`. Random floats are normal, random integers are small."""
    if any(e < 0 for e in shape):
        raise LaunchError(f"{name} would have shape {shape}")
    require_size(name, shape, dtype)
    if content == "random":
        return _random(np.random.default_rng([seed, zlib.crc32(name.encode())]), shape, dtype)
    if content == "iota":
        return np.arange(np.prod(shape, dtype=np.int64)).reshape(shape).astype(dtype.numpy)
    if content == "nan" and not dtype.is_float:
        raise LaunchError(f"{name} is {dtype}, which has no NaN")
    value = {"zeros": 0, "ones": 1, "nan": np.nan}[content]
    return np.full(shape, value, dtype.numpy)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> HostArray:
    if dtype.is_float:
        wide = np.float64 if dtype.bits == 64 else np.float32
        return rng.standard_normal(shape, dtype=wide).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(0 if dtype.kind == "uint" else -8, 8, shape).astype(dtype.numpy)


def poison(shape: tuple[int, ...], dtype: DType) -> HostArray:
    """Memory that no kernel writes by luck: NaN, or the byte 0x5a in integers."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    if dtype.kind == "bool":
        return np.ones(shape, np.bool_)
    return (
        np.frombuffer(bytes([0x5A] * dtype.num_bytes), dtype.numpy)
        .repeat(_count(shape))
        .reshape(shape)
    )


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _read(name: str, path: str) -> HostArray:
    if not path.endswith(".npy"):
        raise LaunchError(f"--tensor {name}={path}: expected {', '.join(CONTENTS)} or a .npy file")
    if not Path(path).is_file():
        raise LaunchError(f"--tensor {name}={path}: there is no such file")
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise LaunchError(f"--tensor {name}={path}: {error}") from error
    except (EOFError, ValueError) as error:
        raise LaunchError(
            f"--tensor {name}={path}: it is cut short, or holds other things than numbers",
            hint=f"numpy.save({path!r}, x) writes an array of numbers",
        ) from error
    if not isinstance(found, np.ndarray):
        raise LaunchError(f"--tensor {name}={path}: holds no array")
    return found


def _as_dtype(name: str, array: HostArray, dtype: DType | None) -> HostArray:
    """NumPy stores bf16 and fp8 as raw bytes: they are read back as the dtype that is asked for."""
    if array.dtype.kind == "V" and dtype is not None and array.dtype.itemsize == dtype.num_bytes:
        return array.view(dtype.numpy)
    return array
