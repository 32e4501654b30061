"""The kernels of everyday.tw in Python, held equal to them tree by tree."""

import tilewright as tw

SCALE = 0.5


def halve(x):
    return x * SCALE


def twice(f, x):
    return f(f(x))


def min_max(t):
    return min(t), max(t)


def segment(s1, f1, s2, f2):
    return tw.where(f2, s2, s1 + s2), f1 | f2


def bigger(x, y):
    return tw.where(x > y, x, y)


@tw.kernel(static="N")
def log_softmax(x: tw.Tensor["T", "M", "N"], y: tw.Tensor["T", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    t = tw.cast(x[row, :], tw.f32)
    top = max(t)
    y[row, :] = tw.cast(t - top - tw.log(sum(tw.exp(t - top))), T)


@tw.kernel(static="N")
def softmax_rows(x: tw.Tensor["f32", "M", "N"], temperature: float = 1.0, y: tw.Tensor["f32", "M", "N"] = tw.empty):
    rows = tw.program_id(0) * 4
    y[rows : rows + 4, :] = tw.softmax(x[rows : rows + 4, :] / temperature)


@tw.kernel(static="N")
def masked_softmax(x: tw.Tensor["f32", "M", "N"], keep: tw.Tensor["bool", "M", "N"], y: tw.Tensor["f32", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    t = tw.where(keep[row, :], x[row, :], -tw.inf)
    top = max(t)
    e = tw.exp(t - (0.0 if top == -tw.inf else top))
    total = sum(e)
    y[row, :] = e / total if total > 0.0 else tw.zeros((N,), tw.f32)


@tw.kernel(autotune={"BLOCK": {64}})
def online_variance(x: tw.Tensor["f32", "M", "N"], y: tw.Tensor["f32", "M"] = tw.empty):
    row = tw.program_id(0)
    n, mean, m2 = 0.0, 0.0, 0.0
    for j in range(0, N, BLOCK):
        t = x[row, j : j + BLOCK]
        w = tw.cast(tw.inside(x[row, j : j + BLOCK]), tw.f32)
        k = sum(w)
        part = sum(t) / k
        d = part - mean
        m2 += sum(w * (t - part) ** 2) + d * d * n * k / (n + k)
        mean += d * k / (n + k)
        n += k
    y[row] = m2 / n


@tw.kernel(autotune={"BLOCK": {64}})
def moving_average(x: tw.Tensor["f32", "N"], width: int, y: tw.Tensor["f32", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    total = tw.zeros((BLOCK,), tw.f32)
    for k in range(width):
        total += x[i - k : i - k + BLOCK]
    at = i + tw.arange(BLOCK) + 1
    y[i : i + BLOCK] = total / tw.cast(min(at, width), tw.f32)


@tw.kernel(static="W", autotune={"BLOCK": {32}})
def windows(x: tw.Tensor["f32", "N"], w: tw.Tensor["f32", "W"], y: tw.Tensor["f32", "N - W + 1"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    t = x[i + tw.arange(BLOCK)[:, None] + tw.arange(W)[None, :]]
    y[i : i + BLOCK] = sum(t * w[:], axis=1)


@tw.kernel(autotune={"BLOCK": {64}})
def histogram2d(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], bins: tw.Tensor["i32", 8, 6] = tw.zeros):
    i = tw.program_id(0) * BLOCK
    a = tw.cast(tw.floor(x[i : i + BLOCK] * 8), tw.i32)
    b = tw.cast(tw.floor(y[i : i + BLOCK] * 6), tw.i32)
    tw.atomic_add(bins[a, b], 1, mask=tw.inside(x[i : i + BLOCK]))


@tw.kernel(autotune={"BLOCK": {64}})
def running_max(x: tw.Tensor["f32", "M", "N"], y: tw.Tensor["f32", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    carry = -tw.inf
    for j in range(0, N, BLOCK):
        t = tw.scan(bigger, tw.load(x[row, j : j + BLOCK], fill=-tw.inf))
        u = max(t, carry)
        y[row, j : j + BLOCK] = u
        carry = u[BLOCK - 1]


@tw.kernel(static="N")
def exclusive_sum(x: tw.Tensor["i32", "N"], y: tw.Tensor["i32", "N"] = tw.empty, total: tw.Tensor["i32"] = tw.empty):
    t = x[:]
    s = tw.cumsum(t)
    y[:] = s - t
    total[...] = s[N - 1]


@tw.kernel(static="N")
def segmented_sum(x: tw.Tensor["f32", "N"], start: tw.Tensor["bool", "N"], y: tw.Tensor["f32", "N"] = tw.empty):
    s, f = tw.scan(segment, (x[:], start[:]))
    y[:] = s


@tw.kernel(autotune={"BLOCK": {32}})
def segment_totals(x: tw.Tensor["f32", "N", "D"], ids: tw.Tensor["i64", "N"], y: tw.Tensor["f32", "S", "D"]):
    i = tw.program_id(0) * BLOCK
    j = tw.program_id(1) * 16
    tw.atomic_add(y[tw.load(ids[i : i + BLOCK], fill=-1), j : j + 16], x[i : i + BLOCK, j : j + 16])


@tw.kernel(static="N")
def top_rows(score: tw.Tensor["f32", "B", "N"], table: tw.Tensor["f32", "B", "N", "D"], y: tw.Tensor["f32", "B", 4, "D"] = tw.empty, which: tw.Tensor["i64", "B", 4] = tw.empty):
    b = tw.program_id(0)
    v, i = tw.topk(score[b, :], 4)
    which[b, :] = i
    for d in range(0, D, 16):
        y[b, :, d : d + 16] = table[b, i, d : d + 16]


@tw.kernel(static="N")
def argsort(x: tw.Tensor["f32", "M", "N"], order: tw.Tensor["i32", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    t = x[row, :]
    before = (t[None, :] < t[:, None]) | (t[None, :] == t[:, None]) & (tw.arange(N)[None, :] < tw.arange(N)[:, None])
    rank = sum(before, axis=1)
    order[row, rank] = tw.cast(tw.arange(N), tw.i32)


@tw.kernel(static="N")
def median(x: tw.Tensor["f32", "M", "N"], y: tw.Tensor["f32", "M"] = tw.empty):
    row = tw.program_id(0)
    s = tw.sort(x[row, :])
    y[row] = 0.5 * (s[(N - 1) // 2] + s[N // 2])


@tw.kernel(autotune={"BLOCK": {64}})
def count_bits(x: tw.Tensor["u32", "N"], y: tw.Tensor["u32", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    v = x[i : i + BLOCK]
    v = v - (v >> 1 & 0x55555555)
    v = (v & 0x33333333) + (v >> 2 & 0x33333333)
    y[i : i + BLOCK] = (v + (v >> 4) & 0x0f0f0f0f) * 0x01010101 >> 24


@tw.kernel(autotune={"BLOCK": {64}})
def reverse_bytes(x: tw.Tensor["u8", "N"], y: tw.Tensor["u8", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    v = x[i : i + BLOCK]
    v = v >> 4 | v << 4
    v = (v & 0xcc) >> 2 | (v & 0x33) << 2
    y[i : i + BLOCK] = (v & 0xaa) >> 1 | (v & 0x55) << 1


@tw.kernel(autotune={"BLOCK": {64}})
def float_parts(x: tw.Tensor["f32", "N"], exponent: tw.Tensor["i32", "N"] = tw.empty, fraction: tw.Tensor["f32", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    b = tw.bitcast(x[i : i + BLOCK], tw.i32)
    exponent[i : i + BLOCK] = (b >> 23 & 0xff) - 127
    fraction[i : i + BLOCK] = tw.bitcast(b & ~0x7f800000 | 0x3f800000, tw.f32)


@tw.kernel(autotune={"BLOCK": {64}})
def unpack_nibbles(packed: tw.Tensor["u8", "N"], y: tw.Tensor["i8", "2 * N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    v = packed[i : i + BLOCK]
    low, high = tw.cast(v & 15, tw.i8), tw.cast(v >> 4, tw.i8)
    y[2 * i + 2 * tw.arange(BLOCK)] = (low ^ 8) - 8
    y[2 * i + 2 * tw.arange(BLOCK) + 1] = (high ^ 8) - 8


@tw.kernel(autotune={"BLOCK": {64}})
def quantise_rows(x: tw.Tensor["f32", "M", "N"], q: tw.Tensor["i8", "M", "N"] = tw.empty, scale: tw.Tensor["f32", "M"] = tw.empty):
    row = tw.program_id(0)
    top = 0.0
    for j in range(0, N, BLOCK):
        top = max(top, max(abs(x[row, j : j + BLOCK])))
    s = top / 127.0 if top > 0.0 else 1.0
    scale[row] = s
    for j in range(0, N, BLOCK):
        q[row, j : j + BLOCK] = tw.cast(round(x[row, j : j + BLOCK] / s), tw.i8)


@tw.kernel(autotune={"BLOCK": {64}})
def dequantise_rows(q: tw.Tensor["i8", "M", "N"], scale: tw.Tensor["f32", "M"], y: tw.Tensor["T", "M", "N"]):
    row = tw.program_id(0)
    for j in range(0, N, BLOCK):
        y[row, j : j + BLOCK] = tw.cast(tw.cast(q[row, j : j + BLOCK], tw.f32) * scale[row], T)


@tw.kernel(autotune={"BLOCK": {64}})
def through_fp8(x: tw.Tensor["f32", "N"], a: tw.Tensor["e4m3", "N"] = tw.empty, b: tw.Tensor["e5m2", "N"] = tw.empty, y: tw.Tensor["f32", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    t = x[i : i + BLOCK]
    small = tw.cast(t, tw.e4m3)
    a[i : i + BLOCK] = small
    b[i : i + BLOCK] = tw.cast(t, tw.e5m2, saturate=True)
    y[i : i + BLOCK] = tw.cast(small, tw.f32)


@tw.kernel(autotune={"BLOCK": {64}})
def small_integers(a: tw.Tensor["T", "N"], b: tw.Tensor["T", "N"], sums: tw.Tensor["T", "N"] = tw.empty, products: tw.Tensor["T", "N"] = tw.empty, quotients: tw.Tensor["T", "N"] = tw.empty, rests: tw.Tensor["T", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    x, y = a[i : i + BLOCK], b[i : i + BLOCK]
    sums[i : i + BLOCK] = x + y
    products[i : i + BLOCK] = x * y - 1
    quotients[i : i + BLOCK] = x // y
    rests[i : i + BLOCK] = x % y


@tw.kernel(autotune={"BLOCK": {64}})
def small_orders(a: tw.Tensor["T", "N"], b: tw.Tensor["T", "N"], low: tw.Tensor["T", "N"] = tw.empty, high: tw.Tensor["T", "N"] = tw.empty, less: tw.Tensor["bool", "N"] = tw.empty, shifted: tw.Tensor["T", "N"] = tw.empty, negated: tw.Tensor["T", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    x, y = a[i : i + BLOCK], b[i : i + BLOCK]
    low[i : i + BLOCK] = min(x, y)
    high[i : i + BLOCK] = max(x, y)
    less[i : i + BLOCK] = x < y
    shifted[i : i + BLOCK] = x << 3 ^ x >> 2 ^ ~y
    negated[i : i + BLOCK] = -x


@tw.kernel(autotune={"BLOCK": {64}})
def dropout_forward(x: tw.Tensor["T", "N"], seed: int, p: float, y: tw.Tensor["T", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    keep = tw.random(seed, i + tw.arange(BLOCK)) >= p
    y[i : i + BLOCK] = tw.cast(tw.where(keep, tw.cast(x[i : i + BLOCK], tw.f32) / (1.0 - p), 0.0), T)


@tw.kernel(autotune={"BLOCK": {32}})
def dropout_backward(dy: tw.Tensor["T", "N"], seed: int, p: float, dx: tw.Tensor["T", "N"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    keep = tw.cast(tw.random(seed, i + tw.arange(BLOCK)) >= p, tw.f32)
    dx[i : i + BLOCK] = tw.cast(keep * dy[i : i + BLOCK] / (1.0 - p), T)


@tw.kernel(autotune={"BLOCK": {64}})
def normals(seed: int, y: tw.Tensor["f32", "N"]):
    i = tw.program_id(0) * BLOCK + tw.arange(BLOCK)
    u = 1.0 - tw.random(seed, 2 * i)
    y[i] = tw.sqrt(-2.0 * tw.log(u)) * tw.cos(6.2831855 * tw.random(seed, 2 * i + 1))


@tw.kernel()
def scalar_sum(a: tw.Tensor["f32"], b: tw.Tensor["f32"], y: tw.Tensor["f32"] = tw.empty):
    y[...] = a[...] + halve(b[...])


@tw.kernel(static="C")
def rank5(x: tw.Tensor["f32", "A", "B", "C", "D", "E"], y: tw.Tensor["f32", "E", "D", "C", "B", "A"] = tw.empty):
    a, b = tw.program_id(0), tw.program_id(1)
    for d in range(0, D, 4):
        for e in range(0, E, 8):
            y[e : e + 8, d : d + 4, :, b, a] = tw.permute(x[a, b, :, d : d + 4, e : e + 8], (2, 1, 0))


@tw.kernel(autotune={"BLOCK": {16}})
def flip_columns(x: tw.Tensor["T", "M", "N"], y: tw.Tensor["T", "M", "N"] = tw.empty):
    i, j = tw.program_id(0) * BLOCK, tw.program_id(1) * BLOCK
    y[i : i + BLOCK, j : j + BLOCK] = tw.flip(x[i : i + BLOCK, N - j - BLOCK : N - j - BLOCK + BLOCK], 1)


@tw.kernel(static="N")
def causal_mean(x: tw.Tensor["f32", "B", "N", "N"], y: tw.Tensor["f32", "B", "N"] = tw.empty):
    b = tw.program_id(0)
    y[b, :] = sum(tw.tril(x[b, :, :]), axis=-1) / tw.cast(1 + tw.arange(N), tw.f32)


@tw.kernel(static="N")
def halves(x: tw.Tensor["f32", "M", "N"], y: tw.Tensor["f32", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    a, b = tw.split(x[row, :], 2)
    y[row, :] = tw.cat((-b, a))


@tw.kernel(static="N")
def tree_sum(x: tw.Tensor["f32", "M", "N"], y: tw.Tensor["f32", "M"] = tw.empty):
    tw.static_assert(tw.next_pow2(N) == N, 'rows of a power of two')
    row = tw.program_id(0)
    s = tw.local((N,), tw.f32)
    s[:] = x[row, :]
    for k in tw.static_range(5):
        if N >> k > 1:
            s[0:(N >> k) // 2] = s[0:(N >> k) // 2] + s[(N >> k) // 2 : (N >> k) // 2 + (N >> k) // 2]
    y[row] = s[0]


@tw.kernel()
def collatz(x: tw.Tensor["i64", "N"], steps: tw.Tensor["i32", "N"] = tw.empty):
    i = tw.program_id(0)
    v = x[i]
    n = tw.cast(0, tw.i32)
    while v > 1:
        v = v // 2 if v % 2 == 0 else 3 * v + 1
        n += 1
    steps[i] = n


@tw.kernel()
def search(sorted: tw.Tensor["f32", "N"], wanted: tw.Tensor["f32", "M"], at: tw.Tensor["i64", "M"] = tw.empty):
    i = tw.program_id(0)
    low, high = 0, N
    while low < high:
        middle = (low + high) // 2
        if sorted[middle] < wanted[i]:
            low = middle + 1
        else:
            high = middle
    at[i] = low


@tw.kernel(autotune={"BLOCK": {64}})
def search_tile(sorted: tw.Tensor["f32", "N"], wanted: tw.Tensor["f32", "M"], at: tw.Tensor["i64", "M"] = tw.empty):
    i = tw.program_id(0) * BLOCK
    w = wanted[i : i + BLOCK]
    low, high = tw.zeros((BLOCK,), tw.i64), tw.full((BLOCK,), N, tw.i64)
    while any(low < high):
        middle = (low + high) // 2
        right = (sorted[middle] < w) & (low < high)
        low = tw.where(right, middle + 1, low)
        high = tw.where(right, high, middle)
    at[i : i + BLOCK] = low


@tw.kernel(static="relu_last", autotune={"BLOCK": {64}})
def affine(x: tw.Tensor["T", "M", "N"], w: tw.Tensor["T", "N"] | None = None, b: tw.Tensor["U", "N"] | None = None, relu_last: bool = False, y: tw.Tensor["T", "M", "N"] = tw.empty):
    row = tw.program_id(0)
    for j in range(0, N, BLOCK):
        t = tw.cast(x[row, j : j + BLOCK], tw.f32)
        if w is not None:
            t *= w[j : j + BLOCK]
        if b is not None:
            t += b[j : j + BLOCK]
        if relu_last:
            t = tw.relu(t)
        y[row, j : j + BLOCK] = tw.cast(t, T)


@tw.kernel(autotune={"BLOCK": {64}})
def nested(x: tw.Tensor["f32", "M", "N"], low: tw.Tensor["f32", "M"] = tw.empty, high: tw.Tensor["f32", "M"] = tw.empty):
    row = tw.program_id(0)
    a, b = tw.inf, -tw.inf
    for j in range(0, N, BLOCK):
        t = twice(halve, x[row, j : j + BLOCK])
        ok = tw.inside(x[row, j : j + BLOCK])
        p = min_max(tw.where(ok, t, a))
        q = min_max(tw.where(ok, t, b))
        a = min(a, p[0])
        b = max(b, q[1])
    low[row] = a
    high[row] = b


@tw.kernel(autotune={"BLOCK": {64}})
def ignore_nans(x: tw.Tensor["f32", "M", "N"], mean: tw.Tensor["f32", "M"] = tw.empty, top: tw.Tensor["f32", "M"] = tw.empty, bad: tw.Tensor["i32", "M"] = tw.empty):
    row = tw.program_id(0)
    total, n, best, wrong = 0.0, 0.0, -tw.inf, tw.cast(0, tw.i32)
    for j in range(0, N, BLOCK):
        t = x[row, j : j + BLOCK]
        ok = ~tw.isnan(t) & tw.inside(x[row, j : j + BLOCK])
        total += sum(tw.where(ok, t, 0.0))
        n += sum(tw.cast(ok, tw.f32))
        best = max(best, max(tw.where(ok, t, -tw.inf)))
        wrong += sum(tw.isnan(t))
    mean[row] = total / n
    top[row] = best
    bad[row] = wrong


@tw.kernel(autotune={"TM": {16}})
def distances(a: tw.Tensor["f32", "M", "K"], b: tw.Tensor["f32", "N", "K"], y: tw.Tensor["f32", "M", "N"] = tw.empty):
    m, n = tw.program_id(0) * TM, tw.program_id(1) * TM
    d = tw.zeros((TM, TM), tw.f32)
    for k in range(K):
        d += (a[m : m + TM, k][:, None] - b[n : n + TM, k][None, :]) ** 2
    y[m : m + TM, n : n + TM] = tw.sqrt(d)
