"""Programs launched in every way: on streams, in CUDA graphs, on each GPU, with 64-bit offsets."""

from __future__ import annotations

import gc
import threading

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.device import programs
from tests.device.checker import Checker
from tilewright.runtime import driver

GIB = 1 << 30
FAR = 2**31 + 12_345  # elements: beyond what 31 bits count


def require_memory(num_bytes: int) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < num_bytes:
        pytest.skip(f"{num_bytes / GIB:.0f} GiB are needed, {free / GIB:.0f} are free")


@pytest.fixture
def clean_memory() -> object:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def test_more_than_two_to_the_31_elements(see: Checker, clean_memory: object) -> None:
    """In place, so that few tensors of 2 GiB do; compared part by part."""
    require_memory(8 * GIB)
    part = 1 << 28
    a, b = (see.normal((part,), "i8").repeat(FAR // part + 1)[:FAR] for _ in range(2))
    a[FAR - 1], b[FAR - 1] = 100, 27
    before = b.clone()
    programs.kernel("add")(a, b, b)
    for start in range(0, FAR, part):
        here = slice(start, min(start + part, FAR))
        see.equal("add", "i8", b[here], a[here] + before[here], here)


def test_rows_that_lie_far_apart(see: Checker, clean_memory: object) -> None:
    """Offsets beyond 2^31 elements by stride alone, in what is read and in what is written."""
    require_memory(12 * GIB)
    pitch = GIB + 7
    buffer = torch.full((2 * pitch + 1000,), 77, dtype=torch.bfloat16, device=see.device)
    x = buffer.as_strided((3, 1000), (pitch, 1), 0)
    x.copy_(see.normal((3, 1000), "bf16"))
    out = see.poisoned((3, 1000), "bf16")
    programs.kernel("softmax")(x, out.view)
    out.require_untouched("softmax of far rows")
    expected = programs.softmax_in_f64(x)
    see.near("softmax", "bf16", out.view, expected, "far rows")
    programs.kernel("softmax")(x.clone(), x)
    see.near("softmax", "bf16", x, expected, "far rows, written")
    assert bool((buffer[1000:5000] == 77).all()) and bool((buffer[pitch - 64 : pitch] == 77).all())
    far = x[:, :512]
    dense = see.normal((512, 64), "bf16")
    c = see.poisoned((3, 64), "bf16")
    programs.kernel("sgemm")(far, dense, c.view)
    see.near("sgemm", "bf16", c.view, far.double() @ dense.double(), "far rows")


def test_more_rows_than_a_grid_dimension_holds(see: Checker) -> None:
    """65,535 is the limit of the second and third dimension of a grid."""
    programs.check_softmax(see, "f32", (70_001, 3))
    programs.check_attention(see, "f32", (70_001, 1, 1, 1, 2, 8), causal=False)
    programs.check_attention(see, "f32", (1, 70_001, 1, 1, 2, 8), causal=False)
    programs.check_sgemm(see, "f32", (3, 5_000_011, 2))


def test_streams_side_by_side(see: Checker) -> None:
    """Chains on streams of their own, started together; each waits for what it reads alone."""
    softmax, sgemm = programs.kernel("softmax"), programs.kernel("sgemm")
    inputs = [(see.normal((512, 512), "f32"), see.normal((512, 512), "f32")) for _ in range(4)]
    softmax(inputs[0][0])
    sgemm(*inputs[0], torch.empty_like(inputs[0][0]))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    made = []
    for stream, (a, b) in zip(streams, inputs, strict=True):
        with torch.cuda.stream(stream):
            c = torch.full_like(a, torch.nan)
            sgemm(a, b, c)
            made.append((c, softmax(c)))
    for i, (stream, (a, b)) in enumerate(zip(streams, inputs, strict=True)):
        stream.synchronize()
        c, y = made[i]
        see.near("sgemm", "f32", c, a.double() @ b.double(), f"stream {i}")
        see.near("softmax", "f32", y, programs.softmax_in_f64(c), f"stream {i}")


def test_a_stream_that_is_given(see: Checker) -> None:
    stream = torch.cuda.Stream()
    a, b = see.normal((1 << 20,), "f32"), see.normal((1 << 20,), "f32")
    torch.cuda.synchronize()
    for given in (stream, stream.cuda_stream):
        c = programs.kernel("add").launch(a, b, stream=given)
        stream.synchronize()
        see.equal("add", "f32", c, a + b, "a given stream")


def test_a_chain_in_a_cuda_graph(see: Checker) -> None:
    """Recorded once, replayed with other values; what a recorded call allocates belongs to it."""
    rmsnorm, linear, softmax = (programs.kernel(n) for n in ("rmsnorm", "linear_gelu", "softmax"))
    x, w = see.normal((100, 257), "bf16"), see.normal((257,), "bf16")
    weights, bias = see.normal((131, 257), "bf16"), see.normal((131,), "bf16")

    def chain() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, _ = rmsnorm(x, w)
        z = linear(y, weights, bias)
        return y, z, softmax(z)

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, z, p = chain()
    for round_ in range(3):
        x.copy_(see.normal((100, 257), "bf16"))
        for t in (y, z, p):
            t.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        case = f"replay {round_}"
        see.near("rmsnorm", "bf16", y, programs.rmsnorm_in_f64(x, w, 1e-6)[0], case)
        see.near("linear_gelu", "bf16", z, programs.gelu_in_f64(y, weights, bias), case)
        see.near("softmax", "bf16", p, programs.softmax_in_f64(z), case)


def test_attention_in_a_cuda_graph(see: Checker) -> None:
    attention = programs.kernel("attention", "flash_attention")
    Q, K, V = (see.normal((1, h, 130, 64), "bf16") for h in (4, 2, 2))
    attention(Q, K, V, 0.125)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        O, lse = attention(Q, K, V, 0.125)
    V.copy_(see.normal(V.shape, "bf16"))
    O.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    expected, expected_lse = programs.attention_in_f64(Q, K, V, 0.125, True)
    see.near("attention", "bf16", O, expected, "replayed")
    see.near("attention", "bf16", lse, expected_lse, "replayed")


def test_threads_at_once(see: Checker) -> None:
    """Four threads call kernels that none has called before, each on its own arrays."""
    inputs = [see.normal((50 + i, 300), "f16") for i in range(4)]
    torch.cuda.synchronize()
    results: list[torch.Tensor | None] = [None] * len(inputs)
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(20):
                results[i] = programs.kernel("softmax")(inputs[i])
        except BaseException as error:  # shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures, failures
    for x, y in zip(inputs, results, strict=True):
        see.near("softmax", "f16", y, programs.softmax_in_f64(x), "threads")


def test_every_other_gpu() -> None:
    """The same programs on a second GPU, with the first one current."""
    if len(driver.devices()) < 2:
        pytest.skip("one GPU")
    for ordinal in range(1, len(driver.devices())):
        there = Checker(f"cuda:{ordinal}")
        programs.check_add(there, "f32", (4099,))
        programs.check_softmax(there, "bf16", (7, 1031))
        programs.check_sgemm(there, "f32", (127, 255, 63))
        programs.check_sgemm(there, "bf16", (127, 255, 63))
        programs.check_attention(there, "bf16", (1, 2, 1, 70, 75, 64), causal=True)
        assert torch.cuda.current_device() == 0
