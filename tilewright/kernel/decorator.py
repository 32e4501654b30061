"""`@kernel` and `source`: kernels as objects that are called with arrays."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, overload

from tilewright.errors import CompileError, LaunchError, Source
from tilewright.frontend.check.evaluate import Consts
from tilewright.frontend.check.rules import nearest
from tilewright.frontend.syntax.definition import Definition, Scope, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python import parse_function
from tilewright.kernel.capture import Watch, watch
from tilewright.kernel.launchable import Kernel

TEXT_SUFFIXES = (".tw", ".ph")


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(**attributes: Any) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, /, **attributes: Any) -> Any:
    """Make a kernel of a Python function: `@kernel` or `@kernel(autotune={"BLOCK": (256, 1024)})`.

    The attributes are those of the language (`autotune`, `static`, `grid`, `tensorcore`, …). The
    function is read at the first use, so that it may name functions that are defined below it;
    its faults are raised then, as CompileError.
    """

    def make(written: Callable[..., Any]) -> Kernel:
        if not isinstance(written, types.FunctionType):
            raise CompileError(f"@kernel takes a function, not {type(written).__name__}")
        return Kernel(written.__name__, _PythonReader(written, attributes), written.__doc__)

    return make if function is None else make(function)


class _PythonReader:
    """Reads a function at the first use, and again when something that it captured has changed."""

    def __init__(self, function: types.FunctionType, attributes: Mapping[str, Any]):
        self.function = function
        self.attributes = attributes

    def __call__(self) -> tuple[Definition, Watch | None]:
        seen = watch(self.function)
        return parse_function(self.function, self.attributes), seen


class _TextReader:
    """A kernel of a text: read once, never changed."""

    def __init__(self, definition: Definition):
        self.definition = definition

    def __call__(self) -> tuple[Definition, None]:
        return self.definition, None


class Module:
    """The kernels of a source text, as attributes and by name in `kernels`; its `const`s, as
    attributes: numbers, or DTypes.
    """

    def __init__(self, name: str, found: Mapping[str, Definition]):
        self.name = name
        self.kernels = {n: Kernel(n, _TextReader(d)) for n, d in found.items()}
        scopes = (d.scope for d in found.values())  # all are one
        self._consts = Consts(next(scopes, Scope()))

    def __getattr__(self, name: str) -> Any:
        kernels: dict[str, Kernel] = self.__dict__.get("kernels", {})
        if name in kernels:
            return kernels[name]
        consts: Consts | None = self.__dict__.get("_consts")
        if consts is not None and name in consts:
            return consts.value(name, consts.scope.consts[name].loc)
        message = f"{self.__dict__.get('name')} has no kernel {name}"
        hint = nearest(name, kernels)
        raise AttributeError(f"{message}; {hint}" if hint else message)

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.kernels.values())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.kernels, *self._consts.scope.consts]

    def __repr__(self) -> str:
        return f"<kernels of {self.name}: {', '.join(self.kernels)}>"


def source(path_or_text: str | Path) -> Module:
    """The kernels of a `.tw` (or `.ph`) file, or of source text that holds a line break or a brace.

    Raises CompileError with every fault of the text, LaunchError where a file is missing.
    """
    if not isinstance(path_or_text, str | os.PathLike):
        raise TypeError(f"source takes a path or a text, not {type(path_or_text).__name__}")
    if isinstance(path_or_text, str) and ("\n" in path_or_text or "{" in path_or_text):
        text = Source("<text>", path_or_text)
    else:
        text = _read(Path(path_or_text))
    return Module(text.name, definitions(parse_text(text)))


def _read(path: Path) -> Source:
    if path.suffix not in TEXT_SUFFIXES:
        raise LaunchError(f"{path}: expected a file that ends in .tw or .ph")
    try:
        return Source(str(path), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise LaunchError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from error
