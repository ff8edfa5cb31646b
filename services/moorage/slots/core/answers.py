"""Tells clusters of their slots: everything, or what changed since the answer that they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from moorage.model.machines import MachinesSync, MachinesSynced

from .planner import Answer

_Item = TypeVar("_Item")


class Told:
    """The newest answer of one cluster. Each answer that differs from the one before it has the next revision."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self.answer = Answer()
        self.revision = 0

    def differs(self, answer: Answer) -> bool:
        return not self.revision or answer != self.answer

    def reply(self, sync: MachinesSync, answer: Answer) -> MachinesSynced:
        """Returns the answer in full unless the cluster has the one before it."""
        before, has = self.answer, (sync.generation, sync.revision) == (self._generation, self.revision)
        if self.differs(answer):
            self.answer = answer
            self.revision += 1
        if not has or not self.revision:
            before = Answer()
        return MachinesSynced(
            cause=sync.id,
            generation=self._generation,
            revision=self.revision,
            full=not has,
            reservations=_changed(before.reservations, answer.reservations),
            reservations_gone=_gone(before.reservations, answer.reservations),
            grants=_changed(before.grants, answer.grants),
            withdrawn=_gone(before.grants, answer.grants),
            waiting=_changed(before.waiting, answer.waiting),
            documents=_changed(before.documents, answer.documents),
            documents_gone=_gone(before.documents, answer.documents),
        )


def _changed(before: Mapping[str, _Item], now: Mapping[str, _Item]) -> list[_Item]:
    return [item for key, item in now.items() if before.get(key) != item]


def _gone(before: Mapping[str, _Item], now: Mapping[str, _Item]) -> list[str]:
    return sorted(before.keys() - now.keys())
