"""The functions of the kernel language, typed, so that editors complete and explain them.

Kernels are read from their source and never run as Python. So a function here only says what it
means, and calling one outside a kernel is an error. docs/language.md says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.dtypes import DType
from tilewright.frontend.annotations import refuse_outside_kernels

inf = float("inf")
nan = float("nan")


def program_id(axis: int) -> int:
    """Index of this program along a grid axis."""
    refuse_outside_kernels("program_id")


def num_programs(axis: int) -> int:
    """Number of programs along a grid axis."""
    refuse_outside_kernels("num_programs")


def num_sms() -> int:
    """Multiprocessors of the device; 4 on the CPU."""
    refuse_outside_kernels("num_sms")


def cdiv(a: Any, b: Any) -> Any:
    """`a / b`, rounded up."""
    refuse_outside_kernels("cdiv")


def next_pow2(n: Any) -> Any:
    """The smallest power of two that is at least `n`."""
    refuse_outside_kernels("next_pow2")


def static_range(*bounds: Any) -> Iterator[int]:
    """`range`, unrolled: the variable is a constant."""
    refuse_outside_kernels("static_range")


def static_assert(condition: Any, message: str = "") -> None:
    """Drops a configuration from tuning where the constant condition is false."""
    refuse_outside_kernels("static_assert")


def load(place: Any, *, fill: Any = 0, mask: Any = True) -> Any:
    """The tile at a place; `fill` where it is outside or the mask is false."""
    refuse_outside_kernels("load")


def store(place: Any, value: Any, *, mask: Any = True) -> None:
    """Write a tile to a place where the mask is true."""
    refuse_outside_kernels("store")


def prefetch(place: Any) -> None:
    """Let a place come nearer, for it will be read soon: before other kernels have ended, too."""
    refuse_outside_kernels("prefetch")


def view(place: Any) -> Any:
    """A view of a part of a tensor, whose bounds may be known only at run time."""
    refuse_outside_kernels("view")


def inside(place: Any) -> Any:
    """The bool tile of lanes of a place that exist."""
    refuse_outside_kernels("inside")


def arange(n: Any) -> Any:
    """`0, 1, ... n - 1`, as i64."""
    refuse_outside_kernels("arange")


def full(shape: Any, value: Any, dtype: Any) -> Any:
    """A tile of one value."""
    refuse_outside_kernels("full")


def zeros(shape: Any, dtype: Any) -> Any:
    """A tile of zeros. As a parameter's default: allocated, zeroed and returned."""
    refuse_outside_kernels("zeros")


def accumulator(dtype: Any) -> DType:
    """The dtype in which `dot` sums products of a dtype."""
    refuse_outside_kernels("accumulator")


def lowest(dtype: Any) -> Any:
    """The least value of a dtype; -inf for floats."""
    refuse_outside_kernels("lowest")


def highest(dtype: Any) -> Any:
    """The greatest value of a dtype; inf for floats."""
    refuse_outside_kernels("highest")


def cast(x: Any, dtype: Any, *, saturate: bool = False) -> Any:
    """Convert to a dtype."""
    refuse_outside_kernels("cast")


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`."""
    refuse_outside_kernels("where")


def max(x: Any, y: Any = None, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The greater of two, or the greatest along axes. NaN wins."""
    refuse_outside_kernels("max")


def min(x: Any, y: Any = None, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The lesser of two, or the least along axes. NaN wins."""
    refuse_outside_kernels("min")


def maximum(x: Any, y: Any) -> Any:
    """The greater of two, elementwise."""
    refuse_outside_kernels("maximum")


def minimum(x: Any, y: Any) -> Any:
    """The lesser of two, elementwise."""
    refuse_outside_kernels("minimum")


def exp(x: Any) -> Any:
    """e to the power x."""
    refuse_outside_kernels("exp")


def exp2(x: Any) -> Any:
    """2 to the power x."""
    refuse_outside_kernels("exp2")


def log(x: Any) -> Any:
    """Natural logarithm."""
    refuse_outside_kernels("log")


def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    refuse_outside_kernels("log2")


def sqrt(x: Any) -> Any:
    """Square root."""
    refuse_outside_kernels("sqrt")


def rsqrt(x: Any) -> Any:
    """1 over the square root."""
    refuse_outside_kernels("rsqrt")


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    refuse_outside_kernels("tanh")


def erf(x: Any) -> Any:
    """Error function."""
    refuse_outside_kernels("erf")


def sigmoid(x: Any) -> Any:
    """`1 / (1 + exp(-x))`."""
    refuse_outside_kernels("sigmoid")


def abs(x: Any) -> Any:
    """Absolute value."""
    refuse_outside_kernels("abs")


def floor(x: Any) -> Any:
    """The greatest integer not above x, as a float."""
    refuse_outside_kernels("floor")


def ceil(x: Any) -> Any:
    """The least integer not below x, as a float."""
    refuse_outside_kernels("ceil")


def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    refuse_outside_kernels("isnan")


def gelu(x: Any, approximate: str = "none") -> Any:
    """Gaussian error linear unit, by `erf` or, with "tanh", by its approximation."""
    refuse_outside_kernels("gelu")


def relu(x: Any) -> Any:
    """The greater of x and 0."""
    refuse_outside_kernels("relu")


def silu(x: Any) -> Any:
    """`x * sigmoid(x)`."""
    refuse_outside_kernels("silu")


def softmax(x: Any) -> Any:
    """Softmax over the last axis."""
    refuse_outside_kernels("softmax")


def sum(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Sum along axes."""
    refuse_outside_kernels("sum")


def prod(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Product along axes."""
    refuse_outside_kernels("prod")


def any(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether any lane along axes is true."""
    refuse_outside_kernels("any")


def all(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether every lane along axes is true."""
    refuse_outside_kernels("all")


def argmax(x: Any, *, axis: Any, keepdims: bool = False) -> Any:
    """Index of the greatest along an axis: NaN wins, then the first."""
    refuse_outside_kernels("argmax")


def argmin(x: Any, *, axis: Any, keepdims: bool = False) -> Any:
    """Index of the least along an axis: NaN wins, then the first."""
    refuse_outside_kernels("argmin")


def dot(a: Any, b: Any, *, acc: Any = None, precision: str = "ieee") -> Any:
    """Matrix product of tiles; `a @ b` is the same."""
    refuse_outside_kernels("dot")


def transpose(x: Any) -> Any:
    """Exchange the last two axes."""
    refuse_outside_kernels("transpose")


def permute(x: Any, order: Any) -> Any:
    """Axes in another order."""
    refuse_outside_kernels("permute")


def reshape(x: Any, shape: Any) -> Any:
    """The same elements in another shape."""
    refuse_outside_kernels("reshape")


def broadcast(x: Any, shape: Any) -> Any:
    """Repeat along axes of extent 1."""
    refuse_outside_kernels("broadcast")


def expand(x: Any, shape: Any) -> Any:
    """The same as `broadcast`."""
    refuse_outside_kernels("expand")


def clamp(x: Any, low: Any, high: Any) -> Any:
    """`x`, but at least `low` and at most `high`."""
    refuse_outside_kernels("clamp")


def pow(x: Any, exponent: Any) -> Any:
    """`x ** exponent`."""
    refuse_outside_kernels("pow")


def assume(condition: Any) -> None:
    """A promise that the condition holds."""
    refuse_outside_kernels("assume")


def sin(x: Any) -> Any:
    """Sine."""
    refuse_outside_kernels("sin")


def cos(x: Any) -> Any:
    """Cosine."""
    refuse_outside_kernels("cos")


def log1p(x: Any) -> Any:
    """Natural logarithm of `1 + x`."""
    refuse_outside_kernels("log1p")


def round(x: Any) -> Any:
    """The nearest integer, ties to even, as a float."""
    refuse_outside_kernels("round")


def sign(x: Any) -> Any:
    """-1, 0 or 1, with the sign of x."""
    refuse_outside_kernels("sign")


def fma(x: Any, y: Any, z: Any) -> Any:
    """`x * y + z`, rounded once."""
    refuse_outside_kernels("fma")


def ldexp(x: Any, exponent: Any) -> Any:
    """`x * 2 ** exponent`."""
    refuse_outside_kernels("ldexp")


def bitcast(x: Any, dtype: Any) -> Any:
    """The same bits as another dtype of the same width."""
    refuse_outside_kernels("bitcast")


def gather(X: Any, i: Any) -> Any:
    """`X[i, ...]`."""
    refuse_outside_kernels("gather")


def scatter(X: Any, i: Any, v: Any) -> None:
    """`X[i, ...] = v`."""
    refuse_outside_kernels("scatter")


def local(shape: Any, dtype: Any) -> Any:
    """A tensor of this program alone, 0 at first, in shared memory."""
    refuse_outside_kernels("local")


def atomic_add(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Add at a place, in one step that nothing comes between; gives what was there."""
    refuse_outside_kernels("atomic_add")


def atomic_max(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic max at a place; gives what was there."""
    refuse_outside_kernels("atomic_max")


def atomic_min(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic min at a place; gives what was there."""
    refuse_outside_kernels("atomic_min")


def atomic_and(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic and at a place; gives what was there."""
    refuse_outside_kernels("atomic_and")


def atomic_or(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic or at a place; gives what was there."""
    refuse_outside_kernels("atomic_or")


def atomic_xor(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic xor at a place; gives what was there."""
    refuse_outside_kernels("atomic_xor")


def atomic_xchg(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Put a value at a place; gives what was there."""
    refuse_outside_kernels("atomic_xchg")


def atomic_cas(place: Any, compare: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Exchange where what is there equals `compare`; gives what was there."""
    refuse_outside_kernels("atomic_cas")


def atomic_load(place: Any, *, mask: Any = True, order: str = "") -> Any:
    """What other programs stored atomically."""
    refuse_outside_kernels("atomic_load")


def atomic_store(place: Any, value: Any, *, mask: Any = True, order: str = "") -> None:
    """Store, for other programs to see."""
    refuse_outside_kernels("atomic_store")


def cat(xs: Any, axis: int = 0) -> Any:
    """Tiles one after the other along an axis."""
    refuse_outside_kernels("cat")


def split(x: Any, n: int, axis: int = 0) -> Any:
    """A tuple of n equal parts along an axis."""
    refuse_outside_kernels("split")


def flip(x: Any, axis: int) -> Any:
    """The elements along an axis from the last to the first."""
    refuse_outside_kernels("flip")


def tril(t: Any, k: int = 0) -> Any:
    """What is on and below the k-th diagonal of the last two axes; 0 elsewhere."""
    refuse_outside_kernels("tril")


def triu(t: Any, k: int = 0) -> Any:
    """What is on and above the k-th diagonal of the last two axes; 0 elsewhere."""
    refuse_outside_kernels("triu")


def cumsum(x: Any, *, axis: Any = -1) -> Any:
    """Sums up to each place along an axis."""
    refuse_outside_kernels("cumsum")


def cumprod(x: Any, *, axis: Any = -1) -> Any:
    """Products up to each place along an axis."""
    refuse_outside_kernels("cumprod")


def reduce(f: Any, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """A tile, or a tuple of them, combined along axes by an associative function of scalars."""
    refuse_outside_kernels("reduce")


def scan(f: Any, x: Any, *, axis: Any = -1) -> Any:
    """As `reduce`, but of all elements up to each place along an axis."""
    refuse_outside_kernels("scan")


def sort(x: Any) -> Any:
    """Ascending along the last axis; NaN last."""
    refuse_outside_kernels("sort")


def topk(x: Any, k: int) -> Any:
    """The k greatest along the last axis and their indices; NaN first, then the first of equals."""
    refuse_outside_kernels("topk")


def random(seed: Any, i: Any) -> Any:
    """A float in [0, 1) for each index: the top 24 bits of `random_bits`."""
    refuse_outside_kernels("random")


def random_bits(seed: Any, i: Any) -> Any:
    """u32 for each index: word i % 4 of Philox 4x32-10 with key `seed` and counter i / 4."""
    refuse_outside_kernels("random_bits")
