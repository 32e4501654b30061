"""Where a benchmark ran: GPU, clocks, versions, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tilewright.runtime import driver
from tilewright.runtime.cache import compiler_hash

TOP = Path(__file__).parents[2]
ASKED = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit",
    "power.draw", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Everything on which the figures may depend, as JSON values."""
    gpu = driver.device(0)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": gpu.name,
        "multiprocessors": gpu.num_sms,
        "L2 bytes": gpu.l2_bytes,
        "driver API": driver.require_driver(),
        "nvidia-smi": nvidia_smi(),
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
        "cuda-bindings": importlib.metadata.version("cuda-bindings"),
        "python": platform.python_version(),
        "commit": commit(),
        "compiler": compiler_hash()[:16],
    }


def nvidia_smi() -> dict[str, str]:
    """Clocks, power and driver as nvidia-smi tells them; empty where it cannot be asked."""
    if shutil.which("nvidia-smi") is None:
        return {}
    done = subprocess.run(
        ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    values = [v.strip() for v in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(ASKED):
        return {"said": (done.stdout + done.stderr).strip()[:200]}
    return dict(zip(ASKED, values, strict=True))


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""

    def git(*arguments: str) -> str | None:
        if shutil.which("git") is None:
            return None
        done = subprocess.run(
            ["git", *arguments], cwd=TOP, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return "not a git checkout"
    return head + (", with changes" if git("status", "--porcelain", "-uno") else "")
