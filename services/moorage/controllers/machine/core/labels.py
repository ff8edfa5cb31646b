"""Labels the pods of applications that run in slots of machines, so that each cluster knows them as guests.

Kubernetes makes pods of a DaemonSet for nodes that its template selects and whose taints it tolerates: what other guests are given when
they are created has to be in the template.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moorage.machine_groups.names import (
    CONTAINER,
    CONTAINER_ALIAS,
    DOMAIN,
    GUEST,
    MACHINE_GROUP,
    MACHINE_TYPE,
    NODE_POOL,
    POD_ROLE,
    WINDOW,
    type_key,
)
from moorage.machine_groups.objects import tolerating
from moorage.machine_groups.windows import parse_runtime
from moorage.model.documents import Consumer
from moorage.model.machine_slots import machine_of
from moorage.model.reports import Taint
from moorage.podspec import format_pointer, object_key, template, template_path, tolerations_of
from moorage.sdk import ActionAsk, Contribution, Fleet, named_consumers
from moorage.selectors import tolerated

from .answers import NAME

#: Kinds whose pods may have a deadline. Kubernetes refuses it in templates of pods that are to run for ever.
_WITH_DEADLINE = ("Job", "CronJob", "Pod")


def contributions(ask: ActionAsk, fleet: Fleet) -> list[Contribution]:
    """Returns the labels of every pod template whose consumers need a machine, and what DaemonSets need to run on its nodes."""
    return [found for named in named_consumers(ask) for found in _of_consumer(*named, fleet)]


def _of_consumer(app: str, manifest: dict[str, Any], consumer: Consumer, fleet: Fleet) -> Iterator[Contribution]:
    path = template_path(manifest)
    for need in consumer.needs:
        if not need.machine or path is None:
            continue
        group, _, machine_type = need.machine.partition("/")
        labels = {MACHINE_GROUP: group, MACHINE_TYPE: machine_type, POD_ROLE: GUEST}
        if need.window:
            labels[WINDOW] = need.window
        own = (manifest.get("metadata") or {}).get("labels") or {}
        container = consumer.container or own.get(CONTAINER) or own.get(CONTAINER_ALIAS)
        if container:
            labels[CONTAINER] = container
        for key, value in labels.items():
            pointer = format_pointer((*path, "metadata", "labels", key))
            yield Contribution(app=app, object=object_key(manifest), path=pointer, value=value, by=NAME)
        seconds = parse_runtime(need.max_runtime)
        if seconds and manifest.get("kind") in _WITH_DEADLINE:
            pointer = format_pointer((*path, "spec", "activeDeadlineSeconds"))
            yield Contribution(app=app, object=object_key(manifest), path=pointer, value=seconds, by=NAME)
        if manifest.get("kind") == "DaemonSet":
            yield from _of_daemon_set(app, manifest, path, group, machine_type, fleet)


def _of_daemon_set(
    app: str, manifest: dict[str, Any], path: tuple[str, ...], group: str, machine_type: str, fleet: Fleet
) -> Iterator[Contribution]:
    selected = {"key": type_key(machine_type), "operator": "In", "values": [group]}
    yield Contribution(app=app, object=object_key(manifest), op="require", value=[selected], by=NAME)
    spec = (template(manifest) or {}).get("spec") or {}
    have = tolerations_of(spec)
    new = [
        (key, value)
        for key, value in _taints(group, machine_type, fleet)
        if not tolerated((Taint(key=key, effect="NoSchedule", value=value),), have)
    ]
    if new:
        pointer = format_pointer((*path, "spec", "tolerations"))
        value = [*(spec.get("tolerations") or ()), *tolerating(new)]
        yield Contribution(app=app, object=object_key(manifest), path=pointer, value=value, by=NAME)


def _taints(group: str, machine_type: str, fleet: Fleet) -> list[tuple[str, str]]:
    """Returns keys and values of the taints of a type's nodes, also those of the group's other types, which may share them: now, or when
    its Machine is changed."""
    own = [(type_key(machine_type), group), (NODE_POOL, "ready")]
    others = {
        (taint.key, taint.value)
        for taints in fleet.taint_sets
        for taint in taints
        if taint.key.startswith(DOMAIN) and taint.value == group
    }
    for resource in fleet.resources:
        machine, _ = machine_of(resource) or ("", "")
        if machine.startswith(f"{group}/"):
            others.add((type_key(machine.partition("/")[2]), group))
    return [*own, *sorted(others.difference(own))]
