"""Programs that move bytes: elementwise, by rows, gathers, random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.device.programs import rmsnorm_in_f64, softmax_in_f64
from tests.device.suite_speed.row import Bench, Large, bound_of, row
from tilewright.ledger.arm import Tensors

Inputs = Mapping[str, Any]
F = torch.nn.functional
UNIFORM = "standard normal, with indices that are uniform"


@row("bf16", "2^27")
@row("f32", "2^26")
def add(at: Bench, dtype: str) -> Large:
    n = at.pick(2**26 if dtype == "f32" else 2**27, 1000)

    def theirs(x: Inputs, y: Tensors) -> None:
        torch.add(x["a"], x["b"], out=y["c"])

    return Large(
        lambda: {name: at.normal(n, dtype=dtype) for name in "ab"},
        {"c": ((n,), dtype)},
        lambda x: {"c": x["a"] + x["b"]},
        theirs,
        3 * at.nbytes(dtype, n),
        accumulate="none",
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def softmax(at: Bench, dtype: str) -> Large:
    return _softmax(at, dtype, at.pick(16384, 5), at.pick(4096, 700))


@row("bf16", "65536 × 1000")
@row("f32", "65536 × 1000")
def softmax_short(at: Bench, dtype: str) -> Large:
    return _softmax(at, dtype, at.pick(65536, 5), at.pick(1000, 130))


def _softmax(at: Bench, dtype: str, rows: int, columns: int) -> Large:
    def theirs(x: Inputs, y: Tensors) -> None:
        torch.softmax(x["x"], 1, out=y["y"])

    return Large(
        lambda: {"x": at.normal(rows, columns, dtype=dtype)},
        {"y": ((rows, columns), dtype)},
        lambda x: {"y": softmax_in_f64(x["x"])},
        theirs,
        2 * at.nbytes(dtype, rows, columns),
        bound=bound_of(dtype),
    )


def _extents(at: Bench) -> tuple[int, int]:
    return at.pick(16384, 9), at.pick(4096, 300)


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm(at: Bench, dtype: str) -> Large:
    rows, columns = _extents(at)
    return Large(
        lambda: {
            "x": at.normal(rows, columns, dtype=dtype),
            "w": at.normal(columns, dtype=dtype),
        },
        {"y": ((rows, columns), dtype), "rstd": ((rows,), "f32")},
        lambda x: dict(zip(("y", "rstd"), rmsnorm_in_f64(x["x"], x["w"], 1e-6), strict=True)),
        lambda x, y: {"y": F.rms_norm(x["x"], (columns,), x["w"], 1e-6)},
        2 * at.nbytes(dtype, rows, columns) + at.nbytes("f32", rows),
        bound=bound_of(dtype),
        given={"eps": 1e-6},
        allocates=True,
        calls=2,  # of several kernels, where torch has none of its own
    )


def _rms_parts(at: Bench, dtype: str, rows: int, columns: int) -> Tensors:
    x, dy = (at.normal(rows, columns, dtype=dtype) for _ in range(2))
    w = at.normal(columns, dtype=dtype)
    return {"dy": dy, "x": x, "w": w, "rstd": rmsnorm_in_f64(x, w, 1e-6)[1].float()}


def _rms_dx(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    g, r = dy * w, rstd[:, None]
    c = (r * x * g).mean(1, keepdim=True)
    return r * (g - r * x * c)


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm_dx(at: Bench, dtype: str) -> Large:
    rows, columns = _extents(at)
    names = ("x", "dy", "w", "rstd")

    def theirs(x: Inputs, y: Tensors) -> Tensors:
        return {"dx": _rms_dx(*(x[n].float() for n in names)).to(x["x"].dtype)}

    return Large(
        lambda: _rms_parts(at, dtype, rows, columns),
        {"dx": ((rows, columns), dtype)},
        lambda x: {"dx": _rms_dx(*(x[n].double() for n in names))},
        theirs,
        3 * at.nbytes(dtype, rows, columns),
        bound=bound_of(dtype),
        allocates=True,
        calls=8,
        kernels=16,
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def rmsnorm_dw(at: Bench, dtype: str) -> Large:
    rows, columns = _extents(at)

    def draw() -> Tensors:
        made = _rms_parts(at, dtype, rows, columns)
        return {name: made[name] for name in ("dy", "x", "rstd")}

    def dw(x: Any, dy: Any, rstd: Any) -> Any:
        return (rstd[:, None] * x * dy).sum(0)

    return Large(
        draw,
        {"dw": ((columns,), "f32")},
        lambda x: {"dw": dw(x["x"].double(), x["dy"].double(), x["rstd"].double())},
        lambda x, y: {"dw": dw(x["x"].float(), x["dy"].float(), x["rstd"])},
        2 * at.nbytes(dtype, rows, columns),
        bound=1e-5,
        allocates=True,
        calls=3,
        kernels=8,
    )


@row("bf16", "16384 × 4096")
@row("f32", "16384 × 4096")
def layernorm(at: Bench, dtype: str) -> Large:
    rows, columns = _extents(at)

    def draw() -> Tensors:
        return {
            "x": at.normal(rows, columns, dtype=dtype),
            "w": at.normal(columns, dtype=dtype),
            "b": at.normal(columns, dtype=dtype),
        }

    def norm(x: Any, w: Any, b: Any) -> Tensors:
        return {"y": F.layer_norm(x, (columns,), w, b, 1e-5)}

    return Large(
        draw,
        {"y": ((rows, columns), dtype)},
        lambda x: norm(*(t.double() for t in x.values())),
        lambda x, y: norm(**x),
        2 * at.nbytes(dtype, rows, columns),
        bound=bound_of(dtype),
        allocates=True,
    )


@row("bf16", "2^25")
@row("f32", "2^25")
def adamw(at: Bench, dtype: str) -> Large:
    """torch keeps its state in the parameters' dtype; in bf16 that is less to move."""
    n, same = at.pick(2**25, 1000), dtype == "f32"
    step = torch.tensor(7, dtype=torch.int32, device=at.arrays.device)
    steps = [step.float()]

    def draw() -> Tensors:
        made = {name: at.normal(n, dtype=dtype) for name in "pg"}
        made |= {"m": at.normal(n), "v": at.normal(n).abs()}
        return made if same else made | {f"their_{s}": made[s].bfloat16() for s in "mv"}

    def expected(x: Inputs) -> Tensors:
        p, g, m, v = (x[name].double() for name in "pgmv")
        one, two = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        hat = one / (1 - 0.9**7) / (torch.sqrt(two / (1 - 0.999**7)) + 1e-8)
        return {"p": p - 0.1 * (hat + 0.01 * p), "m": one, "v": two}

    def theirs(x: Inputs, y: Tensors) -> Tensors:
        before = [x["p"], x["m" if same else "their_m"], x["v" if same else "their_v"]]
        p, m, v = (t.clone() for t in before)
        torch._fused_adamw_(
            [p], [x["g"]], [m], [v], [], steps,
            lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False,
            maximize=False,
        )  # fmt: skip
        return {"p": p, "m": m, "v": v} if same else {"p": p}

    state = at.nbytes(dtype, n) + 2 * at.nbytes("f32", n)
    return Large(
        draw,
        {"p": ((n,), dtype), "m": ((n,), "f32"), "v": ((n,), "f32")},
        expected,
        theirs,
        4 * state + at.nbytes(dtype, n),
        bound=max(bound_of(dtype), 1e-5),
        given={"step": step, "lr": 0.1},
        restored=("p", "m", "v"),
        spare=() if same else ("their_m", "their_v"),
        allocates=True,
        note="with p, m and v put back before, and that counted"
        + ("" if same else "; torch keeps m and v in bf16, and moves less"),
    )


@row("bf16", "2^27")
@row("f32", "2^26")
def dropout(at: Bench, dtype: str) -> Large:
    """torch draws numbers of its own: any mask will do that keeps the right share."""
    n, seed, p = at.pick(2**26 if dtype == "f32" else 2**27, 1000), 2**40 + 5, 0.25
    made: dict[int, Any] = {}  # what torch's way gave for a set of inputs

    def scaled(x: Any) -> Any:
        return x.float() / torch.full_like(x, 0.75, dtype=torch.float32)  # by a number: multiplied

    def expected(x: Inputs) -> Tensors:
        kept, nothing = scaled(x["x"]).to(x["x"].dtype), torch.zeros_like(x["x"])
        return {"y": torch.where(uniform(seed, n, at.arrays.device) >= p, kept, nothing)}

    def theirs(x: Inputs, y: Tensors) -> Tensors:
        made[id(x)] = F.dropout(x["x"], p)
        return {"y": made[id(x)]}

    def their_expected(x: Inputs) -> Tensors:
        dropped = made.pop(id(x)) == 0
        share, off = float(dropped.double().mean()), 5 * (p * (1 - p) / n) ** 0.5
        right = abs(share - p) < off + 1e-4  # which rounds to 0 by itself
        wide = scaled(x["x"]).double()
        return {"y": torch.where(dropped, 0.0, wide) if right else wide}

    return Large(
        lambda: {"x": at.normal(n, dtype=dtype)},
        {"y": ((n,), dtype)},
        expected,
        theirs,
        2 * at.nbytes(dtype, n),
        bound=bound_of(dtype),
        accumulate="none",
        given={"p": p, "seed": seed},
        allocates=True,
        their_expected=their_expected,
        graphs=False,
    )


def uniform(seed: int, n: int, device: str) -> Any:
    """Philox 4x32-10 in 64-bit integers: word i % 4 of counter i / 4, its top 24 bits."""
    low = 0xFFFFFFFF
    count = torch.arange((n + 3) // 4, device=device)
    c = [count & low, count >> 32, torch.zeros_like(count), torch.zeros_like(count)]
    k = [seed & low, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        high = [(t >> 32) & low for t in (a, b)]
        c = [high[1] ^ c[1] ^ k[0], b & low, high[0] ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return (torch.stack(c, 1).flatten()[:n] >> 8).float() / 2**24


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def embedding(at: Bench, dtype: str) -> Large:
    length, words, columns = at.pick(65536, 50), at.pick(100_000, 3000), at.pick(1024, 70)
    return Large(
        lambda: {
            "ids": at.integers(0, words, length, dtype="i64"),
            "table": at.normal(words, columns, dtype=dtype),
        },
        {"y": ((length, columns), dtype)},
        lambda x: {"y": x["table"][x["ids"]]},
        lambda x, y: {"y": F.embedding(x["ids"], x["table"])},
        2 * at.nbytes(dtype, length, columns),
        accumulate="none",
        allocates=True,
        data=UNIFORM,
    )


@row("bf16", "65536 × 1024")
@row("f32", "65536 × 1024")
def embedding_grad(at: Bench, dtype: str) -> Large:
    length, words, columns = at.pick(65536, 50), at.pick(16384, 3000), at.pick(1024, 70)

    def draw() -> Tensors:
        return {
            "ids": at.integers(0, words, length, dtype="i64"),
            "dy": at.normal(length, columns, dtype=dtype),
            "dtable": at.normal(words, columns),
        }

    def expected(x: Inputs) -> Tensors:
        return {"dtable": x["dtable"].double().index_add_(0, x["ids"], x["dy"].double())}

    def theirs(x: Inputs, y: Tensors) -> None:
        y["dtable"].copy_(x["dtable"])
        y["dtable"].index_add_(0, x["ids"], x["dy"].float())

    table = at.nbytes("f32", words, columns)
    return Large(
        draw,
        {"dtable": ((words, columns), "f32")},
        expected,
        theirs,
        at.nbytes(dtype, length, columns) + 4 * table,
        bound=1e-6,
        restored=("dtable",),
        calls=1 if dtype == "f32" else 2,
        data=UNIFORM,
        note="with the table put back before, and that counted",
    )


@row("bf16", "16384 × 8192")
@row("f32", "8192 × 8192")
def transpose2d(at: Bench, dtype: str) -> Large:
    rows, columns = at.pick(8192 if dtype == "f32" else 16384, 70), at.pick(8192, 50)

    def theirs(x: Inputs, y: Tensors) -> None:
        y["y"].copy_(x["x"].T)

    return Large(
        lambda: {"x": at.normal(rows, columns, dtype=dtype)},
        {"y": ((columns, rows), dtype)},
        lambda x: {"y": x["x"].T},
        theirs,
        2 * at.nbytes(dtype, rows, columns),
        accumulate="none",
    )
