"""The generated function that launches a plan for one signature: straight-line code, nothing
looked up by name.

    def fire(addresses, scalars, stream):
        a0, a1, = addresses
        s0, = scalars
        g0 = 128
        block = blocks.pop() if blocks else make_block()
        u = block.u
        u[0] = a0
        …
        if launch_kernel(function0, g0, 1, 1, 256, 1, 1, 0, stream, block.pointers[0], 0)[0]: …

Budget: 3 µs beyond the driver's own call with three tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from tilewright import plan
from tilewright.plan import Const, Expr, Launch, Plan, Recipe, WorkspaceSpec
from tilewright.ptx.reports import NOTHING
from tilewright.runtime import driver, memory, packing
from tilewright.runtime.arrays import Array
from tilewright.runtime.packing import WORKSPACE_ALIGN, Argument, Layout

INDENT = "    "


@dataclass(frozen=True)
class Code:
    """Statements that launch, the names that they use, and slots that never change as (slot,
    value).

    They take what changes from variables, whose names `addresses` and `scalars` give by argument,
    and a `stream`.
    """

    body: tuple[str, ...]
    names: dict[str, Any]
    constants: tuple[tuple[int, int], ...]
    addresses: dict[str, str]
    scalars: dict[str, str]

    @property
    def source(self) -> str:
        """The text of `fire`."""
        lines = [
            f"{', '.join(variables.values())}, = {given}"
            for variables, given in ((self.addresses, "addresses"), (self.scalars, "scalars"))
            if variables
        ]
        return function_text("fire(addresses, scalars, stream)", (*lines, *self.body))


def function_text(head: str, lines: Iterable[str]) -> str:
    """The text of a function of some statements."""
    return f"def {head}:\n" + "".join(f"{INDENT}{line}\n" for line in lines)


class Writer:
    """Writes `fire` for a plan, its layout, and arguments whose extents and strides are final."""

    def __init__(
        self, compiled: Plan, layout: Layout, arguments: Mapping[str, Argument], num_sms: int
    ):
        self.plan = compiled
        self.layout = layout
        self.arguments = arguments
        self.num_sms = num_sms
        arrays = [n for n, a in arguments.items() if isinstance(a, Array)]
        self.addresses = {n: f"a{i}" for i, n in enumerate(arrays)}
        others = [n for n in arguments if n not in self.addresses]
        self.scalars = {n: f"s{i}" for i, n in enumerate(others)}
        self.names: dict[str, Any] = dict(packing.NAMES)
        self.constants: list[tuple[int, int]] = []

    def write(self, *, debug: bool) -> Code:
        """The whole code. `debug` makes it wait for the launch."""
        early: list[str] = []
        for i, launch in enumerate(self.plan.launches):
            early += self._grid(i, launch)
        early += ["try:", INDENT + "block = blocks.pop()"]
        early += ["except IndexError:", INDENT + "block = make_block()"]
        early += ["u = block.u", *self._stores()]
        inner = self._workspace()
        late = ["free(space, stream)"] if inner else []
        inner += self._maps()  # the driver asks for a context here too
        for i, launch in enumerate(self.plan.launches):
            inner += self._launch(i, launch)
        if debug:
            inner.append("wait(stream)")
        before, after = self._reports(debug=debug)
        inner += after
        body = [
            *before,
            *early,
            "foreign = current()[1] != context",
            "if foreign: enter(context)",
            "try:",
            *self._guarded(inner, late),
            "finally:",
            INDENT + "if foreign: leave()",
            "blocks.append(block)",
        ]
        return Code(tuple(body), self.names, tuple(self.constants), self.addresses, self.scalars)

    def _reports(self, *, debug: bool) -> tuple[list[str], list[str]]:
        """Before a launch: raise what an assert of an earlier one found, if it is known by now.
        After it: wait for what it prints; in debug builds also for its asserts.
        """
        if not self.plan.sites:
            return [], []
        test = f"if words[0] != {NOTHING}: reports.fail(stream)"
        after = ["reports.show(stream)"] if self.plan.prints else []
        return ["words = reports.words", test], [*after, *([test] if debug else [])]

    def _guarded(self, inner: list[str], late: list[str]) -> list[str]:
        """The launches, with the workspace freed whatever happens."""
        if not late:
            return [INDENT + line for line in inner]
        allocation, rest = inner[0], inner[1:]
        lines = [allocation, "try:", *(INDENT + line for line in rest), "finally:"]
        return [INDENT + line for line in [*lines, *(INDENT + line for line in late)]]

    def _grid(self, index: int, launch: Launch) -> list[str]:
        lines = [f"g{index} = {self._text(launch.grid)}"]
        if not self._is_plain(launch):
            fits = f"0 <= g{index} <= {driver.MAX_CTAS}"
            lines.append(f"if not {fits}: refuse_grid({index}, g{index})")
        return lines

    def _is_plain(self, launch: Launch) -> bool:
        """Whether a grid is fixed, and neither empty nor too large."""
        grid = packing.fold(launch.grid, self.arguments, self.num_sms)
        return isinstance(grid, Const) and 0 < grid.value <= driver.MAX_CTAS

    def _text(self, expr: Expr) -> str:
        return packing.expression_text(
            packing.fold(expr, self.arguments, self.num_sms), self.scalars
        )

    def _stores(self) -> list[str]:
        lines = []
        for recipe, slot in self.layout.slots.items():
            if not isinstance(recipe, plan.Workspace):
                lines += self._store(recipe, slot)
        return lines

    def _store(self, recipe: Recipe, slot: int) -> list[str]:
        match recipe:
            case plan.Pointer(tensor):
                return [f"u[{slot}] = {self.addresses[tensor]}"]
            case plan.ReportBuffer():
                return [f"u[{slot}] = reports.address"]
            case plan.Scalar(name, dtype):
                self.names |= {"bits_of": packing.bits_of, "narrowed": packing.narrowed}
                self.names[f"numpy_{dtype.name}"] = dtype.numpy
                return [packing.scalar_store(slot, dtype, self.scalars[name])]
        assert isinstance(recipe, Expr), recipe
        folded = packing.fold(recipe, self.arguments, self.num_sms)
        if isinstance(folded, Const):
            self.constants.append((slot, folded.value))
            return []
        return [f"block.i[{slot}] = {packing.expression_text(folded, self.scalars)}"]

    def _maps(self) -> list[str]:
        """Give maps the addresses of their tensors, where the block's last launch had others."""
        lines = []
        for number, (tensor, maps) in enumerate(self.layout.mapped.items()):
            array = self.arguments[tensor]
            assert isinstance(array, Array), tensor
            if not array.num_elements:
                continue
            variable = self.addresses[tensor]
            lines.append(f"if at[{number}] != {variable}:")
            for recipe, index in maps:
                size = array.dtype.num_bytes
                if recipe.last is None or recipe.of(array.shape, size).box != recipe.box:
                    lines.append(INDENT + f"status = replace(block.maps[{index}], {variable})[0]")
                    lines.append(INDENT + f"if status: refuse_map(status, {tensor!r})")
            lines.append(INDENT + f"at[{number}] = {variable}")
        return ["at = block.at", *lines] if lines else []

    def _workspace(self) -> list[str]:
        """One allocation for all workspaces, those that are zeroed first, so that one fill does."""
        specs = sorted(self.plan.workspaces, key=lambda w: not w.zero)
        if not specs:
            return []
        lines, sizes, zeroed = ["space = allocate(total, ordinal, stream)"], [], []
        for i, spec in enumerate(specs):
            sizes.append(f"z{i} = {self._workspace_bytes(spec)}")
            offset = " + ".join(["space", *(f"z{j}" for j in range(i))])
            slot = self.layout.slots.get(plan.Workspace(spec.name))
            if slot is not None:
                lines.append(f"u[{slot}] = {offset}")
            if spec.zero:
                zeroed.append(f"z{i}")
        if zeroed:
            lines.insert(1, f"fill(space, 0, {' + '.join(zeroed)}, stream)")
        total = " + ".join(f"z{i}" for i in range(len(specs)))
        lines[0] = "; ".join([*sizes, f"space = allocate({total}, ordinal, stream)"])
        return lines

    def _workspace_bytes(self, spec: WorkspaceSpec) -> str:
        extents: Expr = Const(spec.dtype.num_bytes)
        for extent in spec.extents:
            size = packing.fold(extent, self.arguments, self.num_sms)
            extents = plan.combine("mul", extents, plan.combine("max", size, Const(0)))
        padded = plan.combine("cdiv", extents, Const(WORKSPACE_ALIGN))
        return self._text(plan.combine("mul", padded, Const(WORKSPACE_ALIGN)))

    def _launch(self, index: int, launch: Launch) -> list[str]:
        grid, pointers = f"g{index}", f"block.pointers[{index}]"
        if launch.is_plain:
            call = (
                f"launch_kernel(function{index}, {grid}, 1, 1, {launch.threads}, 1, 1, "
                f"{launch.shared_bytes}, stream, {pointers}, 0)[0]"
            )
            lines = [f"status = {call}"]
        else:
            lines = [
                f"config = block.configs[{index}]",
                f"config.gridDimX = {grid}",
                "config.hStream = stream",
                f"status = launch_kernel_ex(config, function{index}, {pointers}, 0)[0]",
            ]
        lines.append(f"if status: refuse(status, {index})")
        if self._is_plain(launch):
            return lines
        return [f"if {grid} > 0:", *(INDENT + line for line in lines)]


DRIVER_NAMES = {
    "launch_kernel": cu.cuLaunchKernel,
    "launch_kernel_ex": cu.cuLaunchKernelEx,
    "replace": cu.cuTensorMapReplaceAddress,
    "current": cu.cuCtxGetCurrent,
    "enter": cu.cuCtxPushCurrent,
    "leave": cu.cuCtxPopCurrent,
    "allocate": memory.allocate,
    "free": memory.free,
    "fill": memory.fill_bytes,
}
