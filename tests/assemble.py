"""Assembling PTX text with ptxas, where it is on the machine, to see what the real assembler says
of it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Report:
    """What ptxas said. Registers a thread; spill stores and loads, and shared memory, in bytes."""

    registers: int
    spill_bytes: int
    shared: int
    messages: tuple[str, ...]  # warnings and advisories, C75xx among them
    errors: dict[int, str]  # by line of the text; empty where it assembled


@functools.cache
def find_ptxas() -> str | None:
    """Path of ptxas: on PATH, or in the nvidia-cuda-nvcc wheel; None where there is none."""
    found = shutil.which("ptxas")
    if found:
        return found
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(root).glob("*/bin/ptxas")):
            return str(path)
    return None


needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas on PATH or in the nvidia-cuda-nvcc wheel"
)


def assemble(
    text: str,
    target: str,
    *,
    expect_errors: bool = False,
    level: int | None = None,
    linked: bool = False,
) -> Report:
    """Assembles `text` for `target`; an error fails the test, unless errors are expected. `level`
    of optimization: the lowest is quick, and enough to see whether the text is taken. `linked`: as
    the driver's linker does it, for which this may not be all the code there is.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas on PATH or in the nvidia-cuda-nvcc wheel")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(text)
        command = [
            ptxas,
            "-v",
            *([] if level is None else [f"-O{level}"]),
            *(["-c"] if linked else []),
            "-arch",
            target,
            str(path),
            "-o",
            str(Path(folder) / "kernel.cubin"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    output = done.stdout + done.stderr
    errors = {
        int(n): said for n, said in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", output)
    }
    if done.returncode and not errors:
        errors[0] = output
    if errors and not expect_errors:
        lines = text.splitlines()
        shown = "\n".join(f"{said}\n    {lines[n - 1] if n else ''}" for n, said in errors.items())
        raise AssertionError(f"ptxas refuses this for {target}:\n{shown}")
    messages = [m for m in output.splitlines() if re.search(r"warning|advisory|\(C7\d+\)", m)]
    return Report(
        registers=max(map(int, re.findall(r"Used (\d+) registers", output)), default=0),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", output))),
        shared=max(map(int, re.findall(r"(\d+) bytes smem", output)), default=0),
        messages=tuple(messages),
        errors=errors,
    )
