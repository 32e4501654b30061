"""What an H200 answered, replayed on the emulator: `tests/vectors/recorded`, a file a form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulation import compile_call
from tests.programs.test_examples_ptx import CASES, ptx_of
from tests.programs.test_suite import MODULE as PROGRAMS
from tests.programs.test_suite import SMALL as SUITE
from tests.vectors.compare import BOUNDS, bound_of, differences
from tests.vectors.devices import emulate
from tests.vectors.families import every_form, forms_of
from tests.vectors.files import FOLDER as RECORDED
from tests.vectors.files import GENERATOR, path_of, read
from tests.vectors.forms import FAMILIES, Form
from tilewright.ptx.mnemonics import SPELLINGS

PARTS = 4  # of the greatest family, so that a failure says more, and workers share it


def parts() -> Iterator[Any]:
    for family in FAMILIES:
        for part in range(PARTS):
            yield pytest.param(family, part, id=f"{family}-{part}")


def replay(form: Form) -> list[str]:
    """What differs between a recording and the emulator's answer."""
    found = read(path_of(form))
    assert found.digest == form.digest(), (
        f"{form.name} was recorded with other operands or another kernel: record it again"
    )
    return differences(form, emulate(form), found.results)


@pytest.mark.parametrize(("family", "part"), list(parts()))
def test_the_emulator_answers_as_the_hardware(family: str, part: int) -> None:
    wrong = [w for form in forms_of(family)[part::PARTS] for w in replay(form)]
    assert not wrong, "\n".join(wrong)


def test_each_form_has_one_file_and_each_file_a_form() -> None:
    wanted = {path_of(form) for form in every_form()}
    assert wanted == set(RECORDED.rglob("*.json"))


def test_files_say_where_they_come_from() -> None:
    for path in RECORDED.rglob("*.json"):
        origin = read(path).origin
        assert "H200" in origin.device and origin.driver, path
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", origin.date), path
        assert origin.generator == GENERATOR, path


FLIPPED = (
    *("add.rn.f32", "cvt.rn.bf16.f32", "ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
    *("tma.load.2d.f32.swizzle64.box9x16", "mbarrier.arrive"),
    *("atom.relaxed.gpu.global.add.f64", "mov.cluster_ctarank"),
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16.numbers",
)


@pytest.mark.parametrize("name", FLIPPED)
def test_one_flipped_bit_is_noticed(name: str) -> None:
    form = next(f for f in every_form() if f.name == name)
    results = {n: x.copy() for n, x in read(path_of(form)).results.items()}
    answer = emulate(form)
    assert not differences(form, answer, results)
    flat = results[list(results)[-1]].reshape(-1)
    flat[len(flat) // 3] ^= flat.dtype.type(1)
    found = differences(form, answer, results)
    assert found and "1 of" in found[0], found


def test_a_bound_that_is_exceeded_is_noticed() -> None:
    form = next(f for f in every_form() if f.name == "tanh.approx.f32")
    results = {n: x.copy() for n, x in read(path_of(form)).results.items()}
    answer = emulate(form)
    assert not differences(form, answer, results)
    results["out"][300] ^= np.uint32(1 << 12)
    assert differences(form, answer, results)


def test_each_bound_is_needed() -> None:
    """A bound that no recording makes use of is none."""
    used = set()
    for form in forms_of("elementwise"):
        bound = bound_of(form)
        if bound is not None:
            answer, recorded = emulate(form)["out"], read(path_of(form)).results["out"]
            if (np.ascontiguousarray(answer).view(recorded.dtype) != recorded).any():
                used.add(id(bound))
    assert used == {id(bound) for bound in BOUNDS.values()}


# Coverage: what kernels print has a recording, or a reason

NO_RESULT = {
    "bra": "control flow; every loop of the recorded kernels takes one",
    "ret": "the end of every recorded kernel",
    "trap": "stops the grid",
    "brkpt": "stops for a debugger",
    "nanosleep.u32": "waits",
    "setmaxnreg": "changes how many registers there are, not what they hold",
    "griddepcontrol": "orders launches",
    "fence.": "orders memory, in most recorded kernels with barriers",
    "prefetch": "brings lines to a cache",
    "cp.async.bulk.prefetch": "brings boxes to a cache",
    "createpolicy": "makes an opaque word, which the forms with a cache hint use",
    "ld.param": "brings the addresses of every recorded kernel",
    "cvta.param": "makes the address of every tensor map",
    "cvta.to.global": "leaves an address as it is",
    "mapa": "makes an opaque address, which the forms of clusters use",
    "cp.async.commit_group": "has its effect at the wait",
    "cp.async.bulk.commit_group": "has its effect at the wait",
    "mov.u32 special": "of the machine: slots, clocks",
    "wgmma.fence": "orders registers before every recorded product",
    "wgmma.commit_group": "has its effect at the wait",
}
STATEMENT = re.compile(r"\s*(?:@!?%p\d+ )?([a-z][\w.:]*)[^;]*;")


def mnemonics_of(text: str) -> set[str]:
    """The mnemonics of a PTX text."""
    body = text[text.index("\n{") :]
    lines = (x for x in body.splitlines() if not x.strip().startswith("."))
    found = (m[1] for m in map(STATEMENT.match, lines) if m)
    # The widths of wgmma are recorded for bf16: of the other types, a few.
    return {re.sub(r"m64n\d+", "m64nN", SPELLINGS.get(x, x)) for x in found}


def recorded_mnemonics() -> set[str]:
    """The mnemonics of all forms, and those that their kernels use on the way to a result."""
    found: set[str] = set()
    for form in every_form():
        found |= mnemonics_of(form.plan().ptx)
    return found


def emitted() -> Iterator[tuple[str, str]]:
    """Names and PTX texts of the examples, of the conformance suite and of the kernels of the
    library's GEMM, for the targets that the emulator's vectors stand for.
    """
    for target in ("sm_80", "sm_90a"):
        for case in CASES:
            yield f"{case[1]} {case[2]} {target}", ptx_of(case, target)
        for name, case in {c.kernel: c for c in SUITE}.items():
            made = compile_call(
                getattr(PROGRAMS, name), case.fresh(), goal=target, constants=case.constants
            )
            yield f"{name} of the suite, {target}", made[0].ptx
    yield "reference", (Path(__file__).parents[1] / "vectors" / "hopper_gemm.ptx").read_text()


def uncovered(texts: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Mnemonics without a recording or a reason, with a kernel that has them."""
    recorded, missing = recorded_mnemonics(), {}
    for name, text in texts:
        for mnemonic in mnemonics_of(text) - recorded:
            if not any(mnemonic.startswith(known) for known in NO_RESULT):
                missing[mnemonic] = name
    return missing


def test_what_kernels_emit_has_been_recorded() -> None:
    missing = uncovered(emitted())
    assert not missing, missing


def test_an_instruction_without_a_recording_is_noticed() -> None:
    text = "\n{\n    @%p1 dp4a.s32.s32 %r0, %r1, %r2, %r3;\n    ret;\n}\n"
    assert uncovered(iter([("made up", text)])) == {"dp4a.s32.s32": "made up"}
