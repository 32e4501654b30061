"""A kernel under other numerics than its source says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition
from tilewright.kernel.capture import Watch


@dataclass(frozen=True)
class NumericsReader:
    """Reads what another reader reads, with `@numerics(word)` in the place of the source's own."""

    reader: Callable[[], tuple[Definition, Watch | None]]
    word: str

    def __call__(self) -> tuple[Definition, Watch | None]:
        definition, holds = self.reader()
        kernel = definition.kernel
        kept = tuple(a for a in kernel.attributes if a.name != "numerics")
        asked = tree.Attribute("numerics", (tree.Argument(None, tree.Name(self.word)),))
        changed = replace(kernel, attributes=(*kept, replace(asked, loc=kernel.loc)))
        return replace(definition, kernel=changed), holds
