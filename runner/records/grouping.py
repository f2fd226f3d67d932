"""Group items by a key, and collect those that follow from others."""

from collections.abc import Callable, Hashable, Iterable, KeysView
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return ``items`` by their ``key``. Groups, and the items of each, are in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def reachable(starts: Iterable[Key], following: Callable[[Key], Iterable[Key]]) -> KeysView[Key]:
    """Return ``starts`` and all that follows from them, each once, in the order in which they are reached."""
    reached: dict[Key, None] = {}
    waiting = [*starts]
    while waiting:
        if (item := waiting.pop()) not in reached:
            reached[item] = None
            waiting += following(item)
    return reached.keys()
