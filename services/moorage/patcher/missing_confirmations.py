"""Which confirmations are missing. They are not on disk when they are answered, so a broker that dies with the patcher may
forget them: what was only read is asked for at once, what should have come long ago now and then. What is on its way is
left alone: where much is decided, asking for that would double everything."""

from __future__ import annotations

from collections.abc import Iterable

Place = tuple[str, str]  # app, cluster
#: Seconds that an agent has to confirm what it applied.
PATIENCE = 10.0


class MissingConfirmations:
    def __init__(self) -> None:
        self._wanted: dict[str, float] = {}  # group → until when what this patcher made of it may be on its way
        self._due: dict[str, dict[Place, float]] = {}  # what was only read, or asked for, and when to ask (again)

    def read(self, group: str, places: Iterable[Place]) -> None:
        self._due[group] = dict.fromkeys(places, 0.0)

    def wanted(self, group: str, now: float) -> None:
        self._wanted[group] = now + PATIENCE

    def heard(self, group: str, place: Place) -> None:
        due = self._due.get(group)
        if due is not None:
            due.pop(place, None)
            if not due:
                del self._due[group]

    def ended(self, group: str) -> None:
        self._wanted.pop(group, None)
        self._due.pop(group, None)

    def missing(self, group: str, place: Place, confirmed: bool, now: float) -> bool:
        """Whether to ask for it now; then not again for a while. `confirmed`: as far as is known."""
        due = self._due.get(group, {}).get(place)
        if due is None:
            if confirmed:
                return False
            due = self._wanted.get(group, 0.0)
        if now < due:
            return False
        self._due.setdefault(group, {})[place] = now + PATIENCE
        return True
