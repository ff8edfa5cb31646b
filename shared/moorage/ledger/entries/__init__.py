"""The kinds of entries in the decision log. Each kind's rules are in one module, registered in `HANDLERS`."""

from __future__ import annotations

from typing import Any

from moorage.model.claims import (
    Allocation,
    Decision,
    Entry,
    LedgerEntry,
    Reassignment,
    Release,
    Settlement,
    SlotGrants,
    SlotReservations,
    Withdrawal,
)

from .allocation import AllocationHandler
from .decision import DecisionHandler
from .handler import Batch, Dropped, EntryHandler, FoldEffects
from .machines import GrantHandler, ReservationHandler
from .reassignment import ReassignmentHandler
from .release import ReleaseHandler
from .settlement import SettlementHandler
from .withdrawal import WithdrawalHandler

HANDLERS: dict[type[LedgerEntry], EntryHandler[Any]] = {
    Withdrawal: WithdrawalHandler(),
    Release: ReleaseHandler(),
    Decision: DecisionHandler(),
    Reassignment: ReassignmentHandler(),
    Settlement: SettlementHandler(),
    Allocation: AllocationHandler(),
    SlotReservations: ReservationHandler(),
    SlotGrants: GrantHandler(),
}


def handler_of(entry: Entry) -> EntryHandler[Any]:
    return HANDLERS[type(entry)]


def fold_order(entry: Entry) -> int:
    """Sorts a commit's entries into the order in which they are folded. The sort is stable."""
    return HANDLERS[type(entry)].fold_order


__all__ = ["HANDLERS", "Batch", "Dropped", "EntryHandler", "FoldEffects", "fold_order", "handler_of"]
