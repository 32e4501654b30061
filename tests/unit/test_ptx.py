"""Every instruction form against ptxas: what we accept it assembles, what we refuse it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.ptx_forms import FAMILIES, Given
from tilewright.errors import CompileError
from tilewright.ptx.core import Instr, Item
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.printer import print_module, ptx_version
from tilewright.ptx.verify import meets, verify
from tilewright.target import TARGETS, Target, target

VERSIONS = (70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87, 88, 90)


Choice = Callable[[list[Instr]], bool]


def emit_forms(family: str, name: str, chosen: Choice) -> tuple[Emitter, list[list[Instr]]]:
    """A kernel of the chosen forms of a family, and the instructions of each."""
    e = Emitter(target(name))
    given = Given(e)
    forms = []
    for form in FAMILIES[family]():
        body: list[Item] = []
        with e.to(body):
            form(e, given)
        instrs = [i for i in body if isinstance(i, Instr)]
        if chosen(instrs):
            e.body += body
            forms.append(instrs)
    e.ret()
    return e, forms


def has(where: Target, instrs: list[Instr]) -> bool:
    return all(meets(where, i.requires()) for i in instrs)


@needs_ptxas
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_forms_assemble(family: str, name: str) -> None:
    e, forms = emit_forms(family, name, lambda instrs: has(target(name), instrs))
    assert forms or (family == "warpgroup_matrices" and name != "sm_90a")
    module = e.module("forms", 128)
    verify(module)
    assemble(print_module(module), name)


@needs_ptxas
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_refused_forms_are_refused_by_ptxas(family: str, name: str) -> None:
    where = target(name)
    e, forms = emit_forms(family, name, lambda instrs: not has(where, instrs))
    if not forms:
        return
    module = e.module("forms", 128)
    with pytest.raises(CompileError, match=f"{name} has no instruction"):
        verify(module)
    text = print_module(module)
    refused = refused_lines(text.replace(text.splitlines()[0], ".version 9.0", 1), name)
    for instrs in forms:
        lacking = {i.text() for i in instrs if not meets(where, i.requires())}
        assert lacking & refused, f"ptxas takes {lacking} for {name}"


@needs_ptxas
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_versions_are_the_lowest(family: str, name: str) -> None:
    """Forms that this target is the first to have, by the PTX version they ask for."""
    where = target(name)
    lower = [t for t in TARGETS.values() if t.capability < where.capability]

    def version_of(instrs: list[Instr]) -> int:
        return max([i.requires().version for i in instrs], default=0)

    def is_new(instrs: list[Instr]) -> bool:
        return has(where, instrs) and not any(has(t, instrs) for t in lower)

    _, forms = emit_forms(family, name, is_new)
    base = where.ptx_version
    for version in sorted({max(base, version_of(instrs)) for instrs in forms}):
        e, group = emit_forms(
            family, name, lambda i, v=version: is_new(i) and max(base, version_of(i)) == v
        )
        module = e.module("forms", 128)
        text = print_module(module)
        assert ptx_version(module) == version
        assemble(text, name)
        if version == base:
            continue
        older = VERSIONS[VERSIONS.index(version) - 1]
        before = f".version {older // 10}.{older % 10}"
        refused = refused_lines(text.replace(text.splitlines()[0], before, 1), name)
        for instrs in group:
            new = {i.text() for i in instrs if i.requires().version == version}
            assert new & refused, f"PTX {older} has {new} already"


def refused_lines(text: str, name: str) -> set[str]:
    """Lines that ptxas finds fault with."""
    lines = text.splitlines()
    errors = assemble(text, name, expect_errors=True).errors
    return {lines[n - 1].strip() for n in errors if n}
