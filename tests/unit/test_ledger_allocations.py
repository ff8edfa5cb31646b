"""Tests allocations of the Placement interface, folded from the log: generations, deposed workers, reshapes and snapshots."""

from __future__ import annotations

import msgspec

from moorage.ledger import Capacity, Ledger
from moorage.ledger.entries import Batch, handler_of
from moorage.model.allocations import Consumer, ConsumerWrite, InventoryRecord
from moorage.model.claims import Allocation, Commit
from moorage_testkit.fleets import fleet_of

A, B, P, Q = "consumer-a", "consumer-b", "provider-p", "provider-q"


def write(consumer: str, expected: int | None, *named: str, amount: int = 1) -> ConsumerWrite:
    allocations = {provider: {"VCPU": amount} for provider in named} if amount else {}
    new = Consumer(uuid=consumer, project="p", user="u", generation=(expected or 0) + 1, allocations=allocations)
    return ConsumerWrite(consumer=new, expected=expected, named=named)


class Log:
    def __init__(self) -> None:
        self.ledger = Ledger()

    def fold(self, *entries: Allocation) -> tuple[str, ...]:
        """Appends a commit. Returns the ids of the entries that changed nothing."""
        seq = self.ledger.seq + 1
        return self.ledger.fold(seq, Commit(id=str(seq), entries=list(entries))).refused

    def held(self) -> dict[str, dict[str, dict[str, int]]]:
        return {consumer.uuid: consumer.allocations for consumer in self.ledger.allocations.consumers.values()}


def test_an_entry_replaces_what_its_consumers_hold_whole_or_not_at_all() -> None:
    log = Log()
    assert log.fold(Allocation(id="1", generation=1, writes=[write(A, None, P), write(B, None, P, Q)])) == ()
    assert log.fold(Allocation(id="2", generation=1, writes=[write(A, 1, Q), write(B, None, P)])) == ("2",)
    assert log.held() == {A: {P: {"VCPU": 1}}, B: {P: {"VCPU": 1}, Q: {"VCPU": 1}}}
    assert log.fold(Allocation(id="3", generation=1, writes=[write(A, 1, Q), write(B, 1, P, amount=0)])) == ()
    assert log.held() == {A: {Q: {"VCPU": 1}}}
    assert log.ledger.allocations.writes == {P: 3, Q: 2}, "emptying counts; what is refused does not"
    assert log.fold(Allocation(id="4", generation=1, writes=[write(B, None, Q)])) == (), "it is new again"


def test_a_deposed_worker_changes_nothing() -> None:
    log = Log()
    log.fold(Allocation(id="1", generation=1, writes=[write(A, None, P)]))
    log.fold(Allocation(id="2", generation=2))
    assert log.fold(Allocation(id="3", generation=1, writes=[write(A, 1, Q)])) == ("3",)
    assert log.held() == {A: {P: {"VCPU": 1}}}


def test_entries_of_one_commit_are_checked_one_after_the_other() -> None:
    log = Log()
    batch = Batch(log.ledger, Capacity(fleet_of({}), log.ledger))
    handler = handler_of(Allocation(id="", generation=1))
    chain = [write(A, None, P), write(A, 1, Q), write(A, 1, P), write(A, 2, amount=0), write(A, None, P)]
    entries = [Allocation(id=str(i), generation=1, writes=[one]) for i, one in enumerate(chain)]
    refused = [entry.id for entry in entries if handler.check(entry, batch) is not None]
    assert refused == ["2"] and log.fold(*entries) == ("2",)


def test_deleted_providers_are_forgotten_before_they_are_named_again() -> None:
    log = Log()
    log.fold(Allocation(id="1", generation=1, writes=[write(A, None, P)]))
    log.fold(Allocation(id="2", generation=1, writes=[write(A, 1, P)], forgotten=[P]))
    assert log.ledger.allocations.writes == {P: 1}


def test_exchanges_stand_until_their_records_are_written() -> None:
    log = Log()
    new = {"VGPU": InventoryRecord(total=8)}
    log.fold(Allocation(id="1", generation=1, writes=[write(A, None, P)], inventories={P: new}))
    log.fold(Allocation(id="2", generation=1, inventories={Q: new}))
    log.ledger = Ledger.decode(log.ledger.encode())
    assert {p: (e.seq, e.inventories) for p, e in log.ledger.allocations.exchanges.items()} == {
        P: (1, new),
        Q: (2, new),
    }
    log.fold(Allocation(id="3", generation=1, recorded=1))
    assert log.ledger.allocations.exchanges.keys() == {Q}


def test_snapshots_keep_allocations_and_older_ones_have_none() -> None:
    log = Log()
    log.fold(Allocation(id="1", generation=7, writes=[write(A, None, P), write(B, None, Q, amount=3)]))
    again = Ledger.decode(log.ledger.encode())
    assert again.allocations.consumers == log.ledger.allocations.consumers
    assert (again.allocations.writes, again.allocations.generation) == ({P: 1, Q: 1}, 7)
    older = msgspec.msgpack.decode(log.ledger.encode())
    del older["allocations"]
    assert Ledger.decode(msgspec.msgpack.encode(older)).allocations.consumers == {}
