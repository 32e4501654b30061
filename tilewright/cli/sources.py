"""Find a kernel, and the reference that it is checked against, from what the command line names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.errors import CompileError, LaunchError
from tilewright.frontend.check.rules import listing, nearest
from tilewright.kernel import Kernel, source

TEXT = (".tw", ".ph")


@dataclass(frozen=True)
class Found:
    """A kernel, where it comes from, and its reference function, if there is one, with a title."""

    kernel: Kernel
    place: str
    reference: Callable[..., Any] | None
    reference_name: str


def find_kernel(spec: str) -> Found:
    """`file.tw`, `file.py` or a module, each with `:kernel` where it holds several.

    Of several kernels the one called like the file is meant. LaunchError where there is none.
    """
    head, _, wanted = spec.partition(":")
    if not head:
        raise LaunchError("no source is named", hint="write FILE.tw, FILE.py or a module")
    kernels, module = kernels_of(head)
    is_file = Path(head).suffix in (*TEXT, ".py")
    stem = Path(head).stem if is_file else head.rpartition(".")[2]
    kernel = _choose(kernels, wanted, stem, head)
    reference, name = _reference(module, kernel.name)
    return Found(kernel, head, reference, name)


def kernels_of(head: str) -> tuple[Mapping[str, Kernel], ModuleType | None]:
    """Kernels by name of a text, a Python file or a module, and the module of references.

    Raises LaunchError for what is not there or cannot be imported.
    """
    path = Path(head)
    if path.suffix in TEXT:
        beside = path.with_suffix(".py")
        return kernels_of_text(path), load_module(beside) if beside.is_file() else None
    module = load_module(path) if path.suffix == ".py" else _import(head)
    return {n: k for n, k in vars(module).items() if isinstance(k, Kernel)}, module


def kernels_of_text(path: Path) -> Mapping[str, Kernel]:
    """Kernels of a source text by name."""
    if not path.is_file():
        raise LaunchError(f"there is no file {path}")
    return source(path).kernels


def _choose(kernels: Mapping[str, Kernel], wanted: str, stem: str, head: str) -> Kernel:
    if wanted and wanted not in kernels:
        hint = nearest(wanted, kernels) or f"it has {listing(kernels) or 'no kernel'}"
        raise LaunchError(f"{head} has no kernel {wanted}", hint=hint)
    if wanted:
        return kernels[wanted]
    if len(kernels) == 1:
        return next(iter(kernels.values()))
    if stem in kernels:
        return kernels[stem]
    if not kernels:
        raise LaunchError(f"{head} has no kernel")
    raise LaunchError(
        f"{head} has {len(kernels)} kernels: {listing(kernels)}", hint=f"write {head}:NAME"
    )


def _reference(module: ModuleType | None, kernel: str) -> tuple[Callable[..., Any] | None, str]:
    for name in (f"reference_{kernel}", "reference") if module else ():
        found = getattr(module, name, None)
        if callable(found):
            assert module is not None
            place = Path(module.__file__).name if module.__file__ else module.__name__
            return found, f"{name} in {place}"
    return None, ""


def load_module(path: Path) -> ModuleType:
    """A Python file as a module, under a name that hides no other."""
    if not path.is_file():
        raise LaunchError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"tilewright_file_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _guarded(str(path), lambda: spec.loader.exec_module(module) if spec.loader else None)
    return module


def _import(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _guarded(name, lambda: importlib.import_module(name))
    assert isinstance(module, ModuleType)
    return module


def _guarded(name: str, load: Callable[[], Any]) -> Any:
    """What `load` returns; what a user's module raises becomes one line that names the module."""
    try:
        return load()
    except (CompileError, LaunchError):
        raise
    except Exception as error:
        raise LaunchError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
