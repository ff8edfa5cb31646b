"""Needs for devices of resource classes: checks them, and makes the groups and relations of a pod's shape of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moorage.device_algorithms import algorithm_names
from moorage.model.documents import ClassChoice, Need, Topology
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PartGroup, Relation, SameSubtree
from moorage.parsing import CAPACITY_MAX, parse_nanos
from moorage.podspec.device_shares import THOUSANDTHS, class_of_resource, count_and_share
from moorage.podspec.extended_resources import AskingContainer, container_uses
from moorage.podspec.needs import asks_class, is_mandatory

from .diagnostics import Diagnostics
from .field_rules import check_count, check_name

MAX_CHOICES = 8
#: Devices that a need may ask for at most.
MAX_DEVICES = 32
_NANO = 10**9
_CAPACITY = re.compile(r"[^\s\x00-\x1f\x7f]{1,317}")
_OF_RESOURCES = ("requests", "limits", "units", "value")


def need_name(need: Need) -> str:
    """Returns the name by which slots and relations call a need for devices; "" for other needs."""
    return (need.name or "-or-".join(choice.class_ for choice in choices_of(need))) if asks_class(need) else ""


def choices_of(need: Need) -> list[ClassChoice]:
    """Returns the choices in the order of preference."""
    if need.one_of:
        return need.one_of
    return [ClassChoice(class_=need.class_, count=1 if need.count is None else need.count, capacity=need.capacity)]


def check_device_need(need: Need, path: str, diagnostics: Diagnostics) -> None:
    given = [field for field in ("resource", "label", *_OF_RESOURCES) if getattr(need, field) not in ("", None)]
    if given:
        message = "belongs to a resource or a label; a need is for one of resource, label, class and oneOf"
        diagnostics.error(f"{path}.{given[0]}", "Contradiction", message)
    if need.one_of:
        for field, value in (("class", need.class_), ("count", need.count), ("capacity", need.capacity)):
            if value:
                diagnostics.error(f"{path}.{field}", "Contradiction", "stands in the choices of oneOf")
        if len(need.one_of) > MAX_CHOICES:
            diagnostics.error(f"{path}.oneOf", "TooMany", f"has {len(need.one_of)} choices; at most {MAX_CHOICES}")
    for i, choice in enumerate(choices_of(need)[:MAX_CHOICES]):
        _check_choice(choice, f"{path}.oneOf[{i}]" if need.one_of else path, diagnostics)
    if need.algorithm and (message := unknown_algorithm(need.algorithm)):
        diagnostics.error(f"{path}.algorithm", "BadValue", message)


def unknown_algorithm(name: str) -> str:
    """Returns what is wrong with the name of an algorithm; "" if there is one of this name."""
    known = algorithm_names()
    return "" if name in known else f"no algorithm is called {name[:80]!r}; there are {', '.join(known)}"


def _check_choice(choice: ClassChoice, path: str, diagnostics: Diagnostics) -> None:
    check_name(choice.class_, f"{path}.class", diagnostics)
    try:
        count, _ = count_and_share(thousandths(choice.count))
        if count > MAX_DEVICES:
            diagnostics.error(f"{path}.count", "OutOfRange", f"is {count}; at most {MAX_DEVICES} devices are allowed")
    except ValueError as error:
        diagnostics.error(f"{path}.count", "InvalidQuantity", str(error))
    check_count(list(choice.capacity), 32, f"{path}.capacity", diagnostics)
    for name, amount in choice.capacity.items():
        at = f"{path}.capacity.{name}"
        if _CAPACITY.fullmatch(name) is None:
            diagnostics.error(at, "InvalidName", f"{name[:80]!r} is no capacity of devices, like memory")
        try:
            found = parse_nanos(_text(amount))
            if found < 0:
                diagnostics.error(at, "InvalidQuantity", "must not be negative")
            elif found >= CAPACITY_MAX * _NANO:
                diagnostics.error(at, "InvalidQuantity", "is more than any device can have; check its suffix")
        except ValueError as error:
            diagnostics.error(at, "InvalidQuantity", str(error))


def check_names_of_needs(needs: Iterable[tuple[str, Sequence[Need]]], diagnostics: Diagnostics) -> None:
    """Checks that the needs for devices of one pod, each list with its path, have names of their own."""
    seen: set[str] = set()
    for path, of_consumer in needs:
        for i, need in enumerate(of_consumer):
            name = need_name(need)
            if name and name in seen:
                message = f"another need of the pod is called {name!r}, too; give them names that differ"
                diagnostics.error(f"{path}[{i}].name", "Duplicate", message)
            seen.add(name)


def thousandths(amount: float | str) -> int:
    """Returns a number of devices in thousandths. Raises ValueError for what is none."""
    nanos = parse_nanos(_text(amount))
    return -(-nanos * THOUSANDTHS // _NANO)


def _text(amount: float | str) -> str:
    return amount if isinstance(amount, str) else repr(amount)


class DeviceNeeds(NamedTuple):
    groups: list[PartGroup]
    relations: list[Relation]


def device_needs(
    needs: Sequence[Need],
    of_manifest: Mapping[str, int],
    topologies: Sequence[Topology],
    containers: Sequence[AskingContainer] = (),
) -> DeviceNeeds:
    """Returns the groups of a pod that ask for devices. `of_manifest`: thousandths of devices by class, which the manifest requests
    as resources of these `containers`; each of them has its own. `needs` are those of all its consumers."""
    groups: list[PartGroup] = []
    resource_groups = {need.group for need in needs if need.group and not asks_class(need)}
    for need in needs:
        if not asks_class(need):
            continue
        name = need_name(need)
        asks = tuple(_ask(choice, need.algorithm) for choice in choices_of(need))
        groups.append(PartGroup(suffix=name, devices=asks, optional=not is_mandatory(need)))
    taken = {group.suffix for group in groups}
    for resource, amount in sorted(of_manifest.items()):
        if not amount:
            continue
        name = class_of_resource(resource)
        uses = container_uses(containers, resource)
        by_suffix = {f"{name}.{use.container}": use.amount for use in uses} if len(uses) > 1 else {name: amount}
        for suffix, part in by_suffix.items():
            count, share = count_and_share(part)
            ask = DeviceAsk(resource_class=name, count=count, share=share)
            groups.append(PartGroup(suffix=suffix if suffix not in taken else f"{suffix}.manifest", devices=(ask,)))
    relations: list[Relation] = [
        SameSubtree(groups=(suffix, *names))
        for suffix, names in devices_in_groups(needs).items()
        if suffix in resource_groups
    ]
    for topology in topologies:
        for conditions, distinct in ((topology.match, False), (topology.distinct, True)):
            relations += [
                AttributeRelation(groups=tuple(dict.fromkeys(c.needs)), attribute=c.attribute, distinct=distinct)
                for c in conditions
            ]
    return DeviceNeeds(groups, relations)


def _ask(choice: ClassChoice, algorithm: str) -> DeviceAsk:
    count, share = count_and_share(thousandths(choice.count))
    capacity = {name: _text(amount) for name, amount in sorted(choice.capacity.items())}
    return DeviceAsk(resource_class=choice.class_, count=count, share=share, capacity=capacity, algorithm=algorithm)


def devices_in_groups(needs: Iterable[Need]) -> dict[str, list[str]]:
    """Returns the names of the needs for devices that each group has, by suffix."""
    found: dict[str, list[str]] = {}
    for need in needs:
        if need.group and asks_class(need):
            found.setdefault(need.group, []).append(need_name(need))
    return found
