"""Tells which objects may be written now: none twice at once, none again at once after a conflict or a refusal, and what others keep
changing not too often. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .effects import Effect

Key = tuple[str, str, str]
#: What others changed is put back at once, and of one object not again before this many seconds.
REPAIR_INTERVAL = 30.0
#: Seconds until a request is repeated that found another version, which comes with a watch, and one that was refused.
CONFLICT_RETRY, REFUSED_RETRY = 0.3, 5.0


class ObjectWrites:
    """Keys are kind, namespace and name. `later`: when something of a key is looked at again."""

    def __init__(self) -> None:
        self.later: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._put_off: dict[Key, float] = {}  # after a conflict or a refusal
        #: By key, and by what of the object it is: what was written last, and when it was put back last.
        self._repaired: dict[Key, dict[str, tuple[Mapping[str, Any], float]]] = {}

    def next_times(self, now: float) -> list[float]:
        """Forgets times that are over, and returns the others."""
        times = [time for time in self.later.values() if time > now]
        for waiting in (self.later, self._put_off):
            for key in [key for key, time in waiting.items() if time <= now]:
                del waiting[key]
        return [*times, *self._put_off.values()]

    def is_busy(self, key: Key) -> bool:
        """Returns whether a request for an object is under way."""
        return key in self._busy

    def is_put_off(self, key: Key, now: float) -> bool:
        return max(self.later.get(key, 0.0), self._put_off.get(key, 0.0)) > now

    def is_free(self, key: Key, now: float) -> bool:
        return key not in self._busy and not self.is_put_off(key, now)

    def is_new(self, key: Key) -> bool:
        """Returns whether nothing of an object is under way or failed lately."""
        return key not in self._busy and not self._put_off.get(key)

    def may_repair(self, key: Key, wanted: Mapping[str, Any], now: float, times: list[float], part: str = "") -> bool:
        """Returns whether a part of an object may be written: at once if something else is wanted of it than before or it is repaired for
        the first time, else not before REPAIR_INTERVAL."""
        if self.is_put_off(key, now):
            return False
        repaired = self._repaired.setdefault(key, {})
        before = repaired.get(part)
        if before is not None and before[0] == wanted and now < before[1] + REPAIR_INTERVAL:
            times.append(before[1] + REPAIR_INTERVAL)
            # Not the time of the object: what else is wanted of it does not wait.
            self.later["Repair", "/".join(key), part] = before[1] + REPAIR_INTERVAL
            return False
        # The first write of something new is not a repair; the next one is.
        at = now if before is not None and before[0] == wanted else 0.0
        repaired[part] = (wanted, at)
        return True

    def forget(self, key: Key) -> None:
        """Forgets an object that is gone and is not made again by us."""
        self._repaired.pop(key, None)

    # --- what becomes of requests

    def begin(self, effects: Iterable[Effect]) -> None:
        self._busy |= {effect.key for effect in effects if effect.verb != "event"}

    def end(self, key: Key) -> None:
        self._busy.discard(key)

    def end_all(self) -> None:
        self._busy.clear()
        self._repaired.clear()

    def note_failure(self, key: Key, now: float, *, refused: bool, known: bool) -> None:
        """Notes that a request changed nothing. `known`: what it missed has been seen since."""
        if refused or not known:
            self._put_off[key] = now + (REFUSED_RETRY if refused else CONFLICT_RETRY)
        self._repaired.pop(key, None)

    def note_news(self, key: Key) -> None:
        """Notes that another version of an object was seen, so that a request can be repeated."""
        self._put_off.pop(key, None)
