"""Knows the node's containers as the runtime has them, and what the kubelet asked for each before the agent changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from moorage.qos.messages import PodSpec

from .runtime import CREATED, EXITED, RUNNING

#: The annotation of a container with what it was given, in case the agent's own state is lost.
COPY = "moorage.dev/allocation"
#: The annotation of a container with what the kubelet asked for it, so that this can be given back.
ASKED = "moorage.dev/asked"


def is_asked(value: str) -> bool:
    """Returns whether the kubelet asks for this; to the runtime, an absent property means that it stays as it is."""
    return value not in ("", "0")


class Adjustment(NamedTuple):
    """The settings of a container before it starts: properties by their Go names or files of its cgroup, variables, annotations."""

    properties: Mapping[str, str] = {}
    envs: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class Gate(Protocol):
    """Decides over pods and containers, for every way in which the agent is attached."""

    async def admit(self, told: PodSpec, container: str = "") -> None:
        """Admits a pod that the runtime is about to run, or this container of it. Raises `moorage.node.cri_proxy.Refused`."""

    def adjustment(self, uid: str, container: str) -> Adjustment: ...

    async def pre_start(self, uid: str, container: str) -> None:
        """Prepares what plugins want prepared before a container starts. Raises Refused."""

    def owned(self, uid: str, container: str) -> frozenset[str]:
        """Returns the properties of a container that plugins decide."""

    def keep_asked(self, record: ContainerRecord, asked: Mapping[str, str]) -> None:
        """Keeps what the kubelet asks for of a running container now, of what plugins decide or decided."""

    def sandbox_stopped(self, uid: str) -> None:
        """Hears that nothing of a pod runs any more."""

    def sandbox_removed(self, uid: str) -> None: ...


class ContainerRecord(msgspec.Struct, kw_only=True):
    """A container by the runtime's id."""

    id: str
    uid: str
    name: str
    sandbox: str = ""
    namespace: str = ""
    pod: str = ""
    state: int = RUNNING
    #: What the kubelet asked for of the properties that plugins decide.
    asked: dict[str, str] = {}
    #: What the container was given last, as far as it was read back.
    applied: dict[str, str] = {}
    pid: int = 0


class ContainerIndex:
    """All containers by id, and the newest one of each pod's container by name."""

    def __init__(self, changed: Callable[[str], None] = lambda uid: None) -> None:
        self._by_id: dict[str, ContainerRecord] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._sandboxes: dict[str, str] = {}
        self._changed = changed

    def __len__(self) -> int:
        return len(self._by_id)

    def add_sandbox(self, sandbox: str, uid: str) -> None:
        self._sandboxes[sandbox] = uid

    def uid_of(self, sandbox: str) -> str:
        return self._sandboxes.get(sandbox, "")

    def drop_sandbox(self, sandbox: str) -> str:
        """Forgets a sandbox with its containers and returns the pod's uid."""
        for record in [r for r in self._by_id.values() if r.sandbox == sandbox]:
            self.drop(record.id)
        return self._sandboxes.pop(sandbox, "")

    def put(self, record: ContainerRecord) -> None:
        self._by_id[record.id] = record
        self._by_name[record.uid, record.name] = record.id
        self._changed(record.uid)

    def drop(self, container: str) -> None:
        record = self._by_id.pop(container, None)
        if record is not None:
            if self._by_name.get((record.uid, record.name)) == container:
                del self._by_name[record.uid, record.name]
            self._changed(record.uid)

    def get(self, container: str) -> ContainerRecord | None:
        return self._by_id.get(container)

    def named(self, uid: str, name: str) -> ContainerRecord | None:
        """Returns the newest container of this name of a pod."""
        return self._by_id.get(self._by_name.get((uid, name), ""))

    def live(self) -> Iterable[ContainerRecord]:
        return (record for record in self._by_id.values() if record.state != EXITED)

    def is_live(self, uid: str) -> bool:
        return any(record.uid == uid and record.state in (CREATED, RUNNING) for record in self._by_id.values())

    def end(self, uid: str) -> None:
        """Hears that all containers of a pod have ended."""
        for record in self._by_id.values():
            if record.uid == uid:
                record.state = EXITED

    def uids(self) -> set[str]:
        return {record.uid for record in self._by_id.values()} | set(self._sandboxes.values())
