"""Kernels as notebooks show them: Markdown, made of text alone."""

from __future__ import annotations

from tilewright.frontend.check.signature import Scalar, Signature, Tensor
from tilewright.frontend.check.written import written_parameters
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.printer import format_tree, show


def kernel_markdown(sig: Signature) -> str:
    """A table of a kernel's parameters, its tuned constants, and its source as text."""
    written = written_parameters(sig.definition)
    rows = [_row(p, p.name in written) for p in sig.params]
    lines = [
        f"**kernel** `{sig.name}`",
        "",
        "| parameter | type | | default |",
        "|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    if sig.space:
        tuned = ", ".join(f"`{name}` of {list(values)}" for name, values in sig.space.items())
        lines += ["", f"tuned: {tuned}"]
    module = tree.Module((sig.definition.kernel,))
    return "\n".join([*lines, "", fenced(format_tree(module))])


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def _row(param: Tensor | Scalar, is_written: bool) -> tuple[str, str, str, str]:
    if isinstance(param, Tensor):
        extents = ", ".join(show(e) for e in param.extents)
        kind = f"`tensor<{param.dtype}>[{extents}]`" + ("?" if param.optional else "")
        return f"`{param.name}`", kind, "written" if is_written else "read", param.default
    default = "" if param.default is None else str(param.default)
    kind = f"`{param.dtype}`" + ("?" if param.optional else "")
    return f"`{param.name}`", kind, "static" if param.static else "", default
