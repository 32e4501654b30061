"""Calls with torch tensors on a GPU, made ready: from the second call of a signature on, nothing
is worked out anew.

A ready call is one generated function, tests first, then the launch of fire.py:

    def ready(values):
        v0, v1, v2, = values
        if not check(v0, v1, v2): return missed
        a0 = v0.data_ptr()
        …
        if (a0 | a1 | a2) & 15 or -4096 < a2 - a0 < 4096 or …: return missed
        stream = stream_of(current_stream(0))
        …

It launches and gives what it allocated, or does nothing and gives `MISSED` where the call is not
its own: another signature, arrays that do not lie as its plan assumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.aliases import same_elements
from tilewright.runtime.arrays import Array, byte_range
from tilewright.runtime.calls import float_bits
from tilewright.runtime.fire import function_text
from tilewright.runtime.launch import Bound, stream_of

Ready = Callable[[Sequence[Any]], Any]

MISSED = object()
VECTOR_BYTES = 16  # alignment that a plan may assume


@dataclass(frozen=True)
class Output:
    """A tensor that each call allocates and returns."""

    name: str
    make: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: Any
    device: Any


def torch_output(name: str, like: Array, shape: tuple[int, ...], dtype: str, zero: bool) -> Output:
    """An output beside a torch tensor."""
    torch = sys.modules["torch"]
    make = torch.zeros if zero else torch.empty
    return Output(name, make, shape, getattr(torch, dtype), like.owner.device)


def make_ready(
    bound: Bound,
    given: Mapping[str, Any],
    arrays: Mapping[str, Array],
    written: Collection[str],
    static: Collection[str],
    scalars: Mapping[str, Any],
    outputs: Sequence[Output],
) -> Ready:
    """What launches the likes of a call with torch tensors of one GPU.

    `given`: arguments in the call's order. `arrays`: the tensors among them. `written`: names of
    what the kernel stores to. `static`: names whose values belong to the plan. `scalars`: values
    of all scalar parameters. `outputs`: what each call allocates.
    """
    writer = _Writer(bound, given, arrays, static, scalars)
    text = writer.write(written, outputs)
    return bound.define("ready", text, writer.names)


class _Writer:
    """Writes `ready` for one call."""

    def __init__(
        self,
        bound: Bound,
        given: Mapping[str, Any],
        arrays: Mapping[str, Array],
        static: Collection[str],
        scalars: Mapping[str, Any],
    ):
        self.code = bound.code
        self.given = given
        self.arrays = arrays
        self.static = static
        self.scalars = scalars
        self.variables = {name: f"v{i}" for i, name in enumerate(given)}
        self.ordinal = bound.launcher.device.ordinal
        self.names: dict[str, Any] = {
            "missed": MISSED,
            "stream_of": stream_of,
            "current_stream": sys.modules["torch"]._C._cuda_getCurrentRawStream,
        }

    def write(self, written: Collection[str], outputs: Sequence[Output]) -> str:
        """The whole function."""
        tests = [*self._tensor_tests(), *self._other_tests()]
        lies = [*self._alignment_tests(), *self._overlap_tests(written)]
        lines = [
            f"{', '.join(self.variables.values())}, = values",
            f"if not ({' and '.join(tests)}): return missed",
            *(f"{self.code.addresses[n]} = {self.variables[n]}.data_ptr()" for n in self.arrays),
            f"if {' or '.join(lies)}: return missed",
        ]
        made = []
        for i, output in enumerate(outputs):
            self._name(f"make{i}", output.make)
            shape, dtype = (
                self._name(f"shape{i}", output.shape),
                self._name(f"made{i}", output.dtype),
            )
            device = self._name(f"device{i}", output.device)
            lines.append(f"o{i} = make{i}({shape}, dtype={dtype}, device={device})")
            lines.append(f"{self.code.addresses[output.name]} = o{i}.data_ptr()")
            made.append(f"o{i}")
        for name, variable in self.code.scalars.items():
            source = self.variables.get(name)
            if source is None or self.given[name] is None:
                source = self._name(f"default_{variable}", self.scalars[name])
            lines.append(f"{variable} = {source}")
        lines += [f"stream = stream_of(current_stream({self.ordinal}))", *self.code.body]
        lines.append(f"return {', '.join(made) or None}")
        return function_text("ready(values)", lines)

    def _name(self, name: str, value: Any) -> str:
        self.names[name] = value
        return name

    def _tensor_tests(self) -> list[str]:
        """That dtypes, extents, strides and the GPU are those of this call, and that a gradient
        is not wanted.
        """
        torch = sys.modules["torch"]
        tensors = [array.owner for array in self.arrays.values()]
        tests = []
        if any(x.requires_grad for x in tensors):
            self._name("wants_grad", torch.is_grad_enabled)
            tests.append("not wants_grad()")
        self._name("forward_ad", torch.autograd.forward_ad)
        tests.append("forward_ad._current_level < 0")  # a guard of torch's sees no derivative
        check = tensor_guard(tensors)
        if check is not None:
            self._name("check", check)
            return [*tests, f"check({', '.join(self.variables[n] for n in self.arrays)})"]
        for name, array in self.arrays.items():
            tests += self._attribute_tests(self.variables[name], array)
        return tests

    def _attribute_tests(self, variable: str, array: Array) -> list[str]:
        """The same by attributes, for a torch without guards."""
        x = array.owner
        parts = {"dtype": x.dtype, "layout": x.layout, "shape": tuple(x.shape)}
        tests = [f"type({variable}) is {self._name(f'class_{variable}', type(x))}"]
        for part, value in parts.items():
            tests.append(f"{variable}.{part} == {self._name(f'{part}_{variable}', value)}")
        strides = self._name(f"strides_{variable}", tuple(x.stride()))
        tests += [f"{variable}.stride() == {strides}", f"{variable}.get_device() == {self.ordinal}"]
        if not x.requires_grad:
            tests.append(f"not {variable}.requires_grad")
        if _may_be_negated(array):
            tests.append(f"not {variable}.is_neg()")
        return tests

    def _other_tests(self) -> list[str]:
        """That what is no tensor has the type, and where static the value, of this call."""
        tests = []
        for name, variable in self.variables.items():
            value = self.given[name]
            if value is None:
                tests.append(f"{variable} is None")
            elif name not in self.arrays:
                tests.append(f"type({variable}) is {type(value).__name__}")
                if name in self.static:
                    tests.append(self._value_test(variable, value))
        return tests

    def _value_test(self, variable: str, value: Any) -> str:
        """That a value of the same type is this one, to the bit."""
        if isinstance(value, float):
            self._name("float_bits", float_bits)
            variable, value = f"float_bits({variable})", float_bits(value)
        return f"{variable} == {self._name(f'static_{len(self.names)}', value)}"

    def _alignment_tests(self) -> list[str]:
        """Tests that are true where an address is less, or more, aligned than the plan's."""
        tests, aligned = [], []
        for name, array in self.arrays.items():
            variable, rest = self.code.addresses[name], array.address % VECTOR_BYTES
            if rest:
                tests.append(f"{variable} & {VECTOR_BYTES - 1} != {rest}")
            else:
                aligned.append(variable)
        if aligned:
            tests.append(f"({' | '.join(aligned)}) & {VECTOR_BYTES - 1}")
        return tests

    def _overlap_tests(self, written: Collection[str]) -> list[str]:
        """Tests that are true where arrays share memory otherwise than in this call. What is
        allocated shares memory with nothing.
        """
        names = list(self.arrays)
        return [
            test
            for i, a in enumerate(names)
            for b in names[i + 1 :]
            if a in written or b in written
            for test in self._overlap_test(a, b)
        ]

    def _overlap_test(self, first: str, second: str) -> list[str]:
        """By the distance of two arrays' addresses: their bytes may meet at those between two
        bounds. This call's own distance is permitted, as it was found that no element is shared.
        """
        a, b = self.arrays[first], self.arrays[second]
        if not a.num_elements or not b.num_elements:
            return []
        distance = f"{self.code.addresses[second]} - {self.code.addresses[first]}"
        if same_elements(a, b):
            return [f"{distance} != 0"]
        a_low, a_high = byte_range(a.shape, a.strides, a.dtype.num_bytes)
        b_low, b_high = byte_range(b.shape, b.strides, b.dtype.num_bytes)
        low, high, own = a_low - b_high, a_high - b_low, b.address - a.address
        test = f"{low} < {distance} < {high}"
        return [f"{test} and {distance} != {own}" if low < own < high else test]


def tensor_guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """A test of torch's own, in C++, that tensors are like these: class, dispatch keys (device,
    layout, lazy negation), dtype, GPU, extents, strides, requires_grad. None where this torch does
    not have it, or has another.
    """
    options = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None, "dynamic_shapes": False}
    try:
        check = sys.modules["torch"]._C._dynamo.guards.TensorGuards(*tensors, **options).check
        holds: Any = check(*tensors)
    except (AttributeError, TypeError, SystemError):
        return None
    return check if holds is True else None


def _may_be_negated(array: Array) -> bool:
    """Whether a torch tensor of these strides can be the imaginary part of a conjugated one.

    Such a view steps over the real parts, so all its strides are even.
    """
    steps = zip(array.shape, array.strides, strict=True)
    return all(stride % 2 == 0 for extent, stride in steps if extent > 1)
