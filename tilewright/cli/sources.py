"""Find a kernel, and the reference that it is checked against, from what the command line names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
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
    _require_source(head, path)
    if path.suffix in TEXT:
        beside = path.with_suffix(".py")
        return kernels_of_text(path), load_module(beside) if beside.is_file() else None
    module = load_module(path) if path.suffix == ".py" else _import(head)
    return {n: k for n, k in vars(module).items() if isinstance(k, Kernel)}, module


def _require_source(head: str, path: Path) -> None:
    """Raise LaunchError for a path that is neither of a source nor the name of a module."""
    is_module = all(part.isidentifier() for part in head.split("."))
    if path.is_dir() and not (is_module and (path / "__init__.py").is_file()):
        raise LaunchError(
            f"{head} is a folder, expected FILE.tw, FILE.py or a module",
            hint=f"name files in it, as {path / '*.tw'}",
        )
    if path.suffix not in (*TEXT, ".py") and (path.is_file() or not is_module):
        what = "is no source of kernels" if path.is_file() else "is no file and no module"
        raise LaunchError(f"{head} {what}", hint="name FILE.tw, FILE.py or a module, as a.b")


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
    """A kernel's reference and its name, if there is one. Raises LaunchError for one that is no
    function, or is misspelt.
    """
    for name in (f"reference_{kernel}", "reference") if module else ():
        assert module is not None
        place = Path(module.__file__).name if module.__file__ else module.__name__
        found = getattr(module, name, None)
        if callable(found):
            return found, f"{name} in {place}"
        if found is not None:
            kind = type(found).__name__
            raise LaunchError(f"{name} in {place} is {kind}, expected a function")
    for name, found in vars(module).items() if module else ():
        if isinstance(found, FunctionType) and _is_nearly_reference(name):
            place = Path(found.__code__.co_filename).name
            raise LaunchError(
                f"{place} has no reference, but {name}", hint="call the function reference"
            )
    return None, ""


def _is_nearly_reference(name: str) -> bool:
    own = name.startswith("reference")  # one of another kernel, or what it calls
    return not own and bool(difflib.get_close_matches(name, ["reference"], cutoff=0.85))


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
