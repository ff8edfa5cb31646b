"""A real control plane with machines installed, as an administrator of it sees it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec

from moorage.kube import Api, connect
from moorage.machine_groups.names import GROUP_VERSION, NAMESPACE_LABELS
from moorage.model.object_names import NAMESPACE

from .control_plane import ControlPlane
from .mesh import ended

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
_PODS = "/api/v1/namespaces/{}/pods"


class Refused(Exception):
    """The API server refused a request; with its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class MachineCluster:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        # Without the certificates of all authorities, which take longer to load than a request.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Object:
        request = urllib.request.Request(
            self.plane.url + path,
            method=method,
            data=None if body is None else msgspec.json.encode(body),
            headers={"Authorization": f"Bearer {self.plane.token}", "Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as response:
                found: Object = msgspec.json.decode(response.read())
                return found
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                message = msgspec.json.decode(text).get("message", "")
            except msgspec.DecodeError:
                message = text.decode()
            raise Refused(error.code, message) from None

    def find(self, path: str) -> Object | None:
        try:
            return self.call("GET", path)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    @property
    def kubeconfig(self) -> Path:
        """Returns a kubeconfig of the service account of machines."""
        return self.plane.directory / "machines.kubeconfig"

    async def install(self, installer: Callable[[Api], Awaitable[None]]) -> None:
        """Installs machines by `installer`, and lets processes log in as its service account."""
        api = await connect(self.plane.kubeconfig)
        try:
            await installer(api)
        finally:
            await api.close()
        while not self.serves_machines():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/moorage-machines/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
        self.kubeconfig.write_bytes(msgspec.json.encode(self.plane.config(token)))

    def serves_machines(self) -> bool:
        """Returns whether the server serves the kinds of Machines, which it does some time after it learnt their definitions."""
        try:
            for plural in ("machines", "machinenodepools"):
                self.call("GET", f"/apis/{GROUP_VERSION}/{plural}")
        except Refused:
            return False
        return True

    def namespace(self, name: str, label: str | None = NAMESPACE_LABELS[0]) -> None:
        labels = {label: "enabled"} if label else {}
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})

    def machine(self, document: Object) -> Object:
        return self.call("POST", f"/apis/{GROUP_VERSION}/machines", document)

    def get_machine(self, name: str) -> Object:
        return self.call("GET", f"/apis/{GROUP_VERSION}/machines/{name}")

    def usage(self, name: str) -> dict[str, tuple[int, int, int, int]]:
        """Returns maximum, reserved, used and waiting of each type."""
        rows = (self.get_machine(name).get("status") or {}).get("availableMachines") or ()
        names = ("maximum", "reserved", "used", "waiting")
        return {row["name"]: tuple(row["usage"][name] for name in names) for row in rows}

    def conditions(self, name: str) -> dict[str, str]:
        found = (self.get_machine(name).get("status") or {}).get("conditions") or ()
        return {condition["type"]: condition["status"] for condition in found}

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        query = f"?labelSelector={quote(selector)}" if selector else ""
        items: list[Object] = self.call("GET", _PODS.format(namespace) + query)["items"]
        return items

    def bound(self, namespace: str, selector: str = "") -> list[str]:
        """Returns the Nodes of Pods that are bound and neither over nor ending."""
        return sorted(
            pod["spec"]["nodeName"]
            for pod in self.pods(namespace, selector)
            if pod["spec"].get("nodeName")
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        )

    def pod(self, namespace: str, name: str, labels: dict[str, str], *, query: str = "", **spec: Any) -> Object:
        spec = {"containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 0, **spec}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        return self.call("POST", _PODS.format(namespace) + query, body)

    def delete(self, path: str) -> None:
        self.call("DELETE", path)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Deletes a Pod; one that is gone meanwhile is as good."""
        try:
            self.delete(f"{_PODS.format(namespace)}/{name}")
        except Refused as refused:
            if refused.code != 404:
                raise

    def patch(self, path: str, body: Any) -> Object:
        return self.call("PATCH", path, body, MERGE)


class MachinesProcess:
    """A process `moorage machines` with the rights of its service account."""

    def __init__(self, cluster: MachineCluster, *options: str, **environment: str) -> None:
        self._cluster, self._options, self._environment = cluster, options, environment
        self.start()

    def start(self) -> None:
        plane, command = self._cluster.plane, [sys.executable, *self.command(str(self._cluster.kubeconfig))]
        descriptor, name = tempfile.mkstemp(prefix="machines-", suffix=".log", dir=plane.directory)
        self.log = Path(name)
        with os.fdopen(descriptor, "ab") as out:
            self.process = subprocess.Popen(command, env={**os.environ, **self._environment}, stdout=out, stderr=out)

    def command(self, kubeconfig: str) -> list[str]:
        return ["-m", "moorage.cli", "machines", "--kubeconfig", kubeconfig, *self._options]

    def is_ready(self) -> bool:
        """Returns whether it has said so."""
        if self.process.poll() is not None:
            raise RuntimeError(f"machines ended:\n{self.log.read_text()[-3000:]}")
        return any(line.startswith("ready https://") for line in self.log.read_text().splitlines())

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        ended(self.process, 60)

    def remove(self) -> None:
        if self.process.poll() is None:
            self.stop()


_REPLICA = """
import asyncio, sys
from moorage.machines.worker import main
kubeconfig, listen, url = sys.argv[1:]
asyncio.run(main(kubeconfig=kubeconfig, listen=listen, url=url, ready=lambda at: print(f"ready {at}", flush=True)))
"""


class Replica(MachinesProcess):
    """One of several processes behind one address, as those of a Deployment are behind a Service."""

    def __init__(self, cluster: MachineCluster, listen: str, url: str, **environment: str) -> None:
        self._listen, self._url = listen, url
        super().__init__(cluster, **environment)

    def command(self, kubeconfig: str) -> list[str]:
        return ["-c", _REPLICA, kubeconfig, self._listen, self._url]


class Balancer:
    """Hands each new connection to the next of several ports, as a Service does. `connections` counts them by port."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.connections = dict.fromkeys(ports, 0)
        self._turn = itertools.cycle(ports)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"https://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = next(self._turn)
        self.connections[port] += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(_copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()
