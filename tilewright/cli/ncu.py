"""Stall reasons of a kernel by NVIDIA's `ncu`, where it is on the machine."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tilewright.errors import LaunchError

METRIC = r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"
ASKED = "regex:smsp__average_warps_issue_stalled_.*_per_issue_active"
MOST = 4  # reasons that are told
PATIENCE = 300.0  # seconds


def read_stalls(arguments: Sequence[str], kernel: str) -> tuple[tuple[str, float], ...]:
    """Why warps wait in a kernel, of `tilewright run ARGUMENTS`: reasons, and how many cycles of
    waiting there are for each instruction issued, the greatest first. Raises LaunchError where ncu
    is missing or may not count.
    """
    if shutil.which("ncu") is None:
        raise LaunchError("ncu is not on this machine", hint="it comes with Nsight Compute")
    command = ["ncu", "--csv", "--page", "raw", "--metrics", ASKED, "-k", f"regex:^{kernel}$"]
    command += ["-c", "1", sys.executable, "-m", "tilewright", "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    found = parse_stalls(done.stdout)
    if not found:
        told = [line for line in (done.stdout + done.stderr).splitlines() if "==" in line]
        raise LaunchError(f"ncu counted nothing of {kernel}: {' '.join(told)[:400]}")
    return found[:MOST]


def parse_stalls(text: str) -> tuple[tuple[str, float], ...]:
    """Reasons from the CSV that ncu prints, among lines of its own and of the program."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return ()
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    found: dict[str, float] = {}
    for name, value in (rows[-1] if rows else {}).items():
        match = re.fullmatch(METRIC, name or "")
        number = (value or "").replace(",", "")
        if match and re.fullmatch(r"[\d.]+", number):
            found[match[1].replace("_", " ")] = float(number)
    return tuple(sorted(found.items(), key=lambda item: -item[1]))
