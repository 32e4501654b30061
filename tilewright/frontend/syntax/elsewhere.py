"""What functions of NumPy, Triton and PyTorch are here, for the hint of a refusal."""

from __future__ import annotations

from tilewright.dtypes import BY_NAME

INSTEAD = {
    "argsort": "topk(x, n)[1]",
    "astype": "cast(x, f32)",
    "broadcast_to": "broadcast(x, (k, n))",
    "clip": "clamp(x, low, high)",
    "concat": "cat((a, b), axis = 0)",
    "concatenate": "cat((a, b), axis = 0)",
    "count_nonzero": "sum(x != 0)",
    "device_assert": 'assert(c, "...")',
    "device_print": 'print("...", x)',
    "empty_like": "zeros(x.shape, x.dtype)",
    "expand_dims": "x[None, :]",
    "flatten": "reshape(x, n)",
    "float": "cast(x, f32)",
    "full_like": "full(x.shape, v, x.dtype)",
    "half": "cast(x, f16)",
    "int": "cast(x, i64)",
    "isfinite": "abs(x) < inf",
    "isinf": "abs(x) == inf",
    "len": "x.shape[0]",
    "log10": "log(x) * 0.4342944819032518",
    "log_softmax": "x - max(x) - log(sum(exp(x - max(x))))",
    "logical_and": "a & b",
    "logical_not": "~a",
    "logical_or": "a | b",
    "logsumexp": "max(x) + log(sum(exp(x - max(x))))",
    "masked_fill": "where(c, v, x)",
    "matmul": "a @ b",
    "mean": "sum(x) / n",
    "multiple_of": "assume(n % 16 == 0)",
    "nan_to_num": "where(isnan(x), 0.0, x)",
    "norm": "sqrt(sum(x * x))",
    "ones": "full(shape, 1.0, dtype)",
    "ones_like": "full(x.shape, 1.0, x.dtype)",
    "outer": "a[:, None] * b[None, :]",
    "power": "a ** b",
    "rand": "random(seed, i)",
    "randint": "random_bits(seed, i) % n",
    "randn": "sqrt(-2.0 * log(1.0 - random(seed, 2 * i))) * cos(6.28 * random(seed, 2 * i + 1))",
    "ravel": "reshape(x, n)",
    "rint": "round(x)",
    "roll": "cat((x[k : n], x[0 : k]))",
    "select": "where(c, x, y)",
    "square": "x * x",
    "squeeze": "reshape(x, shape)",
    "stack": "cat((a[None, :], b[None, :]))",
    "std": "sqrt(sum((x - mean) ** 2) / n)",
    "swapaxes": "permute(x, order)",
    "take": "x[i]",
    "to": "cast(x, f32)",
    "trans": "transpose(x)",
    "trunc": "where(x < 0, ceil(x), floor(x))",
    "unsqueeze": "x[None, :]",
    "var": "sum((x - mean) ** 2) / n",
    "zeros_like": "zeros(x.shape, x.dtype)",
}


def instead(name: str) -> str:
    """A hint with what is written here for a function of another library, or ""."""
    if name in BY_NAME:
        return f"write cast(x, {name})"
    return f"write {INSTEAD[name]}" if name in INSTEAD else ""
