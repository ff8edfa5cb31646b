"""A real control plane with machines installed, as an administrator of it sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
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
            with urllib.request.urlopen(request, timeout=20, context=self._tls) as response:
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
        for plural in ("machines", "machinenodepools"):  # until the server serves what it has just learnt
            while True:
                try:
                    self.call("GET", f"/apis/{GROUP_VERSION}/{plural}")
                    break
                except Refused:
                    await asyncio.sleep(0.1)
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/moorage-machines/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
        self.kubeconfig.write_bytes(msgspec.json.encode(self.plane.config(token)))

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
        plane = self._cluster.plane
        kubeconfig = str(self._cluster.kubeconfig)
        command = [sys.executable, "-m", "moorage.cli", "machines", "--kubeconfig", kubeconfig, *self._options]
        descriptor, name = tempfile.mkstemp(prefix="machines-", suffix=".log", dir=plane.directory)
        self.log = Path(name)
        with os.fdopen(descriptor, "ab") as out:
            self.process = subprocess.Popen(command, env={**os.environ, **self._environment}, stdout=out, stderr=out)

    def is_ready(self) -> bool:
        """Returns whether it has said so."""
        if self.process.poll() is not None:
            raise RuntimeError(f"machines ended:\n{self.log.read_text()[-3000:]}")
        return any(line.startswith("ready https://") for line in self.log.read_text().splitlines())

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        ended(self.process, 20)

    def remove(self) -> None:
        if self.process.poll() is None:
            self.stop()
