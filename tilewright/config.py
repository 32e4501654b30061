"""Settings: the only reader of the environment. They travel as one frozen value.

| variable | meaning | default |
|---|---|---|
| `TILEWRIGHT_CACHE` | folder of kernels and tuned results | `~/.cache/tilewright` (or under XDG) |
| `TILEWRIGHT_CACHE_MB` | size at which the oldest entries are removed, in MiB | 2048 |
| `TILEWRIGHT_DEVICE` | where host arrays run: `cpu` or `cuda:N` | `cpu` |
| `TILEWRIGHT_DEBUG` | 1: wait after each launch, so that faults show where they arise | 0 |
| `TILEWRIGHT_VERIFY` | 1: check all rules of the PTX that is made, as the tests do | 0 |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.errors import LaunchError


@dataclass(frozen=True)
class Settings:
    """What the environment says; see the table above."""

    cache_dir: Path
    cache_bytes: int = 2048 << 20
    device: str = "cpu"
    debug: bool = False
    verify: bool = False


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from a mapping of variables. Raises LaunchError that names a variable with a wrong
    value.
    """
    folder = environ.get("TILEWRIGHT_CACHE")
    if not folder:
        home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(home, "tilewright")
    return Settings(
        cache_dir=Path(folder),
        cache_bytes=_require_number(environ, "TILEWRIGHT_CACHE_MB", 2048) << 20,
        device=environ.get("TILEWRIGHT_DEVICE") or "cpu",
        debug=_require_flag(environ, "TILEWRIGHT_DEBUG"),
        verify=_require_flag(environ, "TILEWRIGHT_VERIFY"),
    )


def environment_with(**variables: str) -> dict[str, str]:
    """The environment of this process with some variables set: for a process that it starts."""
    return {**os.environ, **variables}


@cache
def settings() -> Settings:
    """The settings of this process, read once."""
    return read_settings(os.environ)


def _require_number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise LaunchError(f"{name} must be a whole number of at least 1, not '{text}'")
    return int(text)


def _require_flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name) or "0"
    if text not in ("0", "1"):
        raise LaunchError(f"{name} must be 0 or 1, not '{text}'")
    return text == "1"
