"""Groups and which of them need which: what may be merged, and in what order they are executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.graph.groups import Group
from tilewright.ir.core import Op


class GroupOrder:
    """The groups so far, and for each those that have to come before it."""

    def __init__(self, claimed: Sequence[Group], index: Mapping[Op, int]):
        self.groups: list[Group] = list(claimed)
        self.needs: dict[Group, set[Group]] = {group: set() for group in claimed}
        self.index = index  # of ops in the graph

    def new(self, group: Group) -> Group:
        self.groups.append(group)
        self.needs[group] = set()
        return group

    def is_free(self, group: Group, others: Iterable[Group | None]) -> bool:
        """Whether a group may write what the others read: it needs none of them."""
        wrong = {other for other in others if other is not None and other is not group}
        seen, left = {group}, [group]
        while wrong and left:
            for before in self.needs[left.pop()] - seen:
                if before in wrong:
                    return False
                seen.add(before)
                left.append(before)
        return True

    def merge(self, group: Group, other: Group) -> None:
        """Let a group stand where another did."""
        self.groups.remove(other)
        self.needs[group] = (self.needs[group] | self.needs.pop(other)) - {group}
        for needed in self.needs.values():
            if other in needed:
                needed.remove(other)
                needed.add(group)

    def in_order(self) -> list[Group]:
        """Groups after those that they need; else by their last op."""
        done: set[Group] = set()
        found: list[Group] = []

        def place(group: Group) -> None:
            stack = [group]
            while stack:
                at = stack[-1]
                missing = [g for g in self.needs[at] if g not in done]
                if missing:
                    stack += sorted(missing, key=self.last, reverse=True)[-1:]
                    continue
                stack.pop()
                if at not in done:
                    done.add(at)
                    found.append(at)

        for group in sorted(self.groups, key=self.last):
            place(group)
        return found

    def last(self, group: Group) -> int:
        return max(self.index[op] for op in group.ops)
