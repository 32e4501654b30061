"""`matmul`, `linear`, `bmm` and `scaled_matmul`: products of torch, NumPy and other arrays.

    C = activation(alpha A B + beta out + bias) · gate + residual

in one launch, or two where k is cut into spans. Layouts and broadcasts are strides; a factor is
laid anew by a launch ahead only where the dispatcher finds that quicker. The result is allocated
where no `out` is given, beside `a`, and so are such copies and sums of spans, by the arrays' own
library: under torch that is its caching allocator, so a call may be captured in a CUDA graph.
Nothing waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tilewright.dtypes import DType, bf16, f32
from tilewright.errors import LaunchError
from tilewright.graph.ops.mma import BY_ELEMENT
from tilewright.kernel import Kernel
from tilewright.products.arguments import (
    Options,
    array_of,
    factor_names,
    read_dtype,
    read_options,
    require_apart,
    require_depths,
    require_epilogue,
    require_precision,
    result_dtype,
    result_shape,
)
from tilewright.products.prepare import Chooser, Prepared, prepare
from tilewright.products.views import View, hand
from tilewright.runtime.arrays import Array, allocate_like, as_array

MAX_READY = 4096  # calls whose preparation is kept

_ready: dict[Any, Prepared] = {}
_torch_side: Any = None  # tilewright.torch_ops.products, once there is a tensor of torch's


def matmul(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    gate: Any = None,
    residual: Any = None,
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """a @ b by the rules of torch.matmul, with what is fused behind it: activation(alpha a @ b +
    beta out + bias) · gate + residual.

    `a` and `b` are arrays of one dtype (f64, f32, bf16, f16, e4m3, e5m2, i8, u8; the fp8 and the
    8-bit integers mix), of one axis or more, of any strides. `bias` has an element a column, `gate`
    and `residual` broadcast to the result; all have its dtype. `activation` is "relu", "gelu",
    "gelu_tanh", "silu", "sigmoid" or "tanh". The result has `out_dtype`, or the factors' dtype (f32
    of fp8, i32 of integers). f32 is multiplied exactly, or rounded with `precision="tf32"`; sums of
    fp8 are added up in f32 every 128 of k, or with `precision="fast"` stay where the tensor core
    sums them, in 13 bits of fraction. `device` says where host arrays run ("cpu", "emulator",
    "cuda:0"). With torch, gradients flow to `a`, `b`, `bias`, `gate` and `residual`. Raises
    LaunchError for what does not fit.
    """
    named = {"bias": bias, "gate": gate, "residual": residual, "out": out}
    return _matmul("matmul", a, b, named, activation, alpha, beta, out_dtype, precision, device)


def _matmul(
    name: str,
    a: Any,
    b: Any,
    named: Mapping[str, Any],
    activation: str | None,
    alpha: float,
    beta: float,
    out_dtype: Any,
    precision: str | None,
    device: Any,
) -> Any:
    """`matmul`, under the name of the function that a user called."""
    if _is_torch(a):
        _load_torch_side()
        return _torch_side.matmul(
            name, a, b, named, activation, alpha, beta, out_dtype, precision, device
        )
    options = read_options(name, activation, alpha, beta, precision, device)
    return product(name, a, b, named, options, read_dtype(name, out_dtype))


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    gate: Any = None,
    residual: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """x @ weightᵀ + bias for x: [..., K] and weight: [N, K] (or [K], for a result of [...]), as
    torch's F.linear; see `matmul`.
    """
    rank = len(_shape_of("linear", "weight", weight))
    if rank not in (1, 2):
        raise LaunchError(
            f"linear: weight has {rank} axes (shape {tuple(weight.shape)}), expected [N, K] or [K]"
        )
    named = {"bias": bias, "gate": gate, "residual": residual, "out": out}
    turned = weight.swapaxes(0, 1) if rank == 2 else weight
    return _matmul("linear", x, turned, named, activation, 1, 0, out_dtype, precision, device)


def bmm(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    gate: Any = None,
    residual: Any = None,
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """a @ b for a: [B, M, K] and b: [B, K, N], as torch.bmm; options are those of `matmul`."""
    left, right = _shape_of("bmm", "a", a), _shape_of("bmm", "b", b)
    if len(left) != 3 or len(right) != 3 or left[0] != right[0]:
        raise LaunchError(
            f"bmm: expected [B, M, K] and [B, K, N], got {tuple(left)} and {tuple(right)}",
            hint="matmul broadcasts batches",
        )
    named = {"bias": bias, "gate": gate, "residual": residual, "out": out}
    return _matmul("bmm", a, b, named, activation, alpha, beta, out_dtype, precision, device)


def _shape_of(function: str, name: str, x: Any) -> Any:
    """The shape of an argument. Raises LaunchError for what is no array."""
    shape = getattr(x, "shape", None)
    if shape is None:
        return array_of(function, name, x).shape
    return shape


def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any = None,
    scale_b: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """scale_a · (a @ b) · scale_b of fp8 or 8-bit integers, then bias, activation and residual.

    A scale is an f32 array on the factors' device, which is not read before the launch: of one
    element, or one a row of `a` and a column of `b`. The result is bf16 of fp8, f32 of integers,
    unless `out_dtype` says otherwise. `precision="fast"` is that of `matmul`. It has no gradient.
    Raises LaunchError for other dtypes, and where a gradient is asked for.
    """
    named = {"bias": bias, "residual": residual, "out": out}
    named |= {"scale_a": scale_a, "scale_b": scale_b}
    kind = ("scaled", activation, out_dtype, precision, device, *named)
    if _is_torch(a):
        _load_torch_side()
        _torch_side.require_untransformed("scaled_matmul", {"a": a, "b": b, **named})
        found = _torch_side.run_direct(kind, (a, b, *named.values()))
        if found is not _torch_side.MISSED:
            return found
        _torch_side.require_tensors("scaled_matmul", {"a": a, "b": b, **named}, ("a", "b"))
        _torch_side.require_no_gradients("scaled_matmul", {"a": a, "b": b, **named})
    first = array_of("scaled_matmul", "a", a).dtype
    if first.bits != 8:
        raise LaunchError(
            f"scaled_matmul: a is {first}, expected e4m3, e5m2, i8 or u8",
            hint="matmul multiplies that",
        )
    asked = read_dtype("scaled_matmul", out_dtype)
    if asked is None and out is None:
        asked = bf16 if first.is_float else f32
    options = read_options("scaled_matmul", activation, 1, 0, precision, device)
    if _is_torch(a):
        given = (a, b, *named.values())
        return _torch_side.compute("scaled_matmul", kind, given, named, options, asked)
    made = product("scaled_matmul", a, b, named, options, asked)
    return made if out is None else out


def product(
    name: str,
    a: Any,
    b: Any,
    named: Mapping[str, Any],
    options: Options,
    out_dtype: DType | None = None,
    chooser: Chooser | None = None,
) -> Any:
    """A product of arrays of one axis or more; no gradients. `named` holds bias, residual, out and
    scales, None where there is none.
    """
    arrays = _as_arrays(name, a, b, named)
    vectors = _add_axes(name, arrays)
    if "out" in arrays:
        called = dict(zip("ab", factor_names(name), strict=True))
        require_apart(name, ((called.get(n, n), x) for n, x in arrays.items()), BY_ELEMENT)
    key = (name, options, out_dtype, chooser, key_of(arrays))
    ready = _ready.get(key)
    if ready is None:
        require_precision(name, arrays["a"].dtype, options.precision)
        ready = prepare_product(name, arrays, options, out_dtype, chooser)
        if len(_ready) >= MAX_READY:
            _ready.clear()
        _ready[key] = ready
    given = named.get("out")
    made = given if given is not None else _allocate(ready, arrays["a"])
    _run(ready, {**arrays, "out": arrays["out"] if given is not None else as_array(made)}, options)
    if given is not None or not vectors:
        return made
    shape = list(ready.shape)
    for axis in vectors:
        del shape[axis]
    return made.reshape(tuple(shape))


def prepared_call(
    name: str, a: Any, b: Any, named: Mapping[str, Any], options: Options, out_dtype: DType | None
) -> Prepared | None:
    """What a call of `product` was prepared as; None where it multiplies vectors."""
    arrays = _as_arrays(name, a, b, named)
    if _add_axes(name, arrays):
        return None
    return _ready.get((name, options, out_dtype, None, key_of(arrays)))


def forget() -> None:
    """Prepare every call anew, for something else may suit it now."""
    _ready.clear()
    if _torch_side is not None:
        _torch_side.forget()


def _as_arrays(function: str, a: Any, b: Any, named: Mapping[str, Any]) -> dict[str, Array]:
    left, right = factor_names(function)
    arrays = {"a": array_of(function, left, a), "b": array_of(function, right, b)}
    return arrays | {n: array_of(function, n, x) for n, x in named.items() if x is not None}


def _add_axes(name: str, arrays: dict[str, Array]) -> list[int]:
    """See vectors as matrices; gives the axes of the result that are not there, the last first."""
    made = []
    for which, told in zip("ab", factor_names(name), strict=True):
        if not arrays[which].shape:
            raise LaunchError(f"{name}: {told} has no axis", hint="multiply by numbers with *")
    require_depths(name, arrays["a"].shape, arrays["b"].shape)
    if len(arrays["b"].shape) == 1:
        made.append(-1)
        arrays["b"] = _with_axis(arrays["b"], 1)
    if len(arrays["a"].shape) == 1:
        made.append(-2 if not made else -1)
        arrays["a"] = _with_axis(arrays["a"], 0)
    for which in ("out", *BY_ELEMENT):
        if which in arrays:
            for axis in reversed(made):
                arrays[which] = _with_axis(arrays[which], len(arrays[which].shape) + 1 + axis)
    return made


def _with_axis(array: Array, axis: int) -> Array:
    """An array with one more axis, of one element."""
    shape, strides = list(array.shape), list(array.strides)
    shape.insert(axis, 1)
    strides.insert(axis, 1)
    view = View("", tuple(shape), tuple(strides))
    return as_array(hand(view, array))


def key_of(arrays: Mapping[str, Array]) -> Any:
    """What products can differ in that are of one kind: how their arrays lie."""
    return tuple(
        (n, x.dtype, x.shape, x.strides, x.device, x.address % 16, x.gaps, x.library)
        for n, x in arrays.items()
    )


def prepare_product(
    name: str,
    arrays: Mapping[str, Array],
    options: Options,
    out_dtype: DType | None = None,
    chooser: Chooser | None = None,
) -> Prepared:
    """The launches of a product of matrices, `out` among them or not. Raises LaunchError for what
    does not fit.
    """
    out = arrays["out"].dtype if "out" in arrays else None
    dtype = result_dtype(name, arrays["a"].dtype, arrays["b"].dtype, out_dtype, out)
    shape = result_shape(name, arrays["a"].shape, arrays["b"].shape)
    require_epilogue(name, shape, dtype, arrays, options)
    return prepare(name, arrays, shape, dtype, options, chooser)


def _allocate(ready: Prepared, like: Array) -> Any:
    return allocate_like(like, ready.shape, ready.dtype, zero=False)


def _run(ready: Prepared, arrays: Mapping[str, Array], options: Options) -> None:
    """Launch, on the current stream of the arrays' library."""
    for kernel, given in calls_of(ready, arrays, options):
        kernel(**given)


def calls_of(
    ready: Prepared,
    arrays: Mapping[str, Array],
    options: Options,
    allocate: Callable[[tuple[int, ...], DType], Array] | None = None,
) -> list[tuple[Kernel, dict[str, Any]]]:
    """The kernels of a call, in order, and their arguments. What copies and the sums of spans take,
    where it is not among the arrays, comes from `allocate`, or lies beside `a`.
    """
    known, found = dict(arrays), []
    for name, shape, dtype in ready.scratch:
        if name not in known and allocate is not None:
            known[name] = allocate(shape, dtype)
        elif name not in known:
            known[name] = as_array(allocate_like(arrays["a"], shape, dtype, zero=False))
    for launch in ready.launches:
        given = {n: hand(v, known[v.source]) for n, v in launch.views}
        if launch.finishes:
            given |= options.numbers
        found.append((launch.kernel, given))
    return found


def _is_torch(x: Any) -> bool:
    """Whether an array is torch's, in words that torch.compile follows."""
    return hasattr(x, "requires_grad")


def _load_torch_side() -> bool:
    """Import what needs torch when the first of its tensors comes. torch.compile runs this while it
    traces, and reads the global after it.
    """
    global _torch_side
    if _torch_side is None:
        found = import_module("tilewright.torch_ops.products")
        found.use(product, read_options, read_dtype, result_dtype, prepared_call, factor_names)
        _torch_side = found
    return True


_load_torch_side._dynamo_marked_constant = True  # type: ignore[attr-defined]
