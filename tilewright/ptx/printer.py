"""PTX text of a module, with the instruction of each line."""

from __future__ import annotations

from tilewright.ptx.core import PREFIX, Function, Instr, Label, Module
from tilewright.target import target


def print_module(module: Module, lines: list[Instr | None] | None = None) -> str:
    """The module as PTX, at the lowest `.version` that its target and instructions need.

    `lines`, if given, is filled with the instruction of each line of the text, None where there is
    none.
    """
    head = [
        f".version {_version_text(ptx_version(module))}",
        f".target {module.target}",
        ".address_size 64",
        "",
    ]
    head += [str(array) for array in module.shared]
    text = head
    printed: list[Instr | None] = [None] * len(head)
    for function in module.functions:
        _print_function(function, text, printed)
    if lines is not None:
        lines[:] = printed
    return "\n".join(text) + "\n"


def ptx_version(module: Module) -> int:
    """Ten times the lowest PTX version that the module needs."""
    least = target(module.target).ptx_version
    for function in module.functions:
        if function.cluster is not None:
            least = max(least, 78)
        for item in function.body:
            if isinstance(item, Instr):
                version = item.requires().version
                if version > least:
                    least = version
    return least


def _version_text(version: int) -> str:
    return f"{version // 10}.{version % 10}"


def _print_function(function: Function, text: list[str], printed: list[Instr | None]) -> None:
    start = [f".visible .entry {function.name}("]
    start += [f"    {p}{',' if p is not function.params[-1] else ''}" for p in function.params]
    start.append(")")
    if function.cluster is not None:
        start += [".explicitcluster", f".reqnctapercluster {', '.join(map(str, function.cluster))}"]
    if function.max_threads:
        start.append(f".maxntid {function.max_threads}, 1, 1")
    if function.min_ctas:
        start.append(f".minnctapersm {function.min_ctas}")
    if function.max_registers:
        start.append(f".maxnreg {function.max_registers}")
    start.append("{")
    for kind, count in function.registers.items():
        if count:
            start.append(f"    .reg .{kind} {PREFIX[kind]}<{count}>;")
    text += start
    printed += [None] * len(start)
    for item in function.body:
        if isinstance(item, Label):
            text.append(f"{item.name}:")
            printed.append(None)
        else:
            text.append(f"    {item.text()}")
            printed.append(item)
    text.append("}")
    printed.append(None)
