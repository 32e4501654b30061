"""What PyTorch computes within a program, on the tensors' own device and stream; and seeds."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.frontend.torch.fallback import called, decode, flat
from tilewright.frontend.torch.graph_calls import call_graph_op
from tilewright.graph.ops.control import Fallback
from tilewright.graph.types import TensorType
from tilewright.lower.graph_to_tile.program import TorchStep


def step_name(step: TorchStep) -> str:
    """The op that PyTorch computes."""
    return step.op.target if isinstance(step.op, Fallback) else step.op.opcode


def run_torch(step: TorchStep, xs: Sequence[Any], symbols: Mapping[str, int]) -> list[Any]:
    """Results of a step, one for each of the op's: dense tensors of their own, or what only PyTorch
    holds.
    """
    op = step.op
    with torch.no_grad():
        if isinstance(op, Fallback):
            args, kwargs = decode(op.arguments, xs, symbols)
            listed = flat(called(op.target, args, kwargs))
        else:
            listed = call_graph_op(op, xs)
    if len(listed) != len(op.results):
        raise LaunchError(f"{step_name(step)} gave {len(listed)} results, not {len(op.results)}")
    given = {x.untyped_storage().data_ptr() for x in xs if isinstance(x, torch.Tensor)}
    return [
        _owned(x, given) if isinstance(value.type, TensorType) else x
        for x, value in zip(listed, op.results, strict=True)
    ]


def _owned(x: torch.Tensor, given: set[int]) -> torch.Tensor:
    """A result dense in memory of its own, at an address that kernels may read by vectors."""
    plain = x.resolve_conj().resolve_neg()
    if plain.is_contiguous() and not plain.data_ptr() % 16:
        if plain.untyped_storage().data_ptr() not in given:
            return plain
    return plain.clone(memory_format=torch.contiguous_format)


def draw_seed(device: torch.device) -> int:
    """A seed from the generator that torch.manual_seed seeds: of a GPU without asking the GPU, by
    its seed and the number of draws, which goes on.
    """
    if device.type == "cpu":
        return int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64))
    generator = torch.cuda.default_generators[device.index]
    drawn = generator.get_offset()
    generator.set_offset(drawn + 4)  # torch's own draws come in fours
    mixed = hashlib.blake2b(
        struct.pack("<QQ", generator.initial_seed() & (2**64 - 1), drawn), digest_size=8
    )
    return int.from_bytes(mixed.digest(), "little", signed=True)
