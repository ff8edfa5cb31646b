"""The agent as a process: elects a leader, which watches its cluster, reports it and applies desired state. All that a leader
does in a term is one group of tasks; the first that fails ends the term. Without the mesh a leader keeps what it applied, and
gives way to an agent that has a connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from moorage.bus import Bus, Settings, new_id, subjects, until_done
from moorage.dra import objects as dra
from moorage.kube import Api, ApiError, LeaderElector, LeaderTerm, Reflector, Unreachable, connect
from moorage.kube.objects import Key
from moorage.model.names import cluster_tokens
from moorage.model.object_names import NAMESPACE
from moorage.podspec import ALLOCATES, DRA_LABEL
from moorage.telemetry import ACTIVE, MetricValue

from .app_reconciler import AppReconciler
from .app_records import AppRecord, AppRecords
from .claim_gates import ClaimGates
from .context import ClusterContext
from .core import kube_types
from .core.cluster_state import ClusterState
from .core.device_annotations import DeviceAnnotations, SlotRun
from .desired_state import DesiredStateClient
from .device_allocation import DeviceAllocation
from .device_evictions import DeviceEvictions
from .fenced_configmap import StaleTerm
from .object_watches import ObjectWatches
from .pod_annotations import PodAnnotator
from .reporting import TOO_OLD, Reporting
from .unrecorded_objects import UnrecordedObjects

log = structlog.get_logger("agent")

LEASE = "moorage-agent"
SESSION = "moorage.dev/session"
DEVICES = "/apis/resource.k8s.io"
_DEVICE_VERSIONS = ("v1", "v1beta2", "v1beta1")
_RULE_VERSIONS = ("v1beta2", "v1alpha3")
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


async def main(
    settings: Settings,
    *,
    cluster: str,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
) -> None:
    """Runs until cancelled, or until the connection to the mesh is closed for good."""
    api = await connect(kubeconfig, context)
    try:
        bus = await Bus.connect(settings, worker=f"agent.{cluster_tokens(cluster)}")
        try:
            agent = Agent(api, bus, cluster, dict(labels or {}), namespace)
            bus.process_health.add_values(agent.metrics)
            await _run(agent)
        finally:
            await bus.close()
    finally:
        await api.close()


async def _run(agent: Agent) -> None:
    agent.bus.set_waiting_for("the API server")
    await _create_namespace(agent.api, agent.namespace)
    agent.bus.set_health(agent.health)
    identity = f"{socket.gethostname()}-{os.getpid()}-{new_id()}"
    elector = LeaderElector(agent.api, agent.namespace, LEASE, identity, lambda: agent.bus.nc.is_connected)
    leading = asyncio.ensure_future(elector.run(agent.lead))
    closed = asyncio.ensure_future(agent.bus.closed.wait())
    try:
        await asyncio.wait({leading, closed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (leading, closed):
            task.cancel()
        outcome = (await asyncio.gather(leading, closed, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome


async def _create_namespace(api: Api, name: str) -> None:
    """Creates the namespace of the lease and the records. `moorage join` has done so, except on a laptop."""
    while True:
        try:
            if await api.get(f"/api/v1/namespaces/{name}") is None:
                body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"%b"}}' % name.encode()
                await api.call("POST", "/api/v1/namespaces", body=body)
            return
        except ApiError as error:
            if error.code in (403, 409):
                return  # without the right to read it, the lease will show whether it exists
            log.warning("the API server refuses", error=error.message)
        except Unreachable as error:
            log.warning("the API server cannot be reached", error=str(error))
        await asyncio.sleep(2)


async def _device_versions(api: Api) -> tuple[str, str]:
    """Returns the newest version in which the server has devices (v1 if it has none yet), and that of the rules that taint them."""
    served: list[str] = []
    async for attempt in until_done((ApiError, Unreachable), first=1.0):
        with attempt:
            try:
                group = await api.get(DEVICES) or {}
            except ApiError as error:
                if error.code not in (401, 403):
                    raise
                group = {}  # the lists will show what is allowed
            served = [str(found.get("version")) for found in group.get("versions") or ()]
    devices = next((version for version in _DEVICE_VERSIONS if version in served), _DEVICE_VERSIONS[0])
    return devices, next((version for version in _RULE_VERSIONS if version in served), _RULE_VERSIONS[0])


class _Leading(NamedTuple):
    """The inputs of the leader's metrics and health. `age`: seconds since its view of the cluster was current."""

    age: Callable[[], float | None]
    reporting: Reporting
    apps: dict[str, AppReconciler]
    gates: ClaimGates


class Agent:
    def __init__(self, api: Api, bus: Bus, cluster: str, labels: dict[str, str], namespace: str) -> None:
        self.api, self.bus, self.cluster, self.labels, self.namespace = api, bus, cluster, labels, namespace
        self._desired: DesiredStateClient | None = None
        self._leading: _Leading | None = None

    async def lead(self, term: LeaderTerm) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._start(term, tasks)
        except* StaleTerm as lost:
            log.warning("another agent is the leader", reason=str(lost.exceptions[0]))
        finally:
            self._leading = None

    def health(self) -> dict[str, Any]:
        leading = self._leading
        if leading is None:
            return {"ok": True, "missing": [], "role": "standby"}
        age = leading.age()
        missing = [] if age is not None and age < TOO_OLD else ["the API server"]
        missing += (
            [] if leading.reporting.accepted.is_set() else ["the inventory, which takes no reports of this cluster"]
        )
        return {"ok": not missing, "missing": missing, "role": "active"}

    def metrics(self) -> Iterable[MetricValue]:
        """Returns the metrics that are computed when they are collected."""
        leading = self._leading
        yield MetricValue(*ACTIVE, float(leading is not None))
        if leading is None:
            return
        if (age := leading.age()) is not None:
            yield MetricValue("moorage_agent_view_age_seconds", "Age of the agent's view of the cluster", age)
        yield MetricValue(
            "moorage_agent_reports_total", "Reports sent since the agent became active", leading.reporting.sent
        )
        yield MetricValue("moorage_agent_opened_gates_total", "Pods that were pinned to slots", leading.gates.opened)
        yield MetricValue("moorage_agent_apps", "Apps that the agent keeps in the cluster", len(leading.apps))

    async def _start(self, term: LeaderTerm, tasks: asyncio.TaskGroup) -> None:
        def spawn(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(coro)

        state = ClusterState()
        gates = ClaimGates(self.api, term, state, lambda: nodes.listed and pods.listed, spawn)
        apps: dict[str, AppReconciler] = {}

        def devices_changed() -> None:
            allocation.changed()
            for app in apps.values():
                if app.has_pins:
                    app.wake.set()

        def wanted(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            found = (app.wanted(kind, namespace, name) for app in apps.values())
            return next((obj for obj in found if obj is not None), None)

        (version, rules), allocates = await _device_versions(self.api), self.labels.get(DRA_LABEL) == ALLOCATES
        state.allocates = allocates
        allocation = DeviceAllocation(self.api, term, state, version, wanted, spawn, allocates=allocates)

        def decision_of(claim: str) -> str:
            return next((found for app in apps.values() if (found := app.decision_of(claim))), "")

        def slot_devices() -> dict[str, list[SlotRun]]:
            return {claim: runs for app in apps.values() for claim, runs in app.slot_devices().items()}

        annotator = PodAnnotator(
            self.api, term, DeviceAnnotations(wanted, decision_of, state.device_classes.uid, slot_devices), spawn
        )

        def objects_changed() -> None:
            allocation.changed()
            annotator.objects_changed()

        evictions = DeviceEvictions(self.api, term, spawn)
        watchers = (allocation, annotator, evictions)
        reflectors = self._reflectors(state, gates, watchers, evictions, (version, rules), devices_changed)
        nodes, pods = reflectors[0], reflectors[1]
        for reflector in reflectors:
            spawn(reflector.run())

        async def learn_devices() -> None:
            for reflector in reflectors:
                await reflector.synced.wait()
            state.devices_known = True
            devices_changed()

        spawn(learn_devices())
        loop = asyncio.get_running_loop()

        def age() -> float | None:
            if not all(r.synced.is_set() for r in reflectors) or not (nodes.listed and pods.listed):
                return None
            return loop.time() - min(nodes.current(), pods.current())

        reporting = Reporting(
            self.bus, self.cluster, state, age, self.labels, term.previous_annotations.get(SESSION, "")
        )
        term.annotations[SESSION] = reporting.session
        state.on_change = reporting.changed.set
        records = AppRecords(self.api, self.namespace, term)
        watches = ObjectWatches(
            self.api, spawn, lambda label: desired.wake(label), lambda kind, live: unrecorded.learn_object(kind, live)
        )
        cluster = ClusterContext(self.api, term, records, watches, state, apps)
        cluster.allocates, cluster.objects_changed = allocates, objects_changed
        desired = DesiredStateClient(
            self.bus, self.cluster, cluster, apps, spawn, lambda: reporting.period, gates.set_pins
        )
        unrecorded = UnrecordedObjects(cluster, desired.adopt)
        self._leading = _Leading(age, reporting, apps, gates)
        spawn(reporting.run())
        spawn(gates.run())
        spawn(allocation.run())
        spawn(annotator.run())
        spawn(evictions.run())
        await self._take_over(records, desired)
        await unrecorded.search(spawn)
        await self._listen(desired)
        spawn(desired.run_requests())
        spawn(desired.run_confirms())

    def _reflectors(
        self,
        state: ClusterState,
        gates: ClaimGates,
        watchers: Sequence[DeviceAllocation | PodAnnotator | DeviceEvictions],
        evictions: DeviceEvictions,
        versions: tuple[str, str],
        devices_changed: Callable[[], None],
    ) -> list[Reflector[Any]]:
        api, devices, rules = self.api, *(f"{DEVICES}/{version}" for version in versions)

        def put_node(key: Key, node: kube_types.Node) -> None:
            state.put_node(key, node)
            gates.nodes_changed()

        def put_pod(key: Key, pod: kube_types.Pod) -> None:
            state.put_pod(key, pod)
            gates.put_pod(key, pod)
            for watcher in watchers:
                watcher.put_pod(key, pod)

        def drop_pod(key: Key, uid: str) -> None:
            state.drop_pod(key, uid)
            gates.drop_pod(key, uid)
            for watcher in watchers:
                watcher.drop_pod(key, uid)

        def put_claim(key: Key, claim: dra.DeviceClaim) -> None:
            state.put_device_claim(key, claim)
            for watcher in watchers:
                watcher.put_claim(key, claim)

        def drop_claim(key: Key, uid: str) -> None:
            state.drop_device_claim(key, uid)
            for watcher in watchers:
                watcher.drop_claim(key, uid)

        def put_slice(key: Key, found: dra.Slice) -> None:
            state.put_slice(key, found)
            devices_changed()

        def drop_slice(key: Key, uid: str) -> None:
            state.drop_slice(key, uid)
            devices_changed()

        def put_class(key: Key, found: dra.DeviceClass) -> None:
            state.put_device_class(key, found)
            evictions.put_class(key.name, found)
            devices_changed()

        def drop_class(key: Key, uid: str) -> None:
            state.drop_device_class(key, uid)
            evictions.drop_class(key.name)
            devices_changed()

        return [
            Reflector(api, "/api/v1/nodes", kube_types.node, put_node, state.drop_node),
            Reflector(api, "/api/v1/pods", kube_types.pod, put_pod, drop_pod),
            Reflector(api, f"{devices}/resourceslices", dra.slice_, put_slice, drop_slice),
            Reflector(
                api,
                f"{devices}/resourceclaims",
                dra.device_claim,
                put_claim,
                drop_claim,
            ),
            Reflector(
                api,
                f"{devices}/deviceclasses",
                dra.device_class,
                put_class,
                drop_class,
            ),
            Reflector(
                api,
                f"{rules}/devicetaintrules",
                dra.device_taint_rule,
                state.put_taint_rule,
                state.drop_taint_rule,
            ),
            Reflector(api, "/api/v1/resourcequotas", dra.resource_quota, state.put_quota, state.drop_quota),
            Reflector(api, TOPOLOGIES, kube_types.topology, state.put_topology, state.drop_topology),
        ]

    async def _take_over(self, records: AppRecords, desired: DesiredStateClient) -> None:
        """Starts the apps of predecessors, whose writes are refused from here on."""
        loaded: list[AppRecord] = []
        async for attempt in until_done((ApiError, Unreachable), first=1.0):
            with attempt:
                loaded = await records.load()
        for record in loaded:
            desired.start_app(record)

    async def _listen(self, desired: DesiredStateClient) -> None:
        """Subscribes to hints once for all terms of this process."""
        first = self._desired is None
        self._desired = desired
        if first:
            await self.bus.subscribe(subjects.desired("changed", self.cluster), self._hinted)
            self.bus.on_reconnect(self._reconnected)

    def _hinted(self, _subject: str = "", _data: bytes = b"") -> None:
        if self._desired is not None:
            self._desired.ask_now.set()

    async def _reconnected(self) -> None:
        self._hinted()
