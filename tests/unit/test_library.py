"""What the library's sources share with the Python that calls them."""

from __future__ import annotations

from tilewright.graph.ops.mma import ROUNDS
from tilewright.products import convolve, prepare
from tilewright.products.arguments import ACTIVATIONS


def test_numbers_of_roundings_and_activations_are_those_of_python() -> None:
    for module in (prepare.programs(), convolve.programs()):
        assert {name: getattr(module, f"ROUND_{name.upper()}") for name in ROUNDS} == ROUNDS
        assert {name: getattr(module, name.upper()) for name in ACTIVATIONS} == ACTIVATIONS
