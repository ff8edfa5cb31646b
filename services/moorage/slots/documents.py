"""Keeps Machines that are documents of the mesh: checks them, stores them, and hands them to the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from moorage.bus import Bus, Conflict, Entry, Incoming, new_id, now_text, subjects
from moorage.fleet import Fleet
from moorage.machine_groups.names import pool_name
from moorage.mesh import stores
from moorage.model.machines import Machine
from moorage.model.names import token
from moorage.model.problems import Problem, Refused, conflict, not_found
from moorage.parsing import yaml_json

from .core.mesh_machines import StoredMachine, accept, is_pool_of
from .service import SlotService

_decode = msgspec.json.Decoder(StoredMachine).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
_reply = msgspec.json.Encoder().encode


class MachineDocuments:
    """Runs while this worker holds the lease, so that one process at a time checks documents against each other."""

    def __init__(self, bus: Bus, service: SlotService, fleet: Fleet, is_certain: Callable[[], bool]) -> None:
        self._bus, self._service, self._fleet, self._is_certain = bus, service, fleet, is_certain
        self._bucket = bus.bucket(stores.MACHINES)
        self._applying = asyncio.Lock()

    async def start(self) -> None:
        for entry in await self._bucket.newest(">", 1 << 20):
            stored = _decode(entry.value)
            await self._service.set_document(stored.name, stored)
        await self._bus.serve(subjects.MACHINES_APPLY, self._apply)
        await self._bus.serve(subjects.MACHINES_DELETE, self._delete)

    async def _apply(self, incoming: Incoming) -> bytes | None:
        if not self._is_certain():
            return None  # the worker that holds the lease answers
        return _reply(await self.apply(yaml_json.parse_document(incoming.data)))

    async def _delete(self, incoming: Incoming) -> bytes | None:
        if not self._is_certain():
            return None
        return _reply(await self.delete(msgspec.json.decode(incoming.data, type=dict[str, Any])))

    async def apply(self, data: dict[str, Any]) -> dict[str, Any]:
        """Stores a document; with `check` it only says what would become of it."""
        check, cause = bool(data.pop("check", False)), str(data.pop("cause", "") or "")
        for name in ("id", "again", "traceparent", "ifMatch", "status", "origin"):
            data.pop(name, None)
        async with self._applying:
            if data.get("kind") == "MachineNodePool":
                return self._derived(data)
            machine, warnings = accept(data, self._service.documents, self._made_in_clusters(), self._clusters_with)
            before = self._service.documents.get(machine.name)
            outcome = "created" if before is None else "unchanged" if before.machine == machine else "updated"
            if not check and outcome != "unchanged":
                await self._store(machine, before, data)
                await self._tell("created" if before is None else "changed", machine.name, cause)
        reply: dict[str, Any] = {"accepted": True, "name": machine.name, "group": "", "revision": 0, "outcome": outcome}
        stored = self._service.documents.get(machine.name)
        reply["revision"] = stored.generation if stored is not None else 0
        return reply | ({"warnings": warnings} if warnings else {})

    async def _store(self, machine: Machine, before: StoredMachine | None, data: dict[str, Any]) -> None:
        stored = StoredMachine(
            machine=machine,
            uid=before.uid if before is not None else new_id(),
            generation=before.generation + 1 if before is not None else 1,
            created=before.created if before is not None else now_text(),
            spec=data.get("spec") or {},
        )

        async def changed(_: Entry | None) -> bytes:
            return _encode(stored)

        try:
            await self._bucket.modify(token(machine.name), changed)
        except Conflict:
            raise Refused(conflict(f"Machine {machine.name} keeps changing; try again")) from None
        await self._service.set_document(machine.name, stored)

    async def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        name = str(request.get("name", ""))
        async with self._applying:
            if name not in self._service.documents:
                what = f"Machine {name} among those of the mesh (one that was made in a cluster is deleted there)"
                raise Refused(not_found(what if "/" in name else f"Machine {name}"))
            await self._bucket.delete(token(name))
            await self._service.set_document(name, None)
            await self._tell("deleted", name, str(request.get("cause", "")))
        return {"name": name, "group": "", "revision": 0, "outcome": "deleted"}

    def _derived(self, data: dict[str, Any]) -> dict[str, Any]:
        """Refuses changes of what is made from Machines."""
        name = str((data.get("metadata") or {}).get("name") or "")
        for stored in self._service.documents.values():
            if name == pool_name(stored.name) and is_pool_of(stored.machine, data):
                return {"accepted": True, "name": name, "group": "", "revision": 0, "outcome": "unchanged"}
        detail = f"MachineNodePool {name} is made from its Machine; change spec.nodePool there"
        raise Refused(Problem(title="Derived", status=409, code="Derived", detail=detail))

    def _made_in_clusters(self) -> list[tuple[str, Machine]]:
        return [
            (cluster.name, report.machine)
            for cluster in self._service.clusters.values()
            for report in cluster.machines.values()
            if report.machine is not None and report.origin == "cluster" and not report.deleting
        ]

    def _clusters_with(self, node: str) -> list[str]:
        return sorted(name for name, cid in self._fleet.ids.items() if self._fleet.row_of(cid, node) is not None)

    async def _tell(self, change: str, name: str, cause: str) -> None:
        await self._bus.emit(subjects.machine_event(change, name), {"kind": "Machine", "name": name}, cause=cause)
