"""Defines `WorkerSpec`, which every worker declares as `SPEC` in the module `spec` of its package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from . import stores, subjects
from .stores import Store


class Subject(NamedTuple):
    """A subject with its payload. In rows of agents `<provider>.<cluster>` stands for the agent's own cluster.
    `request`: the publisher expects an answer. `streamed`: read through its stream, without direct subscribers."""

    pattern: str
    payload: str
    description: str
    request: bool = False
    streamed: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One kind of worker, or of user of the bus: what it is called, how it is started and what it may do.

    A subject is described once, by the worker to which it belongs (who serves a request, who publishes an event); others
    name it by its pattern. A store is declared by its owner; others name it."""

    name: str
    #: "package.module:function", called with Settings. Without one it is a user of the bus that `moorage up` does not start.
    entry: str = ""
    #: "package.module:function" that raises SystemExit for settings with which the worker would end again and again.
    check: str = ""
    #: Workers are started in this order.
    order: int = 100
    #: The niceness of its process: where cores are short, deciding comes before carrying out and reporting.
    nice: int = 0
    #: Its entry is also called with `mesh=`, the specs of all workers.
    takes_mesh: bool = False
    #: The mesh is healthy without it.
    optional: bool = False
    #: Kubernetes: replicas and memory limit in the generated manifests.
    replicas: int = 1
    memory: str = "512Mi"
    #: A placement controller; with `entry` a built-in one, whose name no other controller may take.
    controller: bool = False
    #: A built-in controller that also contributes to manifests.
    actions: bool = False
    #: There is one user of the bus per cluster, who may use the subjects of that cluster only.
    per_cluster: bool = False
    #: There is one user of the bus per node, who may publish the reports of that node only.
    per_node: bool = False
    #: It writes to Redis; all others only read there.
    writes_redis: bool = False

    #: Subjects that belong to it and that it subscribes to.
    serves: tuple[Subject, ...] = ()
    publishes: tuple[Subject | str, ...] = ()
    subscribes: tuple[Subject | str, ...] = ()

    #: Stores that belong to it: it may write, read and, except for buckets, purge them.
    owns: tuple[Store, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.entry.partition(":")[0]

    @property
    def builtin_controller(self) -> bool:
        return self.controller and bool(self.entry)

    def main(self) -> Any:
        """Imports and returns the function that `entry` names."""
        return _function(self.entry)

    def check_settings(self) -> None:
        """Raises SystemExit for settings with which the worker cannot run."""
        if self.check:
            _function(self.check)()


def _function(named: str) -> Any:
    import importlib

    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)


_SERVES = (
    Subject(subjects.CANDIDATES, "Ask", "which clusters may take an app", request=True),
    Subject(subjects.CANDIDATES_BATCH, "Asks", "the same for several groups", request=True),
    Subject(subjects.ACTIONS, "ActionAsk", "what to write into manifests", request=True),
)
_CHANGED = Subject(subjects.CHANGED, "-", "groups that wait because of this controller may be asked about again")


def controller_spec(name: str, **rest: Any) -> WorkerSpec:
    """Returns the spec of a placement controller: all of them serve, publish and read the same."""
    return WorkerSpec(
        name=name,
        controller=True,
        serves=_SERVES,
        publishes=(_CHANGED, subjects.REGISTER, subjects.LEAVE),
        reads=(stores.LEDGER, stores.SNAPSHOTS),
        **rest,
    )
