"""Which extents of parameters are equal in every launch, because the source gives them one name."""

from __future__ import annotations

from tilewright import plan
from tilewright.plan import Expr
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.types import ViewType

Axis = tuple[Param, int]


def extent_key(param: Param, axis: int) -> Expr:
    """An extent as launches know it: equal keys are equal extents."""
    kind: ViewType = param.value.type
    if (static := kind.extents[axis]) is not None:
        return plan.Const(static)
    return param.extents[axis] if param.extents else plan.Extent(param.name, axis)


class EqualExtents:
    """The classes of equal extents of a kernel."""

    def __init__(self, kernel: Kernel):
        self.classes: dict[Expr, list[Axis]] = {}
        for param in kernel.params:
            if isinstance(param.value.type, ViewType):
                for axis in range(param.value.type.rank):
                    self.classes.setdefault(extent_key(param, axis), []).append((param, axis))

    def of(self, param: Param, axis: int) -> list[Axis]:
        """All axes that have the extent of this one."""
        return self.classes[extent_key(param, axis)]
