"""Answers the API server's questions about Pods and Machines. An answer rests on what reflectors know, and on the API server if they know
less than the request needs: a guest may come right after its Machine, and a Machine right after its Nodes."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import web

from moorage.machine_groups import read
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.injection import (
    Denied,
    MachineGroup,
    exceeded,
    guest_change,
    inject,
    machine_type_of,
)
from moorage.machine_groups.names import MACHINE_GROUP

from .hook_configurations import CHECK, INJECT, MACHINES

log = structlog.get_logger("machines")
MAX_BYTES = 8 << 20
#: Is told the outcome of a request (allowed, denied or failed) and the seconds that it took.
Observe = Callable[[str, float], None]


class _Request(msgspec.Struct, kw_only=True, rename="camel"):
    uid: str
    operation: str = ""
    namespace: str = ""
    name: str = ""
    sub_resource: str = ""
    user_info: dict[str, Any] = {}
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, kw_only=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_review = msgspec.json.Decoder(_Review).decode
_encode = msgspec.json.Encoder().encode

#: Returns the Machines as the API server has them now.
ListGroups = Callable[[], Awaitable[Mapping[str, MachineGroup]]]
#: Returns which of these Nodes the API server has now.
FindNodes = Callable[[Collection[str]], Awaitable[Collection[str]]]
Answer = tuple[Denied | None, list[dict[str, Any]], list[str]]


class Hooks:
    """`user`: the name with which this process changes guests. `look_for_other`: finds out whether another controller is still there."""

    def __init__(
        self,
        state: ClusterMachines,
        user: str,
        list_groups: ListGroups,
        find_nodes: FindNodes,
        look_for_other: Callable[[], Awaitable[None]],
        observe: Observe,
    ) -> None:
        self._state, self._user, self._list, self._observe = state, user, list_groups, observe
        self._find_nodes, self._look_for_other = find_nodes, look_for_other
        self._answers = {INJECT: self.inject, CHECK: self.check, MACHINES: self.check_machine}

    def server(self) -> web.Server:
        """Returns a server without routes and middleware: there are three paths, and the API server waits for each answer."""
        return web.Server(self._serve, access_log=None)

    async def _serve(self, http: web.BaseRequest) -> web.Response:
        began = time.perf_counter()
        answer = self._answers.get(http.path)
        if answer is None or http.method != "POST":
            return web.Response(status=404)
        if (http.content_length or 0) > MAX_BYTES:
            return web.Response(status=413)
        try:
            review = _review(await http.read())
        except (msgspec.DecodeError, RecursionError) as error:
            self._observe("failed", time.perf_counter() - began)
            return web.Response(status=400, text=f"not an AdmissionReview: {error}")
        denied, patch, warnings = await answer(review.request)
        response: dict[str, Any] = {"uid": review.request.uid, "allowed": denied is None}
        if denied is not None:
            message = f"{denied.code}: {denied.message}"
            response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        elif patch:
            response |= {"patchType": "JSONPatch", "patch": b64encode(_encode(patch)).decode()}
        if warnings:
            response["warnings"] = [text[:256] for text in warnings[:10]]
        body = _encode({"apiVersion": review.api_version, "kind": review.kind, "response": response})
        self._observe("denied" if denied is not None else "allowed", time.perf_counter() - began)
        return web.Response(body=body, content_type="application/json")

    async def _groups(self, pod: Mapping[str, Any]) -> Mapping[str, MachineGroup]:
        """Returns the Machines; those of the API server if the one that a Pod asks for is not known."""
        groups = self._state.groups()
        labels = (pod.get("metadata") or {}).get("labels") or {}
        name, wanted = labels.get(MACHINE_GROUP, ""), machine_type_of(labels)
        known = [g for n, g in groups.items() if (not name or n == name) and wanted in g.sizes]
        return groups if known else await self._list()

    async def _leave_to_other(self) -> Answer | None:
        """Returns the answer while another controller acts on Machines, which lets in guests by its own rules. From the moment it is gone,
        nobody else does."""
        if not self._state.other_controller:
            return None
        await self._look_for_other()
        if not self._state.other_controller:
            return None
        return None, [], [f"{self._state.other_controller} acts on Machines; nothing is done by this one"]

    async def inject(self, request: _Request) -> Answer:
        if (answer := await self._leave_to_other()) is not None:
            return answer
        pod = request.object or {}
        found = inject(pod, request.namespace, await self._groups(pod))
        if isinstance(found, Denied):
            return found, [], []
        return None, found.patch if found is not None else [], []

    async def check(self, request: _Request) -> Answer:
        if (answer := await self._leave_to_other()) is not None:
            return answer
        pod = request.object or {}
        if request.operation == "UPDATE":
            return await self._check_update(request, pod)
        found = inject(pod, request.namespace, await self._groups(pod))
        if isinstance(found, Denied):
            return found, [], []
        if found is not None and found.patch:
            paths = ", ".join(operation["path"] for operation in found.patch[:5])
            return Denied("NotAllowed", f"another hook changed what a guest needs: {paths}"), [], []
        return None, [], []

    async def _check_update(self, request: _Request, pod: Mapping[str, Any]) -> Answer:
        before = request.old_object or {}
        by_us = request.user_info.get("username") == self._user
        denied = guest_change(before, pod, by_controller=by_us)
        if denied is None and request.sub_resource == "resize":
            labels = (before.get("metadata") or {}).get("labels") or {}
            group = (await self._groups(before)).get(labels.get(MACHINE_GROUP, ""))
            size = group.sizes.get(machine_type_of(labels)) if group is not None else None
            if size is not None:
                slot = f"{labels.get(MACHINE_GROUP)}/{machine_type_of(labels)}"
                denied = exceeded(pod.get("spec") or {}, size, slot)
        return denied, [], []

    async def check_machine(self, request: _Request) -> Answer:
        machine = request.object or {}
        if (machine.get("metadata") or {}).get("deletionTimestamp"):
            return None, [], []  # finalizers are being removed
        around = self._state.surroundings(request.name, request.old_object)
        if request.operation == "UPDATE" and (request.old_object or {}).get("spec") == machine.get("spec"):
            around = around._replace(nodes=None, stored=True)
        found = read(machine, around)
        if around.nodes is not None and any(v.code == "UnknownNode" for v in found.violations):
            entries = [e for e in machine["spec"]["nodePool"] if isinstance(e, dict)]
            unknown = {name for e in entries if isinstance(name := e.get("name"), str) and name not in around.nodes}
            found = read(machine, around._replace(nodes={*around.nodes, *await self._find_nodes(unknown)}))
        warnings = [warning.message for warning in found.warnings]
        if self._state.other_controller:
            return None, [], warnings + [f"{v.path}: {v.message} [{v.code}]" for v in found.violations]
        if found.machine is None:
            text = "; ".join(f"{v.path}: {v.message} [{v.code}]" for v in found.violations)
            return Denied("Invalid", text), [], warnings
        return None, [], warnings
