"""Keeps what the agent must not forget: what each container has, and what the kubelet asked for before."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from moorage.model.base import Model
from moorage.qos.admission import PodRecord
from moorage.qos.messages import PodAllocations, PodSpec, ResourceAllocation, ResourceAllocationInfo
from moorage.qos.state_file import BadState, seal, unseal

#: By the id of a container, before by its name: what the kubelet asked for of the properties that plugins decide.
Asked = dict[str, dict[str, str]]


class Checkpoint(Model, kw_only=True):
    """By pod uid: records, and what the kubelet asked for. `resources`: all that plugins were registered for."""

    records: dict[str, PodRecord] = {}
    asked: dict[str, Asked] = {}
    resources: list[str] = []


class _PodPart(Model, kw_only=True):
    """What stands of a pod beside the allocations of its containers."""

    pod: PodSpec
    claim: str = ""
    seat: int = -1
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
                    seat=record.seat,
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
                seat=part.seat,
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
) -> dict[str, PodRecord]:
    """Makes records of the pods that run, from what plugins answer, by resource, then from the copies in the containers'
    annotations, then from the properties of their cgroups, by pod and container. What a pod without a role has in its cgroup
    is nothing that it was given."""
    records = {}
    for uid, pod in pods.items():
        containers: dict[str, ResourceAllocation] = {}
        for spec in pod.containers:
            allocation = dict(copies.get(uid, {}).get(spec.name, {}))
            for found in answers.values():
                given = found.get(uid, {})
                allocation.update(given.get(spec.name, given.get("", {})))
            if not allocation and pod.role:
                allocation = _of_cgroup(cgroups.get(uid, {}).get(spec.name, {}))
            if allocation:
                containers[spec.name] = allocation
        if containers:
            records[uid] = PodRecord(pod=pod, containers=containers)
    return records


def _of_cgroup(properties: Mapping[str, str]) -> ResourceAllocation:
    return {
        resource: ResourceAllocationInfo(
            oci_property_name=name, is_scalar_resource=True, allocation_result=properties[name]
        )
        for resource, name in (("cpu", "CpusetCpus"), ("memory", "CpusetMems"))
        if properties.get(name)
    }
