"""Graphs of steps as `name -> names that it needs`; every walk is iterative, so depth is no limit."""

from collections import deque
from collections.abc import Collection, Mapping

Needs = Mapping[str, Collection[str]]


def cycles(needs: Needs) -> list[tuple[str, ...]]:
    """Cycles that have no step in common, each the shortest through its first step, which stands at both ends.

    Empty exactly when the graph has no cycle. Names that are no key of `needs` have no needs.
    """
    found: list[tuple[str, ...]] = []
    reported: set[str] = set()
    for start in needs:
        path = None if start in reported else _shortest_way_back(start, needs, reported)
        if path is not None:
            found.append(path)
            reported.update(path)
    return found


def ancestors(name: str, needs: Needs) -> frozenset[str]:
    """All that `name` needs, directly or through others; itself only when it lies on a cycle."""
    seen: set[str] = set()
    waiting = list(needs.get(name, ()))
    while waiting:
        need = waiting.pop()
        if need not in seen:
            seen.add(need)
            waiting.extend(needs.get(need, ()))
    return frozenset(seen)


def _shortest_way_back(start: str, needs: Needs, closed: Collection[str]) -> tuple[str, ...] | None:
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for need in needs.get(name, ()):
            if need == start:
                return (*_path(start, name, came_from), start)
            if need not in came_from and need not in closed:
                came_from[need] = name
                waiting.append(need)
    return None


def _path(start: str, end: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    backwards = [end]
    while backwards[-1] != start:
        backwards.append(came_from[backwards[-1]])
    return tuple(reversed(backwards))
