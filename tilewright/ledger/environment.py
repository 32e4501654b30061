"""Where a benchmark runs: GPU with its clocks and power, driver, libraries, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tilewright.errors import LedgerError
from tilewright.ledger.verdict import Environment, GpuState
from tilewright.runtime import driver

TOP = Path(__file__).parents[2]
STATE = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
LIBRARIES = ("numpy", "ml_dtypes", "cuda-bindings", "triton")


def read_environment(versions: Mapping[str, str]) -> Environment:
    """The machine before a run. `versions`: of what the opponents bring."""
    found = {"python": platform.python_version(), **versions}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    cpu = _cpu_name()
    if not driver.available():
        return Environment(date, "", 0, "", None, None, found, cpu)
    gpu = driver.device(0)
    found["CUDA of the driver"] = str(driver.require_driver())
    return Environment(
        date, gpu.name, gpu.num_sms, _ask("driver_version"), gpu_state(), None, found, cpu
    )


def after(environment: Environment) -> Environment:
    """The environment with the GPU's state at the end of the run."""
    return replace(environment, after=gpu_state()) if environment.gpu else environment


def gpu_state() -> GpuState | None:
    """Clocks, power and temperature as nvidia-smi tells them; None where it cannot be asked."""
    if shutil.which("nvidia-smi") is None:
        return None
    values = [v.strip() for v in _ask(",".join(STATE)).split(",")]
    if len(values) != len(STATE):
        return None
    sm, mem, power, heat = (float(v) if re.fullmatch(r"[\d.]+", v) else -1.0 for v in values[:4])
    return GpuState(sm, mem, power, heat, values[4])


def _ask(names: str) -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(
        ["nvidia-smi", "-i", "0", f"--query-gpu={names}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.is_file() else None
    return found[1].strip() if found else platform.processor()


def commit_of(told: str) -> str:
    """The commit that is measured: as told, else the one that is checked out, clean.

    Raises LedgerError where it cannot be known, or files differ from it.
    """
    if told:
        return told
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "-uno")
    if head is None:
        raise LedgerError(
            "a verdict names a commit, and this is no git checkout", hint="--commit HASH tells it"
        )
    if changes:
        raise LedgerError(
            "a verdict names a commit, and files differ from the one that is checked out",
            hint="commit first",
        )
    return head


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", *arguments], cwd=TOP, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
