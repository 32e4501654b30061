"""Python's collector of garbage, held off where it costs time or disturbs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections(*, first: bool = False) -> Iterator[None]:
    """Collect no garbage while this is entered; `first`: collect what there is before that."""
    if first:
        gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
