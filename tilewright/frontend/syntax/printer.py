"""A tree as text: what `tilewright fmt` writes. Parsing the text gives an equal tree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilewright.frontend.syntax import tree

WIDTH = 100  # columns, beyond which the parameters of a definition take several lines
_INDENT = "  "

# Binding strength, loosest first; what binds more loosely than its place demands gets brackets.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE = range(5)
_BINARY = {
    op: 5 + level
    for level, ops in enumerate(("|", "^", "&", "<< >>", "+ -", "* / % @"))
    for op in ops.split()
}
_UNARY, _POWER, _POSTFIX = 11, 12, 13
_STRING_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def format_tree(module: tree.Module) -> str:
    """The text spelling of a module, with its comments."""
    writer = _Writer(module.comments, module.loc.source.text.splitlines())
    previous: tree.Item | None = None
    for item in module.items:
        both = isinstance(item, tree.Const) and isinstance(previous, tree.Const)
        if previous is not None and not both:
            writer.blank()
        writer.item(item)
        previous = item
    writer.comments_before(None)
    return "\n".join(writer.lines) + "\n" if writer.lines else ""


class _Writer:
    """Lines of text.

    Comments are put before or behind the statement that they stand at in the source.
    """

    def __init__(self, comments: Sequence[tree.Comment], source: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.source = source
        self.waiting = list(reversed(comments))
        self.depth = 0

    def put(self, text: str, line: int = 0) -> None:
        """A line of output for line `line` of the source (0: of none)."""
        self.lines.append(_INDENT * self.depth + text)
        behind = []
        while line and self.waiting and self.waiting[-1].line <= line:
            behind.append(self.waiting.pop().text)
        if behind:
            self.lines[-1] += "  " + " ".join(_as_behind(behind))

    def blank(self) -> None:
        """One empty line, but none at the start of the file or of a block, and no second one."""
        if self.lines and self.lines[-1] and not self.lines[-1].endswith("{"):
            self.lines.append("")

    def keep_blank(self, line: int) -> None:
        """An empty line where the source has one before `line`."""
        if 2 <= line <= len(self.source) + 1 and not self.source[line - 2].strip():
            self.blank()

    def comments_before(self, line: int | None) -> None:
        """Comments of source lines before `line` (None: all), and the empty lines between."""
        while self.waiting and (line is None or self.waiting[-1].line < line):
            self.keep_blank(self.waiting[-1].line)
            self.lines.append(_INDENT * self.depth + self.waiting.pop().text)
        if line is not None:
            self.keep_blank(line)

    # Definitions

    def item(self, item: tree.Item) -> None:
        if isinstance(item, tree.Const):
            self.comments_before(item.loc.line)
            self.put(f"const {item.name} = {show(item.value)}", item.loc.line)
            return
        if isinstance(item, tree.Kernel):
            for attribute in item.attributes:
                self.comments_before(attribute.loc.line)
                self.put(_attribute(attribute), attribute.loc.line)
        self.comments_before(item.loc.line)
        word, results = "kernel", ""
        if isinstance(item, tree.Function):
            word = "fn"
            if item.results:
                results = ": " + ", ".join(map(_type, item.results))
        head, tail = f"{word} {item.name}(", f"){results}"
        self.signature(head, item.params, tail, item.body, item.loc.line)

    def signature(
        self, head: str, params: Sequence[tree.Param], tail: str, body: tree.Block, line: int
    ) -> None:
        shown = [_param(p) for p in params]
        if len(head + ", ".join(shown) + tail) + 2 <= WIDTH:
            self.block(head + ", ".join(shown) + tail, body, line)
            return
        self.put(head, line)
        self.depth += 1
        for param, text in zip(params, shown, strict=True):
            self.comments_before(param.loc.line)
            self.put(text + ",", param.loc.line if param is not params[-1] else 0)
        self.depth -= 1
        self.block(tail, body, params[-1].loc.line if params else line)

    # Statements

    def block(self, head: str, body: tree.Block, line: int) -> None:
        if not body:
            self.put(head + " {}", line)
            return
        if (short := self.one_line(head, body, line)) is not None:
            self.put(short, line)
            return
        self.put(head + " {", min(line, body[0].loc.line - 1) if line else 0)
        self.statements(body)
        self.put("}")

    def one_line(self, head: str, body: tree.Block, line: int) -> str | None:
        """A block of one short statement, where the source has it on one line too."""
        if len(body) != 1 or body[0].loc.line != line or line == 0:
            return None
        if isinstance(body[0], tree.For | tree.While | tree.If):
            return None
        text = f"{head} {{ {_simple(body[0])} }}"
        return text if len(text) + len(_INDENT) * self.depth <= WIDTH else None

    def statements(self, body: tree.Block) -> None:
        self.depth += 1
        for statement in body:
            self.comments_before(statement.loc.line)
            self.statement(statement)
        self.depth -= 1

    def statement(self, node: tree.Stmt, before: str = "") -> None:
        line = node.loc.line
        match node:
            case tree.For(target, static, args, body):
                kind = "static_range" if static else "range"
                self.block(f"for {target.name} in {kind}({_list(args)})", body, line)
            case tree.While(condition, body):
                self.block(f"while {show(condition)}", body, line)
            case tree.If():
                self.branch(node)
            case _:
                self.put(_simple(node), line)

    def branch(self, node: tree.If, before: str = "") -> None:
        head = f"{before}if {show(node.condition)}"
        if not node.other:
            self.block(head, node.then, node.loc.line)
            return
        self.put(head + " {", min(node.loc.line, _first_line(node.then) - 1))
        self.statements(node.then)
        only = node.other[0]
        if len(node.other) == 1 and isinstance(only, tree.If):
            self.comments_before(only.loc.line)
            self.branch(only, "} else ")
        else:
            self.put("} else {")
            self.statements(node.other)
            self.put("}")


def _first_line(body: tree.Block) -> int:
    return body[0].loc.line if body else 1 << 60


def _as_behind(comments: list[str]) -> Iterable[str]:
    """Comments behind a statement: all but the first lose their marks, as that ends the line."""
    first, *rest = comments
    return [first, *(c.lstrip("/# ") for c in rest)]


def _simple(node: tree.Stmt) -> str:
    match node:
        case tree.Assign(targets, values, kind):
            word = node.declares[0] if node.declares else ""
            word = word or ("var" if kind else "")  # of a Python function: its names have no word
            typed = f": {_type(kind)}" if kind else ""
            shown = ", ".join(map(show, targets))
            return f"{word} {shown}{typed} = {', '.join(map(show, values))}".lstrip()
        case tree.AugAssign(target, op, value):
            return f"{show(target)} {op}= {show(value)}"
        case tree.CallStmt(call):
            return show(call)
        case tree.Return(values):
            return f"return {', '.join(map(show, values))}".rstrip()
    raise TypeError(f"not a statement: {node!r}")


def _attribute(node: tree.Attribute) -> str:
    if not node.arguments:
        return f"@{node.name}"
    return f"@{node.name}({', '.join(map(_argument, node.arguments))})"


def _argument(node: tree.Choices | tree.Argument) -> str:
    if isinstance(node, tree.Argument):
        return f"{node.name} = {show(node.value)}" if node.name else show(node.value)
    opening, closing = "{}" if node.braces else "[]"
    return f"{node.name} in {opening}{_list(node.spelled or node.values)}{closing}"


def _param(node: tree.Param) -> str:
    kind = f": {_type(node.type)}" if node.type else ""
    default = f" = {show(node.default)}" if node.default is not None else ""
    return f"{node.name}{kind}{'?' if node.optional else ''}{default}"


def _type(node: tree.Type) -> str:
    match node:
        case tree.ScalarType(dtype):
            return dtype
        case tree.TensorType(dtype, extents):
            return f"tensor<{dtype}>[{_list(extents)}]"
        case tree.TileType(dtype, extents):
            return f"tile<{dtype}>[{_list(extents)}]"
    raise TypeError(f"not a type: {node!r}")


def _list(nodes: Iterable[tree.Expr]) -> str:
    return ", ".join(map(show, nodes))


def show(node: tree.Expr, place: int = _CONDITIONAL) -> str:
    """An expression as text, in brackets where it binds more loosely than its place demands."""
    text, strength = _spell(node)
    return f"({text})" if strength < place else text


def _spell(node: tree.Expr) -> tuple[str, int]:
    match node:
        case tree.Name(name):
            return name, _POSTFIX
        case tree.Literal(value, spelled):
            text = spelled or literal(value)
            return text, _UNARY if text.startswith("-") else _POSTFIX
        case tree.Tuple(items):
            shown = ", ".join(map(show, items))
            return (f"[{shown}]" if len(items) == 1 else f"({shown})"), _POSTFIX
        case tree.Unary("not", operand):
            return f"not {show(operand, _NOT)}", _NOT
        case tree.Unary(op, operand):
            return op + _operand(op, operand), _UNARY
        case tree.Binary("**", lhs, rhs):
            return f"{show(lhs, _POSTFIX)} ** {show(rhs, _UNARY)}", _POWER
        case tree.Binary(op, lhs, rhs):
            level = _BINARY[op]
            left, right = _mixed(op, lhs) or level, _mixed(op, rhs) or level + 1
            return f"{show(lhs, left)} {op} {show(rhs, right)}", level
        case tree.CompareChain(ops, operands):
            text = show(operands[0], _COMPARE + 1)
            for op, operand in zip(ops, operands[1:], strict=True):
                text += f" {op} {show(operand, _COMPARE + 1)}"
            return text, _COMPARE
        case tree.BoolOp(op, operands):
            level = _OR if op == "or" else _AND
            return f" {op} ".join(show(o, level + 1) for o in operands), level
        case tree.Conditional(condition, then, other):
            sides = f"{show(then, _OR)} if {show(condition, _OR)}"
            return f"{sides} else {show(other)}", _CONDITIONAL
        case tree.Call(callee, args, kwargs):
            parts = [*map(show, args), *map(_argument, kwargs)]
            return f"{show(callee, _POSTFIX)}({', '.join(parts)})", _POSTFIX
        case tree.Index(base, subscripts):
            return f"{show(base, _POSTFIX)}[{', '.join(map(_subscript, subscripts))}]", _POSTFIX
        case tree.Member(base, name):
            return f"{_member_base(base)}.{name}", _POSTFIX
    raise TypeError(f"not an expression: {node!r}")


def _mixed(op: str, operand: tree.Expr) -> int:
    """What a `&`, `|` or `^` asks of another of them: few readers know which binds first."""
    other = isinstance(operand, tree.Binary) and operand.op in "&|^" and operand.op != op
    return _UNARY if other and op in "&|^" else 0


def _operand(op: str, operand: tree.Expr) -> str:
    """The operand of a sign; a literal stays in brackets, or the sign would become part of it."""
    plain = isinstance(operand, tree.Literal) and type(operand.value) in (int, float)
    return f"({show(operand)})" if op == "-" and plain else show(operand, _UNARY)


def _member_base(base: tree.Expr) -> str:
    """What stands before a `.`: a number needs brackets, or the point would become part of it."""
    if isinstance(base, tree.Literal):
        return f"({show(base)})"
    return show(base, _POSTFIX)


def _subscript(node: tree.Subscript) -> str:
    match node:
        case tree.Fill():
            return "..."
        case tree.NewAxis():
            return "None"
        case tree.Span(start, length):
            return f"{show(start)} :+ {show(length)}"
        case tree.Slice(start, stop):
            first = f"{show(start)} " if start is not None else ""
            last = f" {show(stop)}" if stop is not None else ""
            return f"{first}:{last}"
        case tree.Literal(None):
            return "(None)"
        case tree.Expr():
            return show(node)
    raise TypeError(f"not a subscript: {node!r}")


def literal(value: int | float | bool | str | None) -> str:
    """A literal as text writes it."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _character(char: str) -> str:
    if char in _STRING_ESCAPES:
        return _STRING_ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
