"""Effects at the API server: requests, and events about Pods and Machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .handover_records import Guest
from .names import GROUP_VERSION

Object = dict[str, Any]


class Effect(NamedTuple):
    """One request. `verb`: create, merge (a merge patch), status (a merge patch of the status), delete, evict or event."""

    verb: str
    kind: str
    namespace: str
    name: str
    body: Object
    purpose: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


def pod_event(guest: Guest, reason: str, message: str, kind: str = "Warning") -> Effect:
    """Returns an event about a guest."""
    regarding = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": guest.namespace,
        "name": guest.name,
        "uid": guest.uid,
    }
    body = {"regarding": regarding, "reason": reason, "note": message[:1024], "type": kind}
    return Effect("event", "Event", guest.namespace, guest.name, body, "event")


def machine_event(machine: Mapping[str, Any], reason: str, message: str, kind: str) -> Effect:
    """Returns an event about a Machine. It has no namespace, so that its events are in `default`."""
    meta = machine["metadata"]
    regarding = {
        "apiVersion": GROUP_VERSION,
        "kind": "Machine",
        "name": meta["name"],
        "uid": str(meta.get("uid", "")),
    }
    body = {"regarding": regarding, "reason": reason, "note": message[:1024], "type": kind}
    return Effect("event", "Event", "default", meta["name"], body, "event")
