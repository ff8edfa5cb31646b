"""Derives from the specs of all workers the subject table, the users of the bus, and the stores to create."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import stores, subjects
from .spec import Subject, WorkerSpec
from .stores import Backup, Bucket, Store, Stream

#: The user that may do everything.
ADMIN = "admin"

#: No worker owns these: every user publishes to the first and answers on the second.
_REJECTED = Subject(subjects.REJECTED, "what was refused, why", "bad messages, kept for a while (a stream)")
_SERVICES = Subject(subjects.SERVICES, "NATS micro service", "which services run, and how they are", request=True)
_SHARED_STORES: tuple[Store, ...] = (
    Bucket(stores.LEASES, backup=Backup.NEVER),
    # The broker keeps an index entry in memory for each subject, and most events have a group's own subject.
    Stream(stores.EVENTS, subjects.EVENTS, max_messages=65_536, max_bytes=256 << 20, max_age_days=1),
    Stream(
        stores.REJECTED,
        subjects.EVERY_REJECTED,
        max_messages=10_000,
        max_bytes=32 << 20,
        max_age_days=7,
        backup=Backup.NEVER,
    ),
)


class SubjectRow(NamedTuple):
    """A row of the subject table: `publishers` may publish, `subscribers` may subscribe."""

    pattern: str
    payload: str
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    description: str
    request: bool
    streamed: bool


class Mesh:
    """The specs of all workers. Specs that contradict each other, or name undeclared subjects or stores, raise
    ValueError."""

    def __init__(self, specs: Iterable[WorkerSpec]) -> None:
        self.specs = sorted(specs, key=lambda spec: (spec.order, spec.name))
        by_name = {spec.name: spec for spec in self.specs}
        if len(by_name) < len(self.specs):
            raise ValueError("two workers have the same name")
        #: What `moorage up` starts and `moorage run` knows, in the order in which they are started.
        self.workers = {name: spec for name, spec in by_name.items() if spec.entry}
        #: The users of the bus, without those of single clusters and nodes.
        self.users = (ADMIN, *(spec.name for spec in self.specs if not (spec.per_cluster or spec.per_node)))
        self.builtin_controllers = [spec for spec in self.workers.values() if spec.controller]
        self.stores = self._stores()
        self.subjects = self._subjects()

    def spec(self, user: str) -> WorkerSpec:
        for spec in self.specs:
            if spec.name == user:
                return spec
        raise ValueError(f"no such user: {user}; there are {', '.join(self.users)}")

    def backed_up(self) -> list[str]:
        """Returns the streams that a backup copies, in this order. Leases are kept only by their number."""
        kept = [store for store in self.stores.values() if store.backup != Backup.NEVER]
        return [store.stream for store in sorted(kept, key=lambda store: store.backup)]

    def _stores(self) -> dict[str, Store]:
        found = {store.name: store for store in _SHARED_STORES}
        for spec in self.specs:
            for store in spec.owns:
                if store.name in found:
                    raise ValueError(f"{spec.name} declares {store.name}, which is declared already")
                found[store.name] = store
        for spec in self.specs:
            for name in (*spec.writes, *spec.reads):
                if name not in found:
                    raise ValueError(f"{spec.name} uses {name}, which no worker declares")
        return found

    def _subjects(self) -> tuple[SubjectRow, ...]:
        declared: dict[str, Subject] = {}
        publishers: dict[str, list[str]] = {_REJECTED.pattern: [*self.users]}
        subscribers: dict[str, list[str]] = {_SERVICES.pattern: [*self.users]}
        for spec in self.specs:
            for used, names in (
                (spec.serves, subscribers),
                (spec.publishes, publishers),
                (spec.subscribes, subscribers),
            ):
                for subject in used:
                    pattern = subject if isinstance(subject, str) else subject.pattern
                    if isinstance(subject, Subject) and declared.setdefault(pattern, subject) != subject:
                        raise ValueError(f"{spec.name} describes {pattern} differently from another worker")
                    if spec.name not in (users := names.setdefault(pattern, [])):
                        users.append(spec.name)
        for common in (_REJECTED, _SERVICES):
            declared[common.pattern] = common
        if unknown := sorted({*publishers, *subscribers} - declared.keys()):
            raise ValueError(f"subjects that no worker describes: {', '.join(unknown)}")
        return tuple(
            SubjectRow(
                pattern,
                subject.payload,
                tuple(publishers.get(pattern, ())),
                tuple(subscribers.get(pattern, ())),
                subject.description,
                subject.request,
                subject.streamed,
            )
            for pattern, subject in declared.items()
        )
