"""Sends HTTP requests to a mesh; error responses are returned, not raised."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .mesh import Mesh
from .polling import LEAST


class Response(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """The code of an error response."""
        return str(self.body.get("code")) if isinstance(self.body, dict) else ""


class HttpClient:
    def __init__(self, mesh: Mesh, prefix: str = "/v2") -> None:
        self.mesh, self.prefix = mesh, prefix

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        kind: str = "application/json",
        **headers: str,
    ) -> Response:
        """Sends a request. `body`: bytes as they are, anything else as JSON. `token`: "" sends none."""
        address = urlsplit(self.mesh.endpoint["http"])
        conn = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
        sent = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        bearer = self.mesh.endpoint["token"] if token is None else token
        if bearer:
            sent["Authorization"] = f"Bearer {bearer}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            conn.request(method, self.prefix + path, data, sent)
            reply = conn.getresponse()
            raw = reply.read()
            found: dict[str, str] = {}
            for key, value in reply.getheaders():
                found[key.lower()] = f"{found[key.lower()]}, {value}" if key.lower() in found else value
        finally:
            conn.close()
        return Response(reply.status, json.loads(raw) if "json" in found.get("content-type", "") else raw, found)

    def must(self, status: int, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answered = self(method, path, body, **more)
        assert answered.status == status, f"{method} {path}: {answered.status} {answered.body}"
        return answered.body

    def upload(self, method: str, path: str, body: Any, file: bytes, name: str = "file") -> Response:
        """Sends a multipart request with a document and a file, as EMCO's clients do."""
        boundary = "moorage-boundary"
        parts = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{json.dumps(body)}\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        )
        data = parts.encode() + file + f"\r\n--{boundary}--\r\n".encode()
        return self(method, path, data, kind=f"multipart/form-data; boundary={boundary}")

    def until(self, path: str, true: Callable[[Any], bool], seconds: float = 40) -> Any:
        end = time.monotonic() + max(seconds, LEAST)
        while True:
            found = self.must(200, "GET", path)
            if true(found):
                return found
            assert time.monotonic() < end, f"{path} is still {json.dumps(found)[:1500]}"
            time.sleep(0.1)
