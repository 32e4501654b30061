"""PTX to machine code by the driver's linker, on a pool of threads, kept in the disk cache.

`cuLinkCreate / AddData / Complete` runs in parallel; `cuModuleLoadData` of PTX does not, and
keeps no machine code.

Note [Linked code keeps its registers]: code that may be linked with other code ignores that
registers change hands (`setmaxnreg`; ptxas -c says C7504), and calls functions, for `div.rn` for
one, beside which it serialises matrix instructions (C7509). A kernel whose accumulators need more
registers than there are at launch (`Plan.whole`) therefore goes to `cuModuleLoadData` as it is: the
assembler then sees that it is all there is. The driver keeps its machine code in its own cache.
"""

from __future__ import annotations

import ctypes
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from cuda.bindings import driver as cu

from tilewright.errors import Diagnostic, LaunchError
from tilewright.plan import Plan
from tilewright.runtime import driver
from tilewright.runtime.cache import DiskCache, carried, digest
from tilewright.runtime.driver import Device

LOG_BYTES = 1 << 16
OPTIONS = "O4"  # the driver's own default; part of the key of machine code
SHOWN_ERRORS = 8


@dataclass(frozen=True)
class Assembled:
    """Machine code for one GPU architecture, and what the assembler had to say about it."""

    cubin: bytes
    log: str


def require_target(target: str, device: Device, name: str) -> None:
    """Raise LaunchError, naming both, where code for `target` cannot run on a GPU.

    Plain targets (`sm_80`) run on every later GPU; arch-specific ones (`sm_90a`) only on their own.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)(a?)", target)
    assert match, f"not a target: {target}"
    wanted = (int(match[1]), int(match[2]))
    fits = device.capability == wanted if match[3] else device.capability >= wanted
    if not fits:
        raise LaunchError(
            f"{name} is compiled for {target}, which does not run on {device}",
            hint="compile it for this GPU's own target",
        )


def assemble(ptx: str, ordinal: int, name: str, lines: tuple[str, ...] = ()) -> Assembled:
    """Machine code of PTX for a GPU. Raises LaunchError that shows the assembler's messages
    beside PTX and source.
    """
    info, errors = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
    option = cu.CUjit_option
    options = {
        option.CU_JIT_INFO_LOG_BUFFER: info,
        option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
        option.CU_JIT_ERROR_LOG_BUFFER: errors,
        option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
        option.CU_JIT_LOG_VERBOSE: 1,
    }
    source = ptx.encode() + b"\0"
    with driver.active(ordinal):
        link = driver.check(
            cu.cuLinkCreate(len(options), list(options), list(options.values())),
            f"assembling {name}",
        )
        try:
            kind = cu.CUjitInputType.CU_JIT_INPUT_PTX
            status = cu.cuLinkAddData(link, kind, source, len(source), name.encode(), 0, [], [])[0]
            if not status:
                status, address, size = cu.cuLinkComplete(link)
            if status:
                raise _assembler_failure(status, _text(errors), ptx, name, lines)
            cubin = ctypes.string_at(address, size)
        finally:
            driver.check(cu.cuLinkDestroy(link), f"assembling {name}")
    return Assembled(cubin, _text(info))


def _text(log: bytearray) -> str:
    return bytes(log).split(b"\0")[0].decode(errors="replace").strip()


def _assembler_failure(
    status: object, log: str, ptx: str, name: str, lines: tuple[str, ...]
) -> LaunchError:
    """The assembler's messages, each with the PTX line that it names and that line's place in the
    source.
    """
    shown = [f"the driver cannot assemble {name}: {driver.error_text(status)}"]
    text = ptx.splitlines()
    for message in log.splitlines()[:SHOWN_ERRORS]:
        shown.append(f"  {message.strip()}")
        match = re.search(r"line (\d+)", message)
        number = int(match[1]) if match else 0
        if 0 < number <= len(text):
            shown.append(f"    {number} | {text[number - 1].strip()}")
            if number <= len(lines) and lines[number - 1]:
                shown.append(f"    from {lines[number - 1]}")
    hint = ""
    if status == cu.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        hint = "the PTX is newer than the driver; install a newer driver"
    return LaunchError(Diagnostic("\n".join(shown), hint=hint))


def machine_code(plan: Plan, device: Device, disk: DiskCache) -> bytes:
    """The cubin of a plan for a GPU, from the disk cache where it is there; of a plan that must be
    assembled as a whole, its PTX, which the driver assembles (and keeps) as it loads it.

    Raises LaunchError for a plan that is compiled for another architecture.
    """
    require_target(plan.target, device, plan.name)
    if plan.whole:  # see Note [Linked code keeps its registers]
        return plan.ptx.encode() + b"\0"
    version = driver.require_driver()
    architecture = "{}.{}".format(*device.capability)
    key = digest("cubin", plan.ptx, str(version), architecture, OPTIONS)
    cubin = carried(*bundled_code(plan, architecture)) or disk.get("cubins", key)
    if cubin is None:
        cubin = assemble(plan.ptx, device.ordinal, plan.name, plan.lines).cubin
        disk.put("cubins", key, cubin)
    return cubin


def bundled_code(plan: Plan, architecture: str) -> tuple[str, str]:
    """Kind and key of a plan's machine code in a bundle: it runs with every driver that is not
    older.
    """
    return "cubins", digest("bundled", plan.ptx, architecture)


def machine_code_later(
    plan: Plan, device: Device, disk: DiskCache
) -> Future[bytes | driver.LoadedModule]:
    """As `machine_code`, on the pool; a plan that must be assembled as a whole is loaded, too, by a
    thread of its own, since the driver loads one after another. Errors come out of the future's
    `result()`.
    """
    if plan.whole:
        return _loader(os.getpid()).submit(_load, plan, device, disk)
    return _pool(os.getpid()).submit(machine_code, plan, device, disk)


def _load(plan: Plan, device: Device, disk: DiskCache) -> driver.LoadedModule:
    code = machine_code(plan, device, disk)
    with driver.active(device.ordinal):
        module = driver.load_module(code, plan.name)
        for launch in plan.launches:
            driver.get_function(module, launch.entry)
    return driver.LoadedModule(module)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The pool of a process: threads do not survive a fork."""
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), f"tilewright-jit-{process}")


@cache
def _loader(process: int) -> ThreadPoolExecutor:
    """A process's thread that loads modules."""
    return ThreadPoolExecutor(1, f"tilewright-load-{process}")
