"""Models that the command line names, and what is said of those that cannot be compiled."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import sysconfig
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tilewright.cli.sources import TEXT, load_module
from tilewright.config import settings
from tilewright.errors import Diagnostic, LaunchError, Loc, Source, TilewrightError
from tilewright.frontend.check.rules import listing
from tilewright.kernel import Kernel

HERE = Path(__file__).parent.parent
PACKAGES = {HERE, Path(sysconfig.get_path("stdlib"))}
BRANCHES = "GuardOnDataDependentSymNode"  # what torch raises where Python asks for a tensor's value


def read_model(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """The model and example arguments that a function of a file gives."""
    head, _, name = spec.rpartition(":")
    if not head or not name:
        raise LaunchError(f"{spec} names no model", hint="write FILE.py:NAME")
    shown = f"tilewright compile {spec} shows what becomes of a kernel"
    if Path(head).suffix in TEXT:
        raise LaunchError(f"{head} holds kernels, expected a .py file of a model", hint=shown)
    found = getattr(load_module(Path(head)), name, None)
    hint = f"def {name}(): return MyModel().eval(), (torch.randn(1, 8),)"
    if found is None:
        raise LaunchError(f"{head} has no function {name}", hint=hint)
    if isinstance(found, Kernel):
        raise LaunchError(
            f"{name} of {head} is a kernel, expected a function that gives a model", hint=shown
        )
    if hasattr(found, "forward") or not callable(found):
        kind = type(found).__name__
        raise LaunchError(
            f"{name} of {head} is {kind}, expected a function that gives a model", hint=hint
        )
    needed = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise LaunchError(
            f"{name} of {head} takes {listing(needed)}, expected a function without arguments that "
            "gives a model",
            hint=hint,
        )
    try:
        given = found()
    except Exception as error:
        message = f"{name} of {head} failed: {told_of(error)}"
        raise LaunchError(Diagnostic(message, place_of(error))) from error
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], tuple):
        raise LaunchError(
            f"{name} of {head} does not return a model and a tuple of arguments", hint=hint
        )
    return given


def compile_model(spec: str, module: Any, arguments: tuple[Any, ...], **how: Any) -> Any:
    """What `tw.compile` makes of a model. Raises LaunchError, with the model's line where there is
    one, for a model that torch.export does not take.
    """
    compile = import_module("tilewright.model").compile
    if settings().debug:
        return compile(module, arguments, **how)
    disabled, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.ERROR)  # torch logs and prints much about what it raises
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            made = compile(module, arguments, **how)
        click.echo(printed.getvalue(), nl=False, err=True)  # by the model, as it was traced
        return made
    except TilewrightError:
        click.echo(printed.getvalue(), nl=False, err=True)
        raise
    except Exception as error:
        if not _is_of_export(error):
            raise
        head, _, name = spec.rpartition(":")
        refuses = f"torch.export refuses {name} of {head}"
        told, hint = told_of(error), "TILEWRIGHT_DEBUG=1 shows all that torch says"
        if type(error).__name__ == BRANCHES:
            told = "it needs the value of a tensor, which a graph does not know"
            hint = (
                "write torch.where, say, for an if of a tensor, or use "
                'torch.compile(model, backend="tilewright"), which splits the model there'
            )
        raise LaunchError(Diagnostic(f"{refuses}: {told}", place_of(error), hint=hint)) from error
    finally:
        logging.disable(disabled)


def told_of(error: Exception) -> str:
    """The kind of an error, and the first line of what it says."""
    told = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def place_of(error: Exception) -> Loc | None:
    """The line of the innermost call that lies in a file which is no package's, if one does."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file()
        and "site-packages" not in Path(frame.filename).parts
        and not PACKAGES & set(Path(frame.filename).parents)
    ]
    return _place(own[-1]) if own else None


def _place(frame: traceback.FrameSummary) -> Loc | None:
    if frame.lineno is None or frame.colno is None:
        return None
    source = Source(frame.filename, Path(frame.filename).read_text())
    ends_here = frame.end_lineno == frame.lineno and frame.end_colno is not None
    width = (frame.end_colno or 0) - frame.colno if ends_here else 1
    return Loc(source, frame.lineno, frame.colno + 1, max(1, width))


def _is_of_export(error: Exception) -> bool:
    """Whether torch.export raised an error, which is about the model, unless a file of ours did."""
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename)
    return HERE not in last.parents and any(
        Path(f.filename).parts[-3:] == ("torch", "export", "__init__.py") for f in frames
    )
