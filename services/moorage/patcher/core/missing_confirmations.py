"""Decides which confirmations to ask agents for again.

Statuses are not on disk yet when a confirmation is answered, so a broker that crashes together with the patcher may lose
them. Confirmations that were only read from the bucket are asked for at once, and those that are long overdue every few
seconds. Those that may still be on their way are not asked for: under load that would double all traffic."""

from __future__ import annotations

from collections.abc import Iterable

from .group_status import Place

#: Seconds that an agent has to confirm what it applied.
PATIENCE = 10.0


class MissingConfirmations:
    def __init__(self) -> None:
        self._expected: dict[
            str, float
        ] = {}  # group → until when confirmations of its desired state may be on their way
        self._due: dict[str, dict[Place, float]] = {}  # when to ask (again) for what was only read or already asked for

    def read(self, group: str, places: Iterable[Place]) -> None:
        """Notes confirmations that were read from the bucket."""
        self._due[group] = dict.fromkeys(places, 0.0)

    def expect(self, group: str, now: float) -> None:
        """Notes that a new desired state was handed out."""
        self._expected[group] = now + PATIENCE

    def received(self, group: str, place: Place) -> None:
        due = self._due.get(group)
        if due is not None:
            due.pop(place, None)
            if not due:
                del self._due[group]

    def end(self, group: str) -> None:
        self._expected.pop(group, None)
        self._due.pop(group, None)

    def asks(self, group: str) -> bool:
        """Returns whether confirmations of the group are asked for although they came before, or were asked for already."""
        return group in self._due

    def ask_now(self, group: str, place: Place, confirmed: bool, now: float) -> bool:
        """Returns whether to ask for this confirmation now; if so, not again for a while. `confirmed`: as far as is
        known."""
        due = self._due.get(group, {}).get(place)
        if due is None:
            if confirmed:
                return False
            due = self._expected.get(group, 0.0)
        if now < due:
            return False
        self._due.setdefault(group, {})[place] = now + PATIENCE
        return True
