"""Keeps values until they become due, each after the same delay."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Delayed(Generic[T]):
    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._values: dict[str, tuple[float, T]] = {}  # in the order in which they become due

    def __bool__(self) -> bool:
        return bool(self._values)

    def put(self, key: str, value: T, now: float) -> None:
        """Starts the delay. A value that the key has already is replaced."""
        self._values.pop(key, None)
        self._values[key] = now + self._delay, value

    def get(self, key: str) -> T | None:
        found = self._values.get(key)
        return None if found is None else found[1]

    def pop(self, key: str) -> T | None:
        found = self._values.pop(key, None)
        return None if found is None else found[1]

    def next_due(self) -> float | None:
        return next((due for due, _ in self._values.values()), None)

    def due(self, now: float) -> list[str]:
        """Returns the keys whose values are due. The values stay until they are popped."""
        keys: list[str] = []
        for key, (due, _) in self._values.items():
            if due > now:
                break
            keys.append(key)
        return keys
