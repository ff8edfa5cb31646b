"""Compares an object with what was applied, and decides how often it may be repaired. Times are passed in."""

from __future__ import annotations

import msgspec

from .owned_objects import Live

#: Seconds between repairs of an object that keeps being changed: they grow, and start again after a quiet time.
FIRST_REPAIR, LAST_REPAIR, CALM = 0.2, 30.0, 60.0
#: Metadata that the API server changes by itself.
_VOLATILE = frozenset({"resourceVersion", "managedFields", "generation", "creationTimestamp", "uid", "selfLink"})


def digest(obj: Live) -> int:
    """Hashes the desired state of an object, without its status."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _VOLATILE}
    rest = {k: v for k, v in obj.items() if k not in ("metadata", "status", "apiVersion", "kind")}
    return hash(msgspec.json.encode([metadata, rest], order="sorted"))


def resource_version(obj: Live) -> int:
    """Comparable between states of one object."""
    text = str(obj["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


class AppliedState:
    """The state that the last apply left an object in."""

    def __init__(self, live: Live) -> None:
        self.digest, self.version = digest(live), resource_version(live)

    def differs(self, live: Live) -> bool:
        return resource_version(live) > self.version and digest(live) != self.digest


class RepairBackoff:
    def __init__(self) -> None:
        self._repairs = 0
        self._last = 0.0
        self.not_before = 0.0

    def repair_now(self, now: float) -> bool:
        """Returns whether the object may be repaired now; if so, it counts as repaired."""
        if now < self.not_before:
            return False
        self._repairs = 0 if now - self._last > CALM else self._repairs + 1
        self._last = now
        self.not_before = now + min(LAST_REPAIR, FIRST_REPAIR * 2.0 ** min(self._repairs, 10))
        return True
