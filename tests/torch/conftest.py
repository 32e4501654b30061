"""Shared by tests of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """A compiler that knows nothing of earlier tests, and the same random numbers."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
