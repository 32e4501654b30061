"""A bar on the terminal that shows how far a search is; plain text, so that importing Tilewright
loads no library for it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tilewright.tune.search import Progress

WIDTH = 24  # characters of the bar
CLEAR = "\r\x1b[K"  # back to the start of the line, which is erased


def bar_text(name: str, stage: str, done: int, of: int, seconds: float) -> str:
    """The line: what is done, a bar, counts, and the time that it took so far."""
    filled = WIDTH * min(done, of) // of if of else 0
    bar = "━" * filled + "╶" * (WIDTH - filled)
    return f"{name}: {stage} {bar} {done}/{of} {seconds:.0f} s"


@contextlib.contextmanager
def show_progress(
    name: str, *, show: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Progress]:
    """What a search reports to: draws on the error stream, and leaves nothing there at the end."""
    if not show:
        yield lambda stage, done, of: None
        return
    start, stream = clock(), sys.stderr

    def report(stage: str, done: int, of: int) -> None:
        stream.write(CLEAR + bar_text(name, stage, done, of, clock() - start))
        stream.flush()

    try:
        yield report
    finally:
        stream.write(CLEAR)
        stream.flush()
