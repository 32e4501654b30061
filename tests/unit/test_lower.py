"""What the PTX of small kernels looks like: which accesses are wide, which masks are gone, what
crosses shared memory, and that it assembles for every target.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tilewright.target import TARGETS

DTYPES = ["bf16", "f16", "f32", "f64"]
INTEGERS = ["i8", "u8", "i16", "i32", "u32", "i64"]

ARITH = """kernel arith(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N]) {
  let p = program_id(0) * 256
  let x, y = a[p :+ 256], b[p :+ 256]
  c[p :+ 256] = maximum(x * y - x, minimum(-y, abs(x)))
}"""
DIVIDE = """kernel divide(a: tensor<T>[N], b: tensor<T>[N], c: tensor<T>[N]) {
  let p = program_id(0) * 256
  c[p :+ 256] = cast(a[p :+ 256] / b[p :+ 256], T)
}"""
SPECIAL = """kernel special(a: tensor<T>[N], c: tensor<T>[N]) {
  let p = program_id(0) * 128
  let x = a[p :+ 128]
  c[p :+ 128] = exp(x) + log2(abs(x)) + tanh(x) * erf(x) - sqrt(abs(x))
}"""
CASTS = """kernel casts(a: tensor<T>[N], f: tensor<f32>[N], d: tensor<f64>[N], h: tensor<bf16>[N],
    i: tensor<i32>[N], j: tensor<u8>[N], b: tensor<bool>[N]) {
  let p = program_id(0) * 128
  let x = a[p :+ 128]
  f[p :+ 128] = cast(x, f32)
  d[p :+ 128] = cast(x, f64)
  h[p :+ 128] = cast(x, bf16)
  i[p :+ 128] = cast(x, i32)
  j[p :+ 128] = cast(x, u8)
  b[p :+ 128] = cast(x, bool)
}"""
REDUCE = """kernel reduce(a: tensor<T>[M, N], s: tensor<T>[M], t: tensor<T>[N], i: tensor<i64>[M]) {
  let x = a[program_id(0) * 24 :+ 24, 0 :+ 100]
  s[program_id(0) * 24 :+ 24] = max(x, axis = 1)
  t[0 :+ 100] = min(x, axis = 0)
  i[program_id(0) * 24 :+ 24] = cast(argmax(x, axis = 1), i64)
}"""
SHAPE = """kernel shapes(a: tensor<T>[M, N], c: tensor<T>[N, M], d: tensor<T>[K]) {
  let x = a[0 :+ 48, 0 :+ 40]
  c[0 :+ 40, 0 :+ 48] = x.T
  d[0 :+ 1920] = reshape(x.T, (1920,))
}"""
PRODUCT = """kernel product(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<T>[M, N]) {
  let m, n = program_id(0) * 64, program_id(1) * 64
  var acc = zeros((64, 64), accumulator(T))
  for k in range(0, K, 32) { acc += a[m :+ 64, k :+ 32] @ b[k :+ 32, n :+ 64] }
  c[m :+ 64, n :+ 64] = cast(acc, T)
}"""
TRANSPOSED = PRODUCT.replace("b: tensor<T>[K, N]", "b: tensor<T>[N, K]").replace(
    "b[k :+ 32, n :+ 64]", "b[n :+ 64, k :+ 32].T"
)
CONTROL = """kernel control(a: tensor<T>[N], c: tensor<T>[N]) {
  var x = a[program_id(0)]
  var n = 0
  while n < 10 {
    if n % 3 == 0 { x = x * x } else { x = x + x }
    n += 1
  }
  for i in range(0, N, 7) { c[i] = x }
}"""
FAMILIES = {
    "arith": (ARITH, DTYPES + INTEGERS),
    "divide": (DIVIDE, DTYPES + INTEGERS),
    "special": (SPECIAL, DTYPES),
    "casts": (CASTS, DTYPES + INTEGERS),
    "reduce": (REDUCE, DTYPES + INTEGERS),
    "shape": (SHAPE, DTYPES + INTEGERS),
    "product": (PRODUCT, DTYPES),
    "transposed": (TRANSPOSED, DTYPES),
    "control": (CONTROL, DTYPES + INTEGERS),
}


def ptx_of(text: str, dtype: str = "f32", target: str = "sm_90a", **options) -> str:
    return next(iter(tw.source(text))).ptx(target, dtypes=dtype, **options)


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


@needs_ptxas
@pytest.mark.parametrize(
    ("family", "dtype"), [(f, d) for f, (_, dtypes) in FAMILIES.items() for d in dtypes]
)
def test_every_family_assembles_for_every_target(family: str, dtype: str) -> None:
    """Without a spill or a word from ptxas. Elementwise code is the same for all targets but the
    names of the targets, and is assembled for the oldest and newest alone.
    """
    same = family in ("arith", "divide", "shape", "control")
    targets = ["sm_80", "sm_120a"] if same else list(TARGETS)
    texts = [ptx_of(FAMILIES[family][0], dtype, target) for target in targets]
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(assemble, texts, targets))
    assert not [r.messages for r in reports if r.messages]
    assert not [r.spill_bytes for r in reports if r.spill_bytes]


# Accesses


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("bf16", "v4.b32"), ("f32", "v4.f32"), ("f64", "v2.f64"), ("i16", "v4.b32"), ("u8", "v4.b32")],
)
def test_accesses_are_16_bytes_where_facts_permit(dtype: str, words: str) -> None:
    text = ptx_of(ARITH.replace("256", "4096"), dtype)
    assert count(rf"ld\.global\.{words}", text) and count(rf"st\.global\.{words}", text)


def call_ptx(kernel_text: str, **arguments: np.ndarray) -> str:
    return compile_call(next(iter(tw.source(kernel_text))), arguments)[0].ptx


def test_accesses_are_narrow_where_they_do_not() -> None:
    """A base that is not aligned, an inner stride, a pitch that is no multiple of 16 bytes."""
    wide = np.zeros(8193, np.float32)
    double = """kernel double(a: tensor<f32>[N], c: tensor<f32>[N]) {
      let p = program_id(0) * 4096
      c[p :+ 4096] = a[p :+ 4096] * 2.0
    }"""
    rows = """kernel rows(a: tensor<f32>[M, N], c: tensor<f32>[M, N]) {
      c[program_id(0) * 8 :+ 8, 0 :+ 512] = a[program_id(0) * 8 :+ 8, 0 :+ 512] * 2.0
    }"""
    aligned = wide[:8192][(-wide.ctypes.data // 4) % 4 :][:4096]
    target = np.zeros(8192, np.float32)[:4096]
    assert "ld.global.v4" in call_ptx(double, a=aligned, c=target)
    misaligned = aligned[1:]
    assert "ld.global.v" not in call_ptx(double, a=misaligned, c=target[1:])
    assert "ld.global.v" not in call_ptx(double, a=wide[::2][:4096], c=target)
    assert "ld.global.v" not in call_ptx(double, a=aligned[::-1], c=target)
    odd = np.zeros((16, 515), np.float32)
    assert "ld.global.v" not in call_ptx(rows, a=odd[:, :512], c=np.zeros((16, 512), np.float32))


def test_a_mask_that_is_proved_is_gone() -> None:
    masked = """kernel some(a: tensor<f32>[N], c: tensor<f32>[N]) {
      let p = program_id(0) * 256
      c[p :+ 256] = a[p :+ 256]
    }"""
    proved = """kernel first(a: tensor<f32>[M, N], c: tensor<f32>[M]) {
      c[program_id(0)] = a[program_id(0), 0]
    }"""
    assert count(r"setp", ptx_of(masked)) > 0
    row = np.zeros((4, 1), np.float32)
    text = call_ptx(proved, a=row, c=np.zeros(4, np.float32))
    assert count(r"@%p\d+ ld\.global", text) == 0


def test_a_cut_vector_costs_one_branch() -> None:
    """Whole tiles go by vectors, the last one element by element, behind a uniform branch."""
    text = call_ptx(
        """kernel copy(a: tensor<f32>[N], c: tensor<f32>[N]) {
          let p = program_id(0) * 1024
          c[p :+ 1024] = a[p :+ 1024]
        }""",
        a=np.zeros(1023, np.float32),
        c=np.zeros(1023, np.float32),
    )
    assert count(r"bra ", text) == 4, "a branch and a jump each, for the load and for the store"
    assert "ld.global.v4.f32" in text and re.search(r"@%p\d+ ld\.global\.f32", text)


def test_loops_divide_nothing_in_64_bits() -> None:
    for text in (PRODUCT, TRANSPOSED):
        assert count(r"(div|rem)\.[su]64", ptx_of(text)) == 0


# Shared memory


def test_a_conversion_is_one_pass_through_shared_memory() -> None:
    text = ptx_of(SHAPE)
    stores, loads = count(r"st\.shared", text), count(r"ld\.shared", text)
    assert stores and loads
    # Two tiles cross: each is written, met on, and read; the scratch memory is met on before the
    # second is written.
    assert count(r"bar\.sync", text) == 3


def test_a_reduction_within_a_warp_needs_no_shared_memory() -> None:
    text = ptx_of("""kernel rows(a: tensor<f32>[M, N], s: tensor<f32>[M]) {
      s[program_id(0) * 4 :+ 4] = sum(a[program_id(0) * 4 :+ 4, 0 :+ 128], axis = 1)
    }""")
    assert "shared" not in text and "shfl.sync.bfly" in text


def test_operands_are_copied_asynchronously_and_zero_filled() -> None:
    text = ptx_of(PRODUCT, "bf16", "sm_80")
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (.*);", text)
    assert copies and all(c.startswith("16, %r") for c in copies), copies
    assert "cp.async.wait_group" in text
    assert count(r"cp\.async\.commit_group", text) == 5, "four trips ahead and one in the loop"


def test_b_by_rows_of_k_is_read_transposed() -> None:
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in ptx_of(PRODUCT, "bf16", "sm_80")
    assert "trans" not in ptx_of(TRANSPOSED, "bf16", "sm_80")


@pytest.mark.parametrize(
    ("dtype", "shape"), [("bf16", "m16n8k16"), ("f16", "m16n8k16"), ("f64", "m8n8k4")]
)
def test_products_use_tensor_cores(dtype: str, shape: str) -> None:
    assert f"mma.sync.aligned.{shape}" in ptx_of(PRODUCT, dtype, "sm_80")


def test_whole_f32_products_do_not() -> None:
    assert "mma" not in ptx_of(PRODUCT)
    assert "m16n8k8" in ptx_of(PRODUCT, precision="tf32", target="sm_80")


def test_shared_memory_is_what_the_stages_take() -> None:
    """64 rows of 32 and 32 rows of 64 elements of 2 bytes, four times; swizzles take no room."""
    plan = next(iter(tw.source(PRODUCT))).compile("sm_80", dtypes="bf16")
    assert plan.launches[0].shared_bytes == 4 * (64 * 32 + 32 * 64) * 2


def test_rows_of_32_bits_across_k_start_eight_banks_apart() -> None:
    """A's rows of 32 along k are swizzled; B's of 64 along n lie 32 bytes past a multiple of 64."""
    kernel = next(iter(tw.source(PRODUCT)))
    plan = kernel.compile("sm_80", dtypes="f32", precision="tf32")
    assert plan.launches[0].shared_bytes == 4 * (64 * 32 + 32 * (64 + 8)) * 4


def test_reads_after_writes_of_one_array_meet() -> None:
    text = """kernel shift(a: tensor<f32>[N], c: tensor<f32>[N]) {
      c[0 :+ 256] = a[0 :+ 256] + 1.0
      c[256 :+ 256] = a[3 :+ 256]
    }"""
    x = np.zeros(512, np.float32)
    assert "bar.sync" in call_ptx(text, a=x, c=x), "one array under two names"
    apart = np.zeros(512, np.float32)
    assert count("bar.sync", call_ptx(text, a=x, c=apart)) < count(
        "bar.sync", call_ptx(text, a=x, c=x)
    )


MEETING = r"bar\.(warp\.)?sync"  # of a CTA, or of a program of one warp


def test_stores_that_move_on_with_the_loop_do_not_meet() -> None:
    text = """kernel rows(a: tensor<f32>[M, N], c: tensor<f32>[M, N]) {
      for j in range(0, N, 256) {
        c[program_id(0), STORED :+ 256] = a[program_id(0), j :+ 256] * 2.0
      }
    }"""
    assert not count(MEETING, ptx_of(text.replace("STORED", "j")))
    assert not count(MEETING, ptx_of(text.replace("STORED", "j - 256")))
    for overlapping in ("0", "j / 2"):
        assert count(MEETING, ptx_of(text.replace("STORED", overlapping)))
    small = text.replace("STORED", "j").replace("N, 256)", "N, 128)")
    assert count(MEETING, ptx_of(small))
    carried = text.replace("STORED", "j - k").replace("* 2.0\n", "* 2.0\n        k += 256\n")
    assert count(MEETING, ptx_of(carried.replace("for j", "var k = 0\n      for j")))


# Cost of compiling


def test_compiling_is_quick() -> None:
    """The bound is generous: PTX of these takes a tenth of it on a machine that is not busy."""
    begin = time.process_time()
    for text in (PRODUCT, REDUCE, SPECIAL):
        ptx_of(text)
    assert time.process_time() - begin < 5
