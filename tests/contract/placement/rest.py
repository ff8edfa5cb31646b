"""A small JSON client of the Placement interface, and what empties the service over it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any


class Api:
    def __init__(self, url: str, token: str) -> None:
        found = urllib.parse.urlsplit(url)
        self._prefix = found.path.rstrip("/")
        self._token = token
        self._connection = http.client.HTTPConnection(found.netloc, timeout=60)

    def call(self, method: str, path: str, body: Any = None, mv: str = "1.36") -> tuple[int, Any]:
        """Returns the status and the decoded body."""
        headers = {
            "x-auth-token": self._token,
            "accept": "application/json",
            "openstack-api-version": f"placement {mv}",
        }
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        self._connection.request(method, self._prefix + path, data, headers)
        answer = self._connection.getresponse()
        found = answer.read()
        return answer.status, json.loads(found) if found.strip() else None

    def ok(self, method: str, path: str, body: Any = None, mv: str = "1.36") -> Any:
        status, found = self.call(method, path, body, mv)
        assert 200 <= status < 300, f"{method} {path} ({mv}): {status} {found}"
        return found

    def close(self) -> None:
        self._connection.close()


def purge(api: Api) -> None:
    """Removes all allocations, providers and custom names."""
    providers = api.ok("GET", "/resource_providers", mv="1.14")["resource_providers"]
    for provider in providers:
        held = api.ok("GET", f"/resource_providers/{provider['uuid']}/allocations", mv="1.12")["allocations"]
        for consumer in held:
            api.call("DELETE", f"/allocations/{urllib.parse.quote(consumer)}", mv="1.12")
    parents = {provider["uuid"]: provider["parent_provider_uuid"] for provider in providers}

    def depth(uuid: str) -> int:
        above = parents.get(uuid)
        return 0 if above is None else depth(above) + 1

    for uuid in sorted(parents, key=depth, reverse=True):
        api.ok("DELETE", f"/resource_providers/{uuid}", mv="1.14")
    for trait in api.ok("GET", "/traits?name=startswith:CUSTOM_", mv="1.6")["traits"]:
        api.ok("DELETE", f"/traits/{trait}", mv="1.6")
    for found in api.ok("GET", "/resource_classes", mv="1.7")["resource_classes"]:
        if found["name"].startswith("CUSTOM_"):
            api.ok("DELETE", f"/resource_classes/{found['name']}", mv="1.7")
