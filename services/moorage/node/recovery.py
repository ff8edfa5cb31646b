"""Learns after a start what runs on the node, and makes records of it that the checkpoint does not have. Nothing that runs is
changed without need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import grpc.aio
import msgspec
import structlog

from moorage.qos.messages import ContainerSpec, PodAllocations, PodSpec

from .containers import ASKED, COPY, ContainerRecord
from .core import checkpoint
from .core.properties import CPUSET_CPUS, CPUSET_MEMS
from .cri_proxy import Refused
from .plugin_endpoint import PluginFailed
from .pod_admission import WAIT_FOR_SPEC
from .pod_objects import told_by_runtime
from .runtime import CREATED, EXITED

if TYPE_CHECKING:
    from .agent import NodeAgent

log = structlog.get_logger("node")

#: Seconds between tries to read what the runtime runs, while it is away.
_RETRY = (0.05, 0.1, 0.2, 0.5, 1.0)


class Recovery:
    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        #: What the kubelet had asked for, by the checkpoint.
        self.asked: Mapping[str, checkpoint.Asked] = {}
        self._copies: PodAllocations = {}
        self._told: dict[str, PodSpec] = {}

    async def run(self) -> None:
        """Learns what the runtime runs, before anything new is admitted. Lists and status pass meanwhile."""
        if self._agent.settings.attach == "nri":
            self._agent.spawn(self._agent.nri.run())
            await self._agent.nri.attached.wait()
        else:
            await self._read_runtime()
        if not self._agent.settings.enabled:
            self._recovered()
            return
        answers = {name: server.plugin.resources_allocation() for name, server in self._agent.servers.items()}
        await self._rebuild(answers)
        await self._wait_for_plugins()
        await self._adopt_running()
        self._note_unrecorded(answers)
        self._recovered()
        await self._agent.settle()

    async def start_anew(self) -> str:
        """Sets the state aside and makes all records again from what the runtime runs now, from plugins, cgroups and annotations;
        new pods wait meanwhile. Raises grpc.aio.AioRpcError, with nothing changed, if the runtime is away."""
        agent = self._agent
        if agent.settings.attach != "nri":  # NRI tells of all that comes and goes
            before = {record.id for record in agent.index.live()}
            there = await self._list_runtime()
            for gone in before - there:
                agent.index.drop(gone)
        agent.admission.recovered.clear()
        try:
            message = (
                agent.state.set_aside("reset by command") if agent.state.read() is not None else "there was no state"
            )
            agent.forget_written()
            answers = await self._ask_plugins()
            await self._rebuild(answers, anew=True)
            await self._adopt_running()
            self._note_unrecorded(answers)
        finally:
            agent.admission.recovered.set()
        await agent.settle()
        await agent.adjuster.put_right()
        return message

    async def _ask_plugins(self) -> dict[str, PodAllocations]:
        """Returns what plugins say that pods have. What one that does not answer has given stays as it is recorded."""
        agent = self._agent
        answers: dict[str, PodAllocations] = {}

        async def ask(name: str) -> None:
            endpoint = agent.registry.get(name)
            try:
                if endpoint is not None:
                    answers[name] = await endpoint.resources_allocation()
                    return
            except PluginFailed as failed:
                log.warning("a plugin does not say what it gave", plugin=name, error=str(failed))
            answers[name] = {
                uid: {c: {name: given[name]} for c, given in record.containers.items() if name in given}
                for uid, record in agent.admission.records.items()
            }

        await asyncio.gather(*map(ask, agent.registry.names()))
        return answers

    def _note_unrecorded(self, answers: Mapping[str, PodAllocations]) -> None:
        for name, answer in answers.items():
            self._agent.admission.note_unrecorded(name, answer)

    def _recovered(self) -> None:
        self._agent.admission.recovered.set()
        if self._agent.runner is not None:
            self._agent.spawn(self._agent.runner.run())

    async def _read_runtime(self) -> None:
        for attempt in range(1 << 30):
            try:
                await self._list_runtime()
                return
            except grpc.aio.AioRpcError as error:
                if attempt == 0:
                    log.warning("waiting for the runtime", error=error.details())
                await asyncio.sleep(_RETRY[min(attempt, len(_RETRY) - 1)])

    async def _list_runtime(self) -> set[str]:
        """Takes over what the runtime runs, and returns the ids of its containers."""
        sandboxes = {s.id: s for s in await self._agent.runtime.sandboxes()}
        containers = await self._agent.runtime.containers()
        for sandbox in sandboxes.values():
            self._agent.index.add_sandbox(sandbox.id, sandbox.metadata.uid)
        for container in sorted(containers, key=lambda c: c.created_at):
            found, before = sandboxes.get(container.pod_sandbox_id), self._agent.index.get(container.id)
            if before is not None and container.state == EXITED:
                before.state = EXITED
            if found is None or container.state == EXITED:
                continue
            pod = found.metadata
            record = ContainerRecord(
                id=container.id,
                uid=pod.uid,
                name=container.metadata.name,
                sandbox=container.pod_sandbox_id,
                namespace=pod.namespace,
                pod=pod.name,
                # It may have been started since the runtime was asked.
                state=before.state if before is not None else container.state,
                applied=before.applied if before is not None and before.state == CREATED else {},
            )
            told = told_by_runtime(pod.uid, pod.namespace, pod.name, dict(found.labels), dict(found.annotations))
            self.add(record, told, container.annotations)
        return {container.id for container in containers}

    def add(self, record: ContainerRecord, told: PodSpec, annotations: Mapping[str, str]) -> None:
        """Takes over a container that is there, with what its annotations and the checkpoint tell of it."""
        before, kept = self._agent.index.get(record.id), self.asked.get(record.uid, {})
        if before is not None:
            record.asked = before.asked
        else:
            # The checkpoint keeps by id what was asked for since the container was created.
            record.asked = kept.get(record.id) or _read_asked(annotations.get(ASKED, "")) or kept.get(record.name, {})
        self._agent.index.put(record)
        if record.state == EXITED:
            return
        if copy := annotations.get(COPY):
            self._copies.setdefault(record.uid, {})[record.name] = checkpoint.decode_copy(copy)
        self._told[record.uid] = told
        self._agent.source.name_static(told)

    async def _rebuild(self, answers: Mapping[str, PodAllocations], *, anew: bool = False) -> None:
        """Makes records of running pods that the checkpoint does not have, or of all, from plugins, cgroups and annotations."""
        agent, records = self._agent, self._agent.admission.records
        pods = {uid: pod for uid, pod in self._pods_running().items() if anew or uid not in records}
        if not pods and not anew:
            return
        cgroups = await self._read_cgroups(pods, answers)
        pod_scope = agent.policy.policy.spec.topology_scope == "pod"
        found = checkpoint.rebuild(pods, answers, self._copies, cgroups, pod_scope=pod_scope)
        if anew:  # a pod of which nothing runs yet has what it was admitted with
            agent.admission.forget(uid for uid in records if uid in pods or agent.source.is_gone(uid))
        checkpoint.take_slots(found, agent.settings.node, records.values())
        agent.admission.take_over(found)
        for server in agent.servers.values():
            for problem in server.plugin.adopt(pods, checkpoint.by_plugins(found)):
                agent.add_problem(problem)
            server.save()
        agent.try_write()

    async def _read_cgroups(
        self, pods: dict[str, PodSpec], answers: Mapping[str, PodAllocations]
    ) -> dict[str, dict[str, dict[str, str]]]:
        """Reads what containers run with that may have CPUs for themselves, and of which the plugin `cpu` does not know."""
        agent = self._agent
        known = answers.get("cpu", {})
        found: dict[str, dict[str, dict[str, str]]] = {}

        async def read(record: ContainerRecord) -> None:
            uid = record.uid
            role = agent.policy.policy.role(pods[uid].role)
            if role is None or not role.exclusive:
                return
            if not pods[uid].requests_known and (told := await agent.source.wait(uid, WAIT_FOR_SPEC)) is not None:
                pods[uid] = told.spec
            spec = next((c for c in pods[uid].containers if c.name == record.name), None)
            try:
                has = await agent.reader.read(record, dict.fromkeys((CPUSET_CPUS, CPUSET_MEMS), ""))
            except grpc.aio.AioRpcError:
                return
            if spec is not None and has and checkpoint.can_be_given(spec, role, agent.machine, has):
                found.setdefault(uid, {})[record.name] = has

        await asyncio.gather(
            *(
                read(record)
                for record in list(agent.index.live())
                if record.uid in pods and pods[record.uid].role and record.name not in known.get(record.uid, {})
            )
        )
        return found

    def _pods_running(self) -> dict[str, PodSpec]:
        found: dict[str, PodSpec] = {}
        for record in self._agent.index.live():
            known = self._agent.source.get(record.uid)
            pod = known.spec if known is not None else found.get(record.uid) or self._told.get(record.uid)
            if pod is None:
                pod = PodSpec(uid=record.uid, namespace=record.namespace, name=record.pod, requests_known=False)
            if all(c.name != record.name for c in pod.containers):
                pod = _with_container(pod, record.name)
            found[record.uid] = pod
        return found

    async def _wait_for_plugins(self) -> None:
        """Waits a moment for the built-in plugins to be found."""
        for _ in range(100):
            if all(self._agent.registry.get(n) or server.rejected for n, server in self._agent.servers.items()):
                return
            await asyncio.sleep(0.01)

    async def _adopt_running(self) -> None:
        """Admits what ran before the agent did. A pod that cannot have what it asks for is told, and runs on as it is."""
        await asyncio.gather(*(self._adopt(record) for record in list(self._agent.index.live())))

    async def _adopt(self, record: ContainerRecord) -> None:
        found = self._agent.admission.records.get(record.uid)
        if found is not None and record.name in found.containers:
            return
        told = self._told.get(record.uid) or PodSpec(
            uid=record.uid, namespace=record.namespace, name=record.pod, requests_known=False
        )
        try:
            await self._agent.admission.admit_running(told, record.name)
        except Refused as refused:
            log.warning("a running pod does not have what it asks for", pod=record.pod, reason=str(refused))

    def synchronized(self) -> Mapping[str, Mapping[str, str]]:
        """Returns what containers should have that started while the agent was not attached by NRI."""
        self._agent.spawn(self._after_synchronize())
        return {}

    async def _after_synchronize(self) -> None:
        await self._agent.admission.recovered.wait()
        if self._agent.settings.enabled:
            await self._wait_for_plugins()
            await self._adopt_running()
            await self._agent.adjuster.put_right()


def _with_container(pod: PodSpec, name: str) -> PodSpec:
    extra = ContainerSpec(name=name, index=len(pod.containers))
    return msgspec.structs.replace(pod, containers=(*pod.containers, extra))


def _read_asked(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}
