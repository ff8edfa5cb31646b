"""Plans updates of running containers: sets of CPUs shrink first, what was written is read back, then others grow into what is
free. After every single update nobody else is on the CPUs that a container has for itself."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from moorage.qos.cpusets import format_cpuset, parse_cpuset

from .properties import CPUSET_CPUS

#: A container: the uid of its pod, and its name.
Key = tuple[str, str]
Properties = Mapping[str, str]


class Wanted(NamedTuple):
    """The settings that a container should have. `exclusive`: nobody else may be on its CPUs."""

    properties: Properties
    exclusive: bool = False


class Update(NamedTuple):
    """Properties to write to a container. Who performs it answers with what is read back afterwards, or None where the
    container is gone or cannot be written."""

    key: Key
    properties: Properties


class Adjusted(NamedTuple):
    """`done`: containers that are as they should be, having been changed. `failed`: those that are not, and why."""

    done: tuple[Key, ...]
    failed: Mapping[Key, str]
    restored: bool = False


Reads = Sequence[Properties | None]
Plan = Generator[Sequence[Update], Reads, Adjusted]


def drift(wanted: Mapping[Key, Wanted], actual: Mapping[Key, Properties]) -> list[Key]:
    """Returns the containers that have something else than they should."""
    return [key for key, want in wanted.items() if key in actual and _different(want.properties, actual[key])]


def adjust(wanted: Mapping[Key, Wanted], actual: Mapping[Key, Properties], *, all_or_nothing: bool = False) -> Plan:
    """Plans from what is read back now to what is wanted. Updates of a batch may be made at once. With `all_or_nothing`, a
    failure gives every container back what it had."""
    plan = _Plan(wanted, actual)
    first = plan.shrinks()
    if first:
        plan.read((yield first), first)
    while not (all_or_nothing and plan.failed):
        batch = plan.grows()
        if not batch:
            break
        plan.read((yield batch), batch)
    plan.mark_stuck()
    if not (all_or_nothing and plan.failed):
        return Adjusted(tuple(plan.changed - plan.failed.keys()), plan.failed)
    back = {key: Wanted(plan.before[key], wanted[key].exclusive) for key in plan.changed}
    undo = _Plan(back, {key: plan.now[key] for key in plan.changed})
    for step in (undo.shrinks, undo.grows):
        while batch := step():
            undo.read((yield batch), batch)
    return Adjusted((), plan.failed, restored=True)


class _Plan:
    def __init__(self, wanted: Mapping[Key, Wanted], actual: Mapping[Key, Properties]) -> None:
        self.wanted = {key: want for key, want in wanted.items() if key in actual}
        self.before: dict[Key, Properties] = {key: dict(found) for key, found in actual.items()}
        self.now: dict[Key, Properties] = dict(self.before)
        self.failed: dict[Key, str] = {}
        self.changed: set[Key] = set()
        self._cpus: dict[Key, int] = {}
        self._target: dict[Key, int] = {}
        for key, found in actual.items():
            self._cpus[key] = _cpus(found)
            self._target[key] = _cpus(wanted[key].properties) if key in wanted else 0
        # A container that is not wanted to be anything stays where it is, and nobody may have its CPUs for himself.
        self._exclusive = {key for key, want in self.wanted.items() if want.exclusive}

    def shrinks(self) -> list[Update]:
        """Returns updates to what containers have and keep, where that is something and less than they have."""
        batch = []
        for key in self.wanted:
            now, target = self._cpus[key], self._target[key]
            kept = now & target
            if key not in self.failed and now and kept and kept != now:
                rest = {} if kept != target else self._others(key)
                batch.append(Update(key, {CPUSET_CPUS: format_cpuset(kept), **rest}))
        return batch

    def grows(self) -> list[Update]:
        """Returns updates to what is wanted that do not touch CPUs of others, together and one by one."""
        batch: list[Update] = []
        # Who is updated in this batch may be on the old CPUs or the new ones while the others are updated.
        occupied = dict(self._cpus)
        for key, want in self.wanted.items():
            if key in self.failed or not _different(want.properties, self.now[key]):
                continue
            target = self._target[key]
            if not target or target == self._cpus[key] or self._is_free(key, target, occupied):
                batch.append(Update(key, self._others(key) | ({CPUSET_CPUS: format_cpuset(target)} if target else {})))
                occupied[key] |= target
        return batch

    def _is_free(self, key: Key, target: int, occupied: Mapping[Key, int]) -> bool:
        alone = key in self._exclusive
        return not any(
            cpus & target & ~self._cpus[key] and (alone or other in self._exclusive)
            for other, cpus in occupied.items()
            if other != key
        )

    def _others(self, key: Key) -> dict[str, str]:
        """Returns the properties, but for the CPUs, that have to change."""
        now = self.now[key]
        return {
            name: value
            for name, value in self.wanted[key].properties.items()
            if name != CPUSET_CPUS and not _same(name, now.get(name), value)
        }

    def read(self, reads: Reads, batch: Sequence[Update]) -> None:
        """Takes over what is read back. Only what was written must be there: some runtimes do not show the rest."""
        for update, found in zip(batch, reads, strict=True):
            key = update.key
            if found is None:
                self.failed[key] = "it could not be updated"
                continue
            self.changed.add(key)
            self.now[key] = {**self.now[key], **found}
            self._cpus[key] = _cpus(self.now[key])
            wrong = [name for name, value in update.properties.items() if not _same(name, found.get(name), value)]
            if wrong:
                name = wrong[0]
                self.failed[key] = f"{name} should be {update.properties[name]}, and is {found.get(name)}"

    def mark_stuck(self) -> None:
        for key, want in self.wanted.items():
            if key not in self.failed and _different(want.properties, self.now[key]):
                others = sorted(
                    f"{uid}/{name}"
                    for (uid, name), cpus in self._cpus.items()
                    if (uid, name) != key
                    and cpus & self._target[key]
                    and ((uid, name) in self._exclusive or want.exclusive)
                )
                self.failed[key] = f"its CPUs are still used by {', '.join(others)}"


def _cpus(properties: Properties) -> int:
    try:
        return parse_cpuset(properties.get(CPUSET_CPUS, ""))
    except ValueError:
        return 0


def _different(wanted: Properties, actual: Properties) -> bool:
    return any(not _same(name, actual.get(name), value) for name, value in wanted.items())


def _same(name: str, one: str | None, other: str | None) -> bool:
    """Compares two values of a property: lists of CPUs and nodes as sets. What a runtime does not show is as it should be."""
    if one is None or other is None:
        return one is None or one == other
    if name in (CPUSET_CPUS, "CpusetMems"):
        try:
            return parse_cpuset(one) == parse_cpuset(other)
        except ValueError:
            return False
    return one == other
