"""Finds claims whose pods run, all of them and for a while, on other nodes than claimed."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.ledger import Capacity, Ledger
from moorage.model.claims import Slot

#: Seconds that pods have to stay on other nodes.
STABLE = 1.0


def displaced_slots(ident: str, ledger: Ledger, capacity: Capacity) -> list[Slot] | None:
    """Returns the slots on the nodes where the claim's pods run; None if the claim needs no other slots."""
    active = ledger.claims.get(ident)
    return capacity.displaced(active.claim) if active is not None and not active.withdrawn else None


class DisplacedClaims:
    def __init__(self) -> None:
        self._suspects: set[str] = set()  # claims whose pods or slots changed since the last look
        self._since: dict[str, tuple[float, list[Slot]]] = {}  # claim → since when its pods need these slots

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    def suspect(self, claims: Iterable[str]) -> None:
        self._suspects.update(claims)

    def next_due(self) -> float | None:
        return min((since + STABLE for since, _ in self._since.values()), default=None)

    def take_due(self, ledger: Ledger, capacity: Capacity, now: float) -> dict[str, list[Slot]]:
        """Returns the claims whose pods have been elsewhere for long enough, with the slots that they need."""
        suspects, self._suspects = self._suspects, set()
        for ident in suspects:
            slots = displaced_slots(ident, ledger, capacity)
            if slots is None:
                self._since.pop(ident, None)
            elif ident not in self._since or self._since[ident][1] != slots:
                self._since[ident] = (now, slots)
        due = {ident: slots for ident, (since, slots) in self._since.items() if now - since >= STABLE}
        for ident in due:
            del self._since[ident]
        return due
