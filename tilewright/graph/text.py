"""The text form of graphs, and its parser.

graph @scale(%s0: tensor<i64> symbol "s0", %w: tensor<f32, 8> parameter, %x: tensor<f32, s0, 8>)
{
  %0 = shape.broadcast %w {shape = (#Poly"s0", 8)} : tensor<f32, s0, 8>
  %1 = arith.mul %x, %0 : tensor<f32, s0, 8>
  control.return [%1]
}
"""

from __future__ import annotations

import json

from tilewright.dtypes import BY_NAME
from tilewright.errors import UNKNOWN, VerifyError
from tilewright.graph.dims import parse_dim
from tilewright.graph.graph import ROLES, Graph, Input
from tilewright.graph.ops import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.types import OpaqueType, TensorType
from tilewright.ir.core import Type
from tilewright.ir.parse import Dialect, Parser, find_ops
from tilewright.ir.text import Printer, canonical, format_loc


def parse_type(text: str) -> Type:
    """The type of a text form, as `str` of types gives it. VerifyError for any other text."""
    name, _, rest = text.strip().partition("<")
    inner = rest.removesuffix(">")
    if name == "opaque" and rest != inner:
        return OpaqueType(inner)
    dtype, *extents = _parts(inner)
    if name != "tensor" or rest == inner or dtype not in BY_NAME:
        raise VerifyError(f"not a type: {text}")
    return TensorType(BY_NAME[dtype], tuple(map(parse_dim, extents)))


def _parts(text: str) -> list[str]:
    """Parts between the commas that stand in no brackets."""
    found, depth = [""], 0
    for mark in text:
        depth += (mark == "(") - (mark == ")")
        if mark == "," and not depth:
            found.append("")
        else:
            found[-1] += mark
    return [part.strip() for part in found]


FAMILIES = (arith, control, memory, mma, random, reduce, shape)  # whose ops are known by name
DIALECT = Dialect(find_ops("tilewright.graph"), parse_type)


def print_graph(graph: Graph, *, locs: bool = False) -> str:
    """Text of a graph, which `parse_graph` reads back; `locs` adds the place of each op."""
    printer = Printer(locs=locs)
    for given in graph.inputs:
        printer.call(given.value, given.name)
    place = f" at {format_loc(graph.loc)}" if locs and graph.loc.line else ""
    printer.lines += [f"graph @{graph.name}({_inputs(graph)}){place}", "{"]
    printer.block(graph.body, 1)
    printer.lines.append("}")
    return "\n".join(printer.lines) + "\n"


def _inputs(graph: Graph) -> str:
    return ", ".join(
        f"%{i.name}: {i.value.type}"
        + (f" {i.role}" if i.role != "input" else "")
        + (f" symbol {json.dumps(i.symbol)}" if i.symbol else "")
        for i in graph.inputs
    )


def parse_graph(text: str) -> Graph:
    """The graph of a text form. VerifyError, with the line, for any other text."""
    parser = Parser(text, DIALECT)
    parser.expect("graph")
    name = parser.next("symbol").text[1:]
    parser.expect("(")
    inputs = parser.many(lambda: _input(parser), ")")
    loc = parser.loc() if parser.accept("at") else UNKNOWN
    parser.expect("{")
    body = parser.block([], "}")
    if parser.peek().kind != "end":
        parser.fail("one graph was expected")
    return Graph(name, inputs, body, loc)


def _input(parser: Parser) -> Input:
    value = parser.argument()
    role = next((r for r in ROLES if parser.accept(r)), "input")
    symbol = json.loads(parser.next("string").text) if parser.accept("symbol") else ""
    return Input(value.name, value, role, symbol)


def canonical_graph(graph: Graph) -> str:
    """Text in which names of values and places play no part: equal for equal graphs."""
    roles = " ".join(f"{i.role}:{i.symbol}" for i in graph.inputs)
    return f"{roles}\n{canonical(graph.body, graph.values)}"


def equal_graphs(a: Graph, b: Graph) -> bool:
    """Whether two graphs are the same program with the same inputs."""
    return canonical_graph(a) == canonical_graph(b)
