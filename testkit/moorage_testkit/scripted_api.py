"""Runs a scripted API server with collections and watches that fails on command, also in ways that are rare with a real
one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import yaml
from aiohttp import web

from .failing_api import FailingServer, Object, error_event, failure, hang_up


def write_kubeconfig(path: Path, url: str, **user: Any) -> Path:
    """Writes the configuration of a client that logs in as a user with these fields."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


class ScriptedServer(FailingServer):
    def __init__(self) -> None:
        super().__init__()
        self.collections: dict[str, dict[str, Object]] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.version = 100
        self.forgotten = 0  # watches from before this version are too old
        self.page_expires = False
        self._changed = asyncio.Condition()

    # --- objects

    async def put(self, path: str, name: str, **fields: Any) -> None:
        items = self.collections.setdefault(path, {})
        before = items.get(name)
        uid = before["metadata"]["uid"] if before else f"{name}-{self.version}"
        self.version += 1
        meta = {"name": name, "uid": uid, "resourceVersion": str(self.version), **fields.pop("metadata", {})}
        items[name] = {"metadata": meta, **fields}
        await self._notify(path, "MODIFIED" if before else "ADDED", items[name])

    async def drop(self, path: str, name: str) -> None:
        gone = self.collections[path].pop(name)
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        await self._notify(path, "DELETED", gone)

    async def _notify(self, path: str, kind: str, obj: Object) -> None:
        copy = msgspec.json.decode(msgspec.json.encode(obj))
        self.history.append((self.version, path, kind, copy))
        async with self._changed:
            self._changed.notify_all()

    # --- answering

    async def _answer(self, request: web.Request, fault: str) -> web.StreamResponse:
        if fault.isdigit():
            return failure(int(fault), "Expired" if fault == "410" else "Fault")
        path = "/" + request.match_info["path"]
        if request.method == "GET" and path in self.collections:
            if request.query.get("watch"):
                return await self._watch(request, path, fault)
            return self._list(request, path)
        return await self.other(request, path)

    async def other(self, request: web.Request, path: str) -> web.StreamResponse:
        return failure(404, "NotFound")

    def _list(self, request: web.Request, path: str) -> web.Response:
        items = [self.collections[path][name] for name in sorted(self.collections[path])]
        limit, start = int(request.query.get("limit", "0")), int(request.query.get("continue", "0"))
        if start and self.page_expires:
            self.page_expires = False
            return failure(410, "Expired")
        page = items[start : start + limit] if limit else items
        more = str(start + limit) if limit and start + limit < len(items) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        return web.json_response({"kind": "List", "metadata": metadata, "items": page or None})

    async def _watch(self, request: web.Request, path: str, fault: str) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if fault == "close":
            return response
        if fault == "junk":
            await response.write(b"<html>not an event</html>\n")
            return response
        if fault == "partial":
            await response.write(b'{"type":"ADDED","object":{"kind"')
            return response
        if at < self.forgotten:
            await response.write(error_event(410, "Expired"))
            return response
        with self._streaming():
            try:
                while True:
                    for version, where, kind, obj in list(self.history):
                        if where == path and version > at:
                            at = version
                            if fault != "silent" and self.fault(request) != "silent":
                                await response.write(msgspec.json.encode({"type": kind, "object": obj}) + b"\n")
                    async with self._changed:
                        await self._changed.wait()
            except asyncio.CancelledError:
                hang_up(request)
                return response
