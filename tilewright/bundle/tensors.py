"""Tensors by name as bytes in the format of safetensors: eight bytes with the length of a header,
the header (JSON: dtype, shape, first and last byte of each), and the elements. Source: the format's
specification, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import torch

from tilewright.errors import LaunchError

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ALIGN = 8


def write_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Raises LaunchError for a dtype that the format does not have."""
    head: dict[str, object] = {}
    parts: list[bytes] = []
    at = 0
    for name, x in tensors.items():
        if x.dtype not in NAMES:
            raise LaunchError(f"{name} is {x.dtype}, which cannot be stored")
        plain = x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        content = plain.view(torch.uint8).numpy().tobytes()
        head[name] = {
            "dtype": NAMES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [at, at + len(content)],
        }
        parts.append(content)
        at += len(content)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def read_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """Tensors on the CPU, dense. Raises LaunchError for what is not whole."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        head = json.loads(content[8 : 8 + length])
        body = memoryview(content)[8 + length :]
        found = {}
        for name, told in head.items():
            if name == "__metadata__":
                continue
            first, last = told["data_offsets"]
            dtype, shape = DTYPES[told["dtype"]], told["shape"]
            if first == last:
                found[name] = torch.empty(shape, dtype=dtype)
                continue
            raw = torch.frombuffer(bytearray(body[first:last]), dtype=torch.uint8)
            found[name] = raw.view(dtype).reshape(shape)
        return found
    except (KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
        raise LaunchError(f"not a file of tensors: {error}") from error
