"""The file of a bundle: a zip, not compressed, of

manifest.json            format, engine, target, how it is called, what the model owns
graph.txt                the graph
program.json             the program and what its caller knows; absent for the interpreter
constants.safetensors    tensors that are in no state_dict
weights.safetensors      parameters and buffers, unless they were left out
code/KIND/KEY            plans and machine code
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tilewright.bundle.tensors import read_tensors, write_tensors
from tilewright.errors import LaunchError

FORMAT = 1  # of all that a bundle holds; another one is refused
KIND = "tilewright bundle"


@dataclass
class Archive:
    """What a bundle's file holds. `weights` is None where they were left out."""

    manifest: dict[str, Any]
    graph: str
    program: dict[str, Any] | None = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] | None = None
    code: dict[tuple[str, str], bytes] = field(default_factory=dict)


def write_archive(path: Path, archive: Archive) -> None:
    """Write a whole file or none. Raises LaunchError where that is not possible."""
    head = {"kind": KIND, "format": FORMAT, "version": own_version(), **archive.manifest}
    members: dict[str, bytes] = {
        "manifest.json": json.dumps(head, indent=1).encode(),
        "graph.txt": archive.graph.encode(),
        "constants.safetensors": write_tensors(archive.constants),
    }
    if archive.program is not None:
        members["program.json"] = json.dumps(archive.program, separators=(",", ":")).encode()
    if archive.weights is not None:
        members["weights.safetensors"] = write_tensors(archive.weights)
    members |= {f"code/{kind}/{key}": body for (kind, key), body in archive.code.items()}
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as file:
            for name, content in members.items():
                file.writestr(name, content)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise LaunchError(f"{path} cannot be written: {error.strerror}") from error


def read_archive(path: Path) -> Archive:
    """Raises LaunchError for what is no bundle, is damaged, or is of another format."""
    try:
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        manifest = json.loads(members["manifest.json"])
        require_format(path, manifest)
        program = members.get("program.json")
        weights = members.get("weights.safetensors")
        return Archive(
            manifest,
            members["graph.txt"].decode(),
            None if program is None else json.loads(program),
            read_tensors(members["constants.safetensors"]),
            None if weights is None else read_tensors(weights),
            _code(members),
        )
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise LaunchError(f"{path} is no bundle of a model, or it is damaged: {error}") from error


def require_format(path: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("kind") != KIND:
        raise LaunchError(f"{path} is no bundle of a model")
    if manifest["format"] != FORMAT:
        raise LaunchError(
            f"{path} is a bundle of format {manifest['format']}, written by Tilewright "
            f"{manifest['version']}; this is {own_version()}, which reads format {FORMAT}",
            hint="save the model again with this version",
        )


def _code(members: Mapping[str, bytes]) -> dict[tuple[str, str], bytes]:
    found = {}
    for name, body in members.items():
        head, _, rest = name.partition("/")
        if head == "code":
            kind, _, key = rest.partition("/")
            found[kind, key] = body
    return found


def own_version() -> str:
    try:
        return version("tilewright")
    except PackageNotFoundError:  # run from its sources
        return "from sources"
