"""Keeps what the agent must not forget: what each container has, and what the kubelet asked for before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from moorage.model.base import Model
from moorage.qos.admission import PodRecord
from moorage.qos.claimed_zones import BadClaim, slot_zones
from moorage.qos.cpusets import parse_cpuset
from moorage.qos.machine import Machine
from moorage.qos.messages import ContainerSpec, PodAllocations, PodSpec, ResourceAllocation, ResourceAllocationInfo
from moorage.qos.node_policy import RoleSpec
from moorage.qos.state_file import BadState, seal, unseal

#: By the id of a container, before by its name: what the kubelet asked for of the properties that plugins decide.
Asked = dict[str, dict[str, str]]


class Checkpoint(Model, kw_only=True):
    """By pod uid: records, and what the kubelet asked for. `resources`: all that plugins were registered for."""

    records: dict[str, PodRecord] = {}
    asked: dict[str, Asked] = {}
    resources: list[str] = []


class _PodPart(Model, kw_only=True):
    """The record of a pod, beside the allocations of its containers."""

    pod: PodSpec
    claim: str = ""
    slot: int = msgspec.field(default=-1, name="seat")
    zones: int = 0
    whole: bool = False
    asked: Asked = {}


class _Content(Model, kw_only=True):
    entries: PodAllocations = {}
    pods: dict[str, _PodPart] = {}
    resources: list[str] = []


def encode(checkpoint: Checkpoint) -> bytes:
    """Encodes a checkpoint; `entries` are by pod uid, container and resource."""
    return seal(
        {
            "entries": {uid: record.containers for uid, record in checkpoint.records.items()},
            "pods": {
                uid: _PodPart(
                    pod=record.pod,
                    claim=record.pod.claim,
                    slot=record.slot,
                    zones=record.zones,
                    whole=record.whole,
                    asked=checkpoint.asked.get(uid, {}),
                )
                for uid, record in checkpoint.records.items()
            },
            "resources": sorted(checkpoint.resources),
        }
    )


def decode(data: bytes) -> Checkpoint:
    """Reads a checkpoint. Raises BadState for what is torn, junk or newer."""
    content = unseal(data)
    try:
        found = msgspec.convert(content, _Content, str_keys=True)
    except msgspec.ValidationError as error:
        raise BadState(f"the checkpoint is not of the expected form: {error}") from None
    return Checkpoint(
        records={
            uid: PodRecord(
                pod=part.pod,
                containers=found.entries.get(uid, {}),
                slot=part.slot,
                zones=part.zones,
                whole=part.whole,
            )
            for uid, part in found.pods.items()
        },
        asked={uid: part.asked for uid, part in found.pods.items() if part.asked},
        resources=found.resources,
    )


_encode_copy = msgspec.json.Encoder().encode
_decode_copy = msgspec.json.Decoder(dict[str, ResourceAllocationInfo]).decode


def encode_copy(allocation: ResourceAllocation) -> str:
    """Encodes what a container has for its annotation, from which a lost checkpoint is made again."""
    return _encode_copy(allocation).decode()


def decode_copy(text: str) -> ResourceAllocation:
    """Reads such an annotation; junk has nothing."""
    try:
        return _decode_copy(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def rebuild(
    pods: Mapping[str, PodSpec],
    answers: Mapping[str, PodAllocations],
    copies: PodAllocations,
    cgroups: Mapping[str, Mapping[str, Mapping[str, str]]],
    *,
    pod_scope: bool = False,
) -> dict[str, PodRecord]:
    """Makes records of the pods that run: what plugins answer, by resource, goes before the properties of their cgroups, by pod and
    container, and these before the copies in the containers' annotations, which are as old as the containers. What a pod without
    a role has in its cgroup is nothing that it was given. `pod_scope`: pods are given what they have as a whole."""
    records = {}
    for uid, pod in pods.items():
        containers: dict[str, ResourceAllocation] = {}
        said = [answer[uid] for answer in answers.values() if answer.get(uid)]
        for spec in pod.containers:
            allocation = dict(copies.get(uid, {}).get(spec.name, {}))
            if pod.role:
                _correct(allocation, cgroups.get(uid, {}).get(spec.name, {}))
            for given in said:
                allocation.update(given.get(spec.name, given.get("", {})))
            if allocation:
                containers[spec.name] = allocation
        if containers:
            whole = any("" in given for given in said) if said else _is_whole(list(containers.values()), pod_scope)
            records[uid] = PodRecord(pod=pod, containers=containers, whole=whole)
    return records


def _is_whole(given: Sequence[ResourceAllocation], pod_scope: bool) -> bool:
    """Returns whether a pod was given this as a whole: no CPUs are for two containers alone otherwise."""
    first = given[0]
    alone = "cpu" in first and bool(first["cpu"].topology_assignments)
    return all(other == first for other in given) and (pod_scope or (alone and len(given) > 1))


def by_plugins(records: Mapping[str, PodRecord]) -> PodAllocations:
    """Returns what pods have as plugins know it: what a pod has as a whole is of no container."""
    return {
        uid: {"": next(iter(record.containers.values()))} if record.whole and record.containers else record.containers
        for uid, record in records.items()
    }


def _correct(allocation: ResourceAllocation, properties: Mapping[str, str]) -> None:
    """Puts what a cgroup has over what a container was given when it was created."""
    for resource, name in (("cpu", "CpusetCpus"), ("memory", "CpusetMems")):
        value = properties.get(name)
        before = allocation.get(resource)
        if value and before is None:
            allocation[resource] = ResourceAllocationInfo(
                oci_property_name=name, is_scalar_resource=True, allocation_result=value
            )
        elif value and before is not None and before.allocation_result != value:
            allocation[resource] = msgspec.structs.replace(before, allocation_result=value, resource_hints=())


def can_be_given(
    container: ContainerSpec, role: RoleSpec | None, machine: Machine, properties: Mapping[str, str]
) -> bool:
    """Returns whether a running container can have been given its CPUs for itself: they are as many as it asks for and, where its
    role binds, of one NUMA node with its memory. Otherwise it runs as it was started, and is nothing to go by."""
    asked = math.ceil(round(container.requests.get("cpu", 0.0), 3))
    if role is None or not role.exclusive or not asked:
        return False
    try:
        cpus, memory = parse_cpuset(properties.get("CpusetCpus", "")), parse_cpuset(properties.get("CpusetMems", ""))
    except ValueError:
        return False
    if cpus.bit_count() != asked or cpus & ~machine.cpus.all:
        return False
    return not role.binds or (memory.bit_count() == 1 and machine.cpus.nodes_with(cpus) == memory)


def take_slots(records: Mapping[str, PodRecord], node: str, others: Iterable[PodRecord] = ()) -> None:
    """Gives pods of claims the slots on this node whose zones they have, as far as neither they nor others have these."""
    taken: dict[str, set[int]] = {}
    for other in others:
        taken.setdefault(other.pod.claim, set()).add(other.slot)
    for record in records.values():
        try:
            of_claim = slot_zones(record.pod, node)
        except BadClaim:
            continue
        used = taken.setdefault(record.pod.claim, set())
        infos = [info for given in record.containers.values() for info in given.values()]
        has = sum({1 << zone for info in infos for hint in info.resource_hints for zone in hint.nodes})
        for slot, zones in enumerate(of_claim):
            if slot not in used and not (zones and has & ~zones):
                used.add(slot)
                record.slot, record.zones = slot, zones
                break
