"""Models how a kubelet admits pods on a node with zones: its CPU manager, memory manager, device manager and topology manager.

The model counts: a zone has amounts of each class, not single CPUs, pages or devices. Zones are in the order of their
numbers; the kubelet takes the lowest that fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol

from moorage.podspec import ContainerResources, pod_requests
from moorage.qos.topology_hints import Hint, TopologyPolicy, TopologyScope, merge

Amounts = Mapping[str, int]
#: The reason and the message with which a kubelet fails such a pod.
TOPOLOGY_AFFINITY_ERROR = "TopologyAffinityError"
TOPOLOGY_AFFINITY_MESSAGE = "Resources cannot be allocated with Topology locality"
_HUGEPAGES = "hugepages-"
_NEVER_ALIGNED = frozenset(("pods", "ephemeral-storage"))


class TopologyManager(NamedTuple):
    """The alignment of a node. `static_cpu`: its CPU manager gives whole cores to Guaranteed containers."""

    policy: TopologyPolicy = "none"
    scope: TopologyScope = "container"
    static_cpu: bool = True

    @property
    def rejects(self) -> bool:
        return self.policy in ("restricted", "single-numa-node")


class ContainerRequests(Protocol):
    """The requests of a container. CPU is in milli. Init containers stand in their order; a sidecar is one that keeps running."""

    @property
    def requests(self) -> Mapping[str, int]: ...
    @property
    def init(self) -> bool: ...
    @property
    def sidecar(self) -> bool: ...


class ZoneAmounts(NamedTuple):
    """A zone: its amounts when nothing runs there (CPU: with what is reserved for the system), and what is free. CPU is in
    milli."""

    total: Amounts
    free: Amounts


class Step(NamedTuple):
    """Amounts that a kubelet aligns at once. Those of an init container are used again by the steps after it."""

    amounts: tuple[tuple[str, int], ...]
    reusable: bool = False


#: What is aligned of a pod, in order. Empty: the pod fits in any zones.
Alignment = tuple[Step, ...]


def alignment(
    containers: Iterable[ContainerRequests], guaranteed: bool, manager: TopologyManager, reported: frozenset[str]
) -> Alignment:
    """Returns what a kubelet aligns of a pod on a node whose zones report these classes."""
    if not manager.rejects:
        return ()
    return aligned_steps(containers, guaranteed, manager, reported)


def aligned_steps(
    containers: Iterable[ContainerRequests], guaranteed: bool, manager: TopologyManager, reported: frozenset[str]
) -> Alignment:
    """Returns what a kubelet takes from zones for a pod, also where it does not insist on aligning it."""
    cpu = guaranteed and manager.static_cpu
    asked = [
        ContainerResources("", _aligned(c.requests, cpu, guaranteed, reported), {}, c.init, c.sidecar)
        for c in containers
    ]
    if manager.scope == "pod":
        steps = [Step(_key(pod_requests(asked)))]
    else:
        starting = [Step(_key(c.requests), reusable=not c.sidecar) for c in asked if c.init]
        steps = starting + [Step(_key(c.requests)) for c in asked if not c.init]
    return tuple(step for step in steps if step.amounts)


def _aligned(requests: Amounts, cpu: bool, memory: bool, reported: frozenset[str]) -> dict[str, int]:
    return {
        name: amount
        for name, amount in requests.items()
        if amount > 0
        and name in reported
        and name not in _NEVER_ALIGNED
        and (cpu and amount % 1000 == 0 if name == "cpu" else memory or not is_memory(name))
    }


def _key(amounts: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def is_memory(name: str) -> bool:
    """Tells whether the memory manager gives this class: for it, zones join groups."""
    return name == "memory" or name.startswith(_HUGEPAGES)


class Zone:
    """A zone while pods come and go. `group`: the zones (as bits) that the memory of `users` spans; 0 without any."""

    __slots__ = ("free", "group", "total", "users")

    def __init__(self, amounts: ZoneAmounts) -> None:
        self.total = dict(amounts.total)
        self.free = {name: _usable(name, amounts.free.get(name, 0)) for name in amounts.total}
        self.group = 0
        self.users = 0


def _usable(name: str, amount: int) -> int:
    """Cuts CPU to whole cores: no other is given to a container alone. A zone of which more is taken than it has gives nothing."""
    return max(0, amount // 1000 * 1000 if name == "cpu" else amount)


class Taken(NamedTuple):
    """The amounts that a pod took from zones: (zone, class, amount), and the sets of zones that its memory spans."""

    amounts: tuple[tuple[int, str, int], ...]
    memory: tuple[int, ...]


class Kubelet:
    """The zones of one node. `admit` takes what a pod needs from them or, if it is refused, nothing."""

    def __init__(self, manager: TopologyManager, zones: Sequence[ZoneAmounts]) -> None:
        self.manager = manager
        self.zones = [Zone(amounts) for amounts in zones]
        self.reported = frozenset(name for zone in zones for name in zone.total)

    def admit(self, steps: Alignment) -> Taken | None:
        """Admits a pod: returns what it took, or None if it is refused."""
        admission = Admission(self)
        for step in steps:
            if not admission.take(step):
                admission.undo()
                return None
        return admission.taken()

    def give_back(self, taken: Taken) -> None:
        """Frees what an admitted pod took."""
        for zone, name, amount in taken.amounts:
            self.zones[zone].free[name] += amount
        for mask in taken.memory:
            for zone in _bits(mask):
                found = self.zones[zone]
                found.users -= 1
                if not found.users:
                    found.group = 0

    # --- hints

    def hints(self, name: str, amount: int, reusable: Sequence[Amounts] = ()) -> list[Hint]:
        """Returns the hints for CPU or devices. What the pod may use again must be part of each set of zones."""
        needed = fewest_zones([zone.total.get(name, 0) for zone in self.zones], amount)
        held = sum(1 << i for i, amounts in enumerate(reusable) if amounts.get(name, 0))
        found = []
        for mask in self._masks(needed):
            if mask & held != held:
                continue
            zones = _bits(mask)
            free = sum(self.zones[i].free.get(name, 0) for i in zones)
            free += sum(reusable[i].get(name, 0) for i in zones) if reusable else 0
            if free >= amount:
                found.append(Hint(mask, mask.bit_count() == needed))
        return found

    def memory_hints(self, amounts: Amounts, reusable: Mapping[int, Amounts] | None = None) -> list[Hint]:
        """Returns the hints for all classes of memory together. `reusable`: by the set of zones that it was taken from."""
        needed = fewest_zones_for([zone.total for zone in self.zones], amounts)
        found = []
        for mask in self._masks(needed):
            again = (reusable or {}).get(mask, {})
            if self._may_group(mask) and all(
                sum(self.zones[i].free.get(name, 0) for i in _bits(mask)) + again.get(name, 0) >= amount
                for name, amount in amounts.items()
            ):
                found.append(Hint(mask, mask.bit_count() == needed))
        return found

    def _may_group(self, mask: int) -> bool:
        """A zone that serves memory alone joins no group meanwhile, and one of a group serves no memory alone."""
        groups = [self.zones[i].group for i in _bits(mask)]
        if mask.bit_count() == 1:
            return groups[0].bit_count() < 2
        return all(group in (0, mask) for group in groups)

    def _masks(self, needed: int) -> Iterator[int]:
        """Yields the sets of zones that can be chosen, lowest first among those of one size."""
        count = len(self.zones)
        policy = self.manager.policy
        sizes = [1] if policy == "single-numa-node" else [needed] if policy == "restricted" else range(1, count + 1)
        for size in sizes:
            yield from sorted(sum(1 << i for i in zones) for zones in combinations(range(count), size))


def fewest_zones(totals: Iterable[int], amount: int) -> int:
    """Returns the least number of zones that hold the amount when nothing runs there; all of them if they do not."""
    largest = sorted(totals, reverse=True)
    left = amount
    for count, total in enumerate(largest, 1):
        left -= total
        if left <= 0:
            return count
    return max(1, len(largest))


def fewest_zones_for(totals: Sequence[Amounts], amounts: Amounts) -> int:
    """Returns the least number of zones that hold all the amounts together; all of them if they do not."""
    least = max(fewest_zones([total.get(name, 0) for total in totals], amount) for name, amount in amounts.items())
    for size in range(least, len(totals)):
        for chosen in combinations(totals, size):
            if all(sum(total.get(name, 0) for total in chosen) >= amount for name, amount in amounts.items()):
                return size
    return max(1, len(totals))


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


class Admission:
    """One pod on its way in. `_again` holds per zone, and `_memory_again` per set of zones, what init containers used."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._again: list[dict[str, int]] = [{} for _ in kubelet.zones]
        self._memory_again: dict[int, dict[str, int]] = {}
        self._amounts: dict[tuple[int, str], int] = {}
        self._memory: list[int] = []

    def take(self, step: Step) -> bool:
        kubelet = self._kubelet
        memory = {name: amount for name, amount in step.amounts if is_memory(name)}
        others = [(name, amount) for name, amount in step.amounts if name not in memory]
        hints = [kubelet.hints(name, amount, self._again) for name, amount in others]
        if memory:
            hints += [kubelet.memory_hints(memory, self._memory_again)] * len(memory)
        merged = merge(kubelet.manager.policy, hints, len(kubelet.zones))
        if not merged.admitted:
            return False
        every = (1 << len(kubelet.zones)) - 1
        mask = every if merged.hint.zones is None else merged.hint.zones
        for name, amount in others:
            self._take(name, amount, mask, step.reusable)
        if memory:
            self.take_memory(memory, mask, step.reusable)
        return True

    def _take(self, name: str, amount: int, mask: int, reusable: bool) -> None:
        """Takes CPU or devices: first what may be used again, then whole zones, then those with the least left."""
        chosen = _bits(mask)
        for i in chosen:
            again = min(amount, self._again[i].get(name, 0))
            amount -= again
            if again and not reusable:
                self._again[i][name] -= again
        rest = [i for i in range(len(self._kubelet.zones)) if not mask >> i & 1]  # where the policy does not insist
        for i, given in _spread(self._kubelet.zones, name, amount, chosen, rest):
            self._use(i, name, given)
            if reusable:
                self._again[i][name] = self._again[i].get(name, 0) + given

    def take_memory(self, amounts: Amounts, mask: int, reusable: bool = False) -> None:
        """Takes memory from these zones, the lowest first."""
        zones = self._kubelet.zones
        again = self._memory_again.setdefault(mask, {})
        for name, amount in amounts.items():
            used = min(amount, again.get(name, 0))
            if not reusable:
                again[name] = again.get(name, 0) - used
            left = amount - used
            for i in (*_bits(mask), *(i for i in range(len(zones)) if not mask >> i & 1)):
                given = min(left, zones[i].free.get(name, 0))
                if given:
                    self._use(i, name, given)
                    left -= given
            if reusable:
                again[name] = again.get(name, 0) + amount - used
        for i in _bits(mask):
            zones[i].users += 1
            zones[i].group = mask
        self._memory.append(mask)

    def _use(self, zone: int, name: str, amount: int) -> None:
        self._kubelet.zones[zone].free[name] -= amount
        self._amounts[zone, name] = self._amounts.get((zone, name), 0) + amount

    def taken(self) -> Taken:
        return Taken(tuple((zone, name, n) for (zone, name), n in self._amounts.items()), tuple(self._memory))

    def undo(self) -> None:
        self._kubelet.give_back(self.taken())


def _spread(
    zones: Sequence[Zone], name: str, amount: int, chosen: Sequence[int], rest: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Divides an amount: zones that give all they have when empty come first, then those with the least left."""
    for group in (chosen, rest):
        order = sorted(group, key=lambda i: (zones[i].free.get(name, 0), i))
        whole = [i for i in group if zones[i].total.get(name, 0) == zones[i].free.get(name, 0) <= amount]
        for i in (*whole, *(i for i in order if i not in whole)):
            given = min(amount, zones[i].free.get(name, 0))
            if given:
                yield i, given
                amount -= given
