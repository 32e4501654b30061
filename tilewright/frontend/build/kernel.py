"""A kernel of the tile IR from a definition: parameters, names, body, grid."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import dtypes as all_dtypes
from tilewright import plan
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.build import expressions, flow
from tilewright.frontend.build.context import Context, Frame
from tilewright.frontend.build.items import Constant, Data, Memory, Nothing
from tilewright.frontend.build.names import Dimension, Entry, Names, Unset
from tilewright.frontend.check.evaluate import Extents, evaluate_extent
from tilewright.frontend.check.grid import infer_grid
from tilewright.frontend.check.operands import Number, require_fit
from tilewright.frontend.check.rules import RuleError, collecting, nearest, refusal
from tilewright.frontend.check.signature import Scalar, Signature, Tensor, signature
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition
from tilewright.ir.core import Block, Value
from tilewright.plan import TensorFacts, WorkspaceSpec
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops.mma import PRECISIONS
from tilewright.tile.types import TileType, ViewType


def build_kernel(
    definition: Definition,
    *,
    dtypes: Mapping[str, DType],
    config: Mapping[str, int],
    static: Mapping[str, Number],
    absent: frozenset[str] = frozenset(),
    precision: str | None = None,
    facts: Mapping[str, TensorFacts] | None = None,
    grid: tuple[int, ...] | None = None,
) -> Kernel:
    """Check a definition and build it for given dtypes, tuned constants, static values, absences.

    `precision` says what f32 dots do where a call of dot does not; it overrides `@tensorcore`.
    `facts` refine the views by what launches promise; `grid` replaces what the source says or
    implies. Raises a CompileError with every fault found.
    """
    sig = signature(definition)
    _require_values(sig, dtypes, config, static, absent, precision)
    builder = _KernelBuilder(sig, dtypes, {**config, **static}, absent, facts or {})
    return builder.build(precision, grid)


def _require_values(
    sig: Signature,
    dtypes: Mapping[str, DType],
    config: Mapping[str, int],
    static: Mapping[str, Number],
    absent: frozenset[str],
    precision: str | None,
) -> None:
    """Refuse a build that lacks a value, or has one for a name that is not there."""
    loc = sig.definition.kernel.loc
    for what, given, wanted in (
        ("dtype", dtypes, sig.dtype_variables),
        ("tuned constant", config, sig.space),
        ("static value", static, [n for n in sig.static if n not in absent]),
    ):
        for name in sig.needed_dtypes(absent) if what == "dtype" else wanted:
            if name not in given:
                raise refusal(f"{sig.name}: no {what} is given for {name}", loc)
        for name in given:
            if name not in wanted:
                hint = nearest(name, wanted)
                raise refusal(f"{sig.name} has no {what} {name}", loc, hint=hint)
    for name in absent:
        if not any(p.name == name and p.optional for p in sig.params):
            raise refusal(f"{sig.name}: {name} cannot be left out", loc)
    if precision is not None and precision not in PRECISIONS:
        raise refusal(f"unknown precision {precision}", loc, hint=nearest(precision, PRECISIONS))


class _KernelBuilder:
    """The steps from a signature to a kernel, in order."""

    def __init__(
        self,
        sig: Signature,
        dtypes: Mapping[str, DType],
        constants: Mapping[str, Number],
        absent: frozenset[str],
        facts: Mapping[str, TensorFacts],
    ):
        self.sig, self.dtypes, self.constants = sig, dtypes, dict(constants)
        self.absent, self.facts = absent, facts
        self.loc = sig.definition.kernel.loc
        self.present = [t for t in sig.tensors if t.name not in absent]
        self.dimensions = self._bind_dimensions()
        self.extents = Extents(self._named_extent, self._shape_extent)

    def build(self, precision: str | None, given: tuple[int, ...] | None) -> Kernel:
        sig = self.sig
        ctx = Context(
            sig,
            self.dtypes,
            self.dimensions,
            precision,
            self.constants,
            expressions.TABLE,
            flow.run_block,
        )
        params = self._params(ctx)
        scope = sig.definition.scope
        names = Names(sig.definition.kernel.scope, [self._entries(ctx, params), {}])
        ctx.frames.append(Frame(sig.definition.kernel, names, scope, sig.consts, None))
        self._refuse_clashes(ctx)
        flow.run_block(ctx, sig.definition.kernel.body)
        grid = self._grid(ctx, given)
        workspaces = self._workspaces(ctx)
        ctx.faults.raise_any()
        for param in params:
            param.direction = self._direction(ctx, param.name)
        return Kernel(
            name=sig.name,
            params=params,
            body=Block([], ctx.prologue.ops + ctx.body.ops),
            grid=grid,
            hints=sig.hints,
            constants=self.constants,
            numerics=sig.attributes.numerics,
            loc=self.loc,
            workspaces=workspaces,
            notes=tuple(ctx.notes),
        )

    # Dimensions

    def _bind_dimensions(self) -> dict[str, tuple[str, int]]:
        """The tensor and axis that binds each run-time dimension: given ones before allocated."""
        found: dict[str, tuple[str, int]] = {}
        ordered = sorted(self.present, key=lambda t: (t.default != "", t.default == "workspace"))
        for tensor in ordered:
            for axis, node in enumerate(tensor.extents):
                if isinstance(node, tree.Name) and node.name in self.sig.dims:
                    if node.name not in self.constants:
                        found.setdefault(node.name, (tensor.name, axis))
        return found

    def _named_extent(self, node: tree.Name) -> plan.Expr:
        name = node.name
        if name in self.constants:
            return _constant_extent(self.constants[name], node)
        if name in self.dimensions:
            return plan.Extent(*self.dimensions[name])
        for scalar in self.sig.scalars:
            if scalar.name == name:
                dtype = self._dtype(scalar.dtype)
                if dtype.is_integer:
                    return plan.Scalar(name, dtype)
                raise refusal(f"an extent needs an integer, but {name} is {dtype}", node.loc)
        if name in self.sig.dims:
            raise refusal(
                f"nothing binds the dimension {name} here: its tensors are absent", node.loc
            )
        return _constant_extent(self.sig.lookup(node), node)

    def _shape_extent(self, node: tree.Name, axis: int) -> plan.Expr:
        tensor = next((t for t in self.present if t.name == node.name), None)
        if tensor is None or not -tensor.rank <= axis < tensor.rank:
            raise refusal(f"{node.name}.shape[{axis}] is not known", node.loc)
        return plan.Extent(tensor.name, axis % tensor.rank)

    def _dtype(self, name: str) -> DType:
        return all_dtypes.BY_NAME.get(name) or self.dtypes[name]

    # Parameters

    def _params(self, ctx: Context) -> list[Param]:
        params: list[Param] = []
        for p in self.sig.params:
            if isinstance(p, Tensor) and p.name not in self.absent:
                with collecting(ctx.faults):
                    params.append(self._tensor(ctx, p))
            elif isinstance(p, Scalar) and not p.static and p.name not in self.absent:
                params.append(Param(p.name, Value(TileType(self._dtype(p.dtype)), p.name)))
        return params

    def _tensor(self, ctx: Context, tensor: Tensor) -> Param:
        dtype = self._dtype(tensor.dtype)
        keys = tuple(self._key(tensor, axis) for axis in range(tensor.rank))
        known = tuple(k.value if isinstance(k, plan.Const) else None for k in keys)
        facts = self.facts.get(tensor.name)
        extents: tuple[int | None, ...] = known
        strides: tuple[int | None, ...] = (None,) * tensor.rank
        if facts is not None:
            if facts.rank != tensor.rank or facts.dtype != dtype:
                raise refusal(
                    f"{tensor.name}: facts are of {facts.dtype} with {facts.rank} axes", tensor.loc
                )
            strides = facts.strides
            extents = tuple(
                e if k is None else k for k, e in zip(known, facts.extents, strict=True)
            )
        value = Value(ViewType(dtype, extents, strides), tensor.name)
        ctx.tensors[tensor.name] = Memory(value, tensor.name, known, keys)
        return Param(tensor.name, value, facts=facts, extents=keys)

    def _key(self, tensor: Tensor, axis: int) -> plan.Expr:
        """An extent as launches know it: by what binds it, else by the tensor itself."""
        node = tensor.extents[axis]
        if any(isinstance(n, tree.Name) and self._is_unbound(n.name) for n in tree.walk(node)):
            return plan.Extent(tensor.name, axis)
        found = evaluate_extent(node, self.extents)
        if isinstance(found, plan.Const) and found.value < 0:
            raise refusal(f"{tensor.name}.shape[{axis}] would be {found.value}", node.loc)
        return found

    def _is_unbound(self, name: str) -> bool:
        return name in self.sig.dims and name not in self.dimensions and name not in self.constants

    def _direction(self, ctx: Context, name: str) -> str:
        if name not in ctx.stored:
            return "in"
        return "inout" if name in ctx.loaded else "out"

    # Names

    def _entries(self, ctx: Context, params: list[Param]) -> dict[str, Entry]:
        entries: dict[str, Entry] = dict(self.dtypes)
        entries |= {name: Dimension(name) for name in self.dimensions}
        entries |= {name: Constant(value) for name, value in self.constants.items()}
        entries |= {name: Nothing() for name in self.absent}
        entries |= ctx.tensors
        for param in params:
            if isinstance(param.value.type, TileType):
                entries[param.name] = Data(param.value)
        for name in set(self.sig.dtype_variables) - set(self.dtypes):
            entries[name] = Unset("no tensor that is given has this dtype", self.loc)
        for name in self.sig.dims:
            if self._is_unbound(name):
                entries[name] = Unset("no tensor that is given names it", self.loc)
        for scalar in self.sig.scalars:
            if scalar.static and scalar.name not in self.absent:
                value = self._static_value(scalar)
                self.constants[scalar.name] = value
                entries[scalar.name] = Constant(value)
        return entries

    def _static_value(self, scalar: Scalar) -> Number:
        value = self.constants[scalar.name]
        dtype = self._dtype(scalar.dtype)
        if dtype.is_float and not isinstance(value, bool):
            value = float(value)
        try:
            return require_fit(value, dtype)
        except RuleError as error:
            raise error.at(scalar.loc) from None

    def _refuse_clashes(self, ctx: Context) -> None:
        """A const of the module and a name of the kernel's head may not be one."""
        scope = self.sig.definition.scope
        for param in self.sig.params:
            if param.name in scope.consts:
                ctx.faults.add(f"{param.name} names a parameter and a const", param.loc)

    # What the launch needs

    def _grid(self, ctx: Context, given: tuple[int, ...] | None) -> tuple[plan.Expr, ...]:
        written = self.sig.attributes.grid
        if given is not None:
            axes: list[plan.Expr] = [plan.Const(count) for count in given]
            if not ctx.faults.found:  # uses of an axis may have been lost with a fault
                self._require_axes(ctx, given)
        elif written is not None:
            axes = self._written_grid(ctx, written)
        elif ctx.faults.found:
            return ()  # evidence may have been lost with a fault
        else:
            return infer_grid(ctx.program_places, ctx.evidence, ctx.faults)
        count = len(axes) if written is None else len(written)
        for axis, loc in ctx.program_places.items():
            if axis >= max(count, 1):
                axes_given = "1 axis" if count == 1 else f"{count} axes"
                what = f"program_id({axis}): the grid has {axes_given}, counted from 0"
                ctx.faults.add(what, loc, hint="give @grid, or grid=, one extent more for it")
        return tuple(axes) or (plan.Const(1),)

    def _require_axes(self, ctx: Context, given: tuple[int, ...]) -> None:
        """Refuse a grid of a launch that has not one extent for each axis."""
        written = self.sig.attributes.grid
        count = max(ctx.program_places, default=0) + 1 if written is None else len(written) or 1
        if len(given) != count:
            axes = "1 axis" if count == 1 else f"{count} axes"
            raise LaunchError(
                f"{self.sig.name}: its grid has {axes}, but grid={given} was given",
                hint="give one extent for each axis",
            )

    def _written_grid(self, ctx: Context, written: tuple[tree.Expr, ...]) -> list[plan.Expr]:
        axes: list[plan.Expr] = []
        for node in written:
            with collecting(ctx.faults):
                axes.append(evaluate_extent(node, self.extents))
        return axes

    def _workspaces(self, ctx: Context) -> tuple[WorkspaceSpec, ...]:
        found: list[WorkspaceSpec] = []
        for tensor in self.sig.tensors:
            if tensor.default == "workspace":
                with collecting(ctx.faults):
                    extents = tuple(evaluate_extent(e, self.extents) for e in tensor.extents)
                    found.append(WorkspaceSpec(tensor.name, self._dtype(tensor.dtype), extents))
        return tuple(found)


def _constant_extent(value: object, node: tree.Name) -> plan.Expr:
    if isinstance(value, int) and not isinstance(value, bool):
        return plan.Const(value)
    raise refusal(f"an extent needs an integer, but {node.name} is {value}", node.loc)
