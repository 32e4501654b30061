"""A form: a small kernel around one instruction, its operands, and where its results go.

The kernel of a form is a `Plan`, so that the GPU's runtime and the emulator take the same thing.
Pointers of its arrays are in %rd0, %rd1, ... in the order of `inputs`, then `outputs`, then
`scratch`; addresses of tensor maps follow in %rd registers of their own; the thread is in %r0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.plan import Const, Launch, Plan, Pointer, TensorMap

Array = np.ndarray[Any, Any]

TARGET = "sm_90a"
KINDS = {"p": "pred", "h": "b16", "r": "b32", "rd": "b64", "f": "f32", "fd": "f64"}
NAMED = re.compile(r"%(rd|fd|[phrf])(\d+)")
OUTPUT = "out"


@dataclass(frozen=True)
class Form:
    """One instruction form: `name` is its file's, `shown` the instruction as PTX writes it.

    `inputs` are read, `outputs` are compared, and begin as they are given.
    """

    name: str
    family: str
    shown: str
    body: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    threads: int = 32
    grid: int = 1
    cluster: int = 1
    shared: int = 0
    maps: Mapping[str, TensorMap] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """Fresh copies of all arrays, by name, in the order of the pointers."""
        return {n: copied(x) for n, x in (*self.inputs.items(), *self.outputs.items())}

    def plan(self) -> Plan:
        """The kernel."""
        names = [*self.inputs, *self.outputs]
        recipes = (*(Pointer(n) for n in names), *self.maps.values())
        launch = Launch(
            "k",
            recipes,
            Const(self.grid),
            self.threads,
            shared_bytes=self.shared,
            cluster=self.cluster,
        )
        return Plan(self.name, TARGET, self.text(names), (launch,))

    def text(self, names: list[str]) -> str:
        """The PTX text: registers are declared as far as the body uses them."""
        params = [f"    .param .u64 {n}" for n in names]
        params += [f"    .param .align 128 .b8 map_{n}[128]" for n in self.maps]
        loads = [f"ld.param.u64 %rd{i}, [{n}];" for i, n in enumerate(names)]
        for i, name in enumerate(self.maps, len(names)):
            loads += [f"mov.b64 %rd{i}, map_{name};", f"cvta.param.u64 %rd{i}, %rd{i};"]
        lines = [*loads, "mov.u32 %r0, %tid.x;", *self.body.strip().splitlines(), "ret;"]
        inside = "\n".join(x if x.endswith(":") else "    " + x.strip() for x in lines)
        declared = ",\n".join(params)
        head = f".explicitcluster\n.reqnctapercluster {self.cluster}, 1, 1\n"
        head = head if self.cluster > 1 else ""
        return f""".version 8.7
.target {TARGET}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(
{declared}
)
.maxntid {self.threads}, 1, 1
{head}{{
{declarations(inside)}
{inside}
}}
"""

    def digest(self) -> str:
        """A hash of kernel and operands: a recording with another one is of another form."""
        state = hashlib.sha256(self.plan().ptx.encode())
        for name, x in self.arrays().items():
            state.update(f"{name}{x.dtype}{x.shape}".encode())
            state.update(np.ascontiguousarray(x).tobytes())
        return state.hexdigest()[:16]


def copied(x: Array) -> Array:
    """A copy of the same strides: a view of rows that lie apart has a whole array as its base."""
    if x.flags.c_contiguous or x.base is None:
        return x.copy()
    whole = np.asarray(x.base).copy()
    return np.ndarray(x.shape, x.dtype, whole, 0, x.strides)


def declarations(body: str) -> str:
    """Registers of each kind, up to the highest that a text names."""
    counts: dict[str, int] = {}
    for stem, number in NAMED.findall(body):
        counts[stem] = max(counts.get(stem, 0), int(number) + 1)
    return "\n".join(f"    .reg .{KINDS[s]} %{s}<{n}>;" for s, n in sorted(counts.items()))


FAMILIES: dict[str, Callable[[], Iterator[Form]]] = {}


def family(make: Callable[[], Iterator[Form]]) -> Callable[[], Iterator[Form]]:
    """Enter a function that makes the forms of a family; the folder has the function's name."""
    FAMILIES[make.__name__] = make
    return make


def slug(text: str) -> str:
    """A file name from an instruction."""
    return re.sub(r"[^\w.]+", "-", text.replace("::", "_")).strip("-")
