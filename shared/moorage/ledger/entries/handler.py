"""Defines the interface of a kind of entry: how it is folded, and when it may still be appended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from ..capacity import Capacity
    from ..ledger import Ledger

EntryT = TypeVar("EntryT")


class Dropped(msgspec.Struct, frozen=True):
    """The entry is not in the log and will not be. `code` is a reason code, or "" where the room was taken and the group
    may be decided again. `needed`, `free`: of what there is too little, as quantities."""

    code: str
    message: str
    needed: str = ""
    free: str = ""


#: Another entry of the same commit comes first. The entry stays as it is, and is checked again for the next commit.
NEXT_COMMIT = Dropped("", "another entry of the same commit comes first")


@dataclass(slots=True)
class FoldEffects:
    """The effects of the entries of one commit so far. `Changes` explains the fields."""

    groups: set[str] = field(default_factory=set)
    claims: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    released_on: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    consumers: set[str] = field(default_factory=set)
    reservations: set[str] = field(default_factory=set)
    grants: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Batch:
    """The state that entries are checked against before they are appended together. `groups`: those whose claims an entry
    checked before changes, so no other entry of the batch may."""

    ledger: Ledger
    capacity: Capacity
    groups: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)  # clusters that an entry checked before settles
    #: Generations of consumers after the entries checked before; None for a consumer that holds nothing then.
    consumers: dict[str, int | None] = field(default_factory=dict)


class EntryHandler(Generic[EntryT]):
    """The rules of one kind of entry. Entries with a smaller `fold_order` are folded first, equal ones in their order in
    the commit."""

    fold_order = 3

    def fold(self, entry: EntryT, ledger: Ledger, effects: FoldEffects) -> None:
        raise NotImplementedError

    def check(self, entry: EntryT, batch: Batch) -> Dropped | None:
        """Returns why the entry may not be appended, or None. With NEXT_COMMIT it may be, but not in this commit."""
        return None

    def give_back(self, entry: EntryT, capacity: Capacity) -> None:
        """Gives back the room that is held for the entry, once it is in the log or dropped."""

    def took_effect(self, entry: EntryT, ledger: Ledger, refused: tuple[str, ...] | None) -> bool:
        """Returns whether the appended entry changed the ledger. `refused`: what the fold of its commit refused; None if
        the ledger was loaded from a snapshot instead."""
        return True
