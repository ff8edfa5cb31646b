"""A dictionary that drops its oldest entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(OrderedDict[K, V]):
    """Keeps at most `limit` entries: writing one makes it the newest and drops the oldest beyond the limit."""

    def __init__(self, limit: int, items: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__()
        self.limit = limit
        self.update(items)

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Returns the value of a key, if there is one, and makes it the newest."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value
