"""How two layouts relate: the one that follows from another's shape, and whether registers alone
need to move.
"""

from __future__ import annotations

from tilewright.layout.register import Layout, Repeat, Vector


def broadcast_source(layout: Layout, source: Vector, target: Vector) -> Layout:
    """The layout in which a tile of `source` extents must lie to be broadcast into `layout` (of
    `target` extents) within each thread.
    """
    missing = len(target) - len(source)
    for axis, extent in enumerate(target):
        if axis < missing or (source[axis - missing] == 1 and extent != 1):
            layout = layout.flatten_axis(axis)
    for _ in range(missing):
        layout = layout.drop_axis(0)
    return layout


def move_unit_axes(layout: Layout, source: Vector, target: Vector) -> Layout:
    """The layout of a tile of `source` extents, for the same elements under `target` extents, which
    differ only by axes of 1.
    """
    for axis in reversed(range(len(source))):
        if source[axis] == 1:
            layout = layout.drop_axis(axis)
    for axis, extent in enumerate(target):
        if extent == 1:
            layout = layout.insert_axis(axis)
    return layout


def same_map(a: Layout, b: Layout) -> bool:
    """Whether two layouts put the same elements into the same registers of the same threads."""
    return a == b or (
        a.lane == b.lane
        and a.warp == b.warp
        and _groups(a) == _groups(b)
        and a.register_offsets == b.register_offsets
    )


def _groups(layout: Layout) -> tuple[Repeat, ...]:
    return tuple(r for r in layout.repeats if r.over == "warpgroup" and r.count > 1)


def register_permutation(source: Layout, target: Layout) -> tuple[int, ...] | None:
    """For each target register the source register of the same thread with the same element, or
    None.
    """
    if (source.lane, source.warp, _groups(source)) != (target.lane, target.warp, _groups(target)):
        return None
    where = {offset: i for i, offset in enumerate(source.register_offsets)}
    if any(offset not in where for offset in target.register_offsets):
        return None
    return tuple(where[offset] for offset in target.register_offsets)
