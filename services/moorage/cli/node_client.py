"""Asks the node agent on this machine, by HTTP over its socket."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .exit_codes import FORBIDDEN, UNREACHABLE, Failure, of_status

DEFAULT_ROOT = Path("/var/lib/moorage/node")
#: A change of pools takes as long as the runtime does.
_TIMEOUT = 60.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(str(self._path))


class NodeClient:
    def __init__(self, root: Path) -> None:
        self._path = root / "node.sock"

    def get(self, path: str, **query: str) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        return self._ask("POST", path, json.dumps(body).encode())

    def send(self, path: str, body: bytes) -> dict[str, Any]:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        connection = _Connection(self._path)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            data = response.read()
        except PermissionError as error:
            raise Failure(f"{self._path}: only root and the agent's own user may ask it", FORBIDDEN) from error
        except OSError as error:
            hint = "is it running? Name its directory with --root"
            raise Failure(f"no node agent at {self._path}: {error.strerror or error}; {hint}", UNREACHABLE) from error
        finally:
            connection.close()
        found: dict[str, Any] = json.loads(data or b"{}")
        if response.status >= 400:
            raise Failure(str(found.get("detail") or f"HTTP {response.status}"), of_status(response.status))
        return found
