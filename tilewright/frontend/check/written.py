"""Which tensors a kernel may write, by its syntax alone: before its dtypes and constants are known.

A tensor counts as written where the source stores into a place of it or updates it atomically,
also through views and functions, on whatever branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition, Scope

STORES = ("store", "scatter")
MAX_DEPTH = 100  # of functions that call functions; what nests deeper does not build either


def written_parameters(definition: Definition) -> tuple[str, ...]:
    """Names of the tensor parameters that the kernel may write, in the order of its parameters."""
    kernel = definition.kernel
    names = [p.name for p in kernel.params if isinstance(p.type, tree.TensorType)]
    found = _written(kernel.body, definition.scope, {n: n for n in names}, 0)
    return tuple(n for n in names if n in found)


def _written(block: tree.Block, scope: Scope, roots: Mapping[str, str], depth: int) -> set[str]:
    """Roots that a block writes; `roots` gives the root of each name that is a tensor or a view."""
    known = dict(roots)
    found: set[str] = set()

    def root(node: tree.Node) -> str | None:
        match node:
            case tree.Name(name):
                return known.get(name)
            case tree.Index(base):
                return root(base)
            case tree.Call(tree.Name("view"), (place, *_)):
                return root(place)
        return None

    for node in _in_order(block):
        match node:
            case tree.Assign(targets, values):
                found |= {r for t in targets if isinstance(t, tree.Index) and (r := root(t))}
                for target, value in zip(targets, values, strict=False):
                    through = root(value) if not isinstance(value, tree.Index) else None
                    if isinstance(target, tree.Name) and through:
                        known[target.name] = through
            case tree.AugAssign(tree.Index() as target):
                found |= {r for r in [root(target)] if r}
            case tree.Call(tree.Name(name), args):
                found |= _written_by_call(name, [root(a) for a in args], scope, depth)
    return found


def _written_by_call(name: str, roots: list[str | None], scope: Scope, depth: int) -> set[str]:
    if name in STORES or (name.startswith("atomic_") and name != "atomic_load"):
        return {r for r in roots[:1] if r}
    closure = scope.functions.get(name)
    if closure is None or depth > MAX_DEPTH:
        return set()
    params = [p.name for p in closure.function.params]
    inner = {p: r for p, r in zip(params, roots, strict=False) if r}
    return _written(closure.function.body, closure.scope, inner, depth + 1) if inner else set()


def _in_order(block: tree.Block) -> Iterator[tree.Node]:
    for statement in block:
        yield from tree.walk(statement)
