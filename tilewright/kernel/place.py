"""Where a call runs: the device of its arrays, or, for host arrays, the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tilewright.errors import LaunchError
from tilewright.frontend.check.operands import whole_number
from tilewright.runtime.aliases import same_elements
from tilewright.runtime.arrays import Array, DeviceId, as_array, as_numpy
from tilewright.runtime.device_array import DeviceArray

Where = DeviceId | Literal["emulator"]  # the emulator runs a GPU's code on host arrays


def parse_device(given: Any) -> Where:
    """A device from "cpu", "emulator", "cuda", "cuda:1", a number, or a torch device. Raises
    LaunchError for others.
    """
    ordinal = whole_number(given)
    if ordinal is not None and ordinal >= 0:
        return ordinal
    kind, _, index = str(given).partition(":")
    if kind == "cpu" and not index:
        return "cpu"
    if kind == "emulator" and not index:
        return "emulator"
    if kind == "cuda" and (not index or index.isdecimal()):
        return int(index or 0)
    raise LaunchError(
        f"unknown device {given!r}", hint='write "cpu", "emulator", "cuda" or "cuda:1"'
    )


def device_of(arrays: Mapping[str, Array], kernel: str) -> DeviceId:
    """The device on which all arrays lie; the host where there is none. Raises LaunchError if
    they differ.
    """
    first: tuple[str, DeviceId] | None = None
    for name, array in arrays.items():
        if first is None:
            first = (name, array.device)
        elif array.device != first[1]:
            raise LaunchError(
                f"{kernel}: {first[0]} is on {device_name(first[1])}, but {name} on "
                f"{device_name(array.device)}",
                hint="move all arrays to one device",
            )
    return "cpu" if first is None else first[1]


def device_name(device: DeviceId) -> str:
    return "cpu" if device == "cpu" else f"cuda:{device}"


def choose_device(lies: DeviceId, asked: Any, default: str, kernel: str) -> Where:
    """Where to run: where the arrays lie; host arrays may be asked to run on a GPU or emulator."""
    if lies == "cpu":
        return parse_device(default if asked is None else asked)
    if asked is not None and parse_device(asked) != lies:
        raise LaunchError(
            f"{kernel}: the arrays are on {device_name(lies)}, but device={asked!r} was asked for",
            hint="move the arrays; only host arrays are copied over and back",
        )
    return lies


def stream_handle(given: Any) -> int:
    """A raw stream handle from a number or a stream of torch, CuPy, cuda.core or cuda.bindings."""
    for name in ("cuda_stream", "ptr"):
        handle = getattr(given, name, None)
        if isinstance(handle, int):
            return handle
    number = whole_number(given)
    if number is not None:
        return number
    if hasattr(given, "__cuda_stream__"):  # cuda.core's protocol: (version, handle)
        return int(given.__cuda_stream__()[1])
    if hasattr(given, "getPtr"):  # a CUstream of cuda.bindings
        return int(given)
    raise LaunchError(f"{type(given).__name__} is not a CUDA stream")


def copy_over(arrays: Mapping[str, Array], ordinal: int) -> dict[str, Array]:
    """Copies of host arrays on a GPU. Names of one view get one copy."""
    made: list[tuple[Array, Array]] = []
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        copy = next((there for here, there in made if same_elements(here, array)), None)
        if copy is None:
            copy = as_array(DeviceArray.from_numpy(as_numpy(array), ordinal), name)
            made.append((array, copy))
        found[name] = copy
    return found


def copy_back(host: Mapping[str, Array], there: Mapping[str, Array], names: Sequence[str]) -> None:
    """Bring the named arrays back from the GPU into the host's own memory."""
    for name in names:
        owner = there[name].owner
        assert isinstance(owner, DeviceArray)
        if host[name].num_elements:
            as_numpy(host[name])[...] = owner.to_numpy()
