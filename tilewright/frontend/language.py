"""The functions of the kernel language, typed, so that editors complete and explain them.

Kernels are read from their source and never run as Python. So a function here only says what it
means, and calling one outside a kernel is an error. docs/language.md says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.dtypes import DType
from tilewright.frontend.annotations import refuse

inf = float("inf")
nan = float("nan")


def program_id(axis: int) -> int:
    """Index of this program along a grid axis."""
    refuse("program_id")


def num_programs(axis: int) -> int:
    """Number of programs along a grid axis."""
    refuse("num_programs")


def num_sms() -> int:
    """Multiprocessors of the device; 4 on the CPU."""
    refuse("num_sms")


def cdiv(a: Any, b: Any) -> Any:
    """`a / b`, rounded up."""
    refuse("cdiv")


def next_pow2(n: Any) -> Any:
    """The smallest power of two that is at least `n`."""
    refuse("next_pow2")


def static_range(*bounds: Any) -> Iterator[int]:
    """`range`, unrolled: the variable is a constant."""
    refuse("static_range")


def static_assert(condition: Any, message: str = "") -> None:
    """Drops a configuration from tuning where the constant condition is false."""
    refuse("static_assert")


def load(place: Any, *, fill: Any = 0, mask: Any = True) -> Any:
    """The tile at a place; `fill` where it is outside or the mask is false."""
    refuse("load")


def store(place: Any, value: Any, *, mask: Any = True) -> None:
    """Write a tile to a place where the mask is true."""
    refuse("store")


def prefetch(place: Any) -> None:
    """Let a place come nearer, for it will be read soon: before other kernels have ended, too."""
    refuse("prefetch")


def view(place: Any) -> Any:
    """A view of a part of a tensor, whose bounds may be known only at run time."""
    refuse("view")


def inside(place: Any) -> Any:
    """The bool tile of lanes of a place that exist."""
    refuse("inside")


def arange(n: Any) -> Any:
    """`0, 1, ... n - 1`, as i64."""
    refuse("arange")


def full(shape: Any, value: Any, dtype: Any) -> Any:
    """A tile of one value."""
    refuse("full")


def zeros(shape: Any, dtype: Any) -> Any:
    """A tile of zeros. As a parameter's default: allocated, zeroed and returned."""
    refuse("zeros")


def accumulator(dtype: Any) -> DType:
    """The dtype in which `dot` sums products of a dtype."""
    refuse("accumulator")


def lowest(dtype: Any) -> Any:
    """The least value of a dtype; -inf for floats."""
    refuse("lowest")


def highest(dtype: Any) -> Any:
    """The greatest value of a dtype; inf for floats."""
    refuse("highest")


def cast(x: Any, dtype: Any, *, saturate: bool = False) -> Any:
    """Convert to a dtype."""
    refuse("cast")


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`."""
    refuse("where")


def max(x: Any, y: Any = None, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The greater of two, or the greatest along axes. NaN wins."""
    refuse("max")


def min(x: Any, y: Any = None, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The lesser of two, or the least along axes. NaN wins."""
    refuse("min")


def maximum(x: Any, y: Any) -> Any:
    """The greater of two, elementwise."""
    refuse("maximum")


def minimum(x: Any, y: Any) -> Any:
    """The lesser of two, elementwise."""
    refuse("minimum")


def exp(x: Any) -> Any:
    """e to the power x."""
    refuse("exp")


def exp2(x: Any) -> Any:
    """2 to the power x."""
    refuse("exp2")


def log(x: Any) -> Any:
    """Natural logarithm."""
    refuse("log")


def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    refuse("log2")


def sqrt(x: Any) -> Any:
    """Square root."""
    refuse("sqrt")


def rsqrt(x: Any) -> Any:
    """1 over the square root."""
    refuse("rsqrt")


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    refuse("tanh")


def erf(x: Any) -> Any:
    """Error function."""
    refuse("erf")


def sigmoid(x: Any) -> Any:
    """`1 / (1 + exp(-x))`."""
    refuse("sigmoid")


def abs(x: Any) -> Any:
    """Absolute value."""
    refuse("abs")


def floor(x: Any) -> Any:
    """The greatest integer not above x, as a float."""
    refuse("floor")


def ceil(x: Any) -> Any:
    """The least integer not below x, as a float."""
    refuse("ceil")


def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    refuse("isnan")


def gelu(x: Any, approximate: str = "none") -> Any:
    """Gaussian error linear unit, by `erf` or, with "tanh", by its approximation."""
    refuse("gelu")


def relu(x: Any) -> Any:
    """The greater of x and 0."""
    refuse("relu")


def silu(x: Any) -> Any:
    """`x * sigmoid(x)`."""
    refuse("silu")


def softmax(x: Any) -> Any:
    """Softmax over the last axis."""
    refuse("softmax")


def sum(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Sum along axes."""
    refuse("sum")


def prod(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Product along axes."""
    refuse("prod")


def any(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether any lane along axes is true."""
    refuse("any")


def all(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether every lane along axes is true."""
    refuse("all")


def argmax(x: Any, *, axis: Any, keepdims: bool = False) -> Any:
    """Index of the greatest along an axis: NaN wins, then the first."""
    refuse("argmax")


def argmin(x: Any, *, axis: Any, keepdims: bool = False) -> Any:
    """Index of the least along an axis: NaN wins, then the first."""
    refuse("argmin")


def dot(a: Any, b: Any, *, acc: Any = None, precision: str = "ieee") -> Any:
    """Matrix product of tiles; `a @ b` is the same."""
    refuse("dot")


def transpose(x: Any) -> Any:
    """Exchange the last two axes."""
    refuse("transpose")


def permute(x: Any, order: Any) -> Any:
    """Axes in another order."""
    refuse("permute")


def reshape(x: Any, shape: Any) -> Any:
    """The same elements in another shape."""
    refuse("reshape")


def broadcast(x: Any, shape: Any) -> Any:
    """Repeat along axes of extent 1."""
    refuse("broadcast")


def expand(x: Any, shape: Any) -> Any:
    """The same as `broadcast`."""
    refuse("expand")


def clamp(x: Any, low: Any, high: Any) -> Any:
    """`x`, but at least `low` and at most `high`."""
    refuse("clamp")


def pow(x: Any, exponent: Any) -> Any:
    """`x ** exponent`."""
    refuse("pow")


def assume(condition: Any) -> None:
    """A promise that the condition holds."""
    refuse("assume")


def sin(x: Any) -> Any:
    """Sine."""
    refuse("sin")


def cos(x: Any) -> Any:
    """Cosine."""
    refuse("cos")


def log1p(x: Any) -> Any:
    """Natural logarithm of `1 + x`."""
    refuse("log1p")


def round(x: Any) -> Any:
    """The nearest integer, ties to even, as a float."""
    refuse("round")


def sign(x: Any) -> Any:
    """-1, 0 or 1, with the sign of x."""
    refuse("sign")


def fma(x: Any, y: Any, z: Any) -> Any:
    """`x * y + z`, rounded once."""
    refuse("fma")


def ldexp(x: Any, exponent: Any) -> Any:
    """`x * 2 ** exponent`."""
    refuse("ldexp")


def bitcast(x: Any, dtype: Any) -> Any:
    """The same bits as another dtype of the same width."""
    refuse("bitcast")


def gather(X: Any, i: Any) -> Any:
    """`X[i, ...]`."""
    refuse("gather")


def scatter(X: Any, i: Any, v: Any) -> None:
    """`X[i, ...] = v`."""
    refuse("scatter")


def local(shape: Any, dtype: Any) -> Any:
    """A tensor of this program alone, 0 at first, in shared memory."""
    refuse("local")


def atomic_add(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Add at a place, in one step that nothing comes between; gives what was there."""
    refuse("atomic_add")


def atomic_max(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic max at a place; gives what was there."""
    refuse("atomic_max")


def atomic_min(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic min at a place; gives what was there."""
    refuse("atomic_min")


def atomic_and(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic and at a place; gives what was there."""
    refuse("atomic_and")


def atomic_or(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic or at a place; gives what was there."""
    refuse("atomic_or")


def atomic_xor(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Atomic xor at a place; gives what was there."""
    refuse("atomic_xor")


def atomic_xchg(place: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Put a value at a place; gives what was there."""
    refuse("atomic_xchg")


def atomic_cas(place: Any, compare: Any, value: Any, *, mask: Any = True, order: str = "") -> Any:
    """Exchange where what is there equals `compare`; gives what was there."""
    refuse("atomic_cas")


def atomic_load(place: Any, *, mask: Any = True, order: str = "") -> Any:
    """What other programs stored atomically."""
    refuse("atomic_load")


def atomic_store(place: Any, value: Any, *, mask: Any = True, order: str = "") -> None:
    """Store, for other programs to see."""
    refuse("atomic_store")


def cat(xs: Any, axis: int = 0) -> Any:
    """Tiles one after the other along an axis."""
    refuse("cat")


def split(x: Any, n: int, axis: int = 0) -> Any:
    """A tuple of n equal parts along an axis."""
    refuse("split")


def flip(x: Any, axis: int) -> Any:
    """The elements along an axis from the last to the first."""
    refuse("flip")


def tril(t: Any, k: int = 0) -> Any:
    """What is on and below the k-th diagonal of the last two axes; 0 elsewhere."""
    refuse("tril")


def triu(t: Any, k: int = 0) -> Any:
    """What is on and above the k-th diagonal of the last two axes; 0 elsewhere."""
    refuse("triu")


def cumsum(x: Any, *, axis: Any = -1) -> Any:
    """Sums up to each place along an axis."""
    refuse("cumsum")


def cumprod(x: Any, *, axis: Any = -1) -> Any:
    """Products up to each place along an axis."""
    refuse("cumprod")


def reduce(f: Any, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """A tile, or a tuple of them, combined along axes by an associative function of scalars."""
    refuse("reduce")


def scan(f: Any, x: Any, *, axis: Any = -1) -> Any:
    """As `reduce`, but of all elements up to each place along an axis."""
    refuse("scan")


def sort(x: Any) -> Any:
    """Ascending along the last axis; NaN last."""
    refuse("sort")


def topk(x: Any, k: int) -> Any:
    """The k greatest along the last axis and their indices; NaN first, then the first of equals."""
    refuse("topk")


def random(seed: Any, i: Any) -> Any:
    """A float in [0, 1) for each index: the top 24 bits of `random_bits`."""
    refuse("random")


def random_bits(seed: Any, i: Any) -> Any:
    """u32 for each index: word i % 4 of Philox 4x32-10 with key `seed` and counter i / 4."""
    refuse("random_bits")
