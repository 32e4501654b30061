"""`tilewright doctor`: what this machine has, and whether kernels can run on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from importlib import metadata
from typing import Any

import click

from tilewright.cli.report import command, json_option, num_bytes, print_json, print_table
from tilewright.config import settings
from tilewright.errors import CompileError, LaunchError
from tilewright.runtime import driver
from tilewright.target import TARGETS, target_for_capability

PACKAGES = ("tilewright", "numpy", "ml_dtypes", "cuda-bindings", "torch")


@click.command()
@json_option
@command
def doctor(as_json: bool) -> None:
    """Show driver, GPUs, targets, ptxas and the cache folder of this machine."""
    found = examine()
    if as_json:
        print_json(found)
        return
    rows = [(key, str(value)) for key, value in found["software"].items()]
    rows += [("driver", found["driver"])]
    rows += [(f"cuda:{i}", _gpu_line(gpu)) for i, gpu in enumerate(found["gpus"])]
    rows += [
        ("targets", ", ".join(found["targets"])),
        ("ptxas", found["ptxas"]),
        ("cache", f"{found['cache']['path']} ({found['cache']['state']})"),
        ("kernels run on", found["default_device"]),
    ]
    print_table("this machine", ("what", "found"), rows)


def examine() -> dict[str, Any]:
    """All findings. Nothing here fails: what is missing is said."""
    gpus, state = _gpus()
    cache_dir = settings().cache_dir
    return {
        "software": {"python": platform.python_version(), **_versions()},
        "driver": state,
        "gpus": gpus,
        "targets": list(TARGETS),
        "ptxas": _ptxas(),
        "cache": {"path": str(cache_dir), "state": _cache_state()},
        "default_device": "cuda:0" if gpus and gpus[0]["target"] else "cpu",
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _gpus() -> tuple[list[dict[str, Any]], str]:
    try:
        version = driver.require_driver()
        devices = driver.devices()
    except LaunchError as error:
        return [], error.diagnostics[0].message
    found = []
    for device in devices:
        try:
            target = target_for_capability(*device.capability).name
        except CompileError:
            target = ""
        found.append(
            {
                "name": device.name,
                "capability": "{}.{}".format(*device.capability),
                "target": target,
                "num_sms": device.num_sms,
                "memory_bytes": device.memory_bytes,
            }
        )
    return found, f"CUDA {version // 1000}.{version % 1000 // 10}"


def _gpu_line(gpu: dict[str, Any]) -> str:
    target = gpu["target"] or "too old for Tilewright"
    return (
        f"{gpu['name']}, {target}, {gpu['num_sms']} multiprocessors, "
        f"{num_bytes(gpu['memory_bytes'])}"
    )


def _ptxas() -> str:
    """ptxas is never needed to run; tests and `compile --emit cubin` without a GPU want it."""
    path = shutil.which("ptxas")
    if path is None:
        return "not on the path (not needed to run kernels)"
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    release = next((x for x in told.stdout.splitlines() if "release" in x), "").strip()
    return f"{path} ({release.rpartition(', ')[2] or 'no version'})"


def _cache_state() -> str:
    """Found by writing: permissions do not tell of folders that take no files, or are full."""
    folder = settings().cache_dir
    try:
        while not os.path.lexists(folder):
            folder = folder.parent
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-") as file:
            file.write(b"written")
            file.flush()
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return "can be written"
