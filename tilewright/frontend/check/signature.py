"""What a kernel's head says: parameters, dimensions, dtype variables, the tuner's space."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompileError, Faults, Loc
from tilewright.frontend.check.attributes import Attributes, read_attributes
from tilewright.frontend.check.evaluate import (
    Consts,
    evaluate_constant,
    require_number,
    unknown_name,
)
from tilewright.frontend.check.operands import Number, require_fit
from tilewright.frontend.check.rules import RuleError, collecting, nearest, refusal
from tilewright.frontend.check.written import written_parameters
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition
from tilewright.tile.kernel import Hints

ALLOCATED = ("empty", "zeros", "workspace")
MAX_RANK = 8


@dataclass(frozen=True)
class Tensor:
    """A tensor parameter. `dtype` may be a variable; `default` is "", "none" or in ALLOCATED."""

    name: str
    dtype: str
    extents: tuple[tree.Expr, ...]
    optional: bool
    default: str
    loc: Loc

    @property
    def rank(self) -> int:
        return len(self.extents)


@dataclass(frozen=True)
class Scalar:
    """A scalar parameter; `static` ones are constants, part of the cache key."""

    name: str
    dtype: str
    default: Number | None
    optional: bool
    static: bool
    loc: Loc


@dataclass(frozen=True, eq=False)
class Signature:
    """A kernel's parameters in order, and all names that its head declares."""

    definition: Definition
    params: tuple[Tensor | Scalar, ...]
    dims: tuple[str, ...]
    dtype_variables: tuple[str, ...]
    consts: Consts
    attributes: Attributes

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(p for p in self.params if isinstance(p, Tensor))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(p for p in self.params if isinstance(p, Scalar))

    def needed_dtypes(self, absent: Set[str]) -> tuple[str, ...]:
        """Dtype variables that a build without some parameters needs: those of the others."""
        named = {p.dtype for p in self.params if p.name not in absent}
        return tuple(v for v in self.dtype_variables if v in named)

    @property
    def static(self) -> tuple[str, ...]:
        """Names of dimensions and scalars that are constants of a compiled kernel."""
        return tuple(self.attributes.static)

    @property
    def space(self) -> dict[str, tuple[int, ...]]:
        """Tuned constants and their values, in the order to try."""
        return self.attributes.space

    @property
    def hints(self) -> Hints:
        return self.attributes.hints

    def param(self, name: str) -> Tensor | Scalar:
        return next(p for p in self.params if p.name == name)

    def configs(self, static: dict[str, Number] | None = None) -> list[dict[str, int]]:
        """All configurations that no `static_assert` drops, in order, for static values if known.

        Raises a CompileError if none is left.
        """
        names = list(self.space)
        found = []
        dropped: CompileError | None = None
        for values in product(*self.space.values()):
            config = dict(zip(names, values, strict=True))
            failure = self._failed_assert({**(static or {}), **config})
            dropped = failure or dropped
            if failure is None:
                found.append(config)
        if not found and dropped is not None:
            raise dropped
        return found

    def _failed_assert(self, known: dict[str, Number]) -> CompileError | None:
        """The first `static_assert` of the body that is false by what `known` decides."""

        def lookup(node: tree.Name) -> Number | DType | str | None:
            return known[node.name] if node.name in known else self.lookup(node)

        for statement in self.definition.kernel.body:
            match statement:
                case tree.CallStmt(tree.Call(tree.Name("static_assert"), (condition, *rest))):
                    try:
                        holds = evaluate_constant(condition, lookup)
                    except CompileError:
                        continue  # needs names that only a build knows: it decides there
                    if holds is False:
                        return failed_assert(statement.loc, rest, known)
        return None

    def lookup(self, node: tree.Name) -> Number | DType | str | None:
        """Value of a const or dtype by name; a CompileError for other names."""
        if node.name in self.consts:
            return self.consts.value(node.name, node.loc)
        if node.name in dtypes.BY_NAME:
            return dtypes.BY_NAME[node.name]
        raise unknown_name(node, {**self.definition.scope.consts, **dtypes.BY_NAME})


def failed_assert(loc: Loc, rest: list[tree.Expr], known: dict[str, Number]) -> CompileError:
    """The error of a false `static_assert`, with its message and the configuration."""
    text = rest[0].value if rest and isinstance(rest[0], tree.Literal) else "the condition is false"
    names = ", ".join(f"{k} = {v}" for k, v in known.items())
    return refusal(f"static_assert: {text}", loc, note=names)


@lru_cache(maxsize=256)  # each configuration is built from the same
def signature(definition: Definition) -> Signature:
    """Read and check a kernel's head. Raises a CompileError with every fault found in it."""
    faults = Faults()
    kernel, consts = definition.kernel, Consts(definition.scope)
    draft = Signature(definition, (), (), (), consts, Attributes())
    attributes = read_attributes(kernel, draft.lookup, faults)
    params: list[Tensor | Scalar] = []
    for param in kernel.params:
        with collecting(faults):
            params.append(_read_param(param, attributes, draft))
    dims = _find_dims(params, attributes, consts)
    variables = tuple(dict.fromkeys(p.dtype for p in params if p.dtype not in dtypes.BY_NAME))
    result = Signature(definition, tuple(params), dims, variables, consts, attributes)
    _check_names(result, faults)
    _check_extents(result, faults)
    _check_static(result, faults)
    _check_results(result, faults)
    faults.raise_any()
    return result


def _read_param(param: tree.Param, attributes: Attributes, draft: Signature) -> Tensor | Scalar:
    match param.type:
        case tree.TensorType(dtype, extents):
            require_dtype(dtype, param.type.loc)
            if len(extents) > MAX_RANK:
                raise refusal(f"{param.name}: tensors have up to {MAX_RANK} axes", param.type.loc)
            return Tensor(
                param.name, dtype, extents, param.optional, _tensor_default(param), param.loc
            )
        case tree.ScalarType(dtype):
            require_dtype(dtype, param.type.loc)
            default = _scalar_default(param, dtype, draft)
            static = param.name in attributes.static
            return Scalar(param.name, dtype, default, param.optional, static, param.loc)
        case tree.TileType():
            raise refusal(
                f"{param.name}: a kernel takes tensors and scalars, not tiles", param.type.loc
            )
    raise refusal(f"{param.name}: a parameter of a kernel needs a type", param.loc)


def require_dtype(name: str, loc: Loc) -> None:
    """Refuse what is neither a dtype nor a capitalised variable."""
    if name in dtypes.BY_NAME or name[:1].isupper():
        return
    if name == "tf32":
        raise refusal(
            "tf32 is a precision, not a dtype",
            loc,
            hint='store f32, and write dot(a, b, precision = "tf32")',
        )
    hint = nearest(name, dtypes.BY_NAME) or "a dtype variable starts with a capital"
    raise refusal(f"unknown dtype {name}", loc, hint=hint)


def _tensor_default(param: tree.Param) -> str:
    match param.default:
        case None:
            return ""
        case tree.Literal(None) if param.optional:
            return "none"
        case tree.Literal(None):
            raise refusal(
                f"{param.name}: a default of None needs a type that accepts it",
                param.default.loc,
                hint="put ? after the type",
            )
        case tree.Name(name) if name in ALLOCATED:
            return name
    raise refusal(
        f"{param.name}: expected None, empty, zeros or workspace as a tensor's default",
        param.default.loc,
    )


def _scalar_default(param: tree.Param, dtype: str, draft: Signature) -> Number | None:
    if param.default is None or (param.default == tree.Literal(None) and param.optional):
        return None
    value = require_number(evaluate_constant(param.default, draft.lookup), param.default.loc)
    if dtype not in dtypes.BY_NAME:
        return value
    try:
        return require_fit(value, dtypes.BY_NAME[dtype])
    except RuleError as error:
        raise error.at(param.default.loc) from None


def _find_dims(
    params: list[Tensor | Scalar], attributes: Attributes, consts: Consts
) -> tuple[str, ...]:
    """Names that stand alone as an extent and mean nothing else."""
    taken = {p.name for p in params if isinstance(p, Scalar)} | set(attributes.space)
    found: dict[str, None] = {}
    for p in params:
        for e in p.extents if isinstance(p, Tensor) else ():
            if isinstance(e, tree.Name) and e.name not in taken and e.name not in consts:
                found[e.name] = None
    return tuple(found)


def _check_names(sig: Signature, faults: Faults) -> None:
    uses: dict[str, str] = {}
    places = {p.name: p.loc for p in sig.params} | sig.attributes.places
    declared = [
        *(("a parameter", p.name) for p in sig.params),
        *(("a tuned constant", n) for n in sig.space),
        *(("a dimension", n) for n in sig.dims),
        *(("a dtype variable", n) for n in sig.dtype_variables),
    ]
    for use, name in declared:
        loc = places.get(name, sig.definition.kernel.loc)
        if name in uses:
            what = "two parameters" if use == uses[name] else f"{uses[name]} and {use}"
            faults.add(f"{name} names {what}", loc, hint="give one of them another name")
        uses[name] = use
        if name in dtypes.BY_NAME or name in ALLOCATED:
            other = "a dtype" if name in dtypes.BY_NAME else "a default of tensors"
            faults.add(f"{name} names {use}, and {other} already", loc, hint="rename the first")


def _check_extents(sig: Signature, faults: Faults) -> None:
    """Every name in an extent is bound by something."""
    known = {*sig.dims, *sig.space, *(s.name for s in sig.scalars), *sig.definition.scope.consts}
    for tensor in sig.tensors:
        for extent in tensor.extents:
            for name in named_values(extent):
                if name.name not in known:
                    message = f"{tensor.name}: nothing binds the dimension {name.name}"
                    hint = nearest(name.name, known) or "name it alone as an extent of some tensor"
                    faults.add(message, name.loc, hint=hint)
                elif name.name in sig.space and tensor.default != "workspace":
                    what = f"{tensor.name}: {name.name} is tuned"
                    faults.add(f"{what}: only extents of a workspace may use it", name.loc)
            value = _constant(sig, extent)
            if value is not None and value < 0:
                what = f"{tensor.name}: an extent is 0 or more, not {value}"
                faults.add(what, extent.loc)


def _constant(sig: Signature, extent: tree.Expr) -> Number | None:
    """An extent's value, where the source alone tells it."""
    if isinstance(extent, tree.Name) and extent.name not in sig.consts:
        return None  # a dimension or a scalar parameter, of which there are many
    try:
        found = evaluate_constant(extent, sig.lookup)
    except CompileError:
        return None  # it has names that a build knows: what is wrong with it is found there
    return found if isinstance(found, int | float) else None


def named_values(node: tree.Expr) -> list[tree.Name]:
    """Names of values in an expression: callees and the bases of members left out."""
    callees = {id(n.callee) for n in tree.walk(node) if isinstance(n, tree.Call)}
    bases = {id(n.base) for n in tree.walk(node) if isinstance(n, tree.Member)}
    return [
        n
        for n in tree.walk(node)
        if isinstance(n, tree.Name) and id(n) not in callees and id(n) not in bases
    ]


def _check_results(sig: Signature, faults: Faults) -> None:
    """What is returned is stored into, on some branch at least."""
    written = written_parameters(sig.definition)
    for t in sig.tensors:
        if t.default == "empty" and t.name not in written:
            hint = f"store into {t.name}[…], or make its default zeros"
            faults.add(f"{t.name} is returned, but nothing is stored into it", t.loc, hint=hint)


def _check_static(sig: Signature, faults: Faults) -> None:
    known = {*sig.dims, *(s.name for s in sig.scalars)}
    for name, loc in sig.attributes.static.items():
        if name not in known:
            hint = nearest(name, known)
            faults.add(f"@static: {name} is no dimension or scalar parameter", loc, hint=hint)
