"""Describes the calls of an admission, their results, and what comes of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, NamedTuple

from moorage.model.base import Model, Value

from .messages import (
    AllocationRefused,
    HintsAnswer,
    PodSpec,
    Refusal,
    ResourceAllocation,
    ResourcePlugin,
    ResourceRequest,
)
from .node_policy import NodePolicy
from .topology_hints import Distances

Method = Literal["hints", "pod_hints", "allocate", "pod_allocate", "remove"]


class PluginInfo(Value, kw_only=True, frozen=True):
    """A plugin as the agent knows it. `running` is False where it is known from the checkpoint only, or its socket is gone.
    `everyone`: it is asked for every container, also for those that request nothing of it (the built-in CPU plugin: who
    requests nothing must stay away from CPUs that others have for themselves)."""

    resource: str
    running: bool = True
    with_topology_alignment: bool = True
    built_in: bool = False
    everyone: bool = False


class Call(NamedTuple):
    """A call to the plugin of a resource. `remove` has a request with the pod's uid only."""

    plugin: str
    method: Method
    request: ResourceRequest


class Failed(NamedTuple):
    """The error of a call. `refusal`: what a built-in plugin said in full."""

    message: str
    refusal: Refusal | None = None
    unimplemented: bool = False


#: The results of a batch of calls, in their order: hints, an allocation, None of `remove`, or an error.
Result = HintsAnswer | ResourceAllocation | Failed | None
Calls = Generator[Sequence[Call], Sequence[Result], "Admitted | Refused"]


class PodRecord(Model, kw_only=True):
    """The resources of an admitted pod: what each container has, by container and resource."""

    pod: PodSpec
    containers: dict[str, ResourceAllocation] = {}
    slot: int = -1  # of its claim on this node
    zones: int = 0  # that its claim names; 0: any
    whole: bool = False  # it was given to the pod as a whole, and stands at each container


class Admitted(NamedTuple):
    record: PodRecord
    warnings: tuple[str, ...] = ()
    reused: bool = False


class Refused(NamedTuple):
    refusals: tuple[Refusal, ...]

    @property
    def message(self) -> str:
        """Returns what the kubelet's event shows."""
        return str(self.refusals[0])


class Node(NamedTuple):
    """The state of the node besides its plugins, as admission needs it."""

    name: str
    policy: NodePolicy
    plugins: Mapping[str, PluginInfo]
    zones: int
    distances: Distances | None = None


def call_plugin(plugin: ResourcePlugin, call: Call) -> Result:
    """Performs a call in this process."""
    try:
        if call.method in ("hints", "pod_hints"):
            return plugin.topology_hints(call.request)
        if call.method == "remove":
            plugin.remove_pod(call.request.pod_uid)
            return None
        return plugin.allocate(call.request)
    except AllocationRefused as refused:
        return Failed(str(refused), refused.refusal)


def run_in_process(calls: Calls, plugins: Mapping[str, ResourcePlugin]) -> Admitted | Refused:
    """Performs all calls of an admission in this process."""
    results: Sequence[Result] | None = None
    try:
        while True:
            batch = calls.send(results) if results is not None else next(calls)
            results = [call_plugin(plugins[call.plugin], call) for call in batch]
    except StopIteration as done:
        outcome: Admitted | Refused = done.value
        return outcome
