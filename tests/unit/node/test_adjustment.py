"""Updates of running containers never put anybody on CPUs that another container has for itself."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.node.core.adjustment import Adjusted, Key, Wanted, adjust, drift
from moorage.qos.cpusets import format_cpuset, parse_cpuset

CPUS = 12


def key(number: int) -> Key:
    return f"uid-{number}", "c"


class Machine:
    """Containers with their sets; `broken` ones cannot be written, and `stubborn` ones keep what they have."""

    def __init__(
        self, sets: Mapping[Key, int], exclusive: set[Key], broken: frozenset[Key] = frozenset(), order: int = 0
    ) -> None:
        self.sets = dict(sets)
        self.exclusive = exclusive
        self.broken = broken
        self.updates = 0
        self._random = random.Random(order)
        self._before = self.overlaps()

    def overlaps(self) -> set[tuple[Key, Key, int]]:
        return {
            (a, b, self.sets[a] & self.sets[b])
            for a in self.exclusive & self.sets.keys()
            for b in self.sets
            if a != b and self.sets[a] & self.sets[b]
        }

    def perform(self, wanted: Mapping[Key, Wanted], *, all_or_nothing: bool = False) -> Adjusted:
        actual = {k: {"CpusetCpus": format_cpuset(s)} for k, s in self.sets.items()}
        plan = adjust(wanted, actual, all_or_nothing=all_or_nothing)
        try:
            batch = next(plan)
            while True:
                answers = {}
                for update in self._random.sample(list(batch), len(batch)):
                    if update.key not in self.broken:
                        cpus = parse_cpuset(update.properties["CpusetCpus"])
                        assert cpus, "a set was emptied"
                        self.sets[update.key] = cpus
                        self.updates += 1
                        now = {(a, b) for a, b, _ in self.overlaps()}
                        assert now <= {(a, b) for a, b, _ in self._before}, "an update made two containers share"
                        answers[update.key] = {"CpusetCpus": format_cpuset(cpus)}
                batch = plan.send([answers.get(update.key) for update in batch])
        except StopIteration as done:
            found: Adjusted = done.value
            return found


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[Key, int], dict[Key, Wanted]]:
    """Draws what containers have and should have: exclusive sets are disjoint from all others, before and after."""
    count = draw(st.integers(1, 6))
    alone = {key(i) for i in range(count) if draw(st.booleans())}

    def sets() -> dict[Key, int]:
        owners = draw(st.lists(st.integers(0, count), min_size=CPUS, max_size=CPUS))
        pool = sum(1 << cpu for cpu, owner in enumerate(owners) if owner == count or key(owner) not in alone)
        found = {}
        for i in range(count):
            own = sum(1 << cpu for cpu, owner in enumerate(owners) if owner == i)
            if key(i) in alone:
                found[key(i)] = own
            else:
                found[key(i)] = pool & draw(st.integers(1, (1 << CPUS) - 1)) or pool
        return {k: s for k, s in found.items() if s}

    before = sets()
    after = {k: Wanted({"CpusetCpus": format_cpuset(s)}, k in alone) for k, s in sets().items()}
    return before, after


@given(changes(), st.integers(0, 9))
@settings(max_examples=400, deadline=None)
def test_exclusive_sets_stay_disjoint_after_every_single_update(
    drawn: tuple[dict[Key, int], dict[Key, Wanted]], order: int
) -> None:
    before, wanted = drawn
    # Containers that should have nothing are gone: their sets are free.
    before = {k: s for k, s in before.items() if k in wanted}
    machine = Machine(before, {k for k, w in wanted.items() if w.exclusive}, order=order)
    found = machine.perform(wanted)
    for k, want in wanted.items():
        if k in before and k not in found.failed:
            assert machine.sets[k] == parse_cpuset(want.properties["CpusetCpus"])
    for k in found.failed:
        # Only who has to change places with another one cannot.
        assert not before[k] & parse_cpuset(wanted[k].properties["CpusetCpus"]) or k in found.failed


@given(changes(), st.integers(0, 9), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_a_failure_gives_everything_back(
    drawn: tuple[dict[Key, int], dict[Key, Wanted]], order: int, broken: int
) -> None:
    before, wanted = drawn
    before = {k: s for k, s in before.items() if k in wanted}
    machine = Machine(before, {k for k, w in wanted.items() if w.exclusive}, frozenset({key(broken)}), order)
    found = machine.perform(wanted, all_or_nothing=True)
    if found.restored:
        assert machine.sets == before


def test_pools_change_by_shrinking_first() -> None:
    before = {key(0): parse_cpuset("0-37,40-77"), key(1): parse_cpuset("38-39,78-79")}
    wanted = {key(0): Wanted({"CpusetCpus": "0-13,40-53"}), key(1): Wanted({"CpusetCpus": "14-39,54-79"})}
    plan = adjust(wanted, {k: {"CpusetCpus": format_cpuset(s)} for k, s in before.items()})
    first = next(plan)
    assert [(u.key, dict(u.properties)) for u in first] == [(key(0), {"CpusetCpus": "0-13,40-53"})]
    second = plan.send([{"CpusetCpus": "0-13,40-53"}])
    assert [(u.key, dict(u.properties)) for u in second] == [(key(1), {"CpusetCpus": "14-39,54-79"})]


def test_nobody_grows_into_what_was_not_read_back() -> None:
    wanted = {key(0): Wanted({"CpusetCpus": "0-3"}), key(1): Wanted({"CpusetCpus": "4-7"}, exclusive=True)}
    plan = adjust(wanted, {key(0): {"CpusetCpus": "0-7"}, key(1): {"CpusetCpus": "8-9"}})
    next(plan)
    try:
        plan.send([{"CpusetCpus": "0-7"}])  # the kernel did not do it
        raise AssertionError("it went on")
    except StopIteration as done:
        assert set(done.value.failed) == {key(0), key(1)}
        assert "uid-0" in done.value.failed[key(1)]


def test_what_is_right_is_not_touched() -> None:
    wanted = {key(0): Wanted({"CpusetCpus": "0-3", "CpusetMems": "0", "CpuQuota": "-1"})}
    actual = {key(0): {"CpusetCpus": "0,1,2,3", "CpusetMems": "0"}}
    assert drift(wanted, actual) == []
    assert drift(wanted, {key(0): {"CpusetCpus": "0-3", "CpusetMems": "0-1"}}) == [key(0)]
