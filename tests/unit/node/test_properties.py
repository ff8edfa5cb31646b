"""Whatever comes and goes, in any order: exclusive sets are disjoint, pools keep their minimum, nothing leaks; merges and the choice
of CPUs are those of a search through everything."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.qos.admission import Admitted, PluginInfo
from moorage.qos.cpu_choice import NotEnoughCpus, take_cpus
from moorage.qos.cpu_hints import cpu_hints
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.messages import AllocationRefused
from moorage.qos.topology_hints import Hint, Merged, TopologyPolicy, merge, rank
from moorage_testkit.nodes import GB, SimulatedNode, machine, pod

POLICY = """
kind: NodePolicy
spec:
  reservedCpus: "0"
  pools: {online: {cpus: "1-9,12-19", min: 2, default: true}, offline: {cpus: "10-11,20-23", min: 1}}
  roles: {mine: {exclusive: true}, near: {pool: offline, numa: bind}}
  nics: [{name: a, numa: 0, mbps: 100}, {name: b, numa: 1, mbps: 100}]
"""
ROLES = ["", "storage-service", "reranker", "numa-enhancement", "online-micro_service", "ETL", "mine", "near"]

_step = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 9), st.sampled_from(ROLES), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("pools"), st.integers(0, 22), st.integers(1, 22)),
    st.tuples(st.just("lose"), st.sampled_from(["cpu", "memory", "NIC"])),
    st.tuples(st.just("restart")),
)


@given(
    st.lists(_step, max_size=25),
    st.sampled_from(["container", "pod"]),
    st.sampled_from(["restricted", "best-effort", "none"]),
)
@settings(max_examples=150, deadline=None)
def test_exclusive_sets_stay_disjoint_in_any_order(steps: list[tuple[object, ...]], scope: str, policy: str) -> None:
    text = POLICY + f"  topologyScope: {scope}\n  topologyPolicy: {policy}\n"
    node = SimulatedNode(text, machine(2, 12, memory=(8 * GB, 8 * GB)))
    infos = dict(node.node.plugins)
    for step in steps:
        kind, *rest = step
        if kind == "admit":
            number, role, cpus, guaranteed = rest
            name = f"p{number}"
            before = dict(node.records)
            asked = pod(name, str(role), int(str(cpus)), GB, guaranteed=bool(guaranteed))
            outcome = node.admit(asked)
            if isinstance(outcome, Admitted):
                check_given(node, name)
            else:
                assert asked.role, "only pods that ask for something special are refused"
                assert node.records == before
                if asked.uid not in before:
                    assert all(asked.uid not in plugin.entries for plugin in node.plugins.values())
        elif kind == "remove":
            node.remove(f"uid-p{rest[0]}")
        elif kind == "pools":
            first, size = (int(str(value)) for value in rest)
            online = (((1 << size) - 1) << first + 1) & parse_cpuset("1-23")
            try:
                node.cpu.set_pools({"online": online, "offline": parse_cpuset("1-23") & ~online})
            except AllocationRefused as refused:
                assert refused.refusal.code == "PoolMinimum"
        elif kind == "lose":
            name = str(rest[0])
            running = node.node.plugins[name].running
            node.node.plugins[name] = PluginInfo(  # type: ignore[index]
                resource=name, built_in=True, everyone=infos[name].everyone, running=not running
            )
        else:
            again = SimulatedNode(node.node.policy, node.machine)
            for name, plugin in node.plugins.items():
                again.plugins[name].restore(plugin.encode())
                assert again.plugins[name].resources_allocation() == plugin.resources_allocation()
            again.records, again.node = node.records, node.node
            node = again
        node.check()
        check_zones(node)
    for uid in list(node.records):
        node.remove(uid)
    assert node.cpu.exclusive == 0
    assert all(not plugin.entries for plugin in node.plugins.values())
    free = {zone.id: zone.reserved for zone in node.plugins["memory"].nodes.nodes.values()}  # type: ignore[union-attr]
    assert all(not any(amounts.values()) for amounts in free.values())


def check_given(node: SimulatedNode, name: str) -> None:
    """A container never gets an empty set."""
    for allocation in node.records[f"uid-{name}"].containers.values():
        for info in allocation.values():
            assert not info.oci_property_name or info.allocation_result


def check_zones(node: SimulatedNode) -> None:
    """Only roles that share are bound to one zone."""
    for zone in (0, 1):
        bound = [
            (uid, entry.role)
            for uid, containers in node.cpu.entries.items()
            for entry in containers.values()
            if entry.bound >> zone & 1
        ]
        for (one, role), (other, second) in combinations(bound, 2):
            assert one == other or node.node.policy.shares_numa(role, second)


# --- merging


def merged_by_search(policy: TopologyPolicy, lists: list[list[Hint] | None], zones: int) -> Merged:
    every = (1 << zones) - 1
    usable = [[Hint(None, True)] if hints is None else hints or [Hint(None, False)] for hints in lists]
    if policy == "single-numa-node":
        usable = [
            [h for h in hints if h.preferred and (h.zones is None or h.zones.bit_count() == 1)] for hints in usable
        ]
    wanted = max((min((h.zones.bit_count() for h in hints if h.zones), default=0) for hints in usable), default=0)
    best = None
    for chosen in product(*usable):
        common = every
        for hint in chosen:
            common &= every if hint.zones is None else hint.zones
        alike = len({hint.zones for hint in chosen if hint.zones is not None}) <= 1
        found = Hint(common, all(hint.preferred for hint in chosen) and alike)
        if common and (best is None or rank(found, wanted) < rank(best, wanted)):
            best = found
    best = best or Hint(every, False)
    if policy == "single-numa-node" and best.zones == every:
        best = Hint(None, best.preferred)
    return Merged(best, best.preferred or policy == "best-effort")


@given(
    st.sampled_from(["best-effort", "restricted", "single-numa-node"]),
    st.integers(1, 4).flatmap(
        lambda zones: st.tuples(
            st.just(zones),
            st.lists(
                st.none()
                | st.lists(st.builds(Hint, st.none() | st.integers(1, (1 << zones) - 1), st.booleans()), max_size=5),
                max_size=4,
            ),
        )
    ),
)
@settings(max_examples=300, deadline=None)
def test_merging_finds_what_a_search_through_all_combinations_finds(
    policy: TopologyPolicy, drawn: tuple[int, list[list[Hint] | None]]
) -> None:
    zones, lists = drawn
    assert merge(policy, lists, zones) == merged_by_search(policy, lists, zones)


@given(st.integers(11, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_many_zones_are_merged_as_few_are(zones: int, data: st.DataObject) -> None:
    masks = st.builds(Hint, st.integers(1, (1 << zones) - 1), st.just(False))
    lists: list[list[Hint] | None] = [data.draw(st.lists(masks, min_size=1, max_size=6)) for _ in range(3)]
    assert merge("best-effort", lists, zones) == merged_by_search("best-effort", lists, zones)


# --- CPUs

MACHINES = [machine(2, 4, 2), machine(4, 3), machine(4, 2, 2, sockets=2), machine(2, 2, 4)]


@given(
    st.sampled_from(MACHINES), st.integers(0), st.integers(1, 12), st.sampled_from(["packed", "spread", "distributed"])
)
@settings(max_examples=300, deadline=None)
def test_cpus_that_are_chosen_are_free_and_as_many(found: object, seed: int, count: int, strategy: str) -> None:
    topology = found.cpus  # type: ignore[attr-defined]
    available = seed % (topology.all + 1)
    try:
        taken = take_cpus(topology, available, count, strategy=strategy)  # type: ignore[arg-type]
    except NotEnoughCpus:
        assert available.bit_count() < count
        return
    assert taken & ~available == 0
    assert taken.bit_count() == count
    if strategy == "packed" and not count % topology.cpus_per_core:
        whole = topology.whole_cores(available).bit_count() // topology.cpus_per_core
        if whole >= count // topology.cpus_per_core:
            assert topology.whole_cores(taken) == taken, "whole cores are taken while there are enough"
    fits = [n for n, cpus in topology.numas.items() if (cpus & available).bit_count() >= count]
    if strategy == "distributed" and fits:
        assert topology.nodes_with(taken).bit_count() == 1, "as few nodes as can give so many"


@given(st.sampled_from(MACHINES), st.integers(0), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_hints_are_the_sets_of_nodes_with_enough(found: object, seed: int, count: int) -> None:
    topology = found.cpus  # type: ignore[attr-defined]
    available = seed % (topology.all + 1)
    numas = sorted(topology.numas)
    sets = [chosen for size in range(1, len(numas) + 1) for chosen in combinations(numas, size)]
    enough = [
        sum(1 << n for n in chosen)
        for chosen in sets
        if sum((topology.numas[n] & available).bit_count() for n in chosen) >= count
    ]
    needed = min((len(c) for c in sets if sum(topology.numas[n].bit_count() for n in c) >= count), default=len(numas))
    hints = cpu_hints(topology, count, available)
    assert [hint.zones for hint in hints] == enough
    assert all(hint.preferred == ((hint.zones or 0).bit_count() == needed) for hint in hints)


@given(st.integers(0, 1 << 200))
def test_lists_of_cpus_are_read_as_they_are_written(cpus: int) -> None:
    assert parse_cpuset(format_cpuset(cpus)) == cpus
