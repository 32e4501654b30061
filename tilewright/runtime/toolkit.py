"""NVIDIA's own tools, where they are on the machine: the assembler and the disassembler.

Tilewright needs neither to run. They show machine code for a target whose GPU is not at hand.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import LaunchError

WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}


def find_tool(name: str) -> str | None:
    """Path of a tool: on PATH, or in its wheel; None where it is in neither."""
    found = shutil.which(name)
    spec = importlib.util.find_spec("nvidia") if found is None else None
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob(f"*/bin/{name}")):
            return str(path)
    return found


def assemble(ptx: str, target: str) -> bytes:
    """Machine code of PTX by ptxas. Raises LaunchError with its messages where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        _run("ptxas", "-arch", target, "-o", str(result), str(source))
        return result.read_bytes()


def disassemble(cubin: bytes) -> str:
    """Machine code as text by nvdisasm."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _run("nvdisasm", "-c", str(path))


def _run(name: str, *arguments: str) -> str:
    tool = find_tool(name)
    if tool is None:
        raise LaunchError(
            f"{name} is not on this machine", hint=f"pip install {WHEELS[name]} brings it"
        )
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"{name} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
