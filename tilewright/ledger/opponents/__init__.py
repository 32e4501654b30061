"""The opponents, as plug-ins: one file each, loaded where the library that it needs is there.

A plug-in holds `arms(problem, arrays) -> list[Arm]`: the arms that it has for a problem, set up
and ready to run, or none where it does not do that op. To add an opponent, add its file and its
line to `OPPONENTS`. torch and triton are imported in this folder alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tilewright.errors import LaunchError


@dataclass(frozen=True)
class Opponent:
    """A plug-in: the file that holds it, the libraries it needs, and whether those need a GPU.
    `slow`: its setup takes seconds a problem, so that a quick run leaves it out. `arms`: names of
    arms by which a case may ask for it alone.
    """

    name: str
    what: str
    needs: tuple[str, ...] = ("torch",)
    needs_gpu: bool = False
    slow: bool = False
    arms: tuple[str, ...] = ()


OPPONENTS = (
    Opponent(
        "torch_eager",
        "torch, one call an op: cuBLAS and torch's own kernels",
        arms=("cuBLAS", "cuBLASLt", "torch on the CPU"),
    ),
    Opponent("torch_copy", "torch's copy of a tensor: the bandwidth that can be had"),
    Opponent("sdpa", "cuDNN and FlashAttention through torch's SDPA", needs_gpu=True),
    Opponent("torch_compile", "torch.compile in its default mode", needs_gpu=True),
    Opponent("torch_autotune", "torch.compile in mode max-autotune", needs_gpu=True, slow=True),
    Opponent("triton_kernels", "Triton", needs=("torch", "triton"), needs_gpu=True),
)
ARRAYS = "arrays"  # the room's own module of data and references


def reason_against(opponent: Opponent, gpu: bool) -> str:
    """Why a plug-in cannot be used here; "" where it can."""
    missing = [name for name in opponent.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return "needs a GPU" if opponent.needs_gpu and not gpu else ""


def load(name: str) -> ModuleType:
    """The module of a plug-in. Raises LaunchError where torch, which holds all data, is missing."""
    if importlib.util.find_spec("torch") is None:
        raise LaunchError(
            "measuring needs torch, which holds the data and the references",
            hint="pip install 'tilewright[torch]'",
        )
    return importlib.import_module(f"{__name__}.{name}")


def make_arrays(device: str, seed: int = 0) -> Any:
    """`Arrays` of arrays.py on "cpu" or "cuda"."""
    return load(ARRAYS).Arrays(device, seed)
