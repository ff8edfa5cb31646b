"""Answers the commands of `moorage node` from a running agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc.aio
import msgspec

from moorage.model.problems import Refused as DocumentRefused
from moorage.parsing.yaml_json import parse_documents
from moorage.qos.admission import Admitted, PodRecord, admit, run_in_process
from moorage.qos.builtin import BUILT_IN
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.memory_plugin import MemoryPlugin
from moorage.qos.messages import AllocationRefused, Refusal, ResourcePlugin, TopologyHint

from .containers import ContainerRecord, is_asked
from .core.adjustment import drift
from .core.properties import oci_properties
from .http_api import Answer, OperationRefused
from .plugin_registry import listed
from .pod_admission import Outcome
from .pod_source import read_manifest

if TYPE_CHECKING:
    from .agent import NodeAgent


class AgentOperations:
    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent

    def ready(self) -> list[str]:
        agent = self._agent
        missing = [] if agent.admission.recovered.is_set() else ["the runtime"]
        if not agent.settings.enabled:
            return missing
        return missing + [
            f"the plugin {name}"
            for name, server in agent.servers.items()
            if agent.registry.get(name) is None and not server.rejected
        ]

    def metrics_text(self) -> str:
        return self._agent.metrics.text()

    # --- what there is

    async def allocations(self, pod: str) -> list[Answer]:
        await self._agent.adjuster.read_new()
        found = [
            item
            for record in self._agent.admission.records.values()
            if not pod or pod in (record.pod.uid, f"{record.pod.namespace}/{record.pod.name}")
            for item in self._items(record)
        ]
        return sorted(found, key=lambda item: (item["pod"], item["container"]))

    def _items(self, record: PodRecord, applied: bool | None = None) -> list[Answer]:
        pod = record.pod
        return [
            {
                "pod": f"{pod.namespace}/{pod.name}",
                "uid": pod.uid,
                "role": pod.role,
                "container": name,
                "claim": pod.claim,
                "resources": {resource: _shown(info) for resource, info in given.items()},
                "applied": self._applied(pod.uid, name) if applied is None else applied,
            }
            for name, given in record.containers.items()
        ]

    def _applied(self, uid: str, container: str) -> bool:
        """Returns whether the container's cgroup has what was allocated, as it was last read."""
        record = self._agent.index.named(uid, container)
        want = self._agent.wanted(record) if record is not None else None
        if record is None or want is None or not want.properties.keys() <= record.applied.keys():
            return False
        return not drift({(uid, container): want}, {(uid, container): record.applied})

    def pools(self) -> list[Answer]:
        cpu = self._agent.cpu
        if cpu is None:
            return []
        holders: dict[str, list[str]] = {}
        for uid, record in self._agent.admission.records.items():
            for name in record.containers:
                pool = self._agent.pool_of(uid, name)
                holders.setdefault(pool, []).append(f"{record.pod.namespace}/{record.pod.name}/{name}")
        return [
            {
                "name": name,
                "cpus": format_cpuset(pool.cpus),
                "size": pool.cpus.bit_count(),
                "min": pool.least,
                "containers": sorted(holders.get(name, ())),
            }
            for name, pool in cpu.pools().items()
        ]

    async def zones(self) -> list[Answer]:
        agent, machine = self._agent, self._agent.machine
        cpu = agent.cpu
        plugin = agent.plugin("memory")
        free_cpus = cpu.free_by_zone() if cpu is not None else {}
        free_memory = plugin.free_by_zone() if isinstance(plugin, MemoryPlugin) else {}
        policy = agent.policy.policy
        return [
            {
                "id": f"numa-{node.id}",
                "cpus": format_cpuset(machine.cpus.numas.get(node.id, 0)),
                "reservedCpus": format_cpuset(machine.cpus.numas.get(node.id, 0) & policy.reserved_cpus),
                "exclusiveFree": free_cpus.get(node.id, 0),
                "exclusiveCpus": format_cpuset(machine.cpus.numas.get(node.id, 0) & (cpu.exclusive if cpu else 0)),
                "memory": dict(node.total),
                "memoryFree": free_memory.get(node.id, 0),
                "distances": list(machine.distances[place]) if place < len(machine.distances) else [],
                "roles": self._roles(node.id),
            }
            for place, node in enumerate(machine.memory)
        ]

    def _roles(self, zone: int) -> list[str]:
        """Returns the roles of pods that are bound to the zone."""
        return sorted(
            {
                record.pod.role
                for record in self._agent.admission.records.values()
                for given in record.containers.values()
                for info in given.values()
                if record.pod.role and any(hint.nodes == (zone,) for hint in info.resource_hints)
            }
        )

    def plugins(self) -> list[Answer]:
        found = {item["name"]: dict(item) for item in listed(self._agent.registry.states())}
        for name, server in self._agent.servers.items():
            if server.rejected:
                found[name] = {
                    "name": name,
                    "registered": False,
                    "socket": "",
                    "message": server.rejected,
                    "stoppedAt": None,
                }
        return [found[name] for name in sorted(found)]

    def status(self) -> Answer:
        agent = self._agent
        return {
            "node": agent.settings.node,
            "attach": agent.settings.attach,
            "enabled": agent.admission.enabled,
            "ready": not self.ready(),
            "uptime": round(time.time() - agent.started, 1),
            "pods": len(agent.admission.records),
            "containers": len(agent.index),
            "topologyPolicy": agent.policy.policy.spec.topology_policy,
            "roles": sorted(agent.policy.policy.roles),
            "problems": self._problems(),
        }

    def _problems(self) -> list[str]:
        agent = self._agent
        failed = [f"{uid}/{name}: {why}" for (uid, name), why in agent.adjuster.failed.items()]
        manifests = agent.manifests.problems if agent.manifests is not None else {}
        files = [f"{name}: {why}" for name, why in manifests.items()]
        pods = [f"pod {uid}: {why}" for uid, why in agent.runner.messages.items()] if agent.runner is not None else []
        return [*agent.problems, *([agent.policy.problem] if agent.policy.problem else []), *failed, *files, *pods]

    def why(self, pod: str) -> Answer:
        outcomes = self._agent.admission.outcomes
        found = outcomes.get(pod) or next((o for o in reversed(outcomes.values()) if o.pod == pod), None)
        if found is None:
            record = next(
                (
                    r
                    for r in self._agent.admission.records.values()
                    if pod in (r.pod.uid, f"{r.pod.namespace}/{r.pod.name}")
                ),
                None,
            )
            if record is None:
                raise OperationRefused(f"no pod {pod} was seen on this node; write NAMESPACE/NAME or a uid", 404)
            found = Outcome(f"{record.pod.namespace}/{record.pod.name}", record.pod.uid, ())
        return {
            "pod": found.pod,
            "uid": found.uid,
            "outcome": "refused" if found.refusals else "admitted",
            "reasons": [_reason(refusal) for refusal in found.refusals],
            "warnings": list(found.warnings),
        }

    # --- what changes

    async def set_pools(self, wanted: Mapping[str, str]) -> list[Answer]:
        """Gives pools other CPUs in one step, and returns when all their containers were read back."""
        try:
            await self._agent.set_pools({name: parse_cpuset(cpus) for name, cpus in wanted.items()})
        except (AllocationRefused, ValueError) as refused:
            raise OperationRefused(str(refused)) from refused
        return self.pools()

    async def simulate(self, manifests: bytes) -> list[Answer]:
        """Admits pods with copies of the built-in plugins."""
        agent = self._agent
        plugins: dict[str, ResourcePlugin] = {}
        for name in BUILT_IN:
            if (there := agent.plugin(name)) is not None:
                plugins[name] = agent.make_plugin(name)
                plugins[name].restore(there.encode())
        node = agent.admission.node()
        node = node._replace(plugins={name: info for name, info in node.plugins.items() if name in plugins})
        records = dict(agent.admission.records)
        items: list[Answer] = []
        try:
            pods = [read_manifest(data).pod.spec for data in parse_documents(manifests)]
        except (DocumentRefused, ValueError, msgspec.ValidationError) as error:
            raise OperationRefused(f"the manifests cannot be read: {error}") from error
        for pod in pods:
            found = run_in_process(admit(pod, node, records), plugins)
            if isinstance(found, Admitted):
                records[pod.uid] = found.record
                items += self._items(found.record, applied=False)
            else:
                reasons = [_reason(refusal) for refusal in found.refusals]
                items.append(
                    {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "role": pod.role, "reasons": reasons}
                )
        return items

    async def check(self) -> list[Answer]:
        """Returns what is wrong, each with what to do about it."""
        agent = self._agent
        found: list[Answer] = []
        if not agent.settings.enabled:
            action = "start it with --feature-gates QoSResourceManager=true to turn it on"
            found.append({"what": "the feature gate is off: everything passes unchanged", "action": action})
        elif not agent.admission.enabled:
            action = "point the kubelet at the runtime, or start the agent again to attach it"
            found.append({"what": "the agent was detached: everything passes unchanged", "action": action})
        try:
            if agent.settings.attach != "nri":
                await agent.runtime.version()
        except grpc.aio.AioRpcError as error:
            action = f"start the runtime, or name its socket with --runtime; it is {agent.settings.runtime}"
            found.append({"what": f"the runtime does not answer: {error.details()}", "action": action})
        for plugin in self.plugins():
            if not plugin["registered"]:
                action = "start the plugin; its pods are refused until it is back"
                found.append({"what": f"plugin {plugin['name']}: {plugin['message']}", "action": action})
        found += [{"what": problem, "action": "see the agent's log"} for problem in self._problems()]
        if agent.api is not None and not agent.source.listed.is_set():
            action = "check --kubeconfig and the rights of its user: get, list and watch pods"
            found.append({"what": "the pods of the node are not known yet", "action": action})
        if (reports := agent.mesh.reports) is not None and not reports.connected:
            action = "see the agent's log; if its credentials were revoked, write new ones with moorage node join"
            found.append({"what": "the mesh does not hear the agent, which goes on without it", "action": action})
        return found

    async def detach(self) -> Answer:
        """Gives containers back what the kubelet asked for. Nothing is stopped, and the agent lets all pass from here on."""
        agent = self._agent
        agent.admission.enabled = False
        agent.proxy.interceptors = {}
        given_back, failed = 0, []
        for record in list(agent.index.live()):
            back = self._asked(record)
            if not back:
                continue
            try:
                await agent.adjuster.updater.update(record, back)
                record.applied = {}
                given_back += 1
            except Exception as error:  # noqa: BLE001 - each container is tried, and told
                failed.append(f"{record.pod}/{record.name}: {error}")
        return {"containers": given_back, "failed": failed}

    def _asked(self, record: ContainerRecord) -> dict[str, str]:
        """Returns what the kubelet wanted of the properties that plugins decided. Where it named no CPUs or memory nodes, it
        wanted all."""
        found = self._agent.admission.records.get(record.uid)
        given = found.containers.get(record.name) if found is not None else None
        if not given:
            return {}
        machine = self._agent.machine
        everything = {
            "CpusetCpus": format_cpuset(machine.cpus.all),
            "CpusetMems": format_cpuset(sum(1 << node.id for node in machine.memory)),
            "CpuQuota": "-1",
        }
        back = {}
        for name in oci_properties(given):
            value = record.asked.get(name, "")
            if not is_asked(value):
                value = everything.get(name, "")
            if value:
                back[name] = value
        return back

    async def reset(self) -> Answer:
        """Sets the state aside and makes it again from what runs: from plugins, cgroups and annotations."""
        agent = self._agent
        if not agent.admission.enabled or not agent.admission.recovered.is_set():
            raise OperationRefused("no state is kept while the gate is off, the agent detached or the runtime away")
        try:
            message = await agent.recovery.start_anew()
        except grpc.aio.AioRpcError as error:
            raise OperationRefused(f"the runtime does not answer, nothing is changed: {error.details()}") from error
        return {"message": message, "pods": len(agent.admission.records)}


def _shown(info: Any) -> Answer:
    return {
        "ociPropertyName": info.oci_property_name,
        "isNodeResource": info.is_node_resource,
        "isScalarResource": info.is_scalar_resource,
        "allocationResult": info.allocation_result,
        "allocatedQuantity": info.allocated_quantity,
        "resourceHints": [_hint(hint) for hint in info.resource_hints],
        "envs": info.envs,
        "annotations": info.annotations,
    }


def _hint(hint: TopologyHint) -> Answer:
    return {"nodes": list(hint.nodes), "preferred": hint.preferred}


def _reason(refusal: Refusal) -> Answer:
    return {
        "code": refusal.code,
        "resource": refusal.resource,
        "container": refusal.container,
        "needed": refusal.needed,
        "free": refusal.free,
        "message": refusal.message,
        "nearest": [{"zone": miss.zone, "free": miss.free, "message": miss.message} for miss in refusal.nearest],
    }
