"""Checks the groups of parts that consumers ask for, and what their topologies say of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from moorage.model.documents import AttributeCondition, Consumer, Topology

from .consumer_matching import SourcedConsumer
from .device_needs import check_names_of_needs, need_name
from .diagnostics import Diagnostics
from .field_rules import check_count
from .part_conditions import (
    Conditions,
    aggregates,
    check_aggregates,
    check_contradiction,
    check_traits,
    contradictions,
    traits,
)

MAX_GROUPS = 64
MAX_ENTRIES = 64
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_ATTRIBUTE = re.compile(r"[^\s\x00-\x1f\x7f]{1,317}")
_PART = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")
_SUFFIX_IS = "must be 1 to 64 letters, digits, '-' and '_'"
POLICIES = ("isolate", "none")
ZONES = ("required", "preferred")


def check_suffix(text: str, path: str, diagnostics: Diagnostics) -> None:
    if _SUFFIX.fullmatch(text) is None:
        diagnostics.error(path, "BadSuffix", f"{text!r} is no suffix of a group: it {_SUFFIX_IS}")


def check_topology(topology: Topology, path: str, diagnostics: Diagnostics) -> None:
    """Checks what a topology says by itself."""
    check_count(list(topology.groups), MAX_GROUPS, f"{path}.groups", diagnostics)
    for suffix, conditions in topology.groups.items():
        at = f"{path}.groups.{suffix}"
        check_suffix(suffix, at, diagnostics)
        check_traits(conditions.required, f"{at}.required", diagnostics)
        check_aggregates(conditions.member_of, f"{at}.memberOf", diagnostics)
        check_count(conditions.required, MAX_ENTRIES, f"{at}.required", diagnostics)
        check_count(conditions.member_of, MAX_ENTRIES, f"{at}.memberOf", diagnostics)
        if conditions.in_tree and _PART.fullmatch(conditions.in_tree) is None:
            message = "must be the id of a part, like NODE or NODE/ZONE, at most 255 characters without spaces"
            diagnostics.error(f"{at}.inTree", "InvalidName", message)
    check_count(topology.same_subtree, MAX_ENTRIES, f"{path}.sameSubtree", diagnostics)
    for i, suffixes in enumerate(topology.same_subtree):
        _check_same_subtree(suffixes, f"{path}.sameSubtree[{i}]", diagnostics)
    check_count(topology.isolate, MAX_GROUPS, f"{path}.isolate", diagnostics)
    for i, suffix in enumerate(topology.isolate):
        check_suffix(suffix, f"{path}.isolate[{i}]", diagnostics)
    if topology.group_policy not in ("", *POLICIES):
        diagnostics.error(f"{path}.groupPolicy", "BadValue", f"must be {' or '.join(POLICIES)}")
    if topology.group_policy and topology.isolate:
        diagnostics.error(f"{path}.isolate", "Contradiction", "give either isolate or groupPolicy, not both")
    if topology.zone not in ("", *ZONES):
        diagnostics.error(f"{path}.zone", "BadValue", f"must be {' or '.join(ZONES)}")
    check_traits(topology.root_required, f"{path}.rootRequired", diagnostics)
    check_aggregates(topology.root_member_of, f"{path}.rootMemberOf", diagnostics)
    check_count(topology.root_required, MAX_ENTRIES, f"{path}.rootRequired", diagnostics)
    check_count(topology.root_member_of, MAX_ENTRIES, f"{path}.rootMemberOf", diagnostics)
    for field, attributes in (("match", topology.match), ("distinct", topology.distinct)):
        check_count(attributes, MAX_ENTRIES, f"{path}.{field}", diagnostics)
        for i, attribute in enumerate(attributes):
            _check_attribute(attribute, f"{path}.{field}[{i}]", diagnostics)


def _check_attribute(condition: AttributeCondition, path: str, diagnostics: Diagnostics) -> None:
    if _ATTRIBUTE.fullmatch(condition.attribute) is None:
        message = (
            f"{condition.attribute[:80]!r} is no attribute of devices, like numa or resource.kubernetes.io/pcieRoot"
        )
        diagnostics.error(f"{path}.attribute", "InvalidName", message)
    if not condition.needs:
        diagnostics.error(f"{path}.needs", "Required", "name the needs whose devices it is about")
    check_count(condition.needs, MAX_GROUPS, f"{path}.needs", diagnostics)


def _check_same_subtree(suffixes: Sequence[str], path: str, diagnostics: Diagnostics) -> None:
    check_count(suffixes, MAX_GROUPS, path, diagnostics)
    for i, suffix in enumerate(suffixes):
        check_suffix(suffix.removeprefix("!"), f"{path}[{i}]", diagnostics)
        if f"!{suffix}" in suffixes:
            diagnostics.error(f"{path}[{i}]", "Contradiction", f"names {suffix} both with and without '!'")
    if all(suffix.startswith("!") for suffix in suffixes):
        diagnostics.error(path, "Required", "must name at least one group without '!'")


def check_groups_of_pod(consumers: Iterable[SourcedConsumer], diagnostics: Diagnostics) -> None:
    """Checks the groups that consumers of one object share: each named one exists, has resources or stands in a relation, and
    no two consumers contradict each other."""
    asking = list(consumers)
    check_names_of_needs([(f"{s.path}.needs", s.consumer.needs) for s in asking], diagnostics)
    topologies = [(s.consumer.topology, f"{s.path}.topology") for s in asking if s.consumer.topology is not None]
    if not topologies:
        return
    with_needs = {need.group for sourced in asking for need in sourced.consumer.needs if need.group}
    _check_named_needs(asking, topologies, diagnostics)
    known = with_needs | {suffix for topology, _ in topologies for suffix in topology.groups}
    related: set[str] = set()
    for topology, path in topologies:
        for at, suffix in _named(topology, path):
            if _SUFFIX.fullmatch(suffix) and suffix not in known:
                there = f"it has {', '.join(sorted(known))}" if known else "no need of it has a group"
                diagnostics.error(at, "UnknownGroup", f"the pod has no group {suffix!r}; {there}")
        related |= {s.removeprefix("!") for suffixes in topology.same_subtree for s in suffixes}
    _check_resourceless(asking, topologies, related, diagnostics)
    _check_conditions(topologies, diagnostics)
    _check_relations(topologies, diagnostics)
    for field, value_of in _AT_MOST_ONE.items():
        given = [(value, f"{path}.{field}") for topology, path in topologies if (value := value_of(topology))]
        for value, at in given:
            if value != given[0][0]:
                diagnostics.error(
                    at, "Contradiction", f"is {value}, but another consumer of the pod says {given[0][0]}"
                )
    if any(t.group_policy for t, _ in topologies):
        for topology, path in topologies:
            if topology.isolate and not topology.group_policy:
                message = "another consumer of the pod gives groupPolicy; give either of the two"
                diagnostics.error(f"{path}.isolate", "Contradiction", message)


def _check_resourceless(
    asking: Sequence[SourcedConsumer],
    topologies: Sequence[tuple[Topology, str]],
    related: Collection[str],
    diagnostics: Diagnostics,
) -> None:
    """Checks the groups that no need names. Each says what its part is like, and where that is beside others."""
    needs = [need for sourced in asking for need in sourced.consumer.needs]
    with_needs = {need.group for need in needs if need.group}
    asks = any(not need.label for need in needs)
    described = {
        suffix for t, _ in topologies for suffix, of in t.groups.items() if of.required or of.member_of or of.in_tree
    }
    for topology, path in topologies:
        for suffix in topology.groups:
            if suffix in with_needs:
                continue
            if suffix not in related:
                message = "no need names this group; a group without resources must stand in sameSubtree"
            elif suffix not in described:
                message = "no need names this group; give required, memberOf or inTree, or leave it out"
            elif not asks:
                message = "the pod has groups without resources only; give it a need for a resource"
            else:
                continue
            diagnostics.error(f"{path}.groups.{suffix}", "ResourcelessGroup", message)


def _check_conditions(topologies: Sequence[tuple[Topology, str]], diagnostics: Diagnostics) -> None:
    """Checks that what several consumers say of one group goes together."""
    of_traits: dict[str, Conditions] = {}
    of_aggregates: dict[str, Conditions] = {}
    trees: dict[str, str] = {}

    def add(known: dict[str, Conditions], suffix: str, own: Conditions, at: str) -> None:
        if suffix in known:
            before, known[suffix] = known[suffix], known[suffix].plus(own)
            if not any(contradictions(one) for one in (before, own)):
                check_contradiction(known[suffix], at, diagnostics)
        known.setdefault(suffix, own)

    for topology, path in topologies:
        for suffix, conditions in topology.groups.items():
            at = f"{path}.groups.{suffix}"
            add(of_traits, suffix, traits(conditions.required), f"{at}.required")
            add(of_aggregates, suffix, aggregates(conditions.member_of), f"{at}.memberOf")
            if (tree := conditions.in_tree) and (other := trees.setdefault(suffix, tree)) != tree:
                message = f"is {tree}, but another consumer of the pod says {other}"
                diagnostics.error(f"{at}.inTree", "Contradiction", message)


def _check_relations(topologies: Sequence[tuple[Topology, str]], diagnostics: Diagnostics) -> None:
    """Checks that no two groups must be on one line and must not."""
    entries = [
        (set(suffixes), f"{path}.sameSubtree[{i}]")
        for topology, path in topologies
        for i, suffixes in enumerate(topology.same_subtree)
    ]
    pairs = [entry for entry, _ in entries if len(entry) == 2 and not any(s.startswith("!") for s in entry)]
    for entry, at in entries:
        plain = {suffix for suffix in entry if not suffix.startswith("!")}
        for suffix in sorted(entry - plain) if len(plain) == 1 else ():
            if plain | {suffix[1:]} in pairs:
                message = f"{suffix[1:]} and {', '.join(plain)} are in one subtree by another entry"
                diagnostics.error(at, "Contradiction", message)


def _check_named_needs(
    asking: Iterable[SourcedConsumer], topologies: Iterable[tuple[Topology, str]], diagnostics: Diagnostics
) -> None:
    known = {name for sourced in asking for need in sourced.consumer.needs if (name := need_name(need))}
    for topology, path in topologies:
        for field, conditions in (("match", topology.match), ("distinct", topology.distinct)):
            for i, condition in enumerate(conditions):
                for j, name in enumerate(condition.needs):
                    if name not in known:
                        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
                        message = f"the pod has no need for devices that is called {name!r}; {there}"
                        diagnostics.error(f"{path}.{field}[{i}].needs[{j}]", "UnknownGroup", message)


#: What all consumers of a pod must agree on, where several say it.
_AT_MOST_ONE: dict[str, Callable[[Topology], str]] = {
    "groupPolicy": lambda topology: topology.group_policy,
    "zone": lambda topology: topology.zone,
}


def _named(topology: Topology, path: str) -> list[tuple[str, str]]:
    """Returns the groups that relations name, each with its path."""
    found = [
        (f"{path}.sameSubtree[{i}][{j}]", suffix.removeprefix("!"))
        for i, suffixes in enumerate(topology.same_subtree)
        for j, suffix in enumerate(suffixes)
    ]
    return found + [(f"{path}.isolate[{i}]", suffix) for i, suffix in enumerate(topology.isolate)]


def check_groups(consumers: Sequence[Consumer], path: str, diagnostics: Diagnostics) -> None:
    """Checks the groups of all pods that the consumers of one document are for. What names the same object is one pod."""
    pods: dict[str, list[SourcedConsumer]] = {}
    for i, consumer in enumerate(consumers):
        pods.setdefault(consumer.object.name, []).append(SourcedConsumer(consumer, f"{path}[{i}]"))
    for of_pod in pods.values():
        for ask in _by_kind(of_pod):
            check_groups_of_pod(ask, diagnostics)


def _by_kind(consumers: list[SourcedConsumer]) -> list[list[SourcedConsumer]]:
    """Splits consumers of equal names by the kind of their object. One without a kind may be of any."""
    kinds = {s.consumer.object.kind for s in consumers} - {""}
    if len(kinds) < 2:
        return [consumers]
    return [[s for s in consumers if s.consumer.object.kind in ("", kind)] for kind in sorted(kinds)]
