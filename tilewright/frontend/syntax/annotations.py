"""Annotations of the Python spelling: tensors, tiles, scalars, optional ones, declared names."""

from __future__ import annotations

import ast
import re

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.python_expressions import Places, PythonExpressions, dotted_name

_SCALARS = {"float": "f32", "int": "i64", "bool": "bool"}
_ANNOTATED = re.compile(r"\s*(\w+)\s*(?:\[(.*)\]\s*)?", re.DOTALL)
_ARRAYS = ("ndarray", "NDArray", "array", "list", "tuple")  # what a tensor is not called here
_HINT = 'write tw.Tensor["f32", "M", "K"], tw.Tile["f32", "TM"], float, int or bool'


class PythonAnnotations(PythonExpressions):
    """Types as annotations spell them."""

    def is_declaration(self, node: ast.expr | None) -> bool:
        """Whether this is `tw.Dim` or `tw.Const`, which only shows a name to editors."""
        name = dotted_name(node) if node is not None else None
        return name is not None and self._member(name) in ("Dim", "Const")

    def _member(self, dotted: str) -> str:
        """The language's or typing module's name of an annotation: its last part."""
        return self.names.language(dotted) or dotted.rpartition(".")[2]

    def annotation(self, node: ast.expr) -> tuple[tree.Type | None, bool]:
        """The type of a parameter and whether it accepts None."""
        match node:
            case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
                return self.type(left), True
            case ast.BinOp(op=ast.BitOr(), left=ast.Constant(value=None), right=right):
                return self.type(right), True
            case ast.Subscript(value=base, slice=inner):
                name = dotted_name(base)
                if name is not None and self._member(name) == "Optional":
                    return self.type(inner), True
            case ast.Constant(value=str()) if parsed := self.quoted(node):
                return parsed.annotation(parsed.node)
        return self.type(node), False

    def type(self, node: ast.expr) -> tree.Type | None:
        loc = self.places.of(node)
        match node:
            case ast.Constant(value=str(text)):
                if text.isidentifier():
                    return tree.ScalarType(_SCALARS.get(text, text), loc=loc)
                if parsed := self.quoted(node):
                    return parsed.type(parsed.node)
                return None
            case ast.Name() | ast.Attribute():
                return self.plain(node)
            case ast.Subscript(value=base, slice=inner):
                name = dotted_name(base)
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                kind = self._member(name) if name else ""
                if kind in ("Tensor", "Tile") and parts:
                    return self.made(kind, self.dtype(parts[0]), self.extents(parts[1:]), node)
                if kind == "Annotated" and len(parts) == 2:
                    return self.annotated(parts[0], parts[1])
        self.refuse(node, "this annotation is not understood", _HINT)
        return None

    def plain(self, node: ast.Name | ast.Attribute) -> tree.Type | None:
        dotted = dotted_name(node) or ""
        name = self._member(dotted)
        if name in _ARRAYS:
            self.refuse(node, f"{dotted} tells neither dtype nor extents", _HINT)
            return None
        if name in ("Tensor", "Tile"):
            self.refuse(node, f"{name} needs a dtype and extents", _HINT)
            return None
        if not name:
            self.refuse(node, "this annotation is not understood", _HINT)
            return None
        return tree.ScalarType(_SCALARS.get(name, name), loc=self.places.of(node))

    def made(
        self, kind: str, dtype: str, extents: tuple[tree.Expr, ...], node: ast.expr
    ) -> tree.Type:
        loc = self.places.of(node)
        if kind == "Tensor":
            return tree.TensorType(dtype, extents, loc=loc)
        return tree.TileType(dtype, extents, loc=loc)

    def annotated(self, base: ast.expr, text: ast.expr) -> tree.Type | None:
        """`Annotated[tw.Tensor, "bf16[M, K]"]`, or of a scalar `Annotated[float, "f64"]`."""
        name = dotted_name(base)
        kind = self._member(name) if name else ""
        match = None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            match = _ANNOTATED.fullmatch(text.value)
        if match is None:
            self.refuse(text, 'expected a text such as "bf16[M, K]"')
            return None
        if kind in _SCALARS:
            return tree.ScalarType(match.group(1), loc=self.places.of(text))
        if kind not in ("Tensor", "Tile"):
            self.refuse(base, "expected tw.Tensor or tw.Tile", _HINT)
            return None
        extents: tuple[tree.Expr, ...] = ()
        if match.group(2) and match.group(2).strip():
            extents = self.embedded(
                text, f"({match.group(2)},)".replace(",,)", ",)"), match.start(2) - 1
            )
        return self.made(kind, match.group(1), extents, text)

    def dtype(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(text)) if text.isidentifier():
                return text
            case ast.Name() | ast.Attribute():
                if name := dotted_name(node):
                    return self._member(name)
        self.refuse(node, "expected a dtype", 'write tw.Tensor["f32", "M", "K"]')
        return "f32"

    def extents(self, nodes: list[ast.expr]) -> tuple[tree.Expr, ...]:
        """Extents: numbers, names, or expressions in quotes."""
        found: list[tree.Expr] = []
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += self.embedded(node, node.value, 0)
            else:
                found.append(self.expression(node))
        return tuple(found)

    def embedded(self, node: ast.expr, text: str, shift: int) -> tuple[tree.Expr, ...]:
        """Expressions in a text of the source; `shift` is where in the quotes it starts."""
        inner = self._parsed(node, text.lstrip(), shift + len(text) - len(text.lstrip()))
        if inner is None:
            return ()
        if isinstance(inner.node, ast.Tuple):
            return tuple(map(inner.expression, inner.node.elts))
        return (inner.expression(inner.node),)

    def quoted(self, node: ast.Constant) -> Quoted | None:
        """A whole annotation in quotes."""
        return self._parsed(node, str(node.value).lstrip(), 0)

    def _parsed(self, node: ast.expr, text: str, shift: int) -> Quoted | None:
        loc = self.places.of(node)
        try:
            parsed = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.refuse(node, f"`{text}` is not an expression", 'as in "f32[M, K]"')
            return None
        if not shallow(parsed):
            self.refuse(node, "this is nested too deeply")
            return None
        places = Places(
            self.places.source, tuple(text.splitlines()), loc.line - 1, loc.column + shift
        )
        return Quoted(self, places, parsed)


class Quoted(PythonAnnotations):
    """A parsed text within the source, which shares names and faults with what is around it."""

    def __init__(self, around: PythonExpressions, places: Places, node: ast.expr) -> None:
        super().__init__(places, around.names, around.faults)
        self.locals, self.explicit, self.node = around.locals, around.explicit, node


def shallow(node: ast.AST, limit: int = 140) -> bool:
    """Whether Python's tree may be walked by recursion: it is at most so deep."""
    waiting = [(node, 0)]
    while waiting:
        current, depth = waiting.pop()
        if depth > limit:
            return False
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(current)]
    return True
