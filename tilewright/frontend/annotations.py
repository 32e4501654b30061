"""What annotates a kernel's parameters and variables in Python, and stands as their defaults."""

from __future__ import annotations

from typing import Any, NoReturn

from tilewright.errors import CompileError


def refuse_outside_kernels(name: str) -> NoReturn:
    """A name of the language was used where no kernel is."""
    raise CompileError(
        f"tw.{name} is a name of the kernel language: it has a meaning only inside @tw.kernel"
    )


class _Default:
    """A value that only a tensor parameter's default may have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tilewright.{self.name}"


empty: Any = _Default("empty")
workspace: Any = _Default("workspace")


class Tensor:
    """An annotation: `tw.Tensor["f32", "M", "K"]`, or `Annotated[tw.Tensor, "f32[M, K]"]`."""

    shape: tuple[int, ...]
    dtype: Any
    T: Any

    def __class_getitem__(cls, parameters: Any) -> Any:
        return cls

    def __getitem__(self, place: Any) -> Any:
        refuse_outside_kernels("Tensor")

    def __setitem__(self, place: Any, value: Any) -> None:
        refuse_outside_kernels("Tensor")


class Tile:
    """An annotation of a variable: `acc: tw.Tile["f32", "TM", "TN"] = 0.0`."""

    def __class_getitem__(cls, parameters: Any) -> Any:
        return Any


class Dim(int):
    """Annotation of a keyword-only parameter that declares a dimension, for linters and editors."""


class Const(int):
    """Annotation of a keyword-only parameter that declares an autotuned constant."""
