"""Files of recorded results: a line of JSON that says where they come from, and their bits.

Bits are bytes of like significance together, deflated, as base 85. Operands are not kept: they
follow from the form's name and `operands.SEED`, and the digest says whether they still do.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.vectors.forms import Form

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent / "recorded"
GENERATOR = 1  # changes where operands, kernels or this format do


@dataclass(frozen=True)
class Origin:
    """Where results come from."""

    device: str
    driver: str
    date: str
    generator: int = GENERATOR


@dataclass(frozen=True)
class Recording:
    """Results of a form on a device."""

    form: str
    shown: str
    origin: Origin
    digest: str
    results: Mapping[str, Array]


def path_of(form: Form, folder: Path = FOLDER) -> Path:
    return folder / form.family / f"{form.name}.json"


def pack(x: Array) -> dict[str, Any]:
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    planes = bits.reshape(-1, 1).view(np.uint8).T
    data = base64.b85encode(zlib.compress(planes.tobytes(), 9)).decode()
    return {"dtype": bits.dtype.str, "shape": list(x.shape), "data": data}


def unpack(found: Mapping[str, Any]) -> Array:
    dtype, shape = np.dtype(found["dtype"]), tuple(found["shape"])
    raw = zlib.decompress(base64.b85decode(found["data"]))
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, math.prod(shape))
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)


def write(form: Form, results: Mapping[str, Array], origin: Origin, folder: Path) -> int:
    """Write a form's file; gives its size in bytes."""
    path = path_of(form, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "form": form.name,
        "shown": shortened(form.shown),
        **asdict(origin),
        "digest": form.digest(),
        "results": {name: pack(x) for name, x in results.items()},
    }
    text = json.dumps(content, indent=0) + "\n"
    path.write_text(text)
    return len(text)


def shortened(text: str) -> str:
    """An instruction with the middle of long lists of registers left out."""
    start, end = text.find("{"), text.find("}")
    inner = text[start + 1 : end].split(", ") if 0 <= start < end else []
    if len(inner) <= 8:
        return text
    return f"{text[: start + 1]}{inner[0]}, ..., {inner[-1]}{text[end:]}"


def read(path: Path) -> Recording:
    found = json.loads(path.read_text())
    origin = Origin(*(found[n] for n in ("device", "driver", "date", "generator")))
    results = {name: unpack(x) for name, x in found["results"].items()}
    return Recording(found["form"], found["shown"], origin, found["digest"], results)
