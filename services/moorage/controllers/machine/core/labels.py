"""Labels the pods of applications that run in slots of machines, so that each cluster knows them as guests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moorage.machine_groups.names import (
    CONTAINER,
    CONTAINER_ALIAS,
    GUEST,
    MACHINE_GROUP,
    MACHINE_TYPE,
    POD_ROLE,
    WINDOW,
)
from moorage.machine_groups.windows import parse_runtime
from moorage.model.documents import Consumer
from moorage.podspec import format_pointer, object_key, template_path
from moorage.sdk import ActionAsk, Contribution, named_consumers

from .answers import NAME

#: Kinds whose pods may have a deadline. Kubernetes refuses it in templates of pods that are to run for ever.
_WITH_DEADLINE = ("Job", "CronJob", "Pod")


def contributions(ask: ActionAsk) -> list[Contribution]:
    """Returns the labels of every pod template whose consumers need a machine."""
    return [found for named in named_consumers(ask) for found in _of_consumer(*named)]


def _of_consumer(app: str, manifest: dict[str, Any], consumer: Consumer) -> Iterator[Contribution]:
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
